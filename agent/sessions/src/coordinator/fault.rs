//! Why a host is missing in a capture over several hosts, and why such a capture failed.

use std::{fmt, time::Duration};

use cluster::{
    channel,
    clock_offset::ClockOffsetError,
    dial::{DialError, DialFault},
    hosts::HostAddress,
};
use proto::tpuscope::v1::CaptureFailure;
use tonic::Status;
use xprof::session::{SessionError, SessionName};

use crate::{FailureKind, FailureReason, fetch::FetchError, joined_manifest::BadHostManifest};

/// Why a host is missing.
#[derive(Debug, thiserror::Error)]
pub enum HostFault {
    /// It cannot be reached, or the connection ended.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The agent refused a call.
    #[error("{}", refusal(.0))]
    Refused(Box<Status>),
    /// The capture failed over there.
    #[error("{}", .0.message)]
    Capture(Box<CaptureFailure>),
    /// The agent was stopped while it captured.
    #[error("its agent was stopped during the capture; nothing was kept there, and its profilers are free")]
    Stopped,
    /// The agent speaks another protocol.
    #[error("its agent speaks protocol {there}, and this command protocol {here}")]
    Protocol {
        /// Its protocol.
        there: u32,
        /// Ours.
        here: u32,
    },
    /// The agent cannot do what is asked.
    #[error("its tpuscope {version} does not know {unknown} (capability {lacks})")]
    Incapable {
        /// What it does not know.
        unknown: &'static str,
        /// Of the program there.
        version: String,
        /// What is missing.
        lacks: &'static str,
    },
    /// No answer in time.
    #[error("no answer within {limit:?} when {asked}")]
    Late {
        /// What it was asked.
        asked: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The recording did not end in time.
    #[error("it did not end its recording in time")]
    LateRecording,
    /// The part of a snapshot was not made in time.
    #[error("it did not make its part of the session in time")]
    LateSnapshot,
    /// The time of the whole capture is over.
    #[error("the time limit of the whole capture was exceeded")]
    Overall,
    /// The connection was lost while this process did not run.
    #[error("the connection was lost while this command did not run for {} s", .0.as_secs())]
    Paused(Duration),
    /// Two names of one agent.
    #[error("it has the same agent as {0}")]
    SameAgent(HostAddress),
    /// Two hosts with one name, which name their parts themselves.
    #[error("its agent has the same host name as that of {0}, so that its parts would have the same names")]
    SameName(HostAddress),
    /// Its parts would go to another place.
    #[error("its destination is {there}, and that of {first} is {wanted}")]
    OtherDestination {
        /// Its own.
        there: String,
        /// A host with the usual one.
        first: HostAddress,
        /// The usual one.
        wanted: String,
    },
    /// Its clock cannot be compared.
    #[error("its clock cannot be measured: {0}")]
    Clock(#[from] ClockOffsetError),
    /// The agent's answer makes no sense.
    #[error("its agent sent {0}")]
    BadAnswer(&'static str),
    /// A part did not arrive as it was recorded.
    #[error("{0} arrived damaged: it does not match its manifest")]
    DamagedPart(String),
    /// A part did not arrive.
    #[error("{0} is named by the manifest and missing")]
    MissingPart(String),
    /// The parts did not arrive.
    #[error("its parts could not be copied: {0}")]
    Copy(FetchError),
    /// The parts were not uploaded.
    #[error("its parts were not uploaded: {0}")]
    Upload(String),
    /// Its agent does not know of the upload of its parts.
    #[error("its agent has no upload of its parts to {0} any more")]
    UploadGone(String),
    /// The host did not fail, and the capture kept nothing.
    #[error("the host did not fail, and no session was made: {0}")]
    NotKept(HostStage),
    /// The host failed after it had recorded: its agent keeps what it has.
    #[error("{fault}")]
    Kept {
        /// Why it failed.
        fault: Box<HostFault>,
        /// The name of what is kept.
        session: SessionName,
    },
    /// The host was lost after it had been told to record: its agent may have recorded to the end.
    #[error("{fault}")]
    MayKeep {
        /// Why it failed.
        fault: Box<HostFault>,
        /// The name of what may be kept.
        session: SessionName,
    },
}

/// How far a host is in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostStage {
    /// It was not asked.
    NotAsked,
    /// It is being reached.
    Reaching,
    /// Its agent answered.
    Reached,
    /// Its profilers are reserved, or it has something of the past.
    Ready,
    /// It was told when to record, or to make its part.
    Begun,
    /// It recorded, or made its part.
    Recorded,
}

impl fmt::Display for HostStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAsked => "it was not asked",
            Self::Reaching => "it had not answered yet",
            Self::Reached => "it had answered",
            Self::Ready => "it was ready",
            Self::Begun => "it had begun, and had not said yet that it was done",
            Self::Recorded => "it had its part",
        })
    }
}

impl From<BadHostManifest> for HostFault {
    fn from(BadHostManifest(what): BadHostManifest) -> Self {
        Self::BadAnswer(what)
    }
}

impl HostFault {
    /// The error of a call that failed because the connection ended.
    pub(super) fn lost(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) if channel::ended(status) => Some(status),
            _ => None,
        }
    }

    /// The same fault of a host that has recorded. A part that is damaged there is not worth a copy.
    pub(super) fn after_recording(self, session: &SessionName) -> Self {
        match self {
            Self::DamagedPart(_) | Self::MissingPart(_) | Self::Kept { .. } => self,
            fault => Self::Kept { fault: Box::new(fault), session: session.clone() },
        }
    }

    /// The same fault of a host that was told to record. One that is lost may record to the end nevertheless.
    pub(super) fn in_recording(self, session: &SessionName) -> Self {
        match &self {
            Self::Dial(error) if error.fault != DialFault::Stopped => {}
            Self::Paused(_) | Self::Late { .. } => {}
            _ => return self,
        }
        Self::MayKeep { fault: Box::new(self), session: session.clone() }
    }

    /// Whether a profiler there is in use: it may be free later.
    pub(super) fn is_busy(&self) -> bool {
        let Self::Capture(failure) = self else { return false };
        // Of several processes that failed one may be free later.
        let mut causes = failure.causes.iter().map(|cause| FailureReason::named(cause).kind());
        FailureKind::named(&failure.kind) == FailureKind::Busy || causes.any(|kind| kind == FailureKind::Busy)
    }
}

/// What a refusal says; some say nothing but their code.
fn refusal(status: &Status) -> &str {
    match status.message() {
        "" => status.code().description(),
        message => message,
    }
}

/// What is left of a session that did not become whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftParts {
    /// Its name, in the stores of the agents that have recorded.
    pub session: SessionName,
    /// The folder at the destination of the uploads, where parts may lie, or come to lie, without a manifest; none: the agents
    /// were not to upload it.
    pub folder_there: Option<String>,
}

/// A capture over several hosts that kept nothing.
#[derive(Debug)]
pub struct UnkeptCapture {
    /// The reason.
    pub error: CoordinatorError,
    /// All hosts as they were given, and why they are missing.
    pub hosts: Vec<(HostAddress, HostFault)>,
}

/// Why a capture over several hosts kept nothing.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// Too few hosts can have a trace.
    #[error("{remaining} hosts are left, and {needed} must have a trace")]
    TooFewHosts {
        /// Those that have not failed.
        remaining: usize,
        /// Those that must have a trace.
        needed: usize,
        /// Those that had recorded and failed then: their agents keep the session, and may upload their parts of it.
        keeping: Vec<HostAddress>,
        /// Where parts may lie.
        left: LeftParts,
    },
    /// The session cannot be written here, as it turned out before any host was asked.
    #[error(transparent)]
    Unwritable(SessionError),
    /// The session could not be written here.
    #[error("{error}")]
    Unwritten {
        /// What the disk refused.
        error: SessionError,
        /// What the agents have.
        left: LeftParts,
    },
    /// The manifest could not be put beside the uploaded parts.
    #[error("the parts are uploaded, and the manifest is not: {fault}")]
    Manifest {
        /// Why the last agent that was asked did not put it.
        fault: Box<HostFault>,
        /// What lies there.
        left: LeftParts,
    },
    /// The caller cancelled it.
    #[error("the capture was cancelled")]
    Cancelled {
        /// Whether an agent has recorded.
        recorded: bool,
        /// What agents that have recorded have.
        left: LeftParts,
    },
    /// A fault of tpuscope.
    #[error("a task of the capture failed: {0}")]
    Panicked(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_lost_in_its_recording_may_keep_its_part() {
        let session = "s".parse().unwrap();
        let dial = |fault| HostFault::Dial(DialError { fault, reason: "x".into() });
        for lost in [dial(DialFault::Lost), HostFault::Paused(Duration::from_secs(20))] {
            assert!(matches!(lost.in_recording(&session), HostFault::MayKeep { .. }));
        }
        for known in [dial(DialFault::Stopped), HostFault::Stopped, HostFault::LateRecording] {
            assert!(!matches!(known.in_recording(&session), HostFault::MayKeep { .. }));
        }
    }

    #[test]
    fn a_host_is_busy_if_one_of_its_profilers_is() {
        let failure = |reason: FailureReason, causes: &[FailureReason]| {
            HostFault::Capture(Box::new(CaptureFailure {
                kind: reason.kind().as_str().to_owned(),
                reason: reason.as_str().to_owned(),
                causes: causes.iter().map(|cause| cause.as_str().to_owned()).collect(),
                ..CaptureFailure::default()
            }))
        };
        use FailureReason as R;
        for busy in [R::InUse, R::ForeignSession, R::ForeignContinuous] {
            assert!(failure(busy, &[]).is_busy(), "{busy:?}");
            assert!(failure(R::TooFewParts, &[R::NotListening, busy]).is_busy(), "{busy:?}");
        }
        assert!(!failure(R::TooFewParts, &[R::NotListening]).is_busy() && !HostFault::Overall.is_busy());
    }
}
