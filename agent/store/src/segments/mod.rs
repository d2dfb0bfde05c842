//! The past that the recorder keeps: one gzip'ed trace a segment, and an index of them in the database of the agent.
//!
//! ```text
//! <state>/recorder/<number>.xplane.pb.gz   a segment, 0640
//!                  <number>.<n>.raw        a trace that arrives or is read; removed when that is over, and at the next start
//! ```
//!
//! A file without a row and a row without a file are what a dead agent had half done: both go at the next start. Bounded
//! by age and by bytes, the oldest go first. All calls block.
//! Must never take a name or a path from a caller, or take the disk space that the sessions are to leave free.

mod error;
mod file;
mod rows;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    step_times::TraceSteps,
    time::{Clock, Timestamp},
    unit::Bytes,
    workload::{ProcessKey, WorkloadId},
};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use tracing::warn;
use xprof::session::{LossEntry, PartJob};

use crate::{
    own_metrics,
    settings::MinFree,
    state::{StateDb, StateError},
};
pub use error::SegmentError;
pub use file::{RawTrace, UnpackedTrace};

/// How long a choice or a foreign use is remembered that no process needs any more.
const FORGET_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// The process whose past it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedProcess {
    /// Its job.
    pub workload: WorkloadId,
    /// The process.
    pub process: ProcessKey,
    /// The port of its profiler.
    pub port: u16,
    /// Its user.
    pub uid: u32,
}

/// What one window returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSegment {
    /// Its number, which is the name of its file.
    pub number: i64,
    /// Counts the segments of this host in the order in which they were kept.
    pub order: u64,
    /// Whose it is.
    pub process: RecordedProcess,
    /// What the trace covers.
    pub start: Timestamp,
    /// The end of that.
    pub stop: Timestamp,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the trace in it.
    pub trace_bytes: u64,
    /// What is in it.
    pub facts: SegmentFacts,
}

/// What is in a segment, and how it came.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentFacts {
    /// The strategy of the recorder, by its name.
    pub strategy: String,
    /// The length of the window that was asked for, in nanoseconds.
    pub window_ns: u64,
    /// Host events, device events, Python calls: the levels of the tracers.
    pub levels: [u32; 3],
    /// The command of the process, untrusted.
    pub command: String,
    /// The name of its user.
    pub user: Option<String>,
    /// The versions of its libraries.
    pub versions: BTreeMap<String, String>,
    /// Its profiler, as `host:port`.
    pub address: String,
    /// Its job, as manifests have it.
    pub job: Option<PartJob>,
    /// Events of the trace.
    pub events: u64,
    /// What is doubtful.
    pub warnings: Vec<String>,
    /// What it lost.
    pub losses: Vec<LossEntry>,
    /// Its steps; `None` if it shows none.
    pub steps: Option<TraceSteps>,
    /// The clock was set back while it was recorded: its events have times of both clocks.
    pub clock_set_back: bool,
}

/// A stretch in which windows were due and not recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentGap {
    /// Whose it is.
    pub process: RecordedProcess,
    /// When the first of them was due.
    pub start: Timestamp,
    /// When the last of them would have ended.
    pub stop: Timestamp,
    /// How many windows.
    pub windows: u64,
    /// Why they are missing, in words.
    pub reason: String,
}

/// What the owner of a job chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderChoice {
    /// The job.
    pub workload: WorkloadId,
    /// The user whose processes it is about.
    pub uid: u32,
    /// Whether they are recorded.
    pub is_on: bool,
    /// The strategy by its name; `None`: that of the settings.
    pub strategy: Option<String>,
}

/// What the limits of the past are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLimits {
    /// The longest age of windows.
    pub keep: Duration,
    /// The longest age of what was recorded continuously.
    pub keep_continuous: Duration,
    /// The most bytes on the disk, the newest segment apart.
    pub max_bytes: u64,
    /// What is to stay free of the disk.
    pub min_free: MinFree,
}

/// Which segments and gaps are wanted.
#[derive(Debug, Clone, Default)]
pub struct SegmentQuery {
    /// Those that reach beyond this instant.
    pub from: Option<Timestamp>,
    /// Those that begin before this instant.
    pub to: Option<Timestamp>,
    /// Only of this job: `ID` or `KIND:ID`.
    pub job: Option<String>,
}

/// The segments of this host.
pub struct Segments {
    folder: PathBuf,
    db: Arc<StateDb>,
    clock: Arc<dyn Clock>,
    limits: Mutex<SegmentLimits>,
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Segments {
    /// The segments below the state directory, whose lock the caller holds. Removes what a dead agent had half done; a
    /// disk that refuses is said in the log, and is no reason for an agent not to start.
    pub fn open(state: &Path, db: Arc<StateDb>, limits: SegmentLimits, clock: Arc<dyn Clock>) -> Self {
        let folder = state.join("recorder");
        let segments = Self { folder, db, clock, limits: Mutex::new(limits) };
        if let Err(error) = segments.remove_orphans().and_then(|()| segments.prune()) {
            warn!(%error, "what an earlier agent recorded could not be looked through");
        }
        segments
    }

    /// Replaces the limits. They apply from the next segment on.
    pub fn set_limits(&self, limits: SegmentLimits) {
        *self.limits() = limits;
    }

    /// A file for a trace that is to arrive.
    ///
    /// # Errors
    /// If the disk refuses, or less of it is free than the limits say.
    pub fn begin(&self) -> Result<RawTrace, SegmentError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&self.folder)
            .map_err(|error| SegmentError::of("create", &self.folder, error))?;
        self.check_free()?;
        RawTrace::create(&self.folder, fastrand::i64(0..i64::MAX))
    }

    /// Keeps a trace that arrived whole: compresses it, adds it to the index, and removes what the limits say.
    ///
    /// # Errors
    /// If the disk or the database refuses: then nothing of it is left.
    pub fn keep(
        &self,
        raw: RawTrace,
        process: RecordedProcess,
        (start, stop): (Timestamp, Timestamp),
        facts: SegmentFacts,
    ) -> Result<StoredSegment, SegmentError> {
        let number = raw.number();
        let path = self.path(number);
        let (bytes, trace_bytes) = raw.compress(&path)?;
        let mut segment = StoredSegment { number, order: 0, process, start, stop, bytes, trace_bytes, facts };
        let added = self.db.write(|transaction| {
            segment.order = rows::next_order(transaction)?;
            rows::insert(transaction, &segment)
        });
        if let Err(error) = added {
            remove(&path)?;
            return Err(error.into());
        }
        self.prune()?;
        Ok(segment)
    }

    /// Notes a window that was not recorded. A database that refuses loses it, which the log says.
    pub fn note_gap(&self, gap: &SegmentGap) {
        if let Err(error) = self.db.write(|transaction| rows::note_gap(transaction, gap)) {
            warn!(%error, reason = gap.reason, "a gap of the recorder could not be noted");
        }
    }

    /// The segments that are wanted, by time.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn list(&self, query: &SegmentQuery) -> Result<Vec<StoredSegment>, StateError> {
        Ok(self.db.read(|connection| rows::list(connection, query))?.unwrap_or_default())
    }

    /// The gaps that are wanted, by time.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn gaps(&self, query: &SegmentQuery) -> Result<Vec<SegmentGap>, StateError> {
        Ok(self.db.read(|connection| rows::gaps(connection, query))?.unwrap_or_default())
    }

    /// Until when something is known of each process, as a segment or as a gap.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn ends(&self) -> Result<BTreeMap<ProcessKey, Timestamp>, StateError> {
        known(self.db.read(rows::ends))
    }

    /// The trace of a segment as a file of its own, which is removed when it is dropped.
    ///
    /// # Errors
    /// If the disk refuses, or the segment is damaged or gone.
    pub fn unpack(&self, segment: &StoredSegment) -> Result<UnpackedTrace, SegmentError> {
        self.check_free()?;
        UnpackedTrace::of(&self.path(segment.number), &self.folder, segment.number, segment.trace_bytes)
    }

    /// What was chosen for jobs.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn choices(&self) -> Result<Vec<RecorderChoice>, StateError> {
        known(self.db.read(rows::choices))
    }

    /// Notes a choice, and forgets that other programs used the profilers of these processes.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn choose(&self, choice: &RecorderChoice, asked_for: &[ProcessKey]) -> Result<(), StateError> {
        let now = self.clock.now();
        self.db.write_durable(|transaction| {
            rows::choose(transaction, choice, now)?;
            asked_for.iter().try_for_each(|process| rows::forget_foreign_use(transaction, *process))
        })
    }

    /// The processes whose profiler another program was found to use, and what was found.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn foreign_uses(&self) -> Result<BTreeMap<ProcessKey, String>, StateError> {
        known(self.db.read(rows::foreign_uses))
    }

    /// Notes that another program uses the profiler of `process`: the next agent has to know it too.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn note_foreign_use(&self, process: ProcessKey, what: &str) -> Result<(), StateError> {
        let now = self.clock.now();
        self.db.write_durable(|transaction| rows::note_foreign_use(transaction, process, what, now))
    }

    /// Removes what the limits have no room for.
    ///
    /// # Errors
    /// If the disk or the database refuses.
    pub fn prune(&self) -> Result<(), SegmentError> {
        let SegmentLimits { keep, keep_continuous, max_bytes, .. } = *self.limits();
        let now = self.clock.now();
        let before =
            |age: Duration| now.stepped(i64::try_from(age.as_nanos()).map_or(i64::MIN, i64::saturating_neg));
        let old = self
            .db
            .read(|connection| rows::surplus(connection, before(keep), before(keep_continuous), max_bytes))?;
        let Some(old) = old else { return Ok(()) };
        // The files go first: on a full disk the database has the room that was just made.
        old.iter().try_for_each(|number| remove(&self.path(*number)))?;
        self.db.write(|transaction| {
            old.iter().try_for_each(|number| rows::remove(transaction, *number))?;
            rows::forget(transaction, before(keep.max(keep_continuous)), before(FORGET_AFTER))
        })?;
        if let Some(bytes) = self.db.read(rows::bytes)? {
            own_metrics::recorded(bytes);
        }
        Ok(())
    }

    fn remove_orphans(&self) -> Result<(), SegmentError> {
        let of = |error| SegmentError::of("list", &self.folder, error);
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            entries => entries.map_err(of)?.collect::<Result<Vec<_>, _>>().map_err(of)?,
        };
        let mut known = self.db.read(rows::numbers)?.unwrap_or_default();
        for entry in entries {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<i64>().ok());
            if !number.is_some_and(|number| known.remove(&number)) {
                remove(&entry.path())?;
            }
        }
        if !known.is_empty() {
            self.db.write(|transaction| {
                known.iter().try_for_each(|number| rows::remove(transaction, *number))
            })?;
        }
        Ok(())
    }

    fn check_free(&self) -> Result<(), SegmentError> {
        let disk = statvfs(&self.folder)
            .map_err(|error| SegmentError::of("read the free disk of", &self.folder, error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.fragment_size());
        let (free, needed) =
            (bytes(disk.blocks_available()), self.limits().min_free.limit(bytes(disk.blocks())));
        if free < needed {
            let (free, needed) = (Bytes::new(free), Bytes::new(needed));
            return Err(SegmentError::LowDisk { folder: self.folder.clone(), free, needed });
        }
        Ok(())
    }

    fn path(&self, number: i64) -> PathBuf {
        self.folder.join(format!("{number}{SUFFIX}"))
    }

    fn limits(&self) -> MutexGuard<'_, SegmentLimits> {
        // Every change is one assignment.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was read; nothing if the database was damaged and moved aside, which the log says.
fn known<T: Default>(read: Result<Option<T>, StateError>) -> Result<T, StateError> {
    match read {
        Err(StateError::Damaged { .. }) => Ok(T::default()),
        read => Ok(read?.unwrap_or_default()),
    }
}

/// The end of a segment's name.
const SUFFIX: &str = ".xplane.pb.gz";

fn remove(path: &Path) -> Result<(), SegmentError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| SegmentError::of("remove", path, error)),
    }
}
