//! Continuous profiling of workloads that never outlives its owner: sessions that record until somebody stops them.
//!
//! The workload's buffer grows until somebody takes what is in it, and the session survives the client that started it. So
//! each session has a record on the disk before its start ([`ownership`]) and a guard process ([`guard`]), and is not started
//! where neither could stop it ([`outliving`]) or where the server cannot. The record goes when the stop is certain
//! ([`stopping`]).
//!
//! ```text
//!   start: version, outliving, reserve, probe, methods, nobody else's session, record, guard, StartContinuousProfiling
//!   drain: a sign of life, GetSnapshot, a sign of life
//!   stop:  StopContinuousProfiling until it is certain, guard told, record removed
//! ```
//!
//! An agent that is killed leaves the records: the guard stops their sessions, or `tpuscope stop-profilers` of the unit, or the
//! next agent ([`Continuous::recover`]).
//!
//! Must never start what cannot be stopped, and never drain or stop a session that somebody else started.

mod continuous_request;
mod error;
pub mod growth;
pub mod guard;
mod guard_process;
mod guard_questions;
mod guarded;
mod marked_sink;
pub mod outliving;
pub mod ownership;
pub mod recorded_sessions;
mod session;
pub mod session_machine;
pub mod stopping;

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};
use xprof::client;

pub use continuous_request::ContinuousLevel;
pub use error::{ContinuousRefusal, DrainError, OverReason, StillOpen};
pub use guard_process::{GuardCommand, GuardFault};
pub use ownership::ContinuousStrategy;
pub use session::{ContinuousSession, DrainedSegment, RecordingGap};

use self::{
    guard_process::{GuardClaim, GuardHandle},
    outliving::{Outliving, ProcessFacts, outliving},
    ownership::{OwnedSession, OwnershipFolder, PidScope},
    recorded_sessions::{RecordedEnd, stop_one},
};
use crate::{
    profiler::{ProbeTimeouts, ProfilerLease, Profilers, queue::ProfilerUser},
    target::CaptureTarget,
};

/// The first version of jaxlib that can stop continuous profiling.
const FIRST_WITH_STOP: (u32, u32) = (0, 10);
/// How long a profiler may take to connect and to answer a harmless question.
const PROBE: ProbeTimeouts =
    ProbeTimeouts { connect: Duration::from_secs(1), answer: Duration::from_secs(2) };
/// A session is reserved for this long: until it is stopped, or a capture wants the profiler.
const LEASE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a stop in the background goes on: as long as the process lives.
const IN_THE_BACKGROUND: Duration = LEASE;
/// This host's own processes.
const PROC: &str = "/proc";

/// What to record, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuousSpec {
    /// How the session is used.
    pub strategy: ContinuousStrategy,
    /// How much is recorded. A ring records the devices alone.
    pub level: ContinuousLevel,
    /// The interval of the drains; for a ring, that of the signs of life.
    pub every: Duration,
    /// The largest answer to a drain in bytes.
    pub max_bytes: u64,
}

/// Where things are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuousPaths {
    /// The state directory of the agent, whose lock it has.
    pub state_dir: PathBuf,
    /// The procfs that the processes are read from.
    pub procfs: PathBuf,
    /// The folder of the control groups.
    pub cgroups: PathBuf,
}

/// The continuous profiling of this agent.
pub struct Continuous {
    profilers: Arc<Profilers>,
    folder: OwnershipFolder,
    paths: ContinuousPaths,
    scope: Result<PidScope, String>,
    guard: GuardHandle,
    /// Sessions that are stopped in the background, by name.
    left: Mutex<BTreeMap<String, OwnedSession>>,
    background: TaskTracker,
}

impl fmt::Debug for Continuous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuous").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Continuous {
    /// Nothing runs yet. `guard` starts a guard process, once there is something to guard. Needs a runtime.
    pub fn new(profilers: Arc<Profilers>, paths: ContinuousPaths, guard: GuardCommand) -> Arc<Self> {
        Arc::new(Self {
            profilers,
            folder: OwnershipFolder::in_state(&paths.state_dir),
            paths,
            scope: PidScope::own().map_err(|error| error.to_string()),
            guard: GuardHandle::new(guard),
            left: Mutex::default(),
            background: TaskTracker::new(),
        })
    }

    /// The folder of the records in a state directory, which the guard is started with.
    pub fn records(state_dir: &Path) -> PathBuf {
        OwnershipFolder::in_state(state_dir).path().to_owned()
    }

    /// Stops in the background what an agent before this one has left. Called once, before any start.
    ///
    /// # Errors
    /// If the records cannot be read.
    pub async fn recover(self: &Arc<Self>) -> io::Result<()> {
        let folder = self.folder.clone();
        let (sessions, broken) = blocking(move || folder.read()).await?;
        for name in broken {
            warn!(name, "a record of continuous profiling was not readable and is removed");
        }
        for session in sessions {
            info!(session = session.name(), "an earlier agent left continuous profiling, which is stopped");
            self.stop_in_background(session, None);
        }
        Ok(())
    }

    /// Whether a session may be started in the workload of `target`, as far as that can be told without asking its profiler.
    ///
    /// # Errors
    /// The reason why it must not.
    pub async fn check(
        &self,
        target: &CaptureTarget,
        strategy: ContinuousStrategy,
    ) -> Result<(), ContinuousRefusal> {
        let owned = self.owned(target, strategy, Duration::ZERO)?;
        self.outliving(&owned).await.map(|_| ())
    }

    /// Starts a session in the workload of `target`.
    ///
    /// # Errors
    /// If it is not started.
    pub async fn start(
        self: &Arc<Self>,
        target: &CaptureTarget,
        spec: ContinuousSpec,
    ) -> Result<ContinuousSession, ContinuousRefusal> {
        let owned = self.owned(target, spec.strategy, spec.every)?;
        if self.left().values().any(|left| left.same_profiler(&owned)) {
            return Err(ContinuousRefusal::StillStopping);
        }
        let outlives = self.outliving(&owned).await?;
        let lease = self.profilers.reserve(target, &ProfilerUser::Recorder, LEASE).await?;
        lease.probe(PROBE).await?;
        let methods =
            lease.call(|client| async move { client.continuous_methods(PROBE.answer).await }).await?;
        if !methods.stop || !methods.start {
            return Err(ContinuousRefusal::NoMethod(if methods.stop { "start" } else { "stop" }));
        }
        // After a start without an answer nobody could say whose session it is that runs.
        lease.call(session::nobody_records).await?;
        let (folder, record) = (self.folder.clone(), owned.clone());
        blocking(move || folder.write(&record)).await.map_err(ContinuousRefusal::Record)?;
        let guarded = self.guard.guard(&owned).await;
        if let Err(fault) = guarded
            && outlives == Outliving::Guard
        {
            self.forget(&owned).await;
            return Err(fault.into());
        }
        let session = ContinuousSession::start(Arc::clone(self), owned, spec, lease).await?;
        info!(
            pid = session_pid(target),
            strategy = spec.strategy.as_str(),
            "continuous profiling is started"
        );
        Ok(session)
    }

    /// Waits until what is stopped in the background is stopped.
    pub async fn stopped_all(&self) {
        self.background.close();
        self.background.wait().await;
        self.background.reopen();
    }

    /// The record of a session of this target.
    fn owned(
        &self,
        target: &CaptureTarget,
        strategy: ContinuousStrategy,
        every: Duration,
    ) -> Result<OwnedSession, ContinuousRefusal> {
        let process = target.process.ok_or(ContinuousRefusal::NoProcess)?;
        if self.paths.procfs != Path::new(PROC) {
            return Err(ContinuousRefusal::OtherProcfs(self.paths.procfs.display().to_string()));
        }
        if strategy == ContinuousStrategy::Ring && target.chips.unwrap_or(0) == 0 {
            return Err(ContinuousRefusal::NoChip);
        }
        if let Some(version) = target.versions.get("jaxlib").filter(|version| is_too_old(version)) {
            return Err(ContinuousRefusal::TooOld(version.clone()));
        }
        let scope = self.scope.clone().map_err(ContinuousRefusal::Internal)?;
        Ok(OwnedSession {
            pid: process.pid,
            start_ticks: process.start_ticks,
            address: target.at.to_string(),
            mark: format!("tpuscope-{:016x}", fastrand::u64(..)),
            strategy,
            interval_ms: u64::try_from(every.as_millis()).unwrap_or(u64::MAX),
            boot_id: scope.boot_id,
            pid_namespace: scope.pid_namespace,
        })
    }

    async fn outliving(&self, owned: &OwnedSession) -> Result<Outliving, ContinuousRefusal> {
        let (pid, cgroups) = (owned.pid, self.paths.cgroups.clone());
        let facts = blocking(move || ProcessFacts::read(pid, &cgroups, |name| std::env::var(name).ok()));
        let facts = facts.await.map_err(|error| outliving::NothingOutlives::Unreadable(error.to_string()))?;
        Ok(outliving(&facts)?)
    }

    fn guard_claim(&self, owned: &OwnedSession) -> Option<GuardClaim> {
        self.guard.claim(&owned.name())
    }

    /// Tells the guard of another interval. Without an answer the old one holds.
    async fn guard_again(&self, owned: &OwnedSession) {
        if let Err(fault) = self.guard.guard(owned).await {
            warn!(session = owned.name(), %fault, "the interval of the guard cannot be changed");
        }
    }

    async fn live(&self, owned: &OwnedSession) {
        self.guard.life(&owned.name()).await;
    }

    /// One attempt to stop a session of ours on a connection of its own, if its process is still the same.
    async fn attempt_to_stop(&self, owned: &OwnedSession) -> Result<(), client::Error> {
        match owned.target() {
            Some(target) if !self.has_ended(owned).await => recorded_sessions::attempt(&target).await,
            target => Err(client::Error::NothingListens(target.map_or(0, |target| target.port()))),
        }
    }

    /// Whether the process of a session has ended.
    async fn has_ended(&self, owned: &OwnedSession) -> bool {
        let (Ok(scope), owned) = (self.scope.clone(), owned.clone()) else { return false };
        let standing = tokio::task::spawn_blocking(move || scope.process_of(&owned)).await;
        standing.is_ok_and(|standing| standing == ownership::ProcessStanding::Ended)
    }

    /// The session is over: nobody has to stop it any more.
    async fn forget(&self, owned: &OwnedSession) {
        self.guard.over(&owned.name()).await;
        let (folder, record) = (self.folder.clone(), owned.clone());
        if let Err(error) = blocking(move || folder.remove(&record)).await {
            warn!(session = owned.name(), %error, "the record of a session that is over cannot be removed");
        }
    }

    /// Stops a session, however long it takes. The lease keeps others of ours away until then.
    fn stop_in_background(self: &Arc<Self>, owned: OwnedSession, lease: Option<ProfilerLease>) {
        let (this, name) = (Arc::clone(self), owned.name());
        self.left().insert(name.clone(), owned.clone());
        self.background.spawn(async move {
            let end = this.stop_left(&owned).await;
            drop(lease);
            match &end {
                RecordedEnd::Over(stopping::StopEnd::CannotStop) => {
                    error!(
                        session = name,
                        "the profiler cannot stop what it started: it records until its process ends"
                    );
                }
                RecordedEnd::Over(end) => info!(session = name, ?end, "continuous profiling is over"),
                RecordedEnd::NotTold | RecordedEnd::Failed(_) => {
                    warn!(session = name, ?end, "continuous profiling could not be stopped");
                }
            }
            if end.is_over() {
                this.forget(&owned).await;
            }
            this.left().remove(&name);
        });
    }

    async fn stop_left(&self, owned: &OwnedSession) -> RecordedEnd {
        let Ok(scope) = &self.scope else { return RecordedEnd::NotTold };
        // What the guard stops already is not asked for twice: the next session could be somebody else's.
        while self.guard_claim(owned) == Some(GuardClaim::Stopping) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if self.guard_claim(owned) == Some(GuardClaim::Stopped) {
            return RecordedEnd::Over(stopping::StopEnd::Stopped);
        }
        stop_one(owned, scope, IN_THE_BACKGROUND).await
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<String, OwnedSession>> {
        // The map is whole even if a holder of the lock panicked.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn session_pid(target: &CaptureTarget) -> u32 {
    target.process.map_or(0, |process| process.pid)
}

/// Stops what an agent that is gone has left, for `tpuscope stop-profilers`. The caller has the lock of the state directory.
/// Returns the sessions that may still be open.
///
/// # Errors
/// If the records cannot be read.
pub async fn stop_left_by_dead_agent(state_dir: &Path, within: Duration) -> io::Result<Vec<String>> {
    let folder = OwnershipFolder::in_state(state_dir);
    let reading = folder.clone();
    let (sessions, _) = blocking(move || reading.read()).await?;
    if sessions.is_empty() {
        return Ok(Vec::new());
    }
    let mut open = Vec::new();
    for (session, end) in recorded_sessions::stop_recorded(sessions, PidScope::own()?, within).await {
        let (folder, name) = (folder.clone(), session.name());
        if end.is_over() {
            blocking(move || folder.remove(&session)).await?;
        } else {
            open.push(name);
        }
    }
    Ok(open)
}

/// Whether a version of jaxlib has no method to stop. One that cannot be read is not.
fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < FIRST_WITH_STOP,
        _ => false,
    }
}

/// Makes a call that may block on a thread for that.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_without_stop_is_known_by_its_number() {
        for old in ["0.9.0", "0.7.2", "0.8.2.dev1"] {
            assert!(is_too_old(old), "{old}");
        }
        for other in ["0.10.0", "0.10.2.dev20260101", "1.0", "unknown", ""] {
            assert!(!is_too_old(other), "{other}");
        }
    }
}
