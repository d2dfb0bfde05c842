//! One session of continuous profiling in a workload, while this agent has it.

use std::{io::Write, sync::Arc, time::Duration};

use model::time::Timestamp;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, warn};
use xprof::client::{self, Bounds, ProfilerClient, Received};

use super::{
    Continuous, ContinuousRefusal, ContinuousSpec, DrainError, OverReason, PROBE, StillOpen,
    continuous_request,
    guard_process::GuardClaim,
    marked_sink::MarkedSink,
    ownership::{ContinuousStrategy, OwnedSession},
    session_machine::{DrainAnswer, SessionEnd, SessionMachine, SessionStage, StartAnswer},
    stopping::{StopAnswer, StopEnd, StopStep},
};
use crate::profiler::{ProfilerError, ProfilerLease};

/// How long a start may take.
const START: Duration = Duration::from_secs(10);
/// How long one attempt to stop may take.
const STOP: Duration = Duration::from_secs(2);
/// How long it may take to say whether a session is open.
const IS_OPEN: Duration = Duration::from_secs(2);
/// The largest answer to that question.
const IS_OPEN_BYTES: u64 = 1 << 20;
/// So many intervals a drain may take.
const DRAIN_INTERVALS: u32 = 2;

/// After so many intervals without a sign of life the guard may have stopped the session.
const LONG_SILENCE: u32 = 2;

/// What one drain took.
#[derive(Debug)]
pub struct DrainedSegment<W> {
    /// The trace.
    pub received: Received<W>,
    /// What it covers, by the workload's clock, which is this host's: from when to when. `None` if the trace does not say.
    pub covers: Option<(Timestamp, Timestamp)>,
    /// The time before it that is in no segment; `None` for the first one.
    pub gap: Option<RecordingGap>,
}

/// A time that nothing was recorded of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingGap {
    /// From when.
    pub from: Timestamp,
    /// To when.
    pub to: Timestamp,
}

/// A session that runs. Dropped, it is stopped in the background.
#[derive(Debug)]
pub struct ContinuousSession {
    continuous: Arc<Continuous>,
    owned: OwnedSession,
    spec: ContinuousSpec,
    lease: Option<ProfilerLease>,
    machine: SessionMachine,
    /// Whether the server writes the mark into snapshots; `None` before the first one.
    is_marked: Option<bool>,
    /// The end of what was drained last.
    drained_until: Option<Timestamp>,
    /// The last sign of life.
    lived: Instant,
    /// The signs of life, whatever is drained or kept meanwhile.
    _life: Option<AbortOnDropHandle<()>>,
    /// Whoever drained did not wait for the end of it.
    drain_is_left: bool,
}

impl ContinuousSession {
    /// Starts a session whose record is written and that is guarded.
    pub(super) async fn start(
        continuous: Arc<Continuous>,
        owned: OwnedSession,
        spec: ContinuousSpec,
        lease: ProfilerLease,
    ) -> Result<Self, ContinuousRefusal> {
        let request = continuous_request::start(owned.strategy, spec.level, &owned.mark);
        let mut session = Self {
            continuous,
            owned,
            spec,
            lease: None,
            machine: SessionMachine::starting(),
            is_marked: None,
            drained_until: None,
            lived: Instant::now(),
            _life: None,
            drain_is_left: false,
        };
        let started = lease.call(move |client| async move { client.start_continuous(&request, START).await });
        let started = started.await;
        session.lease = Some(lease);
        match started {
            Ok(()) => {
                session.machine.started(StartAnswer::Started);
                session._life = Some(session.signs_of_life());
                Ok(session)
            }
            Err(error) if is_refusal(&error) => {
                session.machine.started(StartAnswer::Refused);
                session.forget().await;
                Err(error.into())
            }
            Err(error) => {
                // Dropped, it is stopped in the background.
                session.machine.started(StartAnswer::Unknown);
                Err(match error {
                    ProfilerError::Call { error, .. } => ContinuousRefusal::Unanswered(error),
                    ProfilerError::Cancelled | ProfilerError::LeaseExpired => ContinuousRefusal::LeaseOver,
                })
            }
        }
    }

    /// How it is used.
    pub fn strategy(&self) -> ContinuousStrategy {
        self.owned.strategy
    }

    /// The profiler's lease, to see when a capture wants the profiler; `None` once the session is over.
    pub fn lease(&self) -> Option<&ProfilerLease> {
        self.lease.as_ref()
    }

    /// Changes the interval of the drains.
    pub async fn set_every(&mut self, every: Duration) {
        self.spec.every = every;
        self.owned.interval_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        self.continuous.guard_again(&self.owned).await;
        self._life = Some(self.signs_of_life());
    }

    /// Takes what was recorded since the start or the last drain, and writes its XSpace to `sink` as it arrives. A session
    /// with [`ContinuousStrategy::Drain`] has to be drained at the interval of its spec: what it records grows in the workload
    /// until then. Where the future is dropped, the session has to be stopped.
    ///
    /// # Errors
    /// If nothing was taken. After [`DrainError::Lost`] the next drain may be good.
    pub async fn drain<W: Write + Send + 'static>(
        &mut self,
        sink: W,
    ) -> Result<DrainedSegment<W>, DrainError> {
        self.check_guard().await?;
        self.live().await;
        if !self.machine.drain() {
            return Err(DrainError::Over(OverReason::Stopped));
        }
        let bounds = Bounds { within: self.spec.every * DRAIN_INTERVALS, max_bytes: self.spec.max_bytes };
        let sink = MarkedSink::new(sink, &self.owned.mark);
        let taken = match &self.lease {
            Some(lease) => lease.call(move |client| take(client, sink, bounds)).await,
            None => Err(ProfilerError::LeaseExpired),
        };
        self.live().await;
        match taken {
            Ok(Received { sink, summary, said_empty }) => {
                let (sink, is_marked) = sink.into_parts();
                self.taken(Received { sink, summary, said_empty }, is_marked).await
            }
            Err(ProfilerError::Call { error, .. }) => Err(self.not_taken(error).await),
            Err(ProfilerError::Cancelled | ProfilerError::LeaseExpired) => {
                // It was not sent, or given up: it may be under way.
                self.machine.stop();
                Err(DrainError::Over(OverReason::LeaseOver))
            }
        }
    }

    async fn taken<W>(
        &mut self,
        received: Received<W>,
        is_marked: bool,
    ) -> Result<DrainedSegment<W>, DrainError> {
        // An answer without the options says nothing.
        let says = received.summary.window.is_some();
        if says && !is_marked && self.is_marked == Some(true) {
            self.machine.drained(DrainAnswer::NotOurs);
            self.forget().await;
            return Err(DrainError::Over(OverReason::NotOurs));
        }
        if says && self.is_marked.is_none() {
            self.is_marked = Some(is_marked);
        }
        let at = |ns: u64| Timestamp(i64::try_from(ns).unwrap_or(i64::MAX));
        let covers = received.summary.window.map(|(begin, end)| (at(begin), at(end)));
        self.machine.drained(DrainAnswer::Taken);
        // The profiler says nothing of a session that it could not start again after a snapshot.
        if received.summary.events == 0 && self.is_open().await == Some(false) {
            self.machine.drain();
            self.machine.drained(DrainAnswer::NoSession);
            self.forget().await;
            return Err(DrainError::Over(OverReason::NoSession));
        }
        let before = self.drained_until;
        self.drained_until = covers.map(|(_, end)| end).or(before);
        let gap = before.zip(covers).map(|(from, (to, _))| RecordingGap { from, to: to.max(from) });
        Ok(DrainedSegment { received, covers, gap })
    }

    async fn not_taken(&mut self, error: client::Error) -> DrainError {
        if self.is_gone(&error).await {
            self.machine.stop();
            self.machine.stop_answered(StopAnswer::Gone, Duration::ZERO);
            self.forget().await;
            return DrainError::Over(OverReason::ProcessGone);
        }
        let answer = match &error {
            client::Error::NoSession(_) => DrainAnswer::NoSession,
            _ => DrainAnswer::Unknown,
        };
        self.machine.drained(answer);
        match self.machine.stage() {
            SessionStage::Ended(_) => {
                self.forget().await;
                DrainError::Over(OverReason::NoSession)
            }
            SessionStage::Stopping(_) => DrainError::GivenUp(error),
            _ => DrainError::Lost(error),
        }
    }

    /// Whether the process or its profiler has ended. A connection that broke is made again otherwise.
    async fn is_gone(&self, error: &client::Error) -> bool {
        match (error, &self.lease) {
            (client::Error::NothingListens(_), _) => true,
            (client::Error::Broken(_), Some(lease)) => {
                self.continuous.has_ended(&self.owned).await
                    || matches!(
                        lease.probe(PROBE).await,
                        Err(ProfilerError::Call { error: client::Error::NothingListens(_), .. })
                    )
            }
            _ => false,
        }
    }

    /// Whether a session is open in the profiler; `None` if it does not say.
    async fn is_open(&self) -> Option<bool> {
        let lease = self.lease.as_ref()?;
        let says = async |client: ProfilerClient| match nobody_records(client).await {
            Err(client::Error::Busy(_) | client::Error::AlreadyExists(_)) => Ok(true),
            other => other.map(|()| false),
        };
        lease.call(says).await.ok()
    }

    /// Stops the session, and returns when it is certain that it is over.
    ///
    /// # Errors
    /// If that takes longer than `within`: it goes on in the background, as after a drop.
    pub async fn stop(mut self, within: Duration) -> Result<StopEnd, StillOpen> {
        self.drain_is_left = self.machine.stage() == SessionStage::Draining;
        self.machine.stop();
        let begin = Instant::now();
        while self.machine.may_be_open() {
            match self.continuous.guard_claim(&self.owned) {
                Some(GuardClaim::Stopped) => {
                    self.machine.stop_answered(StopAnswer::Stopped, begin.elapsed());
                    break;
                }
                // The guard asks already.
                Some(GuardClaim::Stopping) => {}
                Some(GuardClaim::NotStopped) | None => {
                    let answer = self.ask_to_stop().await;
                    if let StopStep::Ended(end) = self.machine.stop_answered(answer, begin.elapsed()) {
                        debug!(session = self.owned.name(), ?end, "continuous profiling is over");
                        break;
                    }
                }
            }
            if begin.elapsed() > within {
                return Err(StillOpen(within));
            }
            sleep(STOP_PAUSE).await;
        }
        let end = match self.machine.stage() {
            SessionStage::Ended(SessionEnd::Stopped(end)) => end,
            _ => StopEnd::WasOver,
        };
        match end {
            StopEnd::CannotStop => {
                error!(
                    session = self.owned.name(),
                    "the profiler cannot stop what it started: it records until its process ends"
                );
            }
            _ => self.forget().await,
        }
        Ok(end)
    }

    async fn ask_to_stop(&self) -> StopAnswer {
        let asked = match &self.lease {
            // On the lease's connection it would wait for the end of the drain.
            Some(_) if self.drain_is_left => Err(ProfilerError::Cancelled),
            Some(lease) => lease.call(|client| async move { client.stop_continuous(STOP).await }).await,
            None => Err(ProfilerError::LeaseExpired),
        };
        let result = match asked {
            Ok(()) => Ok(()),
            // A profiler that has another connection or another user by now is asked on a connection of its own.
            Err(ProfilerError::Call {
                error: client::Error::Broken(_) | client::Error::Timeout { .. },
                ..
            })
            | Err(ProfilerError::Cancelled | ProfilerError::LeaseExpired) => {
                self.continuous.attempt_to_stop(&self.owned).await
            }
            Err(ProfilerError::Call { error, .. }) => Err(error),
        };
        StopAnswer::from(&result)
    }

    /// Removes the record of a session that is over.
    async fn forget(&mut self) {
        self._life = None;
        self.continuous.forget(&self.owned).await;
    }

    async fn live(&mut self) {
        self.lived = Instant::now();
        self.continuous.live(&self.owned).await;
    }

    /// The guard may have stopped the session: then it is not touched any more, since the next one may be somebody else's.
    async fn check_guard(&mut self) -> Result<(), DrainError> {
        // This process may have been stopped meanwhile: its answer comes after all that the guard has said before.
        if self.lived.elapsed() > self.spec.every * LONG_SILENCE {
            self.continuous.guard_again(&self.owned).await;
        }
        let reason = match self.continuous.guard_claim(&self.owned) {
            None => return Ok(()),
            Some(GuardClaim::Stopping | GuardClaim::Stopped) => OverReason::Guard,
            Some(GuardClaim::NotStopped) => OverReason::NoGuard,
        };
        self.machine.stop();
        Err(DrainError::Over(reason))
    }

    fn signs_of_life(&self) -> AbortOnDropHandle<()> {
        let (continuous, owned, every) = (Arc::clone(&self.continuous), self.owned.clone(), self.spec.every);
        let lives = async move {
            loop {
                sleep(every).await;
                continuous.live(&owned).await;
            }
        };
        AbortOnDropHandle::new(tokio::spawn(lives))
    }
}

/// Between two attempts to stop.
const STOP_PAUSE: Duration = Duration::from_millis(250);

impl Drop for ContinuousSession {
    fn drop(&mut self) {
        if !self.machine.may_be_open() {
            return;
        }
        match Handle::try_current() {
            Ok(_) => self.continuous.stop_in_background(self.owned.clone(), self.lease.take()),
            // The runtime is gone, and the agent with it: the guard stops the session.
            Err(_) => warn!(session = self.owned.name(), "continuous profiling is left to the guard process"),
        }
    }
}

/// Asks whether a session is open: [`client::Error::Busy`] if one is.
pub(super) async fn nobody_records(client: ProfilerClient) -> Result<(), client::Error> {
    let id = format!("tpuscope-question-{:016x}", fastrand::u64(..));
    let request = continuous_request::is_a_session_open(&id);
    let bounds = Bounds { within: IS_OPEN, max_bytes: IS_OPEN_BYTES };
    match client.profile(&request, std::io::sink(), bounds, |_| {}).await {
        Ok(_) | Err(client::Error::EmptyTrace | client::Error::ZeroBytes) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn take<W: Write + Send + 'static>(
    client: ProfilerClient,
    sink: W,
    bounds: Bounds,
) -> Result<Received<W>, client::Error> {
    client.snapshot(sink, bounds, |_| {}).await
}

/// Whether the answer to a start says that nothing was started.
fn is_refusal(error: &ProfilerError) -> bool {
    /// CANCELLED, UNKNOWN, UNAVAILABLE: the call broke.
    const BROKEN: [u32; 3] = [1, 2, 14];
    let ProfilerError::Call { error, .. } = error else { return false };
    match error {
        client::Error::Declined { code, .. } => !BROKEN.contains(code),
        client::Error::Busy(_)
        | client::Error::AlreadyExists(_)
        | client::Error::NoMethod(_)
        | client::Error::NoSession(_)
        | client::Error::NothingListens(_)
        | client::Error::Unreachable(_) => true,
        _ => false,
    }
}
