//! The ledgers of all jobs that have chips open, fed by ticks and batches.
//!
//! Pure: the time is an argument. Must never let one job's second depend on another's, or cost more than its chips.

use std::collections::BTreeMap;

use model::job::JobKey;
use sampling::sampler::Batch;

use super::{
    job_ledger::JobLedger,
    observed::{self, ObservedJob, is_same},
};

/// A second is settled so many seconds after its end: a read of a source may take that long.
pub(super) const SETTLED_AFTER: i64 = 3;
/// Ticks come once a second. So many seconds without one are as the next tick shows them.
const CARRIED: i64 = 2;
/// So many seconds may lie between two signs of life of an agent that has no job to look at.
const IDLE_CARRIED: i64 = 15;
/// The most jobs at a time. A job has a chip at least, unless several share one.
const MOST_JOBS: usize = 64;

/// The ledgers.
#[derive(Debug, Default)]
pub(super) struct LedgerSet {
    jobs: BTreeMap<JobKey, JobLedger>,
    /// The second of the last tick, and the one since which there was a tick at least every few seconds.
    ticked: Option<(i64, i64)>,
}

impl LedgerSet {
    /// The jobs, by key.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &JobLedger> {
        self.jobs.values()
    }

    /// The jobs, to change what is kept of them.
    pub(super) fn jobs_mut(&mut self) -> impl Iterator<Item = &mut JobLedger> {
        self.jobs.values_mut()
    }

    /// One job.
    pub(super) fn get(&self, key: &JobKey) -> Option<&JobLedger> {
        self.jobs.get(key)
    }

    /// Whether a job started or ended since its ledger was last kept, or could not be kept.
    pub(super) fn is_urgent(&self) -> bool {
        self.jobs.values().any(|job| job.is_urgent)
    }

    /// Whether it has no job.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The jobs of the host that are not in the set, and have room in it.
    pub(super) fn missing<'a>(&self, observed: &'a [ObservedJob]) -> Vec<&'a ObservedJob> {
        let room = MOST_JOBS.saturating_sub(self.jobs.len());
        observed.iter().filter(|job| !self.jobs.contains_key(&job.key)).take(room).collect()
    }

    /// Whether all jobs of the host are in the set.
    pub(super) fn has_all(&self, observed: &[ObservedJob]) -> bool {
        observed.iter().all(|job| self.jobs.contains_key(&job.key))
    }

    /// Adds the ledger of a job.
    pub(super) fn insert(&mut self, job: JobLedger) {
        self.jobs.insert(job.key.clone(), job);
    }

    /// Forgets the jobs that do not run and of which everything is kept.
    pub(super) fn forget_ended(&mut self) {
        self.jobs.retain(|_, job| job.is_running || job.has_changed);
    }

    /// The agent looks at a host without a job.
    pub(super) fn idle(&mut self, second: i64) {
        let (last, since) = self.ticked.unwrap_or((second, second));
        let is_carried = (0..=IDLE_CARRIED).contains(&second.saturating_sub(last));
        self.ticked = Some((second, if is_carried { since } else { second }));
    }

    /// Takes what the host shows in this second. A second before the last tick changes nothing.
    pub(super) fn tick(&mut self, second: i64, observed: &[ObservedJob]) {
        let (last, since) = self.ticked.unwrap_or((second.saturating_sub(1), second));
        if second <= last {
            return;
        }
        let is_carried = second.saturating_sub(last) <= CARRIED;
        let (from, since) = if is_carried { (last.saturating_add(1), since) } else { (second, second) };
        self.ticked = Some((second, since));
        for (key, job) in &mut self.jobs {
            if job.is_running {
                job.settle(second.saturating_sub(SETTLED_AFTER));
            }
            match observed.iter().find(|it| it.key == *key) {
                Some(now) => job.look(now, from, second, since),
                None if job.is_running => job.leave(),
                None => {}
            }
        }
    }

    /// Takes a batch of a source, read in this second.
    pub(super) fn batch(&mut self, second: i64, batch: &Batch) {
        if self.jobs.is_empty() {
            return;
        }
        for reading in observed::chip_readings(batch) {
            let of_job = self
                .jobs
                .values_mut()
                .filter(|job| job.is_running && is_same(&job.workload, reading.workload));
            of_job.for_each(|job| job.measure(second, batch.origin, &reading));
        }
        for (workload, values) in observed::stall_readings(batch) {
            let of_job =
                self.jobs.values_mut().filter(|job| job.is_running && is_same(&job.workload, &workload));
            of_job.for_each(|job| job.stall(second, values));
        }
    }

    /// The clock was stepped by so many seconds.
    pub(super) fn step(&mut self, by: i64) {
        self.jobs.values_mut().for_each(|job| job.step(by));
        self.ticked = self.ticked.map(|(last, since)| (last.saturating_add(by), since.saturating_add(by)));
    }
}
