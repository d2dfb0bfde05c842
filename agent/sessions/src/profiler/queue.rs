//! What one profiler is asked to do, and what comes next: a pure state machine.
//!
//! A profiler has one session at a time. A user reserves it, then asks for probes and profiles. One request runs at a
//! time; the others of the same reservation wait.
//!
//! ```text
//!              reserve                      next                    finished
//!   Free ───────────────────> Reserved ─────────────> Probe, Call ────────────────> Reserved
//!    ^ ^                       │    │ next
//!    │ │ release, expiry       │    v       finished: Done, Foreign
//!    │ └───────────────────────┘  Profile ────────────────────────────────────────> Reserved
//!    │                              │ finished: Failed; or release, expiry
//!    │        finished              v
//!    └──────────────────────────── End: ends the session of that profile, and nothing else begins before it
//! ```
//!
//! A capture goes before the recorder: [`RequestQueue::makes_way`] ends the recorder's reservation after [`YIELD`] at the
//! latest, and the capture waits for that.
//!
//! Beside that it remembers for [`FRESH`] that a session of another program was found: a reservation within that time
//! is refused without asking the profiler again. After that time only the profiler itself can say that it is busy.
//!
//! No I/O and no clock: times are durations since any fixed instant. Must never end a session that was not started here,
//! nor begin one while another of its own may be open.

use std::{collections::VecDeque, time::Duration};

use xprof::session::SessionName;

/// How long it is remembered that another program has the profiler.
pub const FRESH: Duration = Duration::from_secs(1);
/// The most requests that wait.
pub const MAX_WAITING: usize = 4;
/// How long the recorder has the profiler after a capture asked for it: the time to receive what was recorded so far.
pub const YIELD: Duration = Duration::from_secs(5);

/// Who uses a profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfilerUser {
    /// A capture into this session.
    Capture(SessionName),
    /// The recorder.
    Recorder,
}

/// A reservation of a profiler. No two have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u64);

/// A request that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// What a user may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfilerOperation {
    /// A harmless question.
    Probe,
    /// A profile with this session id.
    Profile(String),
    /// Another call. Its user ends what it starts, before the lease is given back.
    Call,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Probe the profiler.
    Probe(RequestId),
    /// Profile with this session id.
    Profile(RequestId, String),
    /// Make the call.
    Call(RequestId),
    /// End the session with this id, which was started here.
    End(String),
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Well: no session is open.
    Done,
    /// It failed, or was given up: a session may be open.
    Failed,
    /// The profiler said that another program has it.
    Foreign(ForeignUse),
}

/// What is known of another program's use of the profiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignUse {
    /// Whether it profiles continuously.
    pub continuous: bool,
    /// What the profiler said.
    pub message: String,
    /// Processes that are connected to the profiler, such as `pid 17 (python)`.
    pub connected: Vec<String>,
}

/// Why a reservation is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// This user has it.
    Reserved(ProfilerUser),
    /// Another program had it, this long ago.
    Foreign(ForeignUse, Duration),
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAccepted {
    /// The lease was released or has expired.
    LeaseOver,
    /// [`MAX_WAITING`] requests wait.
    TooMany,
}

#[derive(Debug)]
struct Reservation {
    lease: LeaseId,
    user: ProfilerUser,
    until: Duration,
}

#[derive(Debug)]
struct RunningOperation {
    /// None for the end of a session: it belongs to no user any more.
    lease: Option<LeaseId>,
    /// The session that may be open.
    session: Option<String>,
}

/// The queue; see the module.
#[derive(Debug, Default)]
pub struct RequestQueue {
    reservation: Option<Reservation>,
    waiting: VecDeque<(RequestId, ProfilerOperation)>,
    running: Option<RunningOperation>,
    /// A session of ours that has to be ended before anything else.
    to_end: Option<String>,
    foreign: Option<(ForeignUse, Duration)>,
    numbers: u64,
}

impl RequestQueue {
    /// Reserves the profiler for `user` until `until` at the latest.
    ///
    /// # Errors
    /// If it is reserved.
    pub fn reserve(
        &mut self,
        user: ProfilerUser,
        until: Duration,
        now: Duration,
    ) -> Result<LeaseId, Refusal> {
        self.expire(now);
        if let Some(reservation) = &self.reservation {
            return Err(Refusal::Reserved(reservation.user.clone()));
        }
        if let Some((foreign, learned)) = &self.foreign {
            return Err(Refusal::Foreign(foreign.clone(), now.saturating_sub(*learned)));
        }
        let lease = LeaseId(self.number());
        self.reservation = Some(Reservation { lease, user, until });
        Ok(lease)
    }

    /// Whether `user` goes before the one who has the profiler, and may have it soon: then that reservation ends after
    /// [`YIELD`] at the latest.
    pub fn makes_way(&mut self, user: &ProfilerUser, now: Duration) -> bool {
        self.expire(now);
        let recorder = self.reservation.as_mut().filter(|held| held.user == ProfilerUser::Recorder);
        match recorder {
            Some(held) if *user != ProfilerUser::Recorder => {
                held.until = held.until.min(now + YIELD);
                true
            }
            _ => false,
        }
    }

    /// Accepts a request of `lease`.
    ///
    /// # Errors
    /// If the lease is over, or too many wait.
    pub fn push(&mut self, lease: LeaseId, operation: ProfilerOperation) -> Result<RequestId, NotAccepted> {
        if !self.holds(lease) {
            return Err(NotAccepted::LeaseOver);
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err(NotAccepted::TooMany);
        }
        let request = RequestId(self.number());
        self.waiting.push_back((request, operation));
        Ok(request)
    }

    /// The user of `lease` is done. Without effect if the lease is over.
    pub fn release(&mut self, lease: LeaseId) {
        if self.holds(lease) {
            self.reservation = None;
            self.waiting.clear();
        }
    }

    /// Ends what has expired at `now`: a lease, and what was known of another program.
    pub fn expire(&mut self, now: Duration) {
        let over = self.reservation.as_ref().filter(|reservation| reservation.until <= now);
        if let Some(lease) = over.map(|reservation| reservation.lease) {
            self.release(lease);
        }
        self.foreign.take_if(|(_, learned)| *learned + FRESH <= now);
    }

    /// What to do now. The caller does it, and then calls [`RequestQueue::finished`].
    pub fn next_action(&mut self) -> Option<Action> {
        if self.running.is_some() {
            return None;
        }
        if let Some(session) = self.to_end.take() {
            self.running = Some(RunningOperation { lease: None, session: None });
            return Some(Action::End(session));
        }
        let lease = self.reservation.as_ref()?.lease;
        let (request, operation) = self.waiting.pop_front()?;
        let (action, session) = match operation {
            ProfilerOperation::Probe => (Action::Probe(request), None),
            ProfilerOperation::Profile(session) => (Action::Profile(request, session.clone()), Some(session)),
            ProfilerOperation::Call => (Action::Call(request), None),
        };
        self.running = Some(RunningOperation { lease: Some(lease), session });
        Some(action)
    }

    /// Whether the running action is of a lease that is over: then it must be given up, and has failed.
    pub fn must_abandon(&self) -> bool {
        self.running.as_ref().and_then(|running| running.lease).is_some_and(|lease| !self.holds(lease))
    }

    /// The running action has ended.
    pub fn finished(&mut self, outcome: Outcome, now: Duration) {
        let Some(running) = self.running.take() else { return };
        match outcome {
            Outcome::Done => {}
            Outcome::Failed => self.to_end = running.session,
            Outcome::Foreign(foreign) => self.foreign = Some((foreign, now)),
        }
    }

    /// Whether `lease` is the reservation.
    pub fn holds(&self, lease: LeaseId) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| reservation.lease == lease)
    }

    /// Whether a session of ours has to be ended.
    pub fn has_to_end(&self) -> bool {
        self.to_end.is_some()
    }

    /// When [`RequestQueue::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Duration> {
        let lease = self.reservation.as_ref().map(|reservation| reservation.until);
        let foreign = self.foreign.as_ref().map(|(_, learned)| *learned + FRESH);
        lease.into_iter().chain(foreign).min()
    }

    /// Nothing is reserved, runs, or is known.
    pub fn is_idle(&self) -> bool {
        self.reservation.is_none()
            && self.running.is_none()
            && self.to_end.is_none()
            && self.foreign.is_none()
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
