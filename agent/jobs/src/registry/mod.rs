//! The registry of this host's jobs: what is told of them is merged by the rule of [`record`](crate::record) and kept in
//! the store, which alone holds it. All calls block.
//!
//! A job whose cluster is not known is the one of the same kind, user and id whose cluster is: variables of its processes
//! say less than its hooks.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use model::{
    job::JobKey,
    time::{Clock, Timestamp},
};
use store::{
    StateError,
    job_attempts::{AttemptLimits, AttemptQuery, JobAttempts, StoredAttempt},
    state::StateDb,
};
use tokio::time::Instant;

use crate::{
    name::{JobName, NamedJob},
    record::{AttemptEvent, Happening, JobRecord},
    settings::JobSettings,
    stored,
};

/// An attempt of which nothing is heard for so long has ended: its hook was missed. One with processes is heard of.
const MAX_SILENCE: Duration = Duration::from_secs(48 * 3600);
/// The most attempts of one user that have not ended. What is registered is not trusted to end.
pub const MAX_OPEN: usize = 256;
/// So many events after the last time, the number of attempts is looked at again.
const COUNT_AFTER: u32 = 1000;
/// The most attempts that one look-up reads.
const MAX_READ: usize = 4096;

/// The jobs of this host.
pub struct Registry {
    attempts: JobAttempts,
    clock: Arc<dyn Clock>,
    /// The present boot of the host; empty if it is not known.
    boot: String,
    boot_is_stored: AtomicBool,
    limits: Mutex<AttemptLimits>,
    told: AtomicU32,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("boot", &self.boot).finish_non_exhaustive()
    }
}

/// Jobs in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedJobs {
    /// The newest, the newest first.
    pub jobs: Vec<JobRecord>,
    /// Whether more are known than these.
    pub more: bool,
}

/// The attempt that something was told about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldAttempt {
    /// The job, with its cluster where that is known.
    pub key: JobKey,
    /// The number of the attempt.
    pub attempt: u32,
}

impl Registry {
    /// The registry in this database, on a host of this boot; empty if it is not known.
    pub fn new(db: Arc<StateDb>, settings: &JobSettings, boot: String, clock: Arc<dyn Clock>) -> Self {
        Self {
            attempts: JobAttempts::new(db, Arc::clone(&clock)),
            clock,
            boot,
            boot_is_stored: AtomicBool::new(false),
            limits: Mutex::new(limits(settings)),
            told: AtomicU32::new(0),
        }
    }

    /// Replaces the limits. They hold from the next [`Registry::prune`] on.
    pub fn set_settings(&self, settings: &JobSettings) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits(settings);
    }

    fn limits(&self) -> AttemptLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the host.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Ends what a reboot ended. To be called before anything is told.
    ///
    /// # Errors
    /// If the disk refuses: then the next agent does it.
    pub fn begin(&self) -> Result<(), StateError> {
        // Until it is done the boot of before stays in the database.
        self.boot_is_stored.store(true, Ordering::Relaxed);
        let open = self.open_jobs()?;
        let is_other = !self.boot.is_empty() && self.attempts.boot()?.is_some_and(|boot| boot != self.boot);
        for record in open.iter().filter(|_| is_other) {
            let event = AttemptEvent { attempt: None, at: self.clock.now(), what: Happening::Rebooted };
            self.tell(&record.key, &event)?;
        }
        self.boot_is_stored.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Merges what happened to a job. `None`: it is about no attempt that is known.
    ///
    /// # Errors
    /// If the disk refuses: then nothing is changed.
    pub fn tell(&self, key: &JobKey, event: &AttemptEvent) -> Result<Option<ToldAttempt>, StateError> {
        if !self.boot_is_stored.load(Ordering::Relaxed) {
            self.attempts.set_boot(&self.boot)?;
            self.boot_is_stored.store(true, Ordering::Relaxed);
        }
        if self.told.fetch_add(1, Ordering::Relaxed) % COUNT_AFTER == COUNT_AFTER - 1 {
            self.attempts.prune_number(self.limits().max_attempts)?;
        }
        self.attempts.change(key, |rows| {
            let mut record = take_record(rows, key);
            let attempt = record.apply(event);
            rows.extend(stored::rows(&record));
            attempt.map(|attempt| ToldAttempt { key: record.key.clone(), attempt })
        })
    }

    /// Whether one more attempt of this user may start.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn has_room(&self, uid: u32) -> Result<bool, StateError> {
        Ok(self.attempts.open_of(uid)? < MAX_OPEN)
    }

    /// The jobs with an attempt that runs, with all their attempts that run.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open_jobs(&self) -> Result<Vec<JobRecord>, StateError> {
        Ok(stored::records(self.attempts.list(AttemptQuery::Open, MAX_READ)?))
    }

    /// The newest jobs, each with those of its attempts that are among the newest of the host; only those that run if
    /// `running`.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn list(&self, running: bool, limit: usize) -> Result<ListedJobs, StateError> {
        let query = if running { AttemptQuery::Open } else { AttemptQuery::All };
        let rows = self.attempts.list(query, MAX_READ)?;
        let may_be_more = rows.len() >= MAX_READ;
        let mut jobs = stored::records(rows);
        let more = may_be_more || jobs.len() > limit;
        jobs.truncate(limit);
        Ok(ListedJobs { jobs, more })
    }

    /// The jobs that this name is about. `may_know`: whether the caller may know the names of this user's jobs.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn find(&self, name: &JobName, may_know: impl Fn(u32) -> bool) -> Result<Vec<NamedJob>, StateError> {
        let mut keys: Vec<JobKey> = Vec::new();
        for candidate in name.candidates() {
            for row in self.attempts.list(AttemptQuery::Named(candidate), MAX_READ)? {
                if !keys.contains(&row.key) {
                    keys.push(row.key);
                }
            }
        }
        let mut found = Vec::new();
        for key in keys {
            let mut rows = self.attempts.of_job(&key)?;
            rows.retain(|row| row.key == key);
            let named = stored::records(rows).pop().and_then(|record| name.of(record, may_know(key.uid)));
            found.extend(named);
        }
        Ok(found)
    }

    /// Notes that the attempts with a process are alive.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn note_alive(&self) -> Result<(), StateError> {
        let open = self.open_jobs()?;
        let attempts =
            open.iter().flat_map(|record| record.attempts.iter().map(move |attempt| (record, attempt)));
        let alive =
            attempts.filter(|(_, attempt)| attempt.command.is_some() || !attempt.processes.is_empty());
        let alive: Vec<_> = alive.map(|(record, attempt)| (&record.key, attempt.number)).collect();
        if alive.is_empty() { Ok(()) } else { self.attempts.touch(&alive, self.clock.now()) }
    }

    /// Ends what has been silent for too long, and forgets what exceeds the limits.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn prune(&self, monotonic: Instant) -> Result<(), StateError> {
        let now = self.clock.now();
        for record in self.open_jobs()? {
            for attempt in &record.attempts {
                if attempt.last_event.age(now) > MAX_SILENCE {
                    let event =
                        AttemptEvent { attempt: Some(attempt.number), at: now, what: Happening::Silent };
                    self.tell(&record.key, &event)?;
                }
            }
        }
        self.attempts.prune(self.limits(), monotonic).map(drop)
    }
}

fn limits(settings: &JobSettings) -> AttemptLimits {
    AttemptLimits {
        max_age: Some(settings.max_age.get()).filter(|age| !age.is_zero()),
        max_attempts: usize::try_from(settings.max_attempts).unwrap_or(usize::MAX),
    }
}

/// Takes the job with this key out of the rows of its kind, user and id. A cluster that was not known becomes known.
fn take_record(rows: &mut Vec<StoredAttempt>, key: &JobKey) -> JobRecord {
    let mut records = stored::records(std::mem::take(rows));
    let same = records.iter().position(|record| record.key == *key);
    let joined = || {
        let candidates = records.iter().enumerate();
        let candidates =
            candidates.filter(|(_, record)| key.cluster.is_empty() || record.key.cluster.is_empty());
        let newest = candidates.max_by_key(|(_, record)| record.newest().map(|attempt| attempt.last_event));
        newest.map(|(index, _)| index)
    };
    let taken = same.or_else(joined).map(|index| records.swap_remove(index));
    for record in &records {
        rows.extend(stored::rows(record));
    }
    let mut record = taken.unwrap_or_else(|| JobRecord::new(key.clone()));
    if record.key.cluster.is_empty() {
        record.key.cluster.clone_from(&key.cluster);
    }
    record
}

#[cfg(test)]
mod tests;
