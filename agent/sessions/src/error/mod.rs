//! Why a capture, or one target of it, failed: what failed, with which target, session or path.
//!
//! An error has a [`reason`], and each reason has a [`kind`].
//! Must never say what a person should do about an error: the command line says that.

mod kind;
mod reason;

use std::{path::PathBuf, sync::Arc, time::Duration};

use store::{StoreError, destinations::DestinationName, segments::SegmentError};
use thiserror::Error;
use xprof::{
    client::{self, Target},
    merge::MergeError,
    session::{SessionError, SessionName},
    wording::counted,
};

pub use kind::FailureKind;
pub use reason::FailureReason;

use crate::{reservation::ReservationError, spec::SpecError};

/// Which call to a profiler failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfilerCall {
    /// The probe before the window, with the probe timeout of the settings.
    Probe,
    /// The same, with the caller's shorter timeout.
    ProbeWithin,
    /// The profile.
    Profile,
}

/// Every way in which a capture, or one target of it, fails.
#[derive(Debug, Clone, Error)]
pub enum CaptureError {
    /// The request is out of bounds.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The caller of a capture over several hosts ended the reservation of this one.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// A call to a profiler failed.
    #[error("{target}: {error}{}{}", age_text(*.age), connected_text(.connected))]
    Profiler {
        /// The profiler.
        target: Target,
        /// The call.
        call: ProfilerCall,
        /// The error of the call.
        error: Arc<client::Error>,
        /// Processes that are connected to a busy profiler, such as `pid 17 (python)`.
        connected: Vec<String>,
        /// How long ago the profiler said so, where it was not asked again.
        age: Option<Duration>,
    },
    /// The reservation of the profiler expired.
    #[error("{target}: the reservation of the profiler expired")]
    LeaseExpired {
        /// The profiler.
        target: Target,
    },
    /// Another capture of this agent uses the profiler.
    #[error("{target}: the profiler is in use by another capture of this agent (session {session})")]
    InUse {
        /// The profiler.
        target: Target,
        /// The session of that capture.
        session: SessionName,
    },
    /// The recorder uses the profiler, and too many captures wait for it.
    #[error("{target}: the recorder of this agent uses the profiler, and other captures wait for it")]
    BeingRecorded {
        /// The profiler.
        target: Target,
    },
    /// Two targets are one profiler, which has one session at a time.
    #[error("{target} is the same profiler as {first}")]
    SameProfiler {
        /// The second name of the profiler.
        target: Target,
        /// Its first name.
        first: Target,
    },
    /// There is no process to profile.
    #[error("{}", no_target_text(.reasons, .hidden.as_deref()))]
    NoTarget {
        /// Why the processes that were found cannot be profiled. Empty if none was found.
        reasons: Vec<String>,
        /// Why a process may not have been seen.
        hidden: Option<String>,
    },
    /// A profile would stop each process that there is for ever.
    #[error("{}", no_target_text(.reasons, None))]
    OldJaxlib {
        /// Which, and what can be done.
        reasons: Vec<String>,
    },
    /// There are processes, and none that the caller may profile.
    #[error("{}", no_target_text(.reasons, .hidden.as_deref()))]
    NotPermitted {
        /// What was left out.
        reasons: Vec<String>,
        /// Why a process may not have been seen.
        hidden: Option<String>,
    },
    /// Fewer targets than the caller needs.
    #[error("{} to profile, {needed} are needed", counted(*targets, "process"))]
    TooFewTargets {
        /// The number of targets.
        targets: usize,
        /// The number that the caller needs.
        needed: usize,
    },
    /// Fewer parts than the caller needs.
    #[error("{parts} of {} gave a trace, at least {needed} must: {}", counted(*targets, "target"), joined(.failures))]
    TooFewParts {
        /// The number of parts.
        parts: usize,
        /// The number of targets.
        targets: usize,
        /// The number that the caller needs.
        needed: usize,
        /// Why the others gave none. Never empty.
        failures: Vec<CaptureError>,
    },
    /// The session's folder cannot be written.
    #[error(transparent)]
    Session(Arc<SessionError>),
    /// The agent's store has a session of this name, or one is being written: whose it is, the caller need not know.
    #[error("the session name {0} is taken")]
    NameTaken(SessionName),
    /// Another session has the name at a destination, where all hosts need the same one.
    #[error("another session has the name {session} at the destination {destination}")]
    NameTakenThere {
        /// The name.
        session: SessionName,
        /// The destination.
        destination: DestinationName,
    },
    /// The agent's store refused the session.
    #[error(transparent)]
    Store(Arc<StoreError>),
    /// The disk of the agent's store is full.
    #[error("{cause} (in the agent's store, {})", .folder.display())]
    StoreFull {
        /// The session's folder.
        folder: PathBuf,
        /// What could not be written.
        cause: Box<CaptureError>,
    },
    /// The recorder has nothing of the time that was asked for.
    #[error("nothing was recorded {span}: {why}")]
    NothingRecorded {
        /// The time that was asked for, in words.
        span: String,
        /// Why there is nothing.
        why: String,
    },
    /// Neither a process nor a segment of the caller has the job.
    #[error("no process of yours on this host has the job `{}`, and nothing is kept of one", .0.escape_debug())]
    NoSuchJob(String),
    /// A segment of the recorder cannot be read.
    #[error(transparent)]
    Segment(Arc<SegmentError>),
    /// The segments of a process cannot be merged.
    #[error("the segments of pid {pid} cannot be merged: {error}")]
    Merge {
        /// The process.
        pid: u32,
        /// The reason.
        error: Arc<MergeError>,
    },
    /// Another snapshot is being made.
    #[error("another snapshot is being made")]
    SnapshotRuns,
    /// Too many captures run.
    #[error("{0} captures run already")]
    TooManyCaptures(u16),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
    /// The caller cancelled it.
    #[error("the capture was cancelled and nothing was kept; the profilers were told to end their windows")]
    Cancelled,
    /// A task panicked.
    #[error("a task of the capture ended unexpectedly: {0}")]
    Panicked(String),
}

fn age_text(age: Option<Duration>) -> String {
    age.map(|age| format!(" (as it answered {:.1} s ago)", age.as_secs_f64())).unwrap_or_default()
}

fn connected_text(connected: &[String]) -> String {
    if connected.is_empty() { String::new() } else { format!(" (connected to it: {})", connected.join(", ")) }
}

fn no_target_text(reasons: &[String], hidden: Option<&str>) -> String {
    let (seen, link) = match reasons {
        [] => ("no workload process was found on this host".to_owned(), ", but"),
        reasons => (format!("no process can be profiled: {}", reasons.join("; ")), ";"),
    };
    match hidden {
        None => seen,
        Some(why) => format!("{seen}{link} one that cannot be seen may hold a chip: {why}"),
    }
}

fn joined(failures: &[CaptureError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl CaptureError {
    /// A task of the capture panicked.
    pub(crate) fn panicked(error: impl ToString) -> Self {
        Self::Panicked(error.to_string())
    }

    /// What exactly failed.
    pub fn reason(&self) -> FailureReason {
        use FailureReason as R;
        match self {
            Self::Spec(error) => error.reason(),
            Self::Reservation(error) => error.reason(),
            Self::Profiler { call, error, .. } => reason::of_call(*call, error),
            Self::LeaseExpired { .. } => R::LeaseExpired,
            Self::InUse { .. } | Self::BeingRecorded { .. } => R::InUse,
            Self::SameProfiler { .. } => R::SameProfiler,
            Self::OldJaxlib { .. } => R::OldJaxlib,
            Self::NoTarget { hidden: Some(_), .. } => R::OwnersHidden,
            Self::NoTarget { hidden: None, .. } => R::NoTarget,
            Self::NotPermitted { .. } => R::NotPermitted,
            Self::TooFewTargets { .. } => R::TooFewTargets,
            Self::TooFewParts { .. } => R::TooFewParts,
            Self::NameTaken(_) | Self::NameTakenThere { .. } => R::SessionExists,
            Self::Session(error) => reason::of_session(error),
            Self::Store(error) => FailureReason::of_store(error),
            Self::StoreFull { .. } => R::NoSpace,
            Self::NothingRecorded { .. } => R::NothingRecorded,
            Self::Segment(error) if error.is_no_space() => R::NoSpace,
            Self::Segment(error) => match &**error {
                SegmentError::Damaged { .. } => R::Damaged,
                _ => R::Internal,
            },
            Self::Merge { error, .. } => match &**error {
                MergeError::Write(error) if reason::is_no_space(error.kind()) => R::NoSpace,
                MergeError::Write(_) => R::WriteFailed,
                _ => R::Damaged,
            },
            Self::NoSuchJob(_) => R::NoSuchJob,
            Self::SnapshotRuns => R::SnapshotRuns,
            Self::TooManyCaptures(_) => R::TooManyCaptures,
            Self::Stopping => R::Stopping,
            Self::Cancelled => R::Cancelled,
            Self::Panicked(_) => R::Internal,
        }
    }

    /// The kind of the failure.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::TooFewParts { failures, .. } => failures.first().map_or(FailureKind::NoTarget, Self::kind),
            error => error.reason().kind(),
        }
    }

    /// The profiler that it is about, where there is one.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Profiler { target, .. }
            | Self::LeaseExpired { target }
            | Self::InUse { target, .. }
            | Self::BeingRecorded { target }
            | Self::SameProfiler { target, .. } => Some(target),
            _ => None,
        }
    }

    /// The errors that led to this one.
    pub fn causes(&self) -> &[CaptureError] {
        match self {
            Self::TooFewParts { failures, .. } => failures,
            _ => &[],
        }
    }
}

impl From<SessionError> for CaptureError {
    fn from(error: SessionError) -> Self {
        Self::Session(Arc::new(error))
    }
}

impl From<SegmentError> for CaptureError {
    fn from(error: SegmentError) -> Self {
        Self::Segment(Arc::new(error))
    }
}

impl From<StoreError> for CaptureError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_parts_have_the_kind_of_the_first_cause() {
        let cause = |error| CaptureError::Profiler {
            target: "h:1".parse().unwrap(),
            call: ProfilerCall::Profile,
            error: Arc::new(error),
            connected: vec!["pid 7 (python)".to_owned()],
            age: None,
        };
        let failures = vec![cause(client::Error::Busy("x".into())), cause(client::Error::NothingListens(1))];
        let error = CaptureError::TooFewParts { parts: 0, targets: 2, needed: 1, failures };
        assert_eq!((error.kind(), error.reason()), (FailureKind::Busy, FailureReason::TooFewParts));
        assert_eq!(
            error.to_string(),
            "0 of 2 targets gave a trace, at least 1 must: h:1: the profiler is in use: x (connected to it: \
             pid 7 (python)); h:1: port 1 is closed: nothing listens on it (connected to it: pid 7 (python))"
        );
    }
}
