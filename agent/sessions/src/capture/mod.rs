//! Runs one capture: reserve and probe, start all at once, receive, keep.
//!
//! ```text
//! stage parts ─ reserve ─ probe all ─ one start ─ profile all ─ enough? ─ make parts visible ─ manifest
//!      │           │          │                        │           │ no
//!      └───────────┴──────────┴───────── fault ────────┴───────────┴──> nothing visible, profilers free
//! ```
//!
//! Parts are staged first: a folder that cannot be written is found before any workload is disturbed.
//! Every call that may block runs on a thread for that. Sessions in the workloads are ended by their profilers' tasks,
//! whatever becomes of the capture.

mod progress;
mod publish;
mod record;
mod reserve;
mod second_reading;
mod staged_part;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::time::Clock;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use xprof::session::{FinishedSession, PartName, SessionError, SessionWriter};

pub use progress::{CaptureProgress, ProgressListener};
pub use staged_part::StagedPart;

use self::{
    publish::CaptureOutcome,
    record::CaptureWindow,
    reserve::{Probed, common_start},
};
use crate::{
    CaptureError,
    profiler::Profilers,
    settings::Settings,
    spec::CaptureSpec,
    target::{CaptureTarget, Targets},
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
    /// Receives the progress.
    pub listener: ProgressListener,
    /// Ends it early, with nothing kept.
    pub cancel: CancellationToken,
}

impl CaptureRun {
    /// Runs it into `writer`'s session. Parts that are not kept are removed when it returns, unless the disk hangs.
    ///
    /// # Errors
    /// When nothing is kept: the one error that explains it best.
    pub async fn run(
        self,
        writer: &Arc<SessionWriter>,
        clock: &dyn Clock,
    ) -> Result<CapturedSession, CaptureError> {
        if self.targets.targets.is_empty() {
            return Err(no_target(&self.targets));
        }
        let open = TaskTracker::new();
        let result = Arc::new(self).run_parts(writer, clock, &open).await;
        open.close();
        let _ = tokio::time::timeout(REMOVAL, open.wait()).await;
        result
    }

    async fn run_parts(
        self: Arc<Self>,
        writer: &Arc<SessionWriter>,
        clock: &dyn Clock,
        open: &TaskTracker,
    ) -> Result<CapturedSession, CaptureError> {
        let parts = stage(writer, &self.targets.targets, open).await?;
        let reserved = self.reserve_all(writer.name(), clock.now()).await;
        let probed = self.probe_in_time(reserved, clock.now()).await?;
        let window = self.window(&probed, clock);
        let mut failures = Failures::new();
        let mut profilers = Vec::new();
        for (index, (part, probed)) in parts.into_iter().zip(probed).enumerate() {
            match probed {
                Ok((lease, _)) => profilers.push((index, part, lease)),
                Err(error) => drop(failures.insert(index, error)),
            }
        }
        let enough = self.check_enough(profilers.len(), &failures);
        if enough.is_ok() {
            let (session, targets) = (writer.name().clone(), self.targets.targets.clone());
            (self.listener)(CaptureProgress::Started { session, targets, start: window.begin });
        }
        for (&index, error) in &failures {
            (self.listener)(CaptureProgress::Failed(index, error.clone()));
        }
        enough?;
        let notes = take_second_names(&mut failures);
        let received = self.record_all(writer.name(), profilers, window, &mut failures).await?;
        if self.cancel.is_cancelled() {
            return Err(CaptureError::Cancelled);
        }
        self.check_enough(received.len(), &failures)?;
        let outcome = CaptureOutcome { received, failures, notes, window };
        self.publish(writer, outcome, clock).await
    }

    fn window(&self, probed: &[Probed], clock: &dyn Clock) -> CaptureWindow {
        let common_start = self.spec.start.or_else(|| common_start(probed, clock.now()));
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
    if targets.denied > 0 && targets.missing.is_empty() {
        let left_out = targets.left_out();
        let others = targets.warnings.iter().filter(|&warning| Some(warning) != left_out.as_ref()).cloned();
        return CaptureError::NotPermitted { reasons: others.chain(left_out.clone()).collect(), hidden };
    }
    let missing = targets
        .missing
        .iter()
        .map(|missing| format!("{}: {}", missing.process.as_deref().unwrap_or(&missing.host), missing.why));
    CaptureError::NoTarget { reasons: missing.chain(targets.warnings.iter().cloned()).collect(), hidden }
}
