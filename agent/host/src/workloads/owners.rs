//! What is known about an owner, as the model has it.

use std::collections::BTreeMap;

use model::workload::{Owner, ProcessKey};

use super::{facts::Stat, profile::Profile, sweep::Held};

/// An owner from one look to the next.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) profile: Profile,
    /// Descriptors, and what each holds.
    pub(super) held: Vec<(u32, Held)>,
}

impl Known {
    /// Its key.
    pub(super) fn key(&self, pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: self.profile.stat.start_ticks }
    }

    /// The owner, endpoints apart.
    pub(super) fn owner(&self, pid: u32, forked_from: Option<u32>, notes: Vec<String>) -> Owner {
        let profile = &self.profile;
        let mut owner = Owner {
            process: self.key(pid),
            container_pid: profile.status.container_pid,
            uid: profile.status.uid,
            gid: profile.status.gid,
            command: profile.command.clone(),
            environment: profile.environment.clone(),
            libtpu: profile.libtpu.clone(),
            framework: profile.framework.clone(),
            pid_namespace: profile.pid_namespace,
            network_namespace: profile.network_namespace,
            job: profile.job.clone(),
            notes: profile.notes.clone(),
            ..Owner::default()
        };
        if let Some(parent) = forked_from {
            owner.notes.push(format!("it is a fork of process {parent} and has inherited what that holds"));
        }
        for (_, held) in &self.held {
            match held {
                Held::Chip(chip) => owner.chips.push(*chip),
                Held::Stray(name) => {
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

/// The owner that this one is a fork of: a data loader, say, which has inherited the descriptors. An exec would
/// have moved its environment.
pub(super) fn forked_from(owners: &BTreeMap<u32, Known>, known: &Known) -> Option<u32> {
    let Stat { parent, image, .. } = known.profile.stat;
    let of_parent = owners.get(&parent)?;
    (image != 0 && of_parent.profile.stat.image == image).then_some(parent)
}
