//! Event files of the jobs of this host, while they run: at an interval, what the exact ledger says of jobs that mark, and the
//! proxy ledger of jobs that have chips open.
//!
//! One thread that may block asks and writes; there is never a second one. A job is written while it marks or runs: nothing is
//! kept of one that ended, and nothing is made up for the time without an agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use goodput::{answer::LedgerAnswer, export::SeriesLabels, proxy::live::SecondState};
use jobs::ledger::{JobGoodput, LiveLedgers};
use marks::ledgers::{MarkAnswer, MarkLedger, MarkLedgerError, MarkLedgerQuestion, MarkLedgers};
use model::{
    job::JobKey,
    time::{Clock, Timestamp},
};
use store::marks::{MarkedJob, Marks};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    event_file::{EventFolder, RunWriter},
    job_folder, retention,
    scalars::{self, ProxyFigures, ScalarGroup},
    settings::TensorBoardSettings,
};
use crate::own_metrics::ExportCounters;

/// A job is written for so long after its last mark, unless it said that it ended.
const SILENT_FOR: Duration = Duration::from_secs(3600);
/// The most jobs at a time: those that marked last.
const MOST_JOBS: usize = 64;
/// A disk that needs longer for one write is said to hang.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// What the exporter reads.
#[derive(Clone)]
pub struct EventFileInputs {
    /// The settings.
    pub settings: TensorBoardSettings,
    /// The name of this host.
    pub host: String,
    /// The marks of programs.
    pub marks: Arc<Marks>,
    /// The ledgers of marks.
    pub mark_ledgers: Arc<MarkLedgers>,
    /// The ledgers of duty cycles and open chips.
    pub ledgers: Arc<LiveLedgers>,
    /// The time of each point.
    pub clock: Arc<dyn Clock>,
    /// What to do about a fault.
    pub remedy: fn(EventFileFault) -> &'static str,
}

impl fmt::Debug for EventFileInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFileInputs").finish_non_exhaustive()
    }
}

/// Why points are not in an event file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventFileFault {
    /// The folder cannot be written.
    Folder,
    /// A link, or a file that is no folder, has the name of a job's folder.
    Link,
    /// The disk is full.
    NoSpace,
    /// The ledger of a job does not answer.
    Marks,
}

impl EventFileFault {
    /// Of a write that failed.
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::NotADirectory => Self::Link,
            _ => Self::Folder,
        }
    }

    /// Its name in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Link => "link",
            Self::NoSpace => "no_space",
            Self::Marks => "marks",
        }
    }
}

/// A fault with what the log has of it.
type SaidFault = (EventFileFault, String);

/// Writes at the interval of the settings until `stop`.
///
/// # Errors
/// If a write panicked.
pub async fn run(inputs: EventFileInputs, stop: CancellationToken) -> Result<(), String> {
    let mut ticks = interval(inputs.settings.interval.get());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut export = LiveExport::new(inputs);
    let endless = async {
        loop {
            ticks.tick().await;
            export = written(export).await?;
        }
    };
    stop.run_until_cancelled(endless).await.unwrap_or(Ok(()))
}

/// One write, on a thread that may block.
async fn written(mut export: LiveExport) -> Result<LiveExport, String> {
    let (directory, counters) = (export.inputs.settings.directory.clone(), export.counters);
    let writing = tokio::task::spawn_blocking(move || {
        export.write();
        export
    });
    ended(writing, &directory, || counters.failed(EventFileFault::Folder.as_str())).await
}

/// The end of a write. `hangs` is called for each [`HANGS_AFTER`] that it takes; the log says it once.
async fn ended<T>(
    mut writing: JoinHandle<T>,
    directory: &Path,
    mut hangs: impl FnMut(),
) -> Result<T, String> {
    let mut is_said = false;
    let ended = loop {
        match timeout(HANGS_AFTER, &mut writing).await {
            Ok(ended) => break ended,
            Err(_) => hangs(),
        }
        if !std::mem::replace(&mut is_said, true) {
            warn!(directory = %directory.display(), "the folder of export.tensorboard does not answer; nothing is written until it does");
        }
    };
    ended.map_err(|error| format!("a write failed: {error}"))
}

/// The runs that are written.
struct LiveExport {
    inputs: EventFileInputs,
    folder: EventFolder,
    counters: ExportCounters,
    /// By the number of the job in the store.
    marked: BTreeMap<i64, MarkedRun>,
    observed: BTreeMap<JobKey, RunWriter>,
    /// The fault that the log has, until a write goes well.
    warned: Option<String>,
}

/// The run of a job that marks.
struct MarkedRun {
    writer: RunWriter,
    /// Marks that were kept at the last write.
    marks: u64,
    /// Whether it said then that it had ended.
    has_ended: bool,
    /// The last step whose deviation is written.
    last_step: Option<i64>,
    /// The ledger has no room for the job: it would be read in vain each time.
    is_too_large: bool,
}

impl LiveExport {
    fn new(inputs: EventFileInputs) -> Self {
        let folder = EventFolder::new(&inputs.settings.directory, &inputs.host, std::process::id());
        let counters = ExportCounters::new("tensorboard");
        Self { inputs, folder, counters, marked: BTreeMap::new(), observed: BTreeMap::new(), warned: None }
    }

    /// Writes a point of each job. A fault of one job does not keep the others from theirs.
    fn write(&mut self) {
        let now = self.inputs.clock.now();
        let mut faults = self.write_marked(now);
        faults.extend(self.write_observed(now));
        faults.iter().for_each(|(fault, _)| self.counters.failed(fault.as_str()));
        let Some((fault, error)) = faults.into_iter().min() else {
            self.counters.succeeded(now);
            if self.warned.take().is_some() {
                info!("event files for TensorBoard are written again");
            }
            return;
        };
        // What a ledger says may have another number each time.
        let reason = if fault == EventFileFault::Marks { fault.as_str().to_owned() } else { error.clone() };
        if self.warned.as_ref() != Some(&reason) {
            let directory = self.inputs.settings.directory.display();
            let remedy = (self.inputs.remedy)(fault);
            warn!(%directory, error, remedy, "event files for TensorBoard cannot be written");
            self.warned = Some(reason);
        }
    }

    /// Jobs that mark, by the exact ledger. Gives the faults.
    fn write_marked(&mut self, now: Timestamp) -> Vec<SaidFault> {
        let mut jobs = match self.inputs.marks.jobs(None, None) {
            Ok(jobs) => jobs,
            Err(error) => return vec![(EventFileFault::Marks, error.to_string())],
        };
        let silent_ns = i64::try_from(SILENT_FOR.as_nanos()).unwrap_or(i64::MAX);
        jobs.retain(|job| now.0.saturating_sub(job.last.0) < silent_ns);
        jobs.sort_by_key(|job| std::cmp::Reverse(job.last));
        jobs.truncate(MOST_JOBS);
        let present: BTreeSet<i64> = jobs.iter().map(|job| job.number).collect();
        self.marked.retain(|number, _| present.contains(number));
        jobs.iter().filter_map(|job| self.write_marked_job(job, now).err()).collect()
    }

    fn write_marked_job(&mut self, job: &MarkedJob, now: Timestamp) -> Result<(), SaidFault> {
        let run = self.marked.entry(job.number).or_insert_with(|| MarkedRun::new(job));
        if run.is_too_large || (run.has_ended && run.marks == job.marks) {
            return Ok(());
        }
        let answered = self.inputs.mark_ledgers.ask(job.number, &question(&job.name));
        run.is_too_large = matches!(answered, Err(MarkLedgerError::TooLarge { .. }));
        let (row, answer) =
            answered.map_err(|error| (EventFileFault::Marks, format!("{}: {error}", job.name)))?;
        // A job without a figure has none to be written.
        let MarkAnswer::Exact(LedgerAnswer::Job(answer)) = answer else { return Ok(()) };
        let mut last_step = run.last_step;
        let groups = scalars::of_job(&answer, &mut last_step);
        if run.writer.begins_file() {
            self.make_room();
        }
        let Some(run) = self.marked.get_mut(&job.number) else { return Ok(()) };
        write_run(&mut run.writer, &self.folder, &groups, now, &self.counters)?;
        (run.marks, run.has_ended, run.last_step) = (row.marks, answer.period.job_end_logged, last_step);
        Ok(())
    }

    /// Jobs that have chips open, by the proxy ledger. Gives the faults.
    fn write_observed(&mut self, now: Timestamp) -> Vec<SaidFault> {
        let running = self.inputs.ledgers.running();
        let present: BTreeSet<&JobKey> = running.iter().map(|job| &job.key).collect();
        self.observed.retain(|key, _| present.contains(key));
        let mut faults = Vec::new();
        for job in &running {
            let groups = scalars::of_proxy(&figures(job));
            if self.observed.get(&job.key).is_none_or(RunWriter::begins_file) && !groups.is_empty() {
                self.make_room();
            }
            let host = self.folder.host();
            let run = || PathBuf::from(job_folder::of_key(&job.key)).join(format!("proxy-{host}"));
            let writer = self.observed.entry(job.key.clone()).or_insert_with(|| RunWriter::new(run()));
            faults.extend(write_run(writer, &self.folder, &groups, now, &self.counters).err());
        }
        faults
    }

    /// Makes room for a new file. A folder that cannot be looked through says so when it is written to.
    fn make_room(&self) {
        let marked = self.marked.values().map(|run| &run.writer);
        let open = marked.chain(self.observed.values()).filter_map(RunWriter::file).collect();
        let made = self
            .folder
            .open()
            .and_then(|top| retention::make_room(&top, self.inputs.settings.max_size.get(), &open));
        if let Err(error) = made {
            debug!(%error, "old event files are not removed");
        }
    }
}

impl MarkedRun {
    fn new(job: &MarkedJob) -> Self {
        let run = PathBuf::from(job_folder::of_name(&job.name, job.uid)).join("goodput");
        Self { writer: RunWriter::new(run), marks: 0, has_ended: false, last_step: None, is_too_large: false }
    }
}

/// Appends to a run, and counts its points.
fn write_run(
    run: &mut RunWriter,
    folder: &EventFolder,
    groups: &[ScalarGroup],
    now: Timestamp,
    counters: &ExportCounters,
) -> Result<(), SaidFault> {
    let points = groups.iter().map(|group| group.values.len() as u64).sum();
    match run.write(folder, groups, now) {
        Ok(()) => counters.sent(points),
        Err(error) => {
            counters.dropped(points);
            return Err((EventFileFault::of(&error), error.to_string()));
        }
    }
    Ok(())
}

/// The whole job as the library computes it, now.
fn question(job: &str) -> MarkLedgerQuestion {
    MarkLedgerQuestion {
        ledger: MarkLedger::Exact,
        now: None,
        window: None,
        elastic: false,
        labels: SeriesLabels {
            location: String::new(),
            workload_id: job.to_owned(),
            replica_id: String::new(),
            accelerator_type: String::new(),
            cluster_name: None,
        },
    }
}

fn figures(job: &JobGoodput) -> ProxyFigures<'static> {
    let counts = &job.counts;
    let lost = SecondState::ALL.into_iter().filter(|state| state.is_known() && !state.is_productive());
    ProxyFigures {
        elapsed_seconds: counts.elapsed(),
        known_seconds: counts.known(),
        goodput_ratio: counts.goodput(),
        coverage_ratio: counts.coverage(),
        scheduling_goodput_ratio: counts.scheduling_goodput(),
        lost: lost.map(|state| (state.name(), counts.of(state))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_has_a_fault_with_a_remedy_of_its_own() {
        let of = |kind: io::ErrorKind| EventFileFault::of(&kind.into()).as_str();
        assert_eq!(of(io::ErrorKind::StorageFull), "no_space");
        assert_eq!(of(io::ErrorKind::QuotaExceeded), "no_space");
        assert_eq!(of(io::ErrorKind::PermissionDenied), "folder");
        let top = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nowhere", top.path().join("j")).unwrap();
        let folder = EventFolder::new(top.path(), "h", 1);
        let groups = [ScalarGroup { step: 1, values: vec![("goodput/goodput".into(), 1.0)] }];
        let error = RunWriter::new("j/goodput").write(&folder, &groups, Timestamp(0)).unwrap_err();
        assert_eq!(EventFileFault::of(&error).as_str(), "link");
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_hangs_is_a_failure_again_and_again() {
        let count = async |takes: Duration| {
            let mut failures = 0;
            let writing = tokio::spawn(async move { tokio::time::sleep(takes).await });
            ended(writing, Path::new("/x"), || failures += 1).await.map(|()| failures)
        };
        assert_eq!(count(Duration::from_secs(29)).await, Ok(0));
        assert_eq!(count(Duration::from_secs(3601)).await, Ok(120));
    }
}
