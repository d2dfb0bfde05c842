//! Why continuous profiling does not start or go on.

use std::{io, time::Duration};

use model::untrusted::{self, clean};
use xprof::client;

use super::{guard_process::GuardFault, outliving::NothingOutlives};
use crate::profiler::{ProfilerError, queue::Refusal};

/// Why a session is not started. Nothing of it is left in the workload, unless the error says so.
#[derive(Debug, thiserror::Error)]
pub enum ContinuousRefusal {
    /// Nothing would stop it if the agent was killed.
    #[error("{0}: nothing would stop continuous profiling if the agent was killed")]
    NothingOutlives(#[from] NothingOutlives),
    /// The process is not known.
    #[error("the process of the profiler is not known, so nobody could tell it from a later one")]
    NoProcess,
    /// Its pid is not that of the agent's own `/proc`.
    #[error("processes are read from {0}, so a guard could not tell the process from a later one")]
    OtherProcfs(String),
    /// The process has no chip with a ring.
    #[error("the process holds no TPU chip, and only those trace into a ring")]
    NoChip,
    /// jaxlib is too old.
    #[error("jaxlib {0} cannot stop continuous profiling: 0.10.0 and later can")]
    TooOld(String),
    /// Its server has no method to start or to stop.
    #[error("the profiler cannot {0} continuous profiling: jaxlib 0.10.0 and later can")]
    NoMethod(&'static str),
    /// Another session of the agent in this process is not over yet.
    #[error("an earlier session of continuous profiling in this process is still being stopped")]
    StillStopping,
    /// The profiler is reserved.
    #[error("the profiler is in use")]
    Reserved(Refusal),
    /// Another program has a session in it.
    #[error("another program uses the profiler{}: {message}", users(.connected))]
    Foreign {
        /// What the profiler says.
        message: String,
        /// Processes that are connected to it.
        connected: Vec<String>,
    },
    /// The record that whoever stops the session needs cannot be written.
    #[error("cannot write the record of the session: {0}")]
    Record(#[source] io::Error),
    /// It is not guarded.
    #[error(transparent)]
    Guard(#[from] GuardFault),
    /// The profiler did not answer as one does.
    #[error("the profiler could not be used: {0}")]
    Profiler(#[source] client::Error),
    /// The profiler did not say whether it started. It is being stopped.
    #[error("the profiler did not say whether continuous profiling started, and it is being stopped: {0}")]
    Unanswered(#[source] client::Error),
    /// The reservation of the profiler ended meanwhile.
    #[error("the reservation of the profiler ended")]
    LeaseOver,
    /// A fault of the system or of tpuscope.
    #[error("internal: {0}")]
    Internal(String),
}

/// Why a drain took nothing.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The session is over: what was recorded since the last drain is lost. Another one may be started.
    #[error("continuous profiling has ended: {0}")]
    Over(OverReason),
    /// There is no complete answer. What was recorded since the last drain is lost, and the session goes on.
    #[error("what was recorded since the last drain is lost: {0}")]
    Lost(#[source] client::Error),
    /// The same for the third time in a row: the session is being stopped.
    #[error(
        "what was recorded is lost for the third time in a row, and continuous profiling is being stopped: {0}"
    )]
    GivenUp(#[source] client::Error),
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverReason {
    /// The profiler has no session: somebody else stopped it, or it was lost.
    #[error("the profiler has no session any more")]
    NoSession,
    /// The process, or its profiler, has ended.
    #[error("the process or its profiler has ended")]
    ProcessGone,
    /// What was recorded is not of the session that the agent started.
    #[error("another program has started a session of its own")]
    NotOurs,
    /// The agent was silent for too long.
    #[error("the agent was silent for too long, and the guard process stopped it")]
    Guard,
    /// Nothing guards it any more.
    #[error("there is no guard process any more")]
    NoGuard,
    /// The profiler was reserved for somebody else.
    #[error("the profiler is needed for a capture")]
    LeaseOver,
    /// It was stopped.
    #[error("it was stopped")]
    Stopped,
}

/// A session that could not be stopped in time. The agent goes on trying, and so do the guard and the next agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("continuous profiling could not be stopped within {:.1} s", .0.as_secs_f64())]
pub struct StillOpen(pub Duration);

fn users(connected: &[String]) -> String {
    match connected {
        [] => String::new(),
        connected => format!(", perhaps {}", clean(&connected.join(", "), untrusted::MESSAGE)),
    }
}

impl From<ProfilerError> for ContinuousRefusal {
    fn from(error: ProfilerError) -> Self {
        match error {
            ProfilerError::Call {
                error: client::Error::Busy(message) | client::Error::AlreadyExists(message),
                connected,
            } => Self::Foreign { message: clean(&message, untrusted::MESSAGE), connected },
            ProfilerError::Call { error, .. } => Self::Profiler(error),
            ProfilerError::Cancelled | ProfilerError::LeaseExpired => Self::LeaseOver,
        }
    }
}

impl From<Refusal> for ContinuousRefusal {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Foreign(foreign, _) => Self::Foreign {
                message: clean(&foreign.message, untrusted::MESSAGE),
                connected: foreign.connected,
            },
            reserved @ Refusal::Reserved(_) => Self::Reserved(reserved),
        }
    }
}
