//! Why a capture, or one target of it, failed: what failed, with which target, session or path.
//!
//! An error has a reason, and each reason has a kind. Their names are stable: they stand in JSON and cross the API.
//! Must never say what a person should do about an error: the command line says that.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use serde::Serialize;
use store::StoreError;
use thiserror::Error;
use xprof::{
    client::{self, Target},
    session::{SessionError, SessionName},
};

use crate::spec::SpecError;

/// The kinds of capture errors: one for each exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The host or its network does not answer.
    Unreachable,
    /// Nothing listens on the port.
    NotListening,
    /// Something listens, but it is not a profiler.
    NotAProfiler,
    /// The profiler is in use.
    Busy,
    /// Nothing was recorded.
    EmptyTrace,
    /// The deadline passed.
    Timeout,
    /// More bytes than the limit.
    TooLarge,
    /// The answer is damaged or cut.
    Damaged,
    /// The disk is full.
    NoSpace,
    /// No process to profile.
    NoTarget,
    /// Not permitted, by the agent or by the file system.
    Denied,
    /// A session of that name exists, or too many captures run.
    Conflict,
    /// The caller cancelled it.
    Cancelled,
    /// The request is wrong.
    Invalid,
    /// A fault of the system or of tpuscope.
    Internal,
}

impl FailureKind {
    const ALL: [Self; 15] = [
        Self::Unreachable,
        Self::NotListening,
        Self::NotAProfiler,
        Self::Busy,
        Self::EmptyTrace,
        Self::Timeout,
        Self::TooLarge,
        Self::Damaged,
        Self::NoSpace,
        Self::NoTarget,
        Self::Denied,
        Self::Conflict,
        Self::Cancelled,
        Self::Invalid,
        Self::Internal,
    ];

    /// The name in JSON and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::NotListening => "not_listening",
            Self::NotAProfiler => "not_a_profiler",
            Self::Busy => "busy",
            Self::EmptyTrace => "empty_trace",
            Self::Timeout => "timeout",
            Self::TooLarge => "too_large",
            Self::Damaged => "damaged",
            Self::NoSpace => "no_space",
            Self::NoTarget => "no_target",
            Self::Denied => "denied",
            Self::Conflict => "conflict",
            Self::Cancelled => "cancelled",
            Self::Invalid => "invalid",
            Self::Internal => "internal",
        }
    }

    /// The kind with this name. A name of a later version is [`FailureKind::Internal`].
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).unwrap_or(Self::Internal)
    }
}

/// Declares [`FailureReason`] with the name of each reason in the API.
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal,)*) => {
        /// What exactly failed. A client chooses by it what to tell its user to do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum FailureReason {
            $($(#[$doc])* $reason,)*
        }

        impl FailureReason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$reason,)*];

            /// The name in the API.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// The reason with this name. A name of a later version is [`FailureReason::Internal`].
            pub fn named(name: &str) -> Self {
                match name {
                    $($name => Self::$reason,)*
                    _ => Self::Internal,
                }
            }
        }
    };
}

reasons! {
    /// The host does not answer.
    Unreachable = "unreachable",
    /// The connection broke.
    ConnectionLost = "connection_lost",
    /// Nothing listens on the port.
    NotListening = "not_listening",
    /// It is not a profiler.
    NotAProfiler = "not_a_profiler",
    /// Another program has a profiling session open in the process.
    ForeignSession = "foreign_session",
    /// Another program profiles the process continuously.
    ForeignContinuous = "foreign_continuous",
    /// Another capture of this agent uses the profiler.
    InUse = "in_use",
    /// The profiler declined.
    Declined = "declined",
    /// Nothing was recorded.
    EmptyTrace = "empty_trace",
    /// No complete trace in time.
    Timeout = "timeout",
    /// The profiler did not answer a probe within the probe timeout.
    ProbeTimeout = "probe_timeout",
    /// The profiler did not answer a probe within the caller's timeout, which is shorter than the probe timeout.
    CallerTimeout = "caller_timeout",
    /// The reservation of the profiler expired.
    LeaseExpired = "lease_expired",
    /// More bytes than the limit.
    TooLarge = "too_large",
    /// The trace is damaged or cut.
    Damaged = "damaged",
    /// The disk is full.
    NoSpace = "no_space",
    /// The trace cannot be written: permissions, or a read-only file system.
    WriteDenied = "write_denied",
    /// The trace cannot be written for another reason.
    WriteFailed = "write_failed",
    /// The session's folder cannot be written: permissions, or a read-only file system.
    FolderDenied = "folder_denied",
    /// The session's folder cannot be created: a file is in the way, or the file system has no folders.
    FolderImpossible = "folder_impossible",
    /// The session's folder cannot be written for another reason.
    FolderFailed = "folder_failed",
    /// The sessions lie on another file system than the staging folder.
    OtherFileSystem = "other_file_system",
    /// A link is in the way.
    Link = "link",
    /// The session exists.
    SessionExists = "session_exists",
    /// The session is being written.
    SessionBeingWritten = "session_being_written",
    /// Two targets are one profiler.
    SameProfiler = "same_profiler",
    /// There is no process to profile.
    NoTarget = "no_target",
    /// There are processes, and none that the caller may profile.
    NotPermitted = "not_permitted",
    /// Fewer targets than the caller needs.
    TooFewTargets = "too_few_targets",
    /// Fewer parts than the caller needs.
    TooFewParts = "too_few_parts",
    /// Too many captures run.
    TooManyCaptures = "too_many_captures",
    /// The agent is stopping.
    Stopping = "stopping",
    /// The caller cancelled it.
    Cancelled = "cancelled",
    /// The request is beyond a limit of the settings.
    Limit = "limit",
    /// The request names an option that the settings do not allow.
    OptionDenied = "option_denied",
    /// The request is wrong.
    Invalid = "invalid",
    /// A fault of the system or of tpuscope.
    Internal = "internal",
}

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
    /// Two targets are one profiler, which has one session at a time.
    #[error("{target} is the same profiler as {first}")]
    SameProfiler {
        /// The second name of the profiler.
        target: Target,
        /// Its first name.
        first: Target,
    },
    /// There is no process to profile.
    #[error("{}", no_target_text(.reasons))]
    NoTarget {
        /// Why the processes that were found cannot be profiled. Empty if none was found.
        reasons: Vec<String>,
    },
    /// There are processes, and none that the caller may profile.
    #[error("{}", no_target_text(.reasons))]
    NotPermitted {
        /// What was left out.
        reasons: Vec<String>,
    },
    /// Fewer targets than the caller needs.
    #[error("{targets} process(es) to profile, {needed} are needed")]
    TooFewTargets {
        /// The number of targets.
        targets: usize,
        /// The number that the caller needs.
        needed: usize,
    },
    /// Fewer parts than the caller needs.
    #[error("{parts} of {targets} targets gave a trace, at least {needed} must: {}", joined(.failures))]
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
    /// Too many captures run.
    #[error("{0} captures run already")]
    TooManyCaptures(u16),
    /// The agent is stopping.
    #[error("the agent is stopping")]
    Stopping,
    /// The caller cancelled it.
    #[error("the capture was cancelled; nothing was kept, and the profilers are free again")]
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

fn no_target_text(reasons: &[String]) -> String {
    match reasons {
        [] => "no workload process was found on this host".to_owned(),
        reasons => format!("no process can be profiled: {}", reasons.join("; ")),
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
            Self::Profiler { call, error, .. } => of_call(*call, error),
            Self::LeaseExpired { .. } => R::LeaseExpired,
            Self::InUse { .. } => R::InUse,
            Self::SameProfiler { .. } => R::SameProfiler,
            Self::NoTarget { .. } => R::NoTarget,
            Self::NotPermitted { .. } => R::NotPermitted,
            Self::TooFewTargets { .. } => R::TooFewTargets,
            Self::TooFewParts { .. } => R::TooFewParts,
            Self::Session(error) => of_session(error),
            Self::Store(error) => match &**error {
                StoreError::BeingWritten(_) => R::SessionBeingWritten,
                StoreError::NotFound(_) | StoreError::Panicked(_) => R::Internal,
                StoreError::Session(error) => of_session(error),
            },
            Self::StoreFull { .. } => R::NoSpace,
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

impl FailureReason {
    /// The kind of this reason. The kind of [`FailureReason::TooFewParts`] is that of its first cause.
    pub fn kind(self) -> FailureKind {
        use FailureKind as K;
        match self {
            Self::Unreachable | Self::ConnectionLost => K::Unreachable,
            Self::NotListening => K::NotListening,
            Self::NotAProfiler => K::NotAProfiler,
            Self::ForeignSession | Self::ForeignContinuous | Self::InUse => K::Busy,
            Self::EmptyTrace => K::EmptyTrace,
            Self::Timeout | Self::ProbeTimeout | Self::CallerTimeout | Self::LeaseExpired => K::Timeout,
            Self::TooLarge => K::TooLarge,
            Self::Damaged => K::Damaged,
            Self::NoSpace => K::NoSpace,
            Self::WriteDenied
            | Self::FolderDenied
            | Self::FolderImpossible
            | Self::OtherFileSystem
            | Self::Link
            | Self::NotPermitted
            | Self::OptionDenied => K::Denied,
            Self::SessionExists | Self::SessionBeingWritten | Self::SameProfiler | Self::TooManyCaptures => {
                K::Conflict
            }
            Self::NoTarget | Self::TooFewTargets | Self::TooFewParts => K::NoTarget,
            Self::Stopping | Self::Cancelled => K::Cancelled,
            Self::Limit | Self::Invalid => K::Invalid,
            Self::Declined | Self::WriteFailed | Self::FolderFailed | Self::Internal => K::Internal,
        }
    }
}

impl SpecError {
    fn reason(&self) -> FailureReason {
        match self {
            Self::TooLong(..) | Self::Level { .. } => FailureReason::Limit,
            Self::OptionDenied(..) => FailureReason::OptionDenied,
            _ => FailureReason::Invalid,
        }
    }
}

fn of_call(call: ProfilerCall, error: &client::Error) -> FailureReason {
    use FailureReason as R;
    use client::Error as E;
    match error {
        E::Unreachable(_) => R::Unreachable,
        E::Broken(_) => R::ConnectionLost,
        E::NothingListens => R::NotListening,
        E::NotAProfiler(_) | E::Garbage(_) | E::Compressed => R::NotAProfiler,
        E::Busy(_) => R::ForeignSession,
        E::AlreadyExists(_) => R::ForeignContinuous,
        E::Declined { .. } => R::Declined,
        E::EmptyTrace => R::EmptyTrace,
        E::Timeout { .. } => match call {
            ProfilerCall::Probe => R::ProbeTimeout,
            ProfilerCall::ProbeWithin => R::CallerTimeout,
            ProfilerCall::Profile => R::Timeout,
        },
        E::TooLarge { .. } => R::TooLarge,
        E::Damaged(_) | E::CutShort { .. } => R::Damaged,
        E::NoSpace => R::NoSpace,
        E::Write(error) if is_no_space(error.kind()) => R::NoSpace,
        E::Write(error) if is_denied(error.kind()) => R::WriteDenied,
        E::Write(_) => R::WriteFailed,
    }
}

fn of_session(error: &SessionError) -> FailureReason {
    use FailureReason as R;
    match error {
        SessionError::Exists(_) => R::SessionExists,
        SessionError::Running(_) => R::SessionBeingWritten,
        SessionError::Elsewhere(_) => R::OtherFileSystem,
        SessionError::Link(_) => R::Link,
        error => match error.io_kind() {
            Some(kind) if is_no_space(kind) => R::NoSpace,
            Some(kind) if is_denied(kind) => R::FolderDenied,
            Some(kind) if is_no_folder(kind) => R::FolderImpossible,
            _ => R::FolderFailed,
        },
    }
}

fn is_no_space(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn is_denied(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// No folder can be created there: a file is in the way, or the file system has no folders (/proc).
fn is_no_folder(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(kind, K::NotADirectory | K::AlreadyExists | K::NotFound)
}

impl From<SessionError> for CaptureError {
    fn from(error: SessionError) -> Self {
        Self::Session(Arc::new(error))
    }
}

impl From<StoreError> for CaptureError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_told_apart() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::named(kind.as_str()), kind);
            assert_eq!(serde_json::to_value(kind).expect("plain"), kind.as_str());
        }
        assert_eq!(FailureKind::named("of a later version"), FailureKind::Internal);
        for &reason in FailureReason::ALL {
            assert_eq!(FailureReason::named(reason.as_str()), reason);
        }
        let names: BTreeSet<_> = FailureReason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), FailureReason::ALL.len());
        assert_eq!(FailureReason::named("of a later version"), FailureReason::Internal);
    }

    #[test]
    fn too_few_parts_have_the_kind_of_the_first_cause() {
        let cause = |error| CaptureError::Profiler {
            target: "h:1".parse().unwrap(),
            call: ProfilerCall::Profile,
            error: Arc::new(error),
            connected: vec!["pid 7 (python)".to_owned()],
            age: None,
        };
        let failures = vec![cause(client::Error::Busy("x".into())), cause(client::Error::NothingListens)];
        let error = CaptureError::TooFewParts { parts: 0, targets: 2, needed: 1, failures };
        assert_eq!((error.kind(), error.reason()), (FailureKind::Busy, FailureReason::TooFewParts));
        assert_eq!(
            error.to_string(),
            "0 of 2 targets gave a trace, at least 1 must: h:1: the profiler is in use: x (connected to it: \
             pid 7 (python)); h:1: nothing listens there (connected to it: pid 7 (python))"
        );
    }
}
