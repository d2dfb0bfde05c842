//! The stop of one session, until it is certain that the session is over: a pure state machine.
//!
//! ```text
//!             answer: stopped, or the process is gone
//!   Asking ────────────────────────────────────────────> over
//!    │  ^    answer: no session
//!    │  │    ├─ nothing of ours is under way ───────────> over
//!    │  │    └─ a start or a snapshot may be under way: ask again until that answer has lasted for SETTLE ──> over
//!    │  └─── after a wait: no answer, or one that says nothing
//!    └────── the server has no such method: it cannot be stopped
//! ```
//!
//! A server takes the session away while it collects a snapshot, and puts a new one in its place; and a start whose answer
//! was lost may still come. So "no session" is certain only when nothing of ours is under way.
//! No I/O and no clock: times are durations since any fixed instant.

use std::time::Duration;

use xprof::client;

/// How long a server has to say that there is no session, if a start or a snapshot may be under way.
pub const SETTLE: Duration = Duration::from_secs(5);
/// The first wait before the next attempt, which doubles.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The wait between two attempts while a server says that there is no session.
const SETTLE_WAIT: Duration = Duration::from_millis(500);

/// What the attempt to stop a session showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAnswer {
    /// The session is stopped.
    Stopped,
    /// There is no session.
    NoSession,
    /// The process, or its profiler, is gone.
    Gone,
    /// The server has no method to stop.
    NoMethod,
    /// No answer, or one that says nothing.
    Failed,
}

/// How the stop of a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopEnd {
    /// The server has stopped it.
    Stopped,
    /// There was none any more.
    WasOver,
    /// The process or its profiler is gone.
    ProcessGone,
    /// The server has no method to stop: it runs until the process ends.
    CannotStop,
}

/// What comes after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStep {
    /// It is over.
    Ended(StopEnd),
    /// Another attempt after this time.
    Again(Duration),
}

/// The stop of one session; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    under_way: bool,
    absent_since: Option<Duration>,
    wait: Duration,
}

impl Stopping {
    /// Nothing was asked yet. `under_way`: a start or a snapshot may still be on its way or be worked on.
    pub fn new(under_way: bool) -> Self {
        Self { under_way, absent_since: None, wait: FIRST_WAIT }
    }

    /// An attempt ended at `now`.
    pub fn answered(&mut self, answer: StopAnswer, now: Duration) -> StopStep {
        match answer {
            StopAnswer::Stopped => StopStep::Ended(StopEnd::Stopped),
            StopAnswer::Gone => StopStep::Ended(StopEnd::ProcessGone),
            StopAnswer::NoMethod => StopStep::Ended(StopEnd::CannotStop),
            StopAnswer::NoSession => {
                let since = *self.absent_since.get_or_insert(now);
                if !self.under_way || now.saturating_sub(since) >= SETTLE {
                    return StopStep::Ended(StopEnd::WasOver);
                }
                StopStep::Again(SETTLE_WAIT)
            }
            StopAnswer::Failed => {
                self.absent_since = None;
                let wait = self.wait;
                self.wait = (wait * 2).min(LONGEST_WAIT);
                StopStep::Again(wait)
            }
        }
    }
}

impl From<&Result<(), client::Error>> for StopAnswer {
    fn from(result: &Result<(), client::Error>) -> Self {
        match result {
            Ok(()) => Self::Stopped,
            Err(client::Error::NoSession(_)) => Self::NoSession,
            // The process runs, but its profiler has ended, and the session with it.
            Err(client::Error::NothingListens(_)) => Self::Gone,
            Err(client::Error::NoMethod(_)) => Self::NoMethod,
            Err(_) => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn no_session_is_certain_where_nothing_is_under_way() {
        let mut sure = Stopping::new(false);
        assert_eq!(sure.answered(StopAnswer::NoSession, S), StopStep::Ended(StopEnd::WasOver));
    }

    #[test]
    fn no_session_has_to_last_where_something_may_be_under_way() {
        let mut unsure = Stopping::new(true);
        assert!(matches!(unsure.answered(StopAnswer::NoSession, S), StopStep::Again(_)));
        assert!(matches!(unsure.answered(StopAnswer::Failed, 3 * S), StopStep::Again(_)));
        assert!(matches!(unsure.answered(StopAnswer::NoSession, 4 * S), StopStep::Again(_)));
        assert!(matches!(unsure.answered(StopAnswer::NoSession, SETTLE + 3 * S), StopStep::Again(_)));
        assert_eq!(unsure.answered(StopAnswer::NoSession, SETTLE + 4 * S), StopStep::Ended(StopEnd::WasOver));
    }

    #[test]
    fn waits_grow_up_to_a_limit() {
        let mut stopping = Stopping::new(false);
        let waits: Vec<_> = (0..9)
            .map(|_| match stopping.answered(StopAnswer::Failed, S) {
                StopStep::Again(wait) => wait,
                ended @ StopStep::Ended(_) => panic!("{ended:?}"),
            })
            .collect();
        assert!(waits.is_sorted() && waits[0] == FIRST_WAIT && waits[8] == LONGEST_WAIT, "{waits:?}");
    }

    /// A server whose session may appear late, as after a start or a snapshot that is under way.
    #[derive(Debug, Clone)]
    struct LateServer {
        appears: Option<Duration>,
        open: bool,
    }

    impl LateServer {
        fn stop(&mut self, now: Duration) -> StopAnswer {
            if self.appears.take_if(|at| *at <= now).is_some() {
                self.open = true;
            }
            if std::mem::take(&mut self.open) { StopAnswer::Stopped } else { StopAnswer::NoSession }
        }
    }

    proptest! {
        /// A session that appears within the time to settle is stopped, whatever answers are lost.
        #[test]
        fn no_session_of_ours_is_left(
            open in any::<bool>(),
            appears_ms in proptest::option::of(0..4_900_u64),
            lost in prop::collection::vec(any::<bool>(), 0..20),
        ) {
            // There is one session at a time.
            let appears = appears_ms.filter(|_| !open).map(Duration::from_millis);
            let mut server = LateServer { appears, open };
            let mut stopping = Stopping::new(true);
            let mut now = Duration::ZERO;
            let mut lost = lost.into_iter();
            loop {
                prop_assert!(now < 1000 * S, "it ends");
                let mut answer = server.stop(now);
                if lost.next().unwrap_or(false) {
                    answer = StopAnswer::Failed;
                }
                match stopping.answered(answer, now) {
                    StopStep::Ended(_) => break,
                    StopStep::Again(wait) => now += wait,
                }
            }
            prop_assert!(!server.open && server.appears.is_none());
        }
    }
}
