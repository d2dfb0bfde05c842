//! One session of continuous profiling, from its start to its certain end: a pure state machine.
//!
//! ```text
//!             started                drain
//!   Starting ────────> Running ────────────────> Draining
//!    │    │             │  │ ^                     │   │
//!    │    │ unknown     │  │ └─────────────────────┘   │ no session, and nothing under way; or somebody else's
//!    │    v             │  │   taken, or unknown       v
//!    │  Stopping <──────┘  │   (the third in a row:   Ended: lost, there is nothing of ours to stop
//!    │    │    stop        │    Stopping)
//!    │    v                │
//!    │  Ended: stopped     └── stop, drop
//!    v refused
//!   Ended: not started
//! ```
//!
//! An answer that is lost leaves the request under way: it may still start a session, or put one back that it had taken
//! away. "No session" is no proof then, and [`super::stopping`] asks for longer.
//!
//! No I/O and no clock. Must never ask to stop or to drain a session that is somebody else's, and never end while one of
//! ours may be open.

use std::time::Duration;

use super::stopping::{StopAnswer, StopEnd, StopStep, Stopping};

/// So many drains without an answer in a row end the session.
pub const MOST_FAILED_DRAINS: u32 = 3;

/// How a start was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAnswer {
    /// The session is ours.
    Started,
    /// There is none of ours.
    Refused,
    /// No answer, or one that says nothing.
    Unknown,
}

/// How a drain was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainAnswer {
    /// What was recorded was taken.
    Taken,
    /// It was recorded by somebody else's session.
    NotOurs,
    /// There is no session.
    NoSession,
    /// No answer, or one that says nothing.
    Unknown,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// It was not started.
    NotStarted,
    /// It was stopped.
    Stopped(StopEnd),
    /// It was over before anybody of ours stopped it, or is somebody else's.
    Lost,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStage {
    /// The start is under way.
    Starting,
    /// It records.
    Running,
    /// A drain is under way.
    Draining,
    /// It is being stopped.
    Stopping(Stopping),
    /// It is over.
    Ended(SessionEnd),
}

/// One session; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionMachine {
    stage: SessionStage,
    /// A request whose answer was lost may still be worked on.
    under_way: bool,
    failed_drains: u32,
}

impl SessionMachine {
    /// A session whose start is about to be sent.
    pub fn starting() -> Self {
        Self { stage: SessionStage::Starting, under_way: false, failed_drains: 0 }
    }

    /// Where it is.
    pub fn stage(&self) -> SessionStage {
        self.stage
    }

    /// Whether a session of ours may be open.
    pub fn may_be_open(&self) -> bool {
        !matches!(self.stage, SessionStage::Ended(_))
    }

    /// The start was answered.
    pub fn started(&mut self, answer: StartAnswer) {
        if self.stage != SessionStage::Starting {
            return;
        }
        match answer {
            StartAnswer::Started => self.stage = SessionStage::Running,
            StartAnswer::Refused => self.stage = SessionStage::Ended(SessionEnd::NotStarted),
            StartAnswer::Unknown => {
                self.under_way = true;
                self.stop();
            }
        }
    }

    /// Whether a drain may be sent now; then it is under way.
    pub fn drain(&mut self) -> bool {
        let may = self.stage == SessionStage::Running;
        if may {
            self.stage = SessionStage::Draining;
        }
        may
    }

    /// The drain was answered.
    pub fn drained(&mut self, answer: DrainAnswer) {
        if self.stage != SessionStage::Draining {
            return;
        }
        match answer {
            DrainAnswer::Taken => {
                // The one before is over too: it had put the session back.
                (self.under_way, self.failed_drains) = (false, 0);
                self.stage = SessionStage::Running;
            }
            DrainAnswer::NotOurs => self.stage = SessionStage::Ended(SessionEnd::Lost),
            DrainAnswer::NoSession if !self.under_way => {
                self.stage = SessionStage::Ended(SessionEnd::Lost);
            }
            DrainAnswer::NoSession | DrainAnswer::Unknown => {
                self.under_way = true;
                self.failed_drains += 1;
                self.stage = SessionStage::Running;
                if self.failed_drains >= MOST_FAILED_DRAINS {
                    self.stop();
                }
            }
        }
    }

    /// It is to be stopped. What is under way stays under way.
    pub fn stop(&mut self) {
        match self.stage {
            SessionStage::Starting | SessionStage::Draining => self.under_way = true,
            SessionStage::Running => {}
            SessionStage::Stopping(_) | SessionStage::Ended(_) => return,
        }
        self.stage = SessionStage::Stopping(Stopping::new(self.under_way));
    }

    /// An attempt to stop it was answered at `now`.
    pub fn stop_answered(&mut self, answer: StopAnswer, now: Duration) -> StopStep {
        let end = match &mut self.stage {
            SessionStage::Stopping(stopping) => match stopping.answered(answer, now) {
                StopStep::Ended(end) => end,
                again @ StopStep::Again(_) => return again,
            },
            SessionStage::Ended(SessionEnd::Stopped(end)) => return StopStep::Ended(*end),
            _ => return StopStep::Ended(StopEnd::WasOver),
        };
        self.stage = SessionStage::Ended(SessionEnd::Stopped(end));
        StopStep::Ended(end)
    }
}

#[cfg(test)]
#[path = "session_machine_tests.rs"]
mod tests;
