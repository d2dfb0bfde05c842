//! What is known about an owner between two ticks, and its conversion to the model's type.

use std::collections::BTreeMap;

use model::{
    job::JobKind,
    workload::{Owner, ProcessKey},
};

use super::{
    process_details::ProcessDetails, process_life::ProcessLife, process_scan::HeldDevice,
    process_status::ProcessStat, profiler_history::ProfilerHistory,
};

/// Forks of forks of a process that are told to be of its job.
const MOST_GENERATIONS: usize = 8;

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

    /// Whether both hold one device.
    fn shares_device(&self, other: &Self) -> bool {
        let has = |device: &HeldDevice| other.held.iter().any(|(_, held)| held == device);
        self.held.iter().any(|(_, device)| has(device))
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

/// Gives forks that hold a device of their parent the job of that, where processes are jobs of their own: the workers of a
/// data loader are no jobs. They keep it when the parent ends before them.
pub(super) fn join_forks(owners: &mut BTreeMap<u32, KnownOwner>) {
    // A fork of a fork needs as many rounds as there are forks above it.
    for _ in 0..MOST_GENERATIONS {
        let joined = owners.iter().filter_map(|(pid, known)| {
            let parent = owners.get(&forked_from(owners, known)?)?;
            let (own, job) = (&known.details.job, &parent.details.job);
            let are_bare = own.kind == JobKind::Process && job.kind == JobKind::Process;
            (are_bare && own.id != job.id && known.shares_device(parent)).then(|| (*pid, job.clone()))
        });
        let joined: Vec<_> = joined.collect();
        if joined.is_empty() {
            return;
        }
        for (pid, job) in joined {
            if let Some(known) = owners.get_mut(&pid) {
                known.details.job = job;
            }
        }
    }
}

/// The owner that this one is a fork of, for example a data loader that has inherited the descriptors. An exec would
/// have moved its environment.
pub(super) fn forked_from(owners: &BTreeMap<u32, KnownOwner>, known: &KnownOwner) -> Option<u32> {
    let ProcessStat { parent, image, .. } = known.details.stat;
    let of_parent = owners.get(&parent)?;
    (image != 0 && of_parent.details.stat.image == image).then_some(parent)
}
