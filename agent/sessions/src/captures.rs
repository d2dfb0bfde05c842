//! The captures of this agent: so many at a time, each with the profilers that it was granted, into the store.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use model::time::Clock;
use store::{Owners, StagedSession, Store, StoreError, Stored};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::{info, warn};
use xprof::session::{Missing, SessionError, SessionName};

use super::{
    arbiter::{Arbiter, Grant, Profiler, User},
    capture::{Capture, Event, Kept, Listener, no_target},
    spec::{Caller, CaptureParams, CaptureSpec},
    target::{CaptureTarget, Targets},
};
use crate::{CaptureError, FailureKind, own_metrics, settings::Capture as Settings};

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
    pub done: oneshot::Receiver<Result<Done, CaptureError>>,
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
    pub async fn start(self: &Arc<Self>, order: CaptureJob) -> Result<Running, CaptureError> {
        let CaptureJob { params, session, mut targets, listener } = order;
        let spec = CaptureSpec::new(params, Caller::Agent, &self.settings, self.clock.now())?;
        // Who has nobody to profile learns nothing of the store's sessions.
        if targets.targets.is_empty() {
            return Err(no_target(&targets));
        }
        let place = self.place()?;
        let staged = self.begin(session, owners(&targets)).await?;
        let granted = self.reserve(&mut targets, staged.writer.name())?;
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

    fn place(&self) -> Result<OwnedSemaphorePermit, CaptureError> {
        if self.stop.is_cancelled() {
            return Err(CaptureError::Stopping);
        }
        Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| CaptureError::TooManyCaptures(self.settings.max_captures))
    }

    fn arbiter(&self) -> MutexGuard<'_, Arbiter> {
        // The arbiter changes in single steps: it is whole even if a holder panicked.
        self.arbiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the profilers of `targets`; those that another capture has become missing.
    fn reserve(&self, targets: &mut Targets, session: &SessionName) -> Result<Vec<Granted>, CaptureError> {
        let mut arbiter = self.arbiter();
        let found: BTreeSet<_> = targets.targets.iter().filter_map(|target| target.process).collect();
        arbiter.forget(|process| found.contains(&process));
        let (mut free, mut granted, mut busy) = (Vec::new(), Vec::new(), None);
        for target in targets.targets.drain(..) {
            let profiler = profiler(&target);
            match arbiter.grant(&profiler, User::Capture(session.clone())) {
                Ok(grant) => {
                    granted.push((profiler, grant));
                    free.push(target);
                }
                Err(User::Capture(session)) => {
                    let error = CaptureError::InUse { target: target.at.clone(), session };
                    targets.missing.push(Missing {
                        host: target.host.to_string(),
                        process: Some(target.at.to_string()),
                        why: error.to_string(),
                    });
                    busy = Some(error);
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

    async fn run(&self, capture: Capture, staged: StagedSession) -> Result<Done, CaptureError> {
        let session = staged.writer.name().clone();
        info!(%session, targets = capture.targets.targets.len(), "capture begins");
        let kept =
            capture.run(&staged.writer, &*self.clock).await.map_err(|failure| placed(failure, &staged));
        let kept = kept.inspect_err(|failure| {
            info!(%session, kind = failure.kind().as_str(), %failure, "capture failed");
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
fn placed(error: CaptureError, staged: &StagedSession) -> CaptureError {
    if error.kind() != FailureKind::NoSpace {
        return error;
    }
    CaptureError::StoreFull { folder: staged.folder.clone(), cause: Box::new(error) }
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
            if let Event::Failed(index, error) = &event
                && error.kind() == FailureKind::Busy
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
