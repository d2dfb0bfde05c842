//! The captures of this agent: so many at a time, each with the profilers that it was granted, into the store.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::time::Clock;
use store::{Owners, StagedSession, Store, StoreError, Stored};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{info, warn};
use xprof::session::{Missing, SessionError, SessionName};

use super::{
    Failure, Kind,
    arbiter::{Arbiter, Grant, Profiler, User},
    capture::{Capture, Event, Kept, Listener, nobody},
    spec::{Caller, CaptureParams, CaptureSpec, SpecError},
    target::{CaptureTarget, Targets},
};
use crate::{own_metrics, settings::Capture as Settings};

/// Runs captures into a store.
pub struct Captures {
    settings: Settings,
    procfs: PathBuf,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    arbiter: Mutex<Arbiter>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What somebody asks for.
pub struct CaptureJob {
    /// What to record.
    pub params: CaptureParams,
    /// Name of the session; `None`: the time.
    pub session: Option<SessionName>,
    /// Of whom.
    pub targets: Targets,
    /// Hears what happens.
    pub listener: Listener,
}

/// A capture that was kept.
#[derive(Debug)]
pub struct Done {
    /// What became of it.
    pub kept: Kept,
    /// As the store has it.
    pub stored: Stored,
}

/// A capture that runs.
pub struct Running {
    /// Dropping it ends the capture with nothing kept.
    pub cancel: DropGuard,
    /// How it ends.
    pub done: oneshot::Receiver<Result<Done, Failure>>,
}

/// Why a capture was not staged.
#[derive(Debug, Error)]
pub enum Refused {
    /// The params is out of bounds.
    #[error(transparent)]
    CaptureSpec(#[from] SpecError),
    /// Something stands in its way.
    #[error("{0}")]
    Failure(Failure),
}

/// A profiler and the right to use it.
type Granted = (Profiler, Grant);

impl Captures {
    /// Captures into `store`, none running.
    pub fn new(
        settings: Settings,
        procfs: PathBuf,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(usize::from(settings.max_captures)));
        Arc::new(Self {
            settings,
            procfs,
            store,
            clock,
            arbiter: Mutex::default(),
            places,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// Begins a capture.
    ///
    /// # Errors
    /// If it cannot begin; then no workload was disturbed.
    pub async fn start(self: &Arc<Self>, order: CaptureJob) -> Result<Running, Refused> {
        let CaptureJob { params, session, mut targets, listener } = order;
        let spec = CaptureSpec::new(params, Caller::Agent, &self.settings, self.clock.now())?;
        // Who has nobody to profile learns nothing of the store's sessions.
        if targets.targets.is_empty() {
            return Err(Refused::Failure(nobody(&targets)));
        }
        let place = self.place().map_err(Refused::Failure)?;
        let staged = self
            .begin(session, owners(&targets))
            .await
            .map_err(|error| Refused::Failure(in_store(error.into())))?;
        let granted = self.reserve(&mut targets, staged.writer.name()).map_err(Refused::Failure)?;
        let reserved = Reserved { captures: Arc::clone(self), granted };
        let cancel = self.stop.child_token();
        let (tell, done) = oneshot::channel();
        let capture = Capture {
            spec,
            targets,
            settings: self.settings.clone(),
            procfs: self.procfs.clone(),
            listener: reserved.hearing_busy(listener),
            cancel: cancel.clone(),
        };
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let result = this.run(capture, staged).await;
            own_metrics::ended(&result);
            drop((reserved, place));
            // Whoever asked may be gone.
            let _ = tell.send(result);
        });
        Ok(Running { cancel: cancel.drop_guard(), done })
    }

    /// Ends all captures once `stop` is cancelled, and waits until the workloads' profilers are free.
    pub async fn end_with(&self, stop: CancellationToken) {
        stop.cancelled().await;
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if self.stop.is_cancelled() {
            return Err(Failure::new(Kind::Cancelled, "the agent is stopping", "start it again first"));
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let message = format!("{} captures run already", self.settings.max_captures);
            Failure::new(Kind::Conflict, message, "wait until one ends, or raise capture.max_captures")
        })
    }

    fn arbiter(&self) -> MutexGuard<'_, Arbiter> {
        // The arbiter changes in single steps: it is whole even if a holder panicked.
        self.arbiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the profilers of `targets`; those that another capture has become missing.
    fn reserve(&self, targets: &mut Targets, session: &SessionName) -> Result<Vec<Granted>, Failure> {
        let mut arbiter = self.arbiter();
        let found: BTreeSet<_> = targets.targets.iter().filter_map(|target| target.process).collect();
        arbiter.forget(|process| found.contains(&process));
        let (mut free, mut granted, mut busy) = (Vec::new(), Vec::new(), None);
        for target in targets.targets.drain(..) {
            let profiler = profiler(&target);
            match arbiter.grant(&profiler, User::Capture(session.to_string())) {
                Ok(grant) => {
                    granted.push((profiler, grant));
                    free.push(target);
                }
                Err(holder) => {
                    let by = match holder {
                        User::Capture(session) => {
                            format!("another capture of this agent (session {session})")
                        }
                        User::Recorder => "this agent's recorder".to_owned(),
                    };
                    let why = format!("{}: the profiler is in use by {by}", target.at);
                    let process = Some(target.at.to_string());
                    targets.missing.push(Missing {
                        host: target.host.to_string(),
                        process,
                        why: why.clone(),
                    });
                    busy = Some(Failure::new(Kind::Busy, why, "wait until it ends, then try again"));
                }
            }
        }
        targets.targets = free;
        match busy {
            Some(failure) if targets.targets.is_empty() => Err(failure),
            _ => Ok(granted),
        }
    }

    async fn begin(&self, named: Option<SessionName>, owners: Owners) -> Result<StagedSession, StoreError> {
        let store = Arc::clone(&self.store);
        let begin = move || match named {
            Some(name) => store.begin(name, &owners),
            None => begin_by_time(&*store, &owners),
        };
        store::blocking(begin).await
    }

    async fn run(&self, capture: Capture, staged: StagedSession) -> Result<Done, Failure> {
        let session = staged.writer.name().clone();
        info!(%session, targets = capture.targets.targets.len(), "capture begins");
        let kept =
            capture.run(&staged.writer, &*self.clock).await.map_err(|failure| placed(failure, &staged));
        let kept = kept.inspect_err(|failure| {
            info!(%session, kind = failure.kind.as_str(), %failure, "capture failed");
        })?;
        let (store, now, name) = (Arc::clone(&self.store), self.clock.now(), session.clone());
        let stored = store::blocking(move || {
            if let Err(error) = store.finish(staged, now) {
                warn!(%error, "cannot clear away old sessions");
            }
            store.get(&name)
        });
        let stored = stored.await?;
        info!(%session, bytes = stored.bytes, missing = kept.manifest.missing.len(), "capture kept");
        Ok(Done { kept, stored })
    }
}

/// Says where a disk is full that the caller did not name.
fn placed(failure: Failure, staged: &StagedSession) -> Failure {
    if failure.kind != Kind::NoSpace {
        return in_store(failure);
    }
    let message = format!("{} (in the agent's store, {})", failure.message, staged.folder.display());
    in_store(Failure { message, ..failure })
}

/// What to do where the session goes to the agent's own store: it is not for its caller to name another.
fn in_store(failure: Failure) -> Failure {
    if !failure.remedy.contains("--output") {
        return failure;
    }
    let remedy = match failure.kind {
        Kind::NoSpace => "make room: `tpuscope sessions rm`, or store.max_size and store.max_age",
        Kind::Denied | Kind::Internal => {
            "the agent keeps its sessions below agent.state_dir: its user has to have the folders there, and no links"
        }
        _ => return failure,
    };
    Failure { remedy: remedy.to_owned(), ..failure }
}

/// A session named after the time; a second one of the same second gets a suffix.
fn begin_by_time(store: &dyn Store, owners: &Owners) -> Result<StagedSession, StoreError> {
    let name = SessionName::from_local_time(jiff::ZonedDateTime::now().datetime());
    match store.begin(name.clone(), owners) {
        Err(
            StoreError::Running(_) | StoreError::Session(SessionError::Exists(_) | SessionError::Running(_)),
        ) => {
            let name = format!("{name}_{:04x}", fastrand::u16(..)).parse().unwrap_or(name);
            store.begin(name, owners)
        }
        staged => staged,
    }
}

/// Whose the session will be: its processes' users', unless one of them is not known.
fn owners(targets: &Targets) -> Owners {
    let uids: Option<BTreeSet<u32>> = targets.targets.iter().map(|target| target.uid).collect();
    Owners { uids: uids.unwrap_or_default().into_iter().collect() }
}

fn profiler(target: &CaptureTarget) -> Profiler {
    match target.process {
        Some(process) => Profiler::Process(process, target.at.port()),
        None => Profiler::Address(target.at.clone()),
    }
}

/// Profilers that are given back when dropped.
struct Reserved {
    captures: Arc<Captures>,
    granted: Vec<Granted>,
}

impl Reserved {
    /// A listener that also notes who turned out to be somebody else's.
    fn hearing_busy(&self, listener: Listener) -> Listener {
        let (captures, granted) = (Arc::clone(&self.captures), self.granted.clone());
        Arc::new(move |event| {
            if let Event::Failed(index, Failure { kind: Kind::Busy, .. }) = &event
                && let Some((profiler, grant)) = granted.get(*index)
            {
                captures.arbiter().told_busy(profiler, *grant);
            }
            listener(event);
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut arbiter = self.captures.arbiter();
        for (profiler, grant) in &self.granted {
            arbiter.release(profiler, *grant);
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Running(_) => Self::new(Kind::Conflict, error, "choose another --session name"),
            StoreError::NotFound(_) | StoreError::Crashed(_) => Self::new(Kind::Internal, error, ""),
            StoreError::Session(error) => error.into(),
        }
    }
}
