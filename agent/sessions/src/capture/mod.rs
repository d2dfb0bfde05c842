//! Runs one capture: reserve and probe, start all at once, receive, keep.
//!
//! ```text
//! stage parts ─ reserve ─ probe all ─ one start ─ profile all ─ enough? ─ make parts visible ─ manifest
//!      │           │          │                        │           │ no
//!      └───────────┴──────────┴───────── fault ────────┴───────────┴──> nothing visible, profilers free
//! ```
//!
//! In a capture over several hosts the start comes from the caller once all profilers are ready: [`HostShare`].
//!
//! Parts are staged first: a folder that cannot be written is found before any workload is disturbed.
//! Every call that may block runs on a thread for that. Sessions in the workloads are ended by their profilers' tasks,
//! whatever becomes of the capture.

mod listeners;
mod progress;
mod publish;
mod record;
pub(crate) mod reserve;
mod second_reading;
mod staged_part;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use model::{
    step_times::StepTimes,
    time::{Clock, Timestamp},
};
use tokio::sync::oneshot;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use xprof::session::{FinishedSession, PartName, SessionError, SessionId, SessionWriter};

pub use progress::{CaptureProgress, ProgressListener};
pub use staged_part::StagedPart;

use self::{
    publish::CaptureOutcome,
    record::CaptureWindow,
    reserve::{Probed, common_start, lead},
};
use crate::{
    CaptureError,
    profiler::{ProfilerLease, Profilers},
    settings::Settings,
    spec::CaptureSpec,
    target::{CaptureTarget, Targets},
    trace_reading::TraceReader,
};

/// The longest wait for the removal of parts that are not kept. A disk that hangs is not waited for longer.
const REMOVAL: Duration = Duration::from_secs(10);

/// Why targets gave no part, by their index.
type Failures = BTreeMap<usize, CaptureError>;

/// A session that was kept.
#[derive(Debug, Clone)]
pub struct CapturedSession {
    /// As it was written.
    pub finished: FinishedSession,
    /// What failed, in order of the targets; empty if all that was asked for is there.
    pub failures: Vec<CaptureError>,
}

/// This host's share of a capture over several hosts.
pub struct HostShare {
    /// The id of the whole session, for the manifest.
    pub id: SessionId,
    /// Called once, when all profilers were probed and enough of them can be used.
    pub ready: Box<dyn FnOnce(ReadyHost) + Send + Sync>,
    /// The start of the window, in this host's clock, which comes after `ready`.
    pub start: oneshot::Receiver<Timestamp>,
}

/// What a host can record, before the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyHost {
    /// The targets, including those that did not answer.
    pub targets: Vec<CaptureTarget>,
    /// How long before the window the start has to be known here.
    pub lead: Duration,
}

/// One capture to run.
pub struct CaptureRun {
    /// What to record.
    pub spec: CaptureSpec,
    /// The profilers to ask.
    pub targets: Targets,
    /// Deadlines of the probes before the window.
    pub settings: Settings,
    /// The profilers of this program.
    pub profilers: Arc<Profilers>,
    /// Reads the traces that arrived.
    pub reader: Arc<TraceReader>,
    /// Where the steps go that they show; `None`: nowhere.
    pub steps: Option<Arc<StepTimes>>,
    /// Receives the progress.
    pub listener: ProgressListener,
    /// Ends it early, with nothing kept.
    pub cancel: CancellationToken,
    /// Ends the window early: what was recorded so far is kept.
    pub enough: CancellationToken,
    /// `None` for a capture of this host alone.
    pub share: Option<HostShare>,
}

/// When the window begins.
enum StartTime {
    /// The caller said it, or it is at once.
    Known(Option<Timestamp>),
    /// The caller says it when all hosts are ready.
    Later { ready: Box<dyn FnOnce(ReadyHost) + Send + Sync>, start: oneshot::Receiver<Timestamp> },
}

impl CaptureRun {
    /// Runs it into `writer`'s session. Parts that are not kept are removed when it returns, unless the disk hangs.
    ///
    /// # Errors
    /// When nothing is kept: the one error that explains it best.
    pub async fn run(
        mut self,
        writer: &Arc<SessionWriter>,
        clock: &dyn Clock,
    ) -> Result<CapturedSession, CaptureError> {
        if self.targets.targets.is_empty() {
            return Err(no_target(&self.targets));
        }
        let (id, start) = match self.share.take() {
            Some(HostShare { id, ready, start }) => (Some(id), StartTime::Later { ready, start }),
            None => (SessionId::random(), StartTime::Known(self.spec.start)),
        };
        let open = TaskTracker::new();
        let result = Arc::new(self).run_parts(writer, clock, &open, id, start).await;
        open.close();
        let _ = tokio::time::timeout(REMOVAL, open.wait()).await;
        result
    }

    async fn run_parts(
        self: Arc<Self>,
        writer: &Arc<SessionWriter>,
        clock: &dyn Clock,
        open: &TaskTracker,
        id: Option<SessionId>,
        start: StartTime,
    ) -> Result<CapturedSession, CaptureError> {
        let parts = stage(writer, &self.targets.targets, open).await?;
        let reserved = self.reserve_all(writer.name(), &start, clock.now()).await?;
        let probed = self.probe_all(reserved).await?;
        // What is told before the start is not told again.
        let mut told = BTreeSet::new();
        let start = match start {
            StartTime::Known(start) => start,
            StartTime::Later { ready, start } => {
                told.extend(self.tell_ready(&probed, ready)?);
                Some(self.wait_for_start(start).await?)
            }
        };
        let probed = self.wait_and_probe(start, probed, clock).await?;
        let window = self.window(start, &probed, clock);
        let (profilers, mut failures) = usable(parts, probed);
        let enough = self.check_enough(profilers.len(), &failures);
        if enough.is_ok() {
            let (session, targets) = (writer.name().clone(), self.targets.targets.clone());
            (self.listener)(CaptureProgress::Started { session, targets, start: window.begin });
        }
        for (&index, error) in failures.iter().filter(|(index, _)| !told.contains(*index)) {
            (self.listener)(CaptureProgress::Failed(index, error.clone()));
        }
        enough?;
        let notes = take_second_names(&mut failures);
        let received = self.record_all(writer.name(), profilers, window, &mut failures).await?;
        if self.cancel.is_cancelled() {
            return Err(CaptureError::Cancelled);
        }
        self.check_enough(received.len(), &failures)?;
        let outcome = CaptureOutcome { id, received, failures, notes, window };
        self.publish(writer, outcome, clock).await
    }

    /// Tells that this host is ready, if it is. Returns the targets that failed.
    fn tell_ready(
        &self,
        probed: &[Probed],
        ready: Box<dyn FnOnce(ReadyHost) + Send + Sync>,
    ) -> Result<Vec<usize>, CaptureError> {
        let failed = |(index, probed): (usize, &Probed)| Some((index, probed.as_ref().err()?.clone()));
        let failures: Failures = probed.iter().enumerate().filter_map(failed).collect();
        let enough = self.check_enough(probed.len() - failures.len(), &failures);
        if enough.is_ok() {
            ready(ReadyHost { targets: self.targets.targets.clone(), lead: lead(probed) });
        }
        for (&index, error) in &failures {
            (self.listener)(CaptureProgress::Failed(index, error.clone()));
        }
        enough.map(|()| failures.into_keys().collect())
    }

    /// Waits for the start that the caller sends.
    async fn wait_for_start(&self, start: oneshot::Receiver<Timestamp>) -> Result<Timestamp, CaptureError> {
        tokio::select! {
            start = start => start.map_err(|_| CaptureError::Cancelled),
            () = self.cancel.cancelled() => Err(CaptureError::Cancelled),
        }
    }

    fn window(&self, start: Option<Timestamp>, probed: &[Probed], clock: &dyn Clock) -> CaptureWindow {
        let common_start = start.or_else(|| common_start(probed, clock.now()));
        let begin = common_start.unwrap_or_else(|| clock.now());
        let until = u64::try_from(begin.0.saturating_sub(clock.now().0)).unwrap_or(0);
        let within = Duration::from_nanos(until) + self.spec.duration + self.spec.timeout;
        CaptureWindow { begin, common_start, within }
    }

    /// The target gives no part.
    fn fail(&self, index: usize, error: CaptureError, failures: &mut Failures) {
        (self.listener)(CaptureProgress::Failed(index, error.clone()));
        failures.insert(index, error);
    }

    /// Whether `parts` parts are enough to go on.
    fn check_enough(&self, parts: usize, failures: &Failures) -> Result<(), CaptureError> {
        let (targets, needed) = (self.targets.targets.len(), self.spec.min_parts);
        if parts >= needed {
            return Ok(());
        }
        match failures.values().next() {
            None => Err(CaptureError::TooFewTargets { targets: parts, needed }),
            Some(only) if failures.len() == 1 && targets == 1 => Err(only.clone()),
            Some(_) => {
                let failures = failures.values().cloned().collect();
                Err(CaptureError::TooFewParts { parts, targets, needed, failures })
            }
        }
    }
}

/// The profilers that answered, each with its part and the index of its target, and why the others cannot be used.
fn usable(
    parts: Vec<StagedPart>,
    probed: Vec<Probed>,
) -> (Vec<(usize, StagedPart, ProfilerLease)>, Failures) {
    let (mut profilers, mut failures) = (Vec::new(), Failures::new());
    for (index, (part, probed)) in parts.into_iter().zip(probed).enumerate() {
        match probed {
            Ok((lease, _)) => profilers.push((index, part, lease)),
            Err(error) => drop(failures.insert(index, error)),
        }
    }
    (profilers, failures)
}

/// A profiler under a second name gives no second part, and nothing is missing: a note says so.
fn take_second_names(failures: &mut Failures) -> Vec<String> {
    let mut notes = Vec::new();
    failures.retain(|_, error| {
        let is_second = matches!(error, CaptureError::SameProfiler { .. });
        if is_second {
            notes.push(format!("{error}: the session has one part of both"));
        }
        !is_second
    });
    notes
}

/// Stages a part for every target.
async fn stage(
    writer: &Arc<SessionWriter>,
    targets: &[CaptureTarget],
    open: &TaskTracker,
) -> Result<Vec<StagedPart>, CaptureError> {
    let (writer, names, open) = (Arc::clone(writer), part_names(targets), open.clone());
    let stage =
        move || names.iter().map(|name| Ok(StagedPart::new(writer.part(name)?, open.token()))).collect();
    let staged: Result<_, SessionError> = blocking(stage).await?;
    Ok(staged?)
}

/// Makes a call that may block on a thread for that.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T, CaptureError> {
    tokio::task::spawn_blocking(call).await.map_err(CaptureError::panicked)
}

/// One name per target: the host's, with the port where it has several.
fn part_names(targets: &[CaptureTarget]) -> Vec<PartName> {
    let mut hosts: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, target) in targets.iter().enumerate() {
        hosts.entry(&target.host).or_default().push(index);
    }
    let mut names: Vec<(usize, PartName)> = Vec::new();
    for (host, indexes) in hosts {
        let ports: Vec<_> = indexes.iter().map(|&index| Some(targets[index].at.port())).collect();
        names.extend(indexes.into_iter().zip(PartName::of_host(host, &ports)));
    }
    names.sort_by_key(|&(index, _)| index);
    names.into_iter().map(|(_, name)| name).collect()
}

/// Why there is nothing to profile.
pub(crate) fn no_target(targets: &Targets) -> CaptureError {
    let hidden = targets.hidden.clone();
    // A process of the caller without a profiler is the nearer cause.
    if targets.denied > 0 && targets.unusable == 0 && targets.missing.is_empty() {
        let left_out = targets.left_out();
        let others = targets.warnings.iter().filter(|&warning| Some(warning) != left_out.as_ref()).cloned();
        return CaptureError::NotPermitted { reasons: others.chain(left_out.clone()).collect(), hidden };
    }
    let missing = targets
        .missing
        .iter()
        .map(|missing| format!("{}: {}", missing.process.as_deref().unwrap_or(&missing.host), missing.why));
    let reasons = missing.chain(targets.warnings.iter().cloned()).collect();
    match targets.hanging {
        0 => CaptureError::NoTarget { reasons, hidden },
        all if all == targets.missing.len() + targets.unusable => CaptureError::OldJaxlib { reasons },
        _ => CaptureError::NoTarget { reasons, hidden },
    }
}
