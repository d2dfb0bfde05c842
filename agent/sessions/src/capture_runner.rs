//! The captures of this agent: a bounded number at a time, each into a session of the store, or passed on to its caller
//! ([`forwarding`]).

pub mod forwarding;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use model::{
    log_budget::LogBudget,
    step_times::StepTimes,
    time::{Clock, Timestamp},
};
use store::{
    AsyncStore, SessionOwners, StagedSession, StoredSession,
    uploads::{UploadChoice, UploadStatus, Uploads},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{info, warn};
use xprof::session::{Manifest, SessionName};

use crate::{
    CaptureError, FailureReason,
    capture::{CaptureRun, CapturedSession, HostShare, ProgressListener, no_target},
    own_metrics,
    profiler::Profilers,
    settings::Settings,
    spec::{CaptureParams, CaptureSpec, ParamsSource},
    store_session,
    target::Targets,
    trace_reading::TraceReader,
};

/// What a [`CaptureRunner`] works with.
pub struct CaptureRunnerInputs {
    /// The limits of captures.
    pub settings: Settings,
    /// The profilers of this program.
    pub profilers: Arc<Profilers>,
    /// Where the sessions go.
    pub store: AsyncStore,
    /// Where they go next.
    pub uploads: Uploads,
    /// Reads traces that arrived.
    pub reader: Arc<TraceReader>,
    /// Where the steps go that they show.
    pub steps: Arc<StepTimes>,
    /// The clock of this host.
    pub clock: Arc<dyn Clock>,
}

/// Runs captures into a store.
pub struct CaptureRunner {
    settings: Mutex<Settings>,
    max_captures: u16,
    profilers: Arc<Profilers>,
    store: AsyncStore,
    uploads: Uploads,
    reader: Arc<TraceReader>,
    steps: Arc<StepTimes>,
    clock: Arc<dyn Clock>,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    refusals: Mutex<LogBudget>,
}

/// What a caller asks for.
pub struct CaptureJob {
    /// What to record.
    pub params: CaptureParams,
    /// Name of the session; `None`: the time.
    pub session: Option<SessionName>,
    /// The profilers to ask.
    pub targets: Targets,
    /// Where the session is uploaded to.
    pub upload: UploadChoice,
    /// Receives the progress.
    pub listener: ProgressListener,
    /// Who asks, for the log.
    pub caller: Caller,
    /// Ends the window early: what was recorded so far is kept.
    pub enough: CancellationToken,
    /// `None` for a capture of this host alone.
    pub share: Option<HostShare>,
    /// What becomes of the session, for the log.
    pub session_use: SessionUse,
}

/// What becomes of a session that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionUse {
    /// It stays in the store.
    Kept,
    /// The caller gets its traces, and then it is removed.
    PassedOn,
}

impl SessionUse {
    /// As in "capture kept".
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::PassedOn => "passed on",
        }
    }
}

/// Who asks for something, as the log names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The user of a process of this host.
    pub uid: Option<u32>,
    /// Its process id when it connected.
    pub pid: Option<u32>,
    /// The name in a certificate, with role and address: `operator alice at 10.0.0.7`.
    pub remote: Option<Arc<str>>,
}

/// A capture that was kept.
#[derive(Debug)]
pub struct StoredCapture {
    /// The manifest of its session.
    pub manifest: Manifest,
    /// What failed, in order of the targets; empty if all that was asked for is there.
    pub failures: Vec<CaptureError>,
    /// The session as the store has it.
    pub stored: StoredSession,
    /// Where it is uploaded to.
    pub uploads: Vec<UploadStatus>,
}

/// A capture that runs.
pub struct RunningCapture {
    /// Dropping it ends the capture with nothing kept.
    pub cancel: DropGuard,
    /// How it ends.
    pub result: oneshot::Receiver<Result<StoredCapture, CaptureError>>,
}

impl CaptureRunner {
    /// Captures, none running.
    pub fn new(inputs: CaptureRunnerInputs) -> Arc<Self> {
        let CaptureRunnerInputs { settings, profilers, store, uploads, reader, steps, clock } = inputs;
        let max_captures = settings.max_captures;
        let permits = Arc::new(Semaphore::new(usize::from(max_captures)));
        let settings = Mutex::new(settings);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let refusals = Mutex::default();
        Arc::new(Self {
            settings,
            max_captures,
            profilers,
            store,
            uploads,
            reader,
            steps,
            clock,
            permits,
            tasks,
            stop,
            refusals,
        })
    }

    /// Replaces the settings for captures that begin later. The maximum number of captures stays.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// The time of this host's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// If it cannot begin; then no workload was disturbed.
    pub async fn start(self: &Arc<Self>, job: CaptureJob) -> Result<RunningCapture, CaptureError> {
        let caller = job.caller.clone();
        self.begin(job).await.inspect_err(|error| self.note_refusal(&caller, error))
    }

    fn note_refusal(&self, caller: &Caller, error: &CaptureError) {
        self.note_refused(caller, error.reason(), error);
    }

    /// Notes a capture that was refused, in the log and in the agent's own metrics.
    pub fn note_refused(
        &self,
        Caller { uid, pid, remote }: &Caller,
        reason: FailureReason,
        error: &dyn fmt::Display,
    ) {
        own_metrics::refused();
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permit) = refusals.take(Instant::now()) {
            let (remote, reason) = (remote.as_deref(), reason.as_str());
            info!(uid, pid, remote, reason, %error, "capture refused{permit}");
        }
    }

    fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn begin(self: &Arc<Self>, job: CaptureJob) -> Result<RunningCapture, CaptureError> {
        let CaptureJob { params, session, targets, upload, listener, caller, enough, share, session_use } =
            job;
        let settings = self.settings();
        let spec = CaptureSpec::new(params, ParamsSource::Agent, &settings, self.clock.now())?;
        // Who has nothing to profile learns nothing of the store's sessions.
        if targets.targets.is_empty() {
            return Err(no_target(&targets));
        }
        let permit = self.permit()?;
        let staged =
            store_session::begin(&self.store, session, owners(&targets, &upload), self.clock.now()).await?;
        let cancel = self.stop.child_token();
        let (reply, result) = oneshot::channel();
        let capture = CaptureRun {
            spec,
            targets,
            settings,
            profilers: Arc::clone(&self.profilers),
            reader: Arc::clone(&self.reader),
            steps: Some(Arc::clone(&self.steps)),
            listener,
            cancel: cancel.clone(),
            enough,
            share,
        };
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let result = this.run(capture, staged, (upload, session_use), caller).await;
            own_metrics::ended(&result);
            drop(permit);
            // The caller may be gone.
            let _ = reply.send(result);
        });
        Ok(RunningCapture { cancel: cancel.drop_guard(), result })
    }

    /// Ends all captures once `stop` is cancelled, and waits until the workloads' profilers are free.
    pub async fn end_with(&self, stop: CancellationToken) {
        stop.cancelled().await;
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, CaptureError> {
        if self.stop.is_cancelled() {
            return Err(CaptureError::Stopping);
        }
        Arc::clone(&self.permits)
            .try_acquire_owned()
            .map_err(|_| CaptureError::TooManyCaptures(self.max_captures))
    }

    async fn run(
        &self,
        capture: CaptureRun,
        staged: StagedSession,
        (upload, session_use): (UploadChoice, SessionUse),
        Caller { uid, pid, remote }: Caller,
    ) -> Result<StoredCapture, CaptureError> {
        let (session, remote) = (staged.writer.name().clone(), remote.as_deref());
        info!(%session, uid, pid, remote, targets = capture.targets.targets.len(), "capture begins");
        let captured = match capture.run(&staged.writer, &*self.clock).await {
            Ok(captured) => captured,
            Err(error) => {
                let error = store_session::in_store(error, &staged);
                let reason = error.reason().as_str();
                info!(%session, uid, pid, remote, reason, %error, "capture failed");
                store_session::remove(&self.store, staged).await?;
                return Err(error);
            }
        };
        let CapturedSession { finished, failures } = captured;
        failures.iter().for_each(|error| warn!(%session, %error, "a process of the capture has no trace"));
        let queue = self.uploads.clone();
        let kept = store_session::keep(&self.store, queue, staged, finished, upload, self.clock.now());
        let (stored, manifest, uploads) = kept.await?;
        let (bytes, missing) = (stored.bytes, manifest.missing.len());
        let what = session_use.verb();
        info!(%session, uid, pid, remote, bytes, missing, uploads = uploads.len(), "capture {what}");
        Ok(StoredCapture { manifest, failures, stored, uploads })
    }
}

/// Whose the session will be: its processes' users', unless one of them is not known; and where it goes.
fn owners(targets: &Targets, upload: &UploadChoice) -> SessionOwners {
    let uids: Option<BTreeSet<u32>> = targets.targets.iter().map(|target| target.uid).collect();
    let users = targets.targets.iter().map(|target| target.user.as_ref());
    let jobs = targets.targets.iter().map(|target| target.job.as_ref());
    let owners = SessionOwners {
        user: only(users).cloned(),
        job: only(jobs).cloned().map(Box::new),
        ..SessionOwners::of(uids.unwrap_or_default())
    };
    owners.going_to(upload)
}

/// The value that all have.
pub(crate) fn only<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next()??;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}
