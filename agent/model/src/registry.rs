//! The workloads that run on this host, by job: who they are, when one started and when it ended.
//!
//! ```text
//!             a process is seen                a process joins or leaves
//!   unknown ────────────────────▶ running ─────────────────────────────┐
//!      ▲          started          │  ▲──────────────────────────────────┘
//!      └───────────────────────────┘
//!        the last process is gone, or the next attempt replaced it: ended
//! ```
//!
//! A pure state machine: no I/O and no clock. Must never call a workload ended because nothing could be seen: a scan
//! that failed is not to be handed in. Must never give two objects to one workload that has not changed: samples
//! refer to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    job::Job,
    time::Timestamp,
    workload::{Owner, ProcessKey, Workload, WorkloadId},
    workload_label,
};

/// What happened to a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadEvent {
    /// Its first process was seen.
    Started {
        /// The workload.
        workload: Arc<Workload>,
        /// When it was seen.
        at: Timestamp,
    },
    /// Its last process is gone.
    Ended {
        /// The workload as it was last seen.
        workload: Arc<Workload>,
        /// When that was seen.
        at: Timestamp,
    },
}

/// The running workloads.
#[derive(Debug, Clone, Default)]
pub struct WorkloadRegistry {
    running: BTreeMap<WorkloadId, Arc<Workload>>,
}

impl WorkloadRegistry {
    /// The running workloads, by id.
    pub fn running(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.running.values()
    }

    /// Takes in all owners that one complete scan found; gives what happened since the scan before, ends first.
    pub fn observe(&mut self, owners: &[Owner], at: Timestamp) -> Vec<WorkloadEvent> {
        let mut seen = by_workload(owners);
        let (mut ended, mut started) = (Vec::new(), Vec::new());
        let mut labels = BTreeSet::new();
        self.running.retain(|id, known| {
            let Some(Members { job, processes, .. }) = seen.remove(id) else {
                ended.push(WorkloadEvent::Ended { workload: known.clone(), at });
                return false;
            };
            labels.insert((id.kind, known.label.clone()));
            let label = known.label.clone();
            let now = Workload { id: id.clone(), label, job: job.clone(), owners: processes };
            if now == **known {
                return true;
            }
            let restarted = is_next_attempt(known, &now);
            let now = Arc::new(now);
            let before = std::mem::replace(known, now.clone());
            if restarted {
                ended.push(WorkloadEvent::Ended { workload: before, at });
                started.push(WorkloadEvent::Started { workload: now, at });
            }
            true
        });
        let mut new: Vec<_> = seen.into_iter().collect();
        // The oldest gets the plain label, whichever scan sees it first.
        new.sort_by_key(|(_, members)| (members.first.process.start_ticks, members.first.process.pid));
        for (id, Members { job, first, processes: owners }) in new {
            let label = workload_label::choose(job, first, &labels);
            labels.insert((id.kind, label.clone()));
            let workload = Arc::new(Workload { id: id.clone(), label, job: job.clone(), owners });
            started.push(WorkloadEvent::Started { workload: workload.clone(), at });
            self.running.insert(id, workload);
        }
        ended.append(&mut started);
        ended
    }
}

/// Whether the job started again between two scans: it says so, or none of its processes is left.
fn is_next_attempt(before: &Workload, now: &Workload) -> bool {
    let says_so = before.job.attempt.is_some() && now.job.attempt.is_some();
    let none_left = !before.owners.iter().any(|process| now.owners.contains(process));
    none_left || (says_so && before.job.attempt != now.job.attempt)
}

/// The processes of one workload.
struct Members<'a> {
    /// The job as the first of them shows it.
    job: &'a Job,
    first: &'a Owner,
    processes: Vec<ProcessKey>,
}

/// The processes of each workload, rising, and the job as the first of them shows it.
fn by_workload(owners: &[Owner]) -> BTreeMap<WorkloadId, Members<'_>> {
    let mut sorted: Vec<&Owner> = owners.iter().collect();
    sorted.sort_by_key(|owner| owner.process);
    let mut all: BTreeMap<WorkloadId, Members<'_>> = BTreeMap::new();
    for owner in sorted {
        let new = || Members { job: &owner.job, first: owner, processes: Vec::new() };
        let members = all.entry(WorkloadId::of(&owner.job, owner.uid)).or_insert_with(new);
        members.processes.push(owner.process);
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::JobKind;

    /// A process of a job, in one of its attempts.
    fn owner(pid: u32, job: &str, attempt: Option<u32>) -> Owner {
        Owner {
            process: ProcessKey { pid, start_ticks: 1 },
            job: Job { kind: JobKind::Slurm, id: job.to_owned(), attempt, ..Job::default() },
            ..Owner::default()
        }
    }

    /// Events as `+job` and `-job`.
    fn shown(events: &[WorkloadEvent]) -> Vec<String> {
        events
            .iter()
            .map(|event| match event {
                WorkloadEvent::Started { workload, .. } => format!("+{}", workload.id.job),
                WorkloadEvent::Ended { workload, .. } => format!("-{}", workload.id.job),
            })
            .collect()
    }

    #[test]
    fn a_workload_starts_with_its_first_process_and_ends_with_its_last() {
        let mut registry = WorkloadRegistry::default();
        let (a, b, other) = (owner(1, "a", None), owner(2, "a", None), owner(3, "b", None));
        assert_eq!(shown(&registry.observe(&[b.clone(), a.clone()], Timestamp(1))), ["+a"]);
        let first = registry.running().next().unwrap().clone();
        assert_eq!(first.owners, [a.process, b.process]);
        assert_eq!(shown(&registry.observe(&[a.clone(), b.clone(), other.clone()], Timestamp(2))), ["+b"]);
        assert!(Arc::ptr_eq(&first, registry.running().next().unwrap()), "nothing changed");
        assert_eq!(shown(&registry.observe(&[b, other.clone()], Timestamp(3))), Vec::<String>::new());
        let ended = registry.observe(&[other], Timestamp(4));
        let WorkloadEvent::Ended { workload, at } = &ended[0] else { panic!("{ended:?}") };
        assert_eq!((workload.id.job.as_str(), workload.owners.len(), *at), ("a", 1, Timestamp(4)));
    }

    #[test]
    fn a_next_attempt_ends_the_one_before() {
        let mut registry = WorkloadRegistry::default();
        registry.observe(&[owner(1, "a", Some(0)), owner(2, "a", Some(0))], Timestamp(1));
        let new_processes = [owner(3, "a", None)];
        assert_eq!(shown(&registry.observe(&new_processes, Timestamp(2))), ["-a", "+a"]);
        registry.observe(&[owner(3, "a", Some(1))], Timestamp(3));
        assert_eq!(shown(&registry.observe(&[owner(3, "a", Some(2))], Timestamp(4))), ["-a", "+a"]);
    }

    /// A bare process.
    fn bare(pid: u32, start_ticks: u64) -> Owner {
        let job = Job { id: format!("{pid}-{start_ticks}"), ..Job::default() };
        let process = ProcessKey { pid, start_ticks };
        Owner { process, job, command: "python3".into(), ..Owner::default() }
    }

    fn labels(registry: &WorkloadRegistry) -> Vec<(u32, &str)> {
        registry.running().map(|workload| (workload.owners[0].pid, workload.label.as_str())).collect()
    }

    #[test]
    fn a_restarted_process_has_the_label_of_the_one_before() {
        let mut registry = WorkloadRegistry::default();
        registry.observe(&[bare(10, 7), bare(20, 5)], Timestamp(1));
        assert_eq!(labels(&registry), [(10, "python3#2"), (20, "python3")]);
        registry.observe(&[bare(10, 7), bare(30, 9)], Timestamp(2));
        assert_eq!(labels(&registry), [(10, "python3#2"), (30, "python3")]);
        registry.observe(&[bare(30, 9), bare(40, 11)], Timestamp(3));
        assert_eq!(labels(&registry), [(30, "python3"), (40, "python3#2")]);
    }

    #[test]
    fn jobs_of_two_users_with_one_id_are_two_workloads() {
        let of_user = |pid, uid| Owner {
            process: ProcessKey { pid, start_ticks: u64::from(pid) },
            job: Job { kind: JobKind::Run, id: "clash".into(), ..Job::default() },
            uid,
            ..Owner::default()
        };
        let mut registry = WorkloadRegistry::default();
        registry.observe(&[of_user(10, 10001), of_user(20, 0), of_user(30, 10001)], Timestamp(1));
        assert_eq!(labels(&registry), [(20, "clash#2"), (10, "clash")]);
        let of_one: Vec<_> = registry.running().map(|workload| workload.owners.len()).collect();
        assert_eq!(of_one, [1, 2]);
        registry.observe(&[of_user(20, 0)], Timestamp(2));
        assert_eq!(labels(&registry), [(20, "clash#2")], "a label stays while its workload runs");
    }

    proptest! {
        /// Whatever the scans show: starts and ends of a job alternate, what runs is what the last scan showed, every
        /// process is in one workload, and what did not change is the same object.
        #[test]
        fn the_registry_follows_the_scans(
            scans in prop::collection::vec(
                prop::collection::btree_map(0_u32..8, (0_u32..4, prop::option::of(0_u32..2)), 0..8),
                1..30,
            )
        ) {
            let mut registry = WorkloadRegistry::default();
            let mut alive: BTreeSet<WorkloadId> = BTreeSet::new();
            for (at, scan) in (0..).zip(&scans) {
                let owners: Vec<Owner> =
                    scan.iter().map(|(pid, (job, attempt))| owner(*pid, &job.to_string(), *attempt)).collect();
                let before: Vec<Arc<Workload>> = registry.running().cloned().collect();
                for event in registry.observe(&owners, Timestamp(at)) {
                    match event {
                        WorkloadEvent::Started { workload, .. } => prop_assert!(alive.insert(workload.id.clone())),
                        WorkloadEvent::Ended { workload, .. } => prop_assert!(alive.remove(&workload.id)),
                    }
                }
                let running: BTreeSet<_> = registry.running().map(|workload| workload.id.clone()).collect();
                prop_assert_eq!(&running, &alive);
                let mut processes: Vec<_> = registry.running().flat_map(|workload| workload.owners.clone()).collect();
                processes.sort_unstable();
                let wanted: Vec<_> = owners.iter().map(|owner| owner.process).collect();
                prop_assert_eq!(processes, wanted);
                for workload in registry.running() {
                    let known = before.iter().find(|known| known.id == workload.id);
                    let same = known.is_some_and(|known| Arc::ptr_eq(known, workload));
                    prop_assert_eq!(same, known.is_some_and(|known| **known == **workload));
                }
            }
        }
    }
}
