//! This host in a capture over several hosts, as its caller drives it: a pure state machine of phases and of a lease.
//!
//! ```text
//!              ready                 a start that is still to come
//! Preparing ──────────> Ready ─────────────────────────────────────> Started
//!     │                   │                                             │
//!     │                   │ the start is in the past, or too far ahead  │
//!     └───────────────────┴──────────────────────┬──────────────────────┘
//!                                                │ the lease ends, the caller hangs up or sends what is out of order,
//!                                                │ or no start comes for START_LIMIT
//!                                                v
//!                                              Over: the profilers are free, and nothing is kept
//! ```
//!
//! Each message of the caller begins the lease anew, in every phase: a caller that is gone without a word costs no
//! more than that. The result of the capture ends the reservation from outside.
//!
//! No I/O and no clock: times of the lease are durations since any fixed instant. Must never let the window begin twice,
//! nor after the reservation is over.

use std::time::Duration;

use model::time::Timestamp;
use thiserror::Error;

use crate::spec::{HOUR, SpecError};

/// The lease of a caller that names none.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// The longest lease.
pub const MAX_LEASE: Duration = Duration::from_secs(60);
/// The longest time from the reservation until the start is known.
pub const START_LIMIT: Duration = Duration::from_secs(600);

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReservationPhase {
    /// The profilers are reserved and probed.
    Preparing,
    /// They are ready, and the start is not known.
    Ready,
    /// The start is known.
    Started,
    /// It ended before the capture did.
    Over(ReservationError),
}

/// What happens to a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationEvent {
    /// The profilers are ready.
    Ready,
    /// The caller sent a message without further meaning.
    Renewed,
    /// The caller sent a second reservation.
    ReservedAgain,
    /// The caller sent the start of the window; `now` is the time of this host's clock.
    Start {
        /// The start, in this host's clock.
        start: Timestamp,
        /// When it came.
        now: Timestamp,
    },
    /// The caller is gone.
    HungUp,
    /// Time went by.
    Tick,
}

/// Why a reservation ended before its capture did.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReservationError {
    /// The start was over when it came.
    #[error("the start was {:.3} s in the past when it came", .0.as_secs_f64())]
    LateStart(Duration),
    /// The start is out of bounds.
    #[error(transparent)]
    Start(#[from] SpecError),
    /// The caller was silent for too long.
    #[error("the caller sent nothing for {} s: its reservation ended", .0.as_secs_f64())]
    LeaseOver(Duration),
    /// The start did not come.
    #[error("no start came within {} s", START_LIMIT.as_secs())]
    NoStart,
    /// The caller is gone.
    #[error("the caller hung up")]
    HungUp,
    /// The caller sent a message that has no meaning in this phase.
    #[error("the caller sent {0}")]
    OutOfOrder(&'static str),
}

/// A reservation.
#[derive(Debug)]
pub struct HostReservation {
    phase: ReservationPhase,
    lease: Duration,
    lease_end: Duration,
    start_limit: Duration,
}

impl HostReservation {
    /// One that was asked for at `now`, with this lease.
    pub fn new(lease: Duration, now: Duration) -> Self {
        let lease_end = now + lease;
        Self { phase: ReservationPhase::Preparing, lease, lease_end, start_limit: now + START_LIMIT }
    }

    /// When a [`ReservationEvent::Tick`] is due. `None` when it is over.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            ReservationPhase::Preparing | ReservationPhase::Ready => {
                Some(self.lease_end.min(self.start_limit))
            }
            ReservationPhase::Started => Some(self.lease_end),
            ReservationPhase::Over(_) => None,
        }
    }

    /// Notes what happened at `now`. Returns the start of the window, once, when it becomes known.
    ///
    /// # Errors
    /// Why the reservation is over: then the capture has to be cancelled.
    pub fn apply(
        &mut self,
        event: ReservationEvent,
        now: Duration,
    ) -> Result<Option<Timestamp>, ReservationError> {
        let next = self.next(event, now);
        match next {
            Ok((phase, start)) => {
                self.phase = phase;
                Ok(start)
            }
            Err(error) => {
                self.phase = ReservationPhase::Over(error.clone());
                Err(error)
            }
        }
    }

    fn next(
        &mut self,
        event: ReservationEvent,
        now: Duration,
    ) -> Result<(ReservationPhase, Option<Timestamp>), ReservationError> {
        use ReservationEvent as E;
        use ReservationPhase as P;
        if let P::Over(error) = &self.phase {
            return Err(error.clone());
        }
        // A message that comes too late is too late, also if it is read before the time is looked at.
        self.check_time(now)?;
        if matches!(event, E::Renewed | E::Start { .. }) {
            self.lease_end = now + self.lease;
        }
        match (event, &self.phase) {
            (E::HungUp, _) => Err(ReservationError::HungUp),
            (E::ReservedAgain, _) => Err(ReservationError::OutOfOrder("a second reservation")),
            (E::Start { .. }, P::Preparing) => Err(ReservationError::OutOfOrder("a start before `ready`")),
            (E::Start { .. }, P::Started) => Err(ReservationError::OutOfOrder("a second start")),
            (E::Start { start, now }, _) => {
                if start < now {
                    return Err(ReservationError::LateStart(start.age(now)));
                }
                if start > now.plus(HOUR) {
                    return Err(SpecError::StartTooFar.into());
                }
                Ok((P::Started, Some(start)))
            }
            (E::Ready, P::Preparing) => Ok((P::Ready, None)),
            (E::Ready | E::Renewed | E::Tick, phase) => Ok((phase.clone(), None)),
        }
    }

    fn check_time(&self, now: Duration) -> Result<(), ReservationError> {
        if now >= self.lease_end {
            return Err(ReservationError::LeaseOver(self.lease));
        }
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            return Err(ReservationError::NoStart);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;
