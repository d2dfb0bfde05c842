//! What is known about an owner between two ticks, and its conversion to the model's type.

use std::collections::BTreeMap;

use model::workload::{Owner, ProcessKey};

use super::{
    process_details::ProcessDetails, process_life::ProcessLife, process_scan::HeldDevice,
    process_status::ProcessStat, profiler_history::ProfilerHistory,
};

/// An owner between two ticks.
#[derive(Debug)]
pub(super) struct KnownOwner {
    pub(super) details: ProcessDetails,
    /// Descriptors of accelerators, and the device of each.
    pub(super) held: Vec<(u32, HeldDevice)>,
    /// The profilers that it has had.
    pub(super) profilers: ProfilerHistory,
    /// Tells when it has ended.
    pub(super) life: ProcessLife,
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
            versions: details.versions.clone(),
            pid_namespace: details.pid_namespace,
            network_namespace: details.network_namespace,
            job: details.job.clone(),
            notes: details.notes.clone(),
            ..Owner::default()
        };
        if let Some(parent) = forked_from {
            owner.notes.push(format!("it is a fork of process {parent} and has inherited its descriptors"));
        }
        if details.stat.stopped {
            owner
                .notes
                .push("it is stopped, by a signal or a debugger, and still holds its chips".to_owned());
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

/// Marks processes that hold the same chip. A fork has its own note.
pub(super) fn mark_shared_chips(owners: &mut [Owner], is_fork: impl Fn(u32) -> bool) {
    let mut notes = Vec::new();
    for (position, owner) in owners.iter().enumerate() {
        let others = owners.iter().filter(|other| other.process != owner.process);
        let others = others.filter(|other| !is_fork(other.process.pid) && !is_fork(owner.process.pid));
        for other in others {
            let shared: Vec<String> = owner
                .chips
                .iter()
                .filter(|chip| other.chips.contains(chip))
                .map(|chip| chip.0.to_string())
                .collect();
            if !shared.is_empty() {
                let pid = other.process.pid;
                notes.push((position, format!("process {pid} also holds chip {}", shared.join(", "))));
            }
        }
    }
    for (position, note) in notes {
        owners[position].notes.push(note);
    }
}

/// The owner that this one is a fork of, for example a data loader that has inherited the descriptors. An exec would
/// have moved its environment.
pub(super) fn forked_from(owners: &BTreeMap<u32, KnownOwner>, known: &KnownOwner) -> Option<u32> {
    let ProcessStat { parent, image, .. } = known.details.stat;
    let of_parent = owners.get(&parent)?;
    (image != 0 && of_parent.details.stat.image == image).then_some(parent)
}
