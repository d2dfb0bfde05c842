//! The attempts of the jobs of this host, as rows of the agent's database. All calls block.
//!
//! What the facts of an attempt mean is the business of `agent/jobs`. Must never remove an attempt that runs, or one for
//! its age while the clock is not trusted.

mod rows;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    job::JobKey,
    time::{Clock, Timestamp},
};
use tokio::time::Instant;

use crate::{
    retention::clock_trust::ClockTrust,
    state::{
        StateDb, StateError,
        migrations::{meta, set_meta},
    },
};

/// The key of the boot in the table `meta`.
const BOOT: &str = "jobs_boot";

/// One attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAttempt {
    /// The job.
    pub key: JobKey,
    /// Its number.
    pub attempt: u32,
    /// Whether it has not ended.
    pub is_open: bool,
    /// When it started; `None` if only its end is known.
    pub start: Option<Timestamp>,
    /// The time of what was last heard of it.
    pub last_event: Timestamp,
    /// The name of the job.
    pub name: Option<String>,
    /// Another id by which its user knows it.
    pub other_id: Option<String>,
    /// The rest, as JSON.
    pub facts: String,
}

/// Which attempts are wanted, the newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptQuery<'a> {
    /// All.
    All,
    /// Those that have not ended.
    Open,
    /// Those of jobs with this id, other id or name.
    Named(&'a str),
}

/// How many attempts are kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptLimits {
    /// The longest age after what was last heard of it; `None`: no limit.
    pub max_age: Option<Duration>,
    /// The most attempts of all jobs.
    pub max_attempts: usize,
}

/// The attempts.
pub struct JobAttempts {
    db: Arc<StateDb>,
    clock: Arc<dyn Clock>,
    trust: Mutex<ClockTrust>,
    is_synchronised: fn() -> bool,
}

impl fmt::Debug for JobAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobAttempts").finish_non_exhaustive()
    }
}

impl JobAttempts {
    /// The attempts in this database.
    pub fn new(db: Arc<StateDb>, clock: Arc<dyn Clock>) -> Self {
        let is_synchronised = tpu_sys::kernel_clock::is_synchronised;
        Self { db, clock, trust: Mutex::default(), is_synchronised }
    }

    /// Changes the attempts of the jobs of this kind, user and id, of all clusters: `change` gets those there are, and
    /// leaves those there shall be. Whole or not at all.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn change<T>(
        &self,
        key: &JobKey,
        change: impl FnOnce(&mut Vec<StoredAttempt>) -> T,
    ) -> Result<T, StateError> {
        self.db.write(|transaction| {
            let before = rows::of_job(transaction, key)?;
            let mut after = before.clone();
            let changed = change(&mut after);
            rows::replace(transaction, &before, &after)?;
            Ok(changed)
        })
    }

    /// The attempts that are wanted, the newest first; at most `limit`, of which one user's never push out those of others.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn list(&self, query: AttemptQuery<'_>, limit: usize) -> Result<Vec<StoredAttempt>, StateError> {
        Ok(self.db.read(|connection| rows::list(connection, query, limit))?.unwrap_or_default())
    }

    /// All attempts of the jobs of this kind, user and id, by number.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn of_job(&self, key: &JobKey) -> Result<Vec<StoredAttempt>, StateError> {
        Ok(self.db.read(|connection| rows::of_job(connection, key))?.unwrap_or_default())
    }

    /// Notes that these attempts were alive at this time.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn touch(&self, attempts: &[(&JobKey, u32)], at: Timestamp) -> Result<(), StateError> {
        self.db.write(|transaction| rows::touch(transaction, attempts, at))
    }

    /// The boot of the host in which the attempts were last changed.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn boot(&self) -> Result<Option<String>, StateError> {
        Ok(self.db.read(|connection| meta(connection, BOOT))?.flatten())
    }

    /// Sets that.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn set_boot(&self, boot: &str) -> Result<(), StateError> {
        self.db.write(|transaction| set_meta(transaction, BOOT, boot))
    }

    /// How many attempts of this user have not ended.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open_of(&self, uid: u32) -> Result<usize, StateError> {
        Ok(self.db.read(|connection| rows::open_of(connection, uid))?.unwrap_or(0))
    }

    /// Removes what exceeds the number, the oldest of the user who has most first. Returns how many attempts went.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn prune_number(&self, max_attempts: usize) -> Result<usize, StateError> {
        self.prune_before(None, max_attempts)
    }

    /// Removes what exceeds the limits: what is too old, and then as [`JobAttempts::prune_number`]. Returns how many attempts
    /// went.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn prune(&self, limits: AttemptLimits, monotonic: Instant) -> Result<usize, StateError> {
        let now = self.clock.now();
        let trusts = {
            let mut trust = self.trust();
            trust.look(now, monotonic);
            trust.trusts(now, (self.is_synchronised)())
        };
        let max_age = limits.max_age.filter(|_| trusts);
        let before = max_age
            .map(|age| Timestamp(now.0.saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX))));
        self.prune_before(before, limits.max_attempts)
    }

    fn prune_before(&self, before: Option<Timestamp>, max_attempts: usize) -> Result<usize, StateError> {
        if self.db.read(|connection| rows::has_surplus(connection, before, max_attempts))? != Some(true) {
            return Ok(0);
        }
        self.db.write(|transaction| rows::prune(transaction, before, max_attempts))
    }

    fn trust(&self) -> MutexGuard<'_, ClockTrust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
