//! What is known about an owner between two ticks, and its conversion to the model's type.

use std::collections::BTreeMap;

use model::workload::{Owner, ProcessKey};

use super::{process_details::ProcessDetails, process_scan::HeldDevice, process_status::ProcessStat};

/// An owner between two ticks.
#[derive(Debug)]
pub(super) struct KnownOwner {
    pub(super) details: ProcessDetails,
    /// Descriptors of accelerators, and the device of each.
    pub(super) held: Vec<(u32, HeldDevice)>,
}

impl KnownOwner {
    /// Its key.
    pub(super) fn key(&self, pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: self.details.stat.start_ticks }
    }

    /// The owner without its endpoints.
    pub(super) fn owner(&self, pid: u32, forked_from: Option<u32>, notes: Vec<String>) -> Owner {
        let details = &self.details;
        let mut owner = Owner {
            process: self.key(pid),
            container_pid: details.ids.container_pid,
            uid: details.ids.uid,
            gid: details.ids.gid,
            command: details.command.clone(),
            environment: details.environment.clone(),
            libtpu: details.libtpu.clone(),
            framework: details.framework.clone(),
            pid_namespace: details.pid_namespace,
            network_namespace: details.network_namespace,
            job: details.job.clone(),
            notes: details.notes.clone(),
            ..Owner::default()
        };
        if let Some(parent) = forked_from {
            owner.notes.push(format!("it is a fork of process {parent} and has inherited its descriptors"));
        }
        for (_, held) in &self.held {
            match held {
                HeldDevice::Chip(chip) => owner.chips.push(*chip),
                HeldDevice::Unlisted(name) => {
                    owner
                        .notes
                        .push(format!("it holds /dev/{name}, which belongs to no chip that sysfs shows"));
                }
            }
        }
        owner.chips.sort_unstable();
        owner.chips.dedup();
        owner.notes.extend(notes);
        owner
    }
}

/// The owner that this one is a fork of, for example a data loader that has inherited the descriptors. An exec would
/// have moved its environment.
pub(super) fn forked_from(owners: &BTreeMap<u32, KnownOwner>, known: &KnownOwner) -> Option<u32> {
    let ProcessStat { parent, image, .. } = known.details.stat;
    let of_parent = owners.get(&parent)?;
    (image != 0 && of_parent.details.stat.image == image).then_some(parent)
}
