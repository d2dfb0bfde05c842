//! The marks of programs: what each says of itself, in the order in which it came.
//!
//! A recorder numbers its marks from 1 and sends again what is not acknowledged; the number says what is stored already,
//! and what never came. Bounded by age and by bytes: the user with the most bytes makes room first. All calls block.
//! Must never report a mark as stored before it is on the disk, or let the marks of one user remove those of another who
//! has fewer.

mod rows;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::{
    time::{Clock, Timestamp},
    unit::Bytes,
    workload::WorkloadId,
};
use nix::sys::statvfs::statvfs;

use crate::{
    own_metrics,
    settings::MinFree,
    state::{StateDb, StateError},
};

/// Marks that one transaction removes: others wait for the database meanwhile.
const REMOVED_AT_ONCE: usize = 20_000;

/// One mark on its way into the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMark {
    /// The name of its job.
    pub job: String,
    /// The workload of the process, if it has one.
    pub workload: Option<WorkloadId>,
    /// The time that the program gives.
    pub at: Timestamp,
    /// One JSON object.
    pub payload: String,
}

/// Marks of one recorder whose numbers follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkBatch {
    /// The user.
    pub uid: u32,
    /// The recorder and the number of the first mark. `None`: marks that nobody sends twice.
    pub numbered: Option<(String, u64)>,
    /// The marks; `None` for each that was refused.
    pub marks: Vec<Option<NewMark>>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// The highest number of the recorder that is stored, refused or lost for good; 0 without a recorder.
    pub stored: u64,
    /// Marks that are new.
    pub added: u64,
    /// Marks that were stored before.
    pub doubled: u64,
    /// Numbers before the batch that never came.
    pub lost: u64,
}

/// A job that has marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedJob {
    /// Its number in the store.
    pub number: i64,
    /// Its user.
    pub uid: u32,
    /// The name that its program gives.
    pub name: String,
    /// The workload that marked last, if it was one.
    pub workload: Option<WorkloadId>,
    /// Marks that are kept.
    pub marks: u64,
    /// Marks that never came.
    pub lost: u64,
    /// Marks that were refused.
    pub refused: u64,
    /// Marks that were removed because there was no room for them.
    pub removed: u64,
    /// When its last mark came.
    pub last: Timestamp,
}

/// A mark that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMark {
    /// Its number in the store: marks that came later have higher ones.
    pub number: i64,
    /// Its recorder in the store.
    pub recorder: Option<i64>,
    /// The time that the program gave.
    pub at: Timestamp,
    /// One JSON object.
    pub payload: String,
}

/// The limits of the marks on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkLimits {
    /// A job without a new mark for this long is forgotten.
    pub keep: Duration,
    /// The most bytes.
    pub max_bytes: u64,
    /// What is to stay free of the disk.
    pub min_free: MinFree,
}

/// Why marks cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum MarksError {
    /// Less of the disk is free than `store.min_free` says.
    #[error("the disk of {} has {} free, and store.min_free keeps {}", .folder.display(), .free.rounded(), .needed.rounded())]
    LowDisk {
        /// The state directory.
        folder: PathBuf,
        /// Free bytes.
        free: Bytes,
        /// The limit in bytes.
        needed: Bytes,
    },
    /// The disk does not say how much of it is free.
    #[error("cannot read the free disk of {}: {error}", .folder.display())]
    Disk {
        /// The state directory.
        folder: PathBuf,
        /// The system's error.
        error: nix::Error,
    },
    /// The database refuses.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The marks of this host.
pub struct Marks {
    folder: PathBuf,
    db: Arc<StateDb>,
    clock: Arc<dyn Clock>,
    limits: Mutex<MarkLimits>,
    stored: AtomicU64,
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Marks {
    /// The marks in the state directory. Nothing is read yet.
    pub fn new(state: &Path, db: Arc<StateDb>, limits: MarkLimits, clock: Arc<dyn Clock>) -> Self {
        Self { folder: state.to_owned(), db, clock, limits: Mutex::new(limits), stored: AtomicU64::new(0) }
    }

    /// Replaces the limits.
    pub fn set_limits(&self, limits: MarkLimits) {
        *self.limits() = limits;
    }

    /// Stores batches, all or none of them, and returns once they are on the disk.
    ///
    /// # Errors
    /// If the disk or the database refuses.
    pub fn append(&self, batches: &[MarkBatch]) -> Result<Vec<Appended>, MarksError> {
        self.check_free()?;
        let now = self.clock.now();
        let appended: Vec<Appended> = self.db.write_durable(|transaction| {
            let mut appender = rows::Appender::new(transaction, now)?;
            batches.iter().map(|batch| appender.append(batch)).collect()
        })?;
        self.stored.fetch_add(appended.iter().map(|appended| appended.added).sum(), Ordering::Relaxed);
        Ok(appended)
    }

    /// How many marks were stored since the agent started.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// The jobs with marks that have this name or, as `KIND:ID` or `ID`, this workload; all without a name. Only of this
    /// user, if one is given.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn jobs(&self, named: Option<&str>, uid: Option<u32>) -> Result<Vec<MarkedJob>, MarksError> {
        Ok(self.db.read(|connection| rows::jobs(connection, named, uid))?.unwrap_or_default())
    }

    /// The job that the processes of a workload marked last.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn last_of(&self, workload: &WorkloadId) -> Result<Option<MarkedJob>, MarksError> {
        Ok(self.db.read(|connection| rows::last_of(connection, workload))?.flatten())
    }

    /// The job with this number as it is now.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn job(&self, number: i64) -> Result<Option<MarkedJob>, MarksError> {
        Ok(self.db.read(|connection| rows::job(connection, number))?.flatten())
    }

    /// The first `limit` marks of a job after the one with the number `after`; of a window only those after its start and
    /// not after its end.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn read(
        &self,
        job: i64,
        after: i64,
        limit: usize,
        window: Option<(Timestamp, Timestamp)>,
    ) -> Result<Vec<StoredMark>, MarksError> {
        Ok(self.db.read(|connection| rows::read(connection, job, after, limit, window))?.unwrap_or_default())
    }

    /// Removes what the limits have no room for.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn prune(&self) -> Result<(), MarksError> {
        let MarkLimits { keep, max_bytes, .. } = *self.limits();
        let keep_ns = i64::try_from(keep.as_nanos()).unwrap_or(i64::MAX);
        let before = self.clock.now().stepped(keep_ns.saturating_neg());
        loop {
            let Some(surplus) = self.db.read(|connection| rows::surplus(connection, before, max_bytes))?
            else {
                return Ok(());
            };
            let Some(surplus) = surplus else { break };
            self.db.write(|transaction| rows::remove(transaction, surplus, REMOVED_AT_ONCE))?;
        }
        self.db.write(|transaction| rows::forget_recorders(transaction, before))?;
        if let Some(bytes) = self.db.read(rows::bytes)? {
            own_metrics::marked(bytes);
        }
        Ok(())
    }

    fn check_free(&self) -> Result<(), MarksError> {
        let disk =
            statvfs(&self.folder).map_err(|error| MarksError::Disk { folder: self.folder.clone(), error })?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        let (free, needed) =
            (bytes(disk.blocks_available()), self.limits().min_free.limit(bytes(disk.blocks())));
        if free < needed {
            let (free, needed) = (Bytes::new(free), Bytes::new(needed));
            return Err(MarksError::LowDisk { folder: self.folder.clone(), free, needed });
        }
        Ok(())
    }

    fn limits(&self) -> MutexGuard<'_, MarkLimits> {
        // Every change is one assignment.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
