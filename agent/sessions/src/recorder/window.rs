//! One window of one process: its profiler is reserved and probed, records, and the trace becomes a segment.

use std::{sync::Arc, time::Duration};

use model::{time::Timestamp, workload::ProcessKey};
use store::segments::{RecordedProcess, SegmentFacts, Segments, StoredSegment};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use xprof::{
    check::TraceSummary,
    client::{self, Bounds, Received},
    session::SessionName,
};

use super::{ActiveSettings, ArrivingTrace, MAX_BACKOFF, PREPARE, Recorder, RecordingPlan, gap};
use crate::{
    own_metrics,
    profiler::{
        ProbeTimeouts, ProfileJob, ProfilerError, ProfilerLease, TraceSink,
        queue::{ProfilerUser, Refusal},
    },
    spec::{CaptureParams, CaptureSpec, Levels, ParamsSource},
    target::CaptureTarget,
    trace_reading::TraceReader,
    trace_remarks::TraceRemarks,
};

/// How long before the window the request is sent: a profiler that has it is busy.
const REQUEST_LEAD: Duration = Duration::from_millis(50);
/// The levels of the tracers: user annotations of the host, all of the devices, nothing of Python.
const LEVELS: [u32; 3] = [1, 1, 0];
/// A lease holds so much longer than a window may take.
const LEASE_SLACK: Duration = Duration::from_secs(5);

/// One window to record.
pub(super) struct WindowJob {
    pub(super) process: RecordedProcess,
    pub(super) target: CaptureTarget,
    pub(super) plan: RecordingPlan,
    /// When it begins.
    pub(super) due: Timestamp,
    pub(super) length: Duration,
    pub(super) settings: ActiveSettings,
}

/// Why a window was not recorded, or not in full.
#[derive(Debug, Error)]
pub(super) enum WindowFailure {
    #[error("the agent was stopped")]
    Stopped,
    #[error("the capture {0} used the profiler")]
    Capture(SessionName),
    #[error("a capture asked for the profiler")]
    CaptureWaits,
    /// Another program has a session, or the program itself has one.
    #[error("another program used the profiler: {0}")]
    Foreign(String),
    #[error("nothing was traced")]
    Empty,
    #[error("the clock was set back just before the window")]
    ClockStepped,
    /// A signal or a debugger has stopped it.
    #[error("the process was stopped (SIGSTOP or a debugger): {0}")]
    ProcessStopped(String),
    #[error("{0}")]
    Call(String),
    #[error("{0}")]
    Disk(String),
}

/// A window that was recorded.
struct RecordedWindow {
    segment: StoredSegment,
    /// A capture ended it early.
    is_cut: bool,
}

/// A trace that arrived.
pub(super) struct ArrivedTrace {
    pub(super) trace: ArrivingTrace,
    pub(super) summary: TraceSummary,
    pub(super) spec: CaptureSpec,
    pub(super) is_cut: bool,
}

impl Recorder {
    /// Records one window, and notes how it ended.
    pub(super) async fn record(self: Arc<Self>, job: WindowJob, cancel: CancellationToken) {
        let result = match self.window(&job, &cancel).await {
            Err(WindowFailure::Call(why)) => Err(self.observed(job.process.process, why).await),
            result => result,
        };
        let outcome = match &result {
            Ok(_) => "recorded",
            Err(WindowFailure::Stopped) => return self.ended(&job.process),
            Err(WindowFailure::Foreign(_)) => "foreign_use",
            Err(WindowFailure::Capture(_) | WindowFailure::CaptureWaits) => "capture",
            Err(_) => "failed",
        };
        own_metrics::window(outcome);
        let reason = match &result {
            Ok(RecordedWindow { is_cut: false, .. }) => None,
            Ok(_) => Some(format!("{}: the window was ended early", WindowFailure::CaptureWaits)),
            Err(failure) => Some(failure.to_string()),
        };
        if let Err(WindowFailure::Foreign(what)) = &result {
            self.note_foreign_use(job.process.process, what).await;
        }
        if let Some(reason) = reason {
            // The part that was recorded is no gap.
            let from = result.as_ref().map_or(job.due, |window| window.segment.stop).max(job.due);
            let left = from.age(job.due.plus(job.length));
            self.note_gaps(vec![gap(job.process.clone(), (from, left), &reason)]);
        }
        self.learn(&job, result);
    }

    /// What is seen of a process whose profiler did not answer as it should.
    pub(super) async fn observed(&self, process: ProcessKey, why: String) -> WindowFailure {
        let profilers = Arc::clone(&self.profilers);
        let stopped = tokio::task::spawn_blocking(move || profilers.is_stopped(process)).await;
        match stopped {
            Ok(Some(true)) => WindowFailure::ProcessStopped(why),
            _ => WindowFailure::Call(why),
        }
    }

    /// What the next windows have to know of this one.
    fn learn(&self, job: &WindowJob, result: Result<RecordedWindow, WindowFailure>) {
        let uptime = self.clock.uptime();
        let rate = job.settings.recorder.max_write_rate.get();
        let mut state = self.state();
        if let Ok(window) = &result {
            state.budget.wrote(window.segment.bytes, rate, uptime);
        }
        let Some(known) = state.processes.get_mut(&job.process) else { return };
        known.is_recording = false;
        match result {
            Ok(RecordedWindow { segment, is_cut }) => {
                (known.failures, known.last_failure) = (0, None);
                if !is_cut {
                    known.length.seen(job.length, segment.facts.steps.as_ref(), job.settings.bounds());
                }
            }
            Err(failure) => {
                let (pid, due) = (job.process.process.pid, job.due);
                // A job may idle, and a capture is no fault.
                let is_fault = matches!(
                    failure,
                    WindowFailure::Call(_) | WindowFailure::ProcessStopped(_) | WindowFailure::Disk(_)
                );
                if is_fault {
                    known.failures = (known.failures + 1).min(MAX_BACKOFF);
                    known.to_leave_out = (1 << known.failures) - 2;
                }
                if known.last_failure.is_none() {
                    info!(pid, %due, %failure, "a window was not recorded");
                } else {
                    debug!(pid, %due, %failure, "a window was not recorded");
                }
                known.last_failure = Some(failure.to_string());
            }
        }
        drop(state);
        self.activity.send_replace(());
    }

    fn ended(&self, process: &RecordedProcess) {
        if let Some(known) = self.state().processes.get_mut(process) {
            known.is_recording = false;
        }
        self.activity.send_replace(());
    }

    pub(super) async fn note_foreign_use(&self, process: ProcessKey, what: &str) {
        self.state().foreign_uses.insert(process, what.to_owned());
        let (segments, text) = (Arc::clone(&self.segments), what.to_owned());
        let noted = tokio::task::spawn_blocking(move || segments.note_foreign_use(process, &text)).await;
        warn!(
            pid = process.pid,
            what, "another program uses a profiler: the process is not recorded again unless its owner asks"
        );
        if let Ok(Err(error)) = noted {
            warn!(pid = process.pid, %error, "the next agent will not know of the other program");
        }
    }

    async fn window(
        &self,
        job: &WindowJob,
        cancel: &CancellationToken,
    ) -> Result<RecordedWindow, WindowFailure> {
        let (trace, lease) = tokio::select! {
            prepared = self.prepare(job) => prepared?,
            () = cancel.cancelled() => return Err(WindowFailure::Stopped),
        };
        let arrived = self.receive(job, trace, &lease, cancel).await?;
        drop(lease);
        let is_cut = arrived.is_cut;
        let (process, target) = (job.process.clone(), job.target.clone());
        let (due, strategy) = (job.due, job.plan.strategy.as_str());
        let reader = Arc::clone(&self.reader);
        let keep =
            move |segments: &Segments| keep(segments, &reader, arrived, process, &target, due, strategy);
        let segment = self.on_disk(keep).await??;
        self.note_steps(&segment, job.settings.recorder.every.get());
        let (pid, bytes) = (job.process.process.pid, segment.bytes);
        debug!(pid, due = %job.due, bytes, "window recorded");
        Ok(RecordedWindow { segment, is_cut })
    }

    /// Works with the segments on a thread that may block, with few others: a disk that hangs must not take all threads.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Segments) -> T + Send + 'static,
    ) -> Result<T, WindowFailure> {
        let failed = |error: &dyn ToString| WindowFailure::Disk(error.to_string());
        let permit = Arc::clone(&self.disk).acquire_owned().await.map_err(|error| failed(&error))?;
        let segments = Arc::clone(&self.segments);
        let worked = tokio::task::spawn_blocking(move || {
            let result = work(&segments);
            drop(permit);
            result
        });
        worked.await.map_err(|error| failed(&error))
    }

    /// Reserves and probes the profiler, and waits for the window.
    async fn prepare(&self, job: &WindowJob) -> Result<(ArrivingTrace, ProfilerLease), WindowFailure> {
        let limits = &job.settings.limits;
        let begun = self.on_disk(Segments::begin).await?;
        let trace = ArrivingTrace::new(begun.map_err(|error| WindowFailure::Disk(error.to_string()))?);
        let within = PREPARE + job.length + limits.timeout.get() + LEASE_SLACK;
        let lease = self.profilers.reserve(&job.target, &ProfilerUser::Recorder, within).await;
        let lease = lease.map_err(refused)?;
        let timeouts =
            ProbeTimeouts { connect: limits.connect_timeout.get(), answer: limits.probe_timeout.get() };
        lease.probe(timeouts).await.map_err(failed)?;
        let wait = self.clock.now().age(job.due).saturating_sub(REQUEST_LEAD);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = lease.wanted().cancelled() => return Err(WindowFailure::CaptureWaits),
        }
        // A workload that is asked for a start far ahead would wait for it, and be busy until then.
        if self.clock.now().age(job.due) > PREPARE {
            return Err(WindowFailure::ClockStepped);
        }
        Ok((trace, lease))
    }

    /// Receives the trace of the window. When it is cancelled, it returns once the profiler is free.
    async fn receive(
        &self,
        job: &WindowJob,
        trace: ArrivingTrace,
        lease: &ProfilerLease,
        cancel: &CancellationToken,
    ) -> Result<ArrivedTrace, WindowFailure> {
        let spec = spec(job, self.clock.now())?;
        let request = self.profile_job(job, &spec, lease, trace, cancel);
        let Received { sink, summary, .. } = lease.profile(request).await.map_err(|error| {
            let is_cut = lease.wanted().is_cancelled();
            if is_cut { WindowFailure::CaptureWaits } else { failed(error) }
        })?;
        let TraceSink::Segment(trace) = sink else { unreachable!("the sink was a segment") };
        Ok(ArrivedTrace { trace, summary, spec, is_cut: lease.wanted().is_cancelled() })
    }

    fn profile_job(
        &self,
        job: &WindowJob,
        spec: &CaptureSpec,
        lease: &ProfilerLease,
        trace: ArrivingTrace,
        cancel: &CancellationToken,
    ) -> ProfileJob {
        let id = format!("tpuscope-recorder-{:016x}", fastrand::u64(..));
        let within = self.clock.now().age(job.due) + job.length + spec.timeout;
        ProfileJob {
            request: spec.request(&id, Some(job.due)),
            sink: TraceSink::Segment(trace),
            bounds: Bounds { within, max_bytes: spec.max_bytes.min(job.settings.recorder.max_size.get()) },
            progress: Box::new(|_| {}),
            cancel: cancel.clone(),
            enough: lease.wanted().clone(),
        }
    }
}

/// The parameters of a window.
fn spec(job: &WindowJob, now: Timestamp) -> Result<CaptureSpec, WindowFailure> {
    let limits = &job.settings.limits;
    let [host, device, python] = LEVELS.map(|level| Some(level.min(limits.max_tracer_level)));
    let levels = Levels { host, device, python };
    let params = CaptureParams { duration: job.length, levels, ..CaptureParams::default() };
    CaptureSpec::new(params, ParamsSource::Agent, limits, now)
        .map_err(|error| WindowFailure::Call(error.to_string()))
}

fn refused(refusal: Refusal) -> WindowFailure {
    match refusal {
        Refusal::Reserved(ProfilerUser::Capture(session)) => WindowFailure::Capture(session),
        Refusal::Reserved(ProfilerUser::Recorder) => {
            WindowFailure::Call("the window before still has the profiler".to_owned())
        }
        Refusal::Foreign(foreign, _) => foreign_use(&foreign.message, &foreign.connected),
    }
}

fn failed(error: ProfilerError) -> WindowFailure {
    match error {
        ProfilerError::Cancelled => WindowFailure::Stopped,
        ProfilerError::LeaseExpired => WindowFailure::Call("the trace did not arrive in time".to_owned()),
        ProfilerError::Call { error, connected } => match error {
            client::Error::Busy(message) | client::Error::AlreadyExists(message) => {
                foreign_use(&message, &connected)
            }
            client::Error::EmptyTrace => WindowFailure::Empty,
            client::Error::NoSpace | client::Error::Write(_) => WindowFailure::Disk(error.to_string()),
            error => WindowFailure::Call(error.to_string()),
        },
    }
}

fn foreign_use(message: &str, connected: &[String]) -> WindowFailure {
    let connected = match connected {
        [] => String::new(),
        connected => format!(" (connected to it: {})", connected.join(", ")),
    };
    WindowFailure::Foreign(format!("{message}{connected}"))
}

/// Reads and compresses a trace. Blocks.
pub(super) fn keep(
    segments: &Segments,
    reader: &TraceReader,
    arrived: ArrivedTrace,
    process: RecordedProcess,
    target: &CaptureTarget,
    due: Timestamp,
    strategy: &str,
) -> Result<StoredSegment, WindowFailure> {
    let ArrivedTrace { trace, summary, spec, .. } = arrived;
    let disk = |error: &dyn ToString| WindowFailure::Disk(error.to_string());
    let raw = trace.into_raw();
    let file = raw.reopen().map_err(|error| disk(&error))?;
    let (steps, losses) = match reader.read(file) {
        Ok(reading) => (reading.steps, Ok(reading.losses)),
        Err(why) => (None, Err(why)),
    };
    let TraceRemarks { warnings, losses } = TraceRemarks::of(&summary, losses, target, &spec);
    let mut versions = target.versions.clone();
    versions.extend(summary.versions.clone());
    let mut facts = SegmentFacts {
        strategy: strategy.to_owned(),
        window_ns: u64::try_from(spec.duration.as_nanos()).unwrap_or(u64::MAX),
        levels: [spec.levels.host, spec.levels.device, spec.levels.python],
        command: target.command.clone(),
        user: target.user.clone(),
        versions,
        address: target.at.to_string(),
        job: target.job.clone(),
        events: summary.events,
        warnings,
        losses,
        steps,
        clock_set_back: false,
    };
    let at = |ns: u64| i64::try_from(ns).map(Timestamp).ok();
    let window = summary.window.and_then(|(start, stop)| at(start).zip(at(stop)));
    let (start, stop) = window.unwrap_or_else(|| (due, due.plus(spec.duration)));
    facts.clock_set_back = stop < start;
    segments.keep(raw, process, (start.min(stop), stop), facts).map_err(|error| disk(&error))
}
