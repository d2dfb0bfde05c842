//! The jobs of the processes that discovery sees, and what changed since it last looked. Pure.
//!
//! Which workloads run is decided by `model::registry`: a process that it calls running and that cannot be seen now has
//! not ended.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    job::{JobKey, JobKind},
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Owner, ProcessKey},
};

use crate::{
    attempt::{JobDescription, MAX_HOSTS},
    configuration::{self, SystemFacts},
    record::{AttemptEvent, Happening, JobRecord, Sighting},
};

/// A job as processes show it: they may not know their attempt.
type ShownJob = (JobKey, Option<u32>);

/// What was seen of a job at the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenJob {
    sighting: Sighting,
    /// The last time at which it was seen, where that is not the last look: an earlier agent saw it, or its end could not
    /// be kept.
    last_heard_of: Option<Timestamp>,
}

/// The jobs that were seen at the last look.
#[derive(Debug, Clone, Default)]
pub struct ObservedJobs {
    seen: BTreeMap<ShownJob, SeenJob>,
}

/// The job that a process shows.
pub fn key_of(owner: &Owner) -> JobKey {
    let job = &owner.job;
    let cluster = slurm_variable(owner, "SLURM_CLUSTER_NAME").unwrap_or_default();
    JobKey { kind: job.kind, cluster: cluster.to_owned(), uid: owner.uid, id: job.id.clone() }
}

/// Whether both may be one job: processes do not always know their cluster.
fn is_one_job(one: &JobKey, other: &JobKey) -> bool {
    let clusters = one.cluster == other.cluster || one.cluster.is_empty() || other.cluster.is_empty();
    clusters && (one.kind, one.uid, &one.id) == (other.kind, other.uid, &other.id)
}

/// The same, with the attempt where the process knows it.
fn shown_job(owner: &Owner) -> ShownJob {
    (key_of(owner), owner.job.attempt)
}

/// A variable of the owner's Slurm job; none if its variables are another job's.
fn slurm_variable<'a>(owner: &'a Owner, name: &str) -> Option<&'a str> {
    let is_of_job = ["SLURM_JOB_ID", "SLURM_JOBID"]
        .iter()
        .any(|name| owner.environment.get(*name).is_some_and(|id| *id == owner.job.id));
    let value = owner.environment.get(name).map(String::as_str);
    value.filter(|value| owner.job.kind == JobKind::Slurm && is_of_job && !value.is_empty())
}

impl ObservedJobs {
    /// What an earlier agent saw of these jobs, which had not ended.
    pub fn resume(&mut self, open: &[JobRecord]) {
        for record in open {
            for attempt in record.attempts.iter().filter(|attempt| !attempt.processes.is_empty()) {
                let sighting = Sighting { processes: attempt.processes.clone(), ..Sighting::default() };
                let seen = SeenJob { sighting, last_heard_of: Some(attempt.last_event) };
                self.seen.insert((record.key.clone(), Some(attempt.number)), seen);
            }
        }
    }

    /// Looks at the host: gives what changed, and what is seen now. A caller that could not keep what changed looks again
    /// from the same state.
    #[must_use]
    pub fn look(
        &self,
        snapshot: &HostSnapshot,
        system: &SystemFacts,
        at: Timestamp,
    ) -> (Vec<(JobKey, AttemptEvent)>, Self) {
        let mut now = shown_jobs(snapshot, system);
        let running: BTreeSet<ProcessKey> =
            snapshot.running.iter().flat_map(|workload| workload.owners.iter().copied()).collect();
        let owners = snapshot.workloads.owners.iter();
        let listed: BTreeMap<ProcessKey, ShownJob> =
            owners.map(|owner| (owner.process, shown_job(owner))).collect();
        let seen_now: BTreeSet<ShownJob> = now.keys().cloned().collect();
        let mut events = Vec::new();
        // First what is there: a next attempt says how the one before it ended.
        for ((key, attempt), seen) in &now {
            if self.seen.get(&(key.clone(), *attempt)) != Some(seen) {
                let what = Happening::Seen(seen.sighting.clone());
                events.push((key.clone(), AttemptEvent { attempt: *attempt, at, what }));
            }
        }
        for (shown, before) in self.seen.iter().filter(|(shown, _)| !seen_now.contains(shown)) {
            let processes = &before.sighting.processes;
            let is_unlisted = |process| running.contains(process) && !listed.contains_key(process);
            // Only one of both may know the attempt.
            let is_same = |(key, attempt): &ShownJob| {
                is_one_job(key, &shown.0) && (*attempt == shown.1 || attempt.is_none() || shown.1.is_none())
            };
            if processes.iter().any(|process| listed.get(process).is_some_and(is_same)) {
                continue;
            }
            if processes.iter().any(is_unlisted) {
                now.insert(shown.clone(), before.clone());
                continue;
            }
            let at = before.last_heard_of.unwrap_or(at);
            events.push((shown.0.clone(), AttemptEvent { attempt: shown.1, at, what: Happening::Gone }));
        }
        (events, Self { seen: now })
    }
}

impl ObservedJobs {
    /// From here the next look starts again, because a change that a look at `at` found could not be kept. What `after`
    /// has not any more was gone then, however late it is kept.
    #[must_use]
    pub fn again_after(mut self, after: &Self, at: Timestamp) -> Self {
        for (_, seen) in self.seen.iter_mut().filter(|(shown, _)| !after.seen.contains_key(*shown)) {
            seen.last_heard_of.get_or_insert(at);
        }
        self
    }
}

/// The jobs of all processes that are listed.
fn shown_jobs(snapshot: &HostSnapshot, system: &SystemFacts) -> BTreeMap<ShownJob, SeenJob> {
    let mut owners: Vec<&Owner> = snapshot.workloads.owners.iter().collect();
    owners.sort_by_key(|owner| owner.process);
    let mut jobs: BTreeMap<ShownJob, Vec<&Owner>> = BTreeMap::new();
    for owner in owners {
        jobs.entry(shown_job(owner)).or_default().push(owner);
    }
    let seen =
        |owners: Vec<&Owner>| SeenJob { sighting: sighting(&owners, snapshot, system), last_heard_of: None };
    jobs.into_iter().map(|(job, owners)| (job, seen(owners))).collect()
}

fn sighting(owners: &[&Owner], snapshot: &HostSnapshot, system: &SystemFacts) -> Sighting {
    let mut description = JobDescription::default();
    // What the first one says counts.
    for owner in owners.iter().rev() {
        description.update(&described(owner));
    }
    let hosts = owners.iter().map(|owner| &owner.job.hosts).find(|hosts| !hosts.is_empty());
    description.hosts = hosts.into_iter().flatten().take(MAX_HOSTS).cloned().collect();
    let chips: BTreeSet<_> = owners.iter().flat_map(|owner| owner.chips.iter().copied()).collect();
    let chips: Vec<_> = chips.into_iter().collect();
    Sighting {
        description,
        processes: owners.iter().map(|owner| owner.process).collect(),
        configuration: configuration::of(owners, &chips, snapshot, system),
        chips,
    }
}

/// What a process says of its job, without the hosts: they may be thousands.
fn described(owner: &Owner) -> JobDescription {
    let job = &owner.job;
    let array = slurm_variable(owner, "SLURM_ARRAY_JOB_ID").zip(slurm_variable(owner, "SLURM_ARRAY_TASK_ID"));
    JobDescription {
        name: job.name.clone(),
        other_id: array.map(|(array, task)| format!("{array}_{task}")),
        user: job.user.clone(),
        rank: job.rank,
        ..JobDescription::default()
    }
}

#[cfg(test)]
mod tests;
