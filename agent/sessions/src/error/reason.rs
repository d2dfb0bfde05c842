//! The reasons of capture errors: finer than the kinds. Their names are stable: they cross the API.

use std::io;

use store::{StateError, StoreError};
use xprof::{client, session::SessionError};

use super::{FailureKind, ProfilerCall};
use crate::{reservation::ReservationError, spec::SpecError};

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
    /// The start of the window was in the past when it came.
    LateStart = "late_start",
    /// The caller of a capture over several hosts sent nothing for as long as its lease.
    CallerSilent = "caller_silent",
    /// The caller of a capture over several hosts did not say when the window begins.
    NoStart = "no_start",
    /// More bytes than the limit.
    TooLarge = "too_large",
    /// The profiler cannot send its trace: it is larger than a message may be.
    Unsendable = "unsendable",
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
    /// The session's folder cannot be created: a file is in the way.
    FolderImpossible = "folder_impossible",
    /// The session's folder cannot be created: the folder above it is gone, or takes no others, as those of /proc.
    FolderMissing = "folder_missing",
    /// The session's folder cannot be written for another reason.
    FolderFailed = "folder_failed",
    /// The sessions lie on another file system than the staging folder.
    OtherFileSystem = "other_file_system",
    /// A link is in the way.
    Link = "link",
    /// The session exists.
    SessionExists = "session_exists",
    /// A part that the manifest of several hosts names is not at the destination, or not as it says.
    PartNotThere = "part_not_there",
    /// The session is being written.
    SessionBeingWritten = "session_being_written",
    /// Two targets are one profiler.
    SameProfiler = "same_profiler",
    /// The recorder has nothing of the time that was asked for.
    NothingRecorded = "nothing_recorded",
    /// A process cannot be recorded in the way that was asked for.
    StrategyRefused = "strategy_refused",
    /// There is no process of the job that was named, and nothing is kept of one.
    NoSuchJob = "no_such_job",
    /// There is no process to profile.
    NoTarget = "no_target",
    /// There is no process to profile among those that the agent sees, and it does not see all.
    OwnersHidden = "owners_hidden",
    /// A profile would stop each process that there is for ever.
    OldJaxlib = "old_jaxlib",
    /// There are processes, and none that the caller may profile.
    NotPermitted = "not_permitted",
    /// Fewer targets than the caller needs.
    TooFewTargets = "too_few_targets",
    /// Fewer parts than the caller needs.
    TooFewParts = "too_few_parts",
    /// Too many captures run.
    TooManyCaptures = "too_many_captures",
    /// Another snapshot is being made.
    SnapshotRuns = "snapshot_runs",
    /// The agent is stopping.
    Stopping = "stopping",
    /// The caller cancelled it.
    Cancelled = "cancelled",
    /// The request is beyond a limit of the settings.
    Limit = "limit",
    /// The request names an option that the settings do not allow.
    OptionDenied = "option_denied",
    /// The request names an option that is not known, or has a value that the option does not take.
    UnknownOption = "unknown_option",
    /// The request has a parameter of the capture among its options.
    OptionIsParameter = "option_is_parameter",
    /// The request names a destination that the settings do not have.
    UnknownDestination = "unknown_destination",
    /// The request is wrong.
    Invalid = "invalid",
    /// A fault of the system or of tpuscope.
    Internal = "internal",
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
            Self::EmptyTrace | Self::NothingRecorded => K::EmptyTrace,
            Self::Timeout
            | Self::ProbeTimeout
            | Self::CallerTimeout
            | Self::LeaseExpired
            | Self::LateStart
            | Self::CallerSilent
            | Self::NoStart => K::Timeout,
            Self::TooLarge => K::TooLarge,
            Self::Damaged | Self::Unsendable | Self::PartNotThere => K::Damaged,
            Self::NoSpace => K::NoSpace,
            Self::WriteDenied
            | Self::FolderDenied
            | Self::FolderImpossible
            | Self::OtherFileSystem
            | Self::Link
            | Self::NotPermitted
            | Self::OptionDenied => K::Denied,
            Self::SessionExists | Self::SessionBeingWritten | Self::TooManyCaptures | Self::SnapshotRuns => {
                K::Conflict
            }
            Self::NoSuchJob | Self::FolderMissing => K::NotFound,
            // A second name of a profiler is one process less.
            Self::NoTarget
            | Self::OldJaxlib
            | Self::OwnersHidden
            | Self::SameProfiler
            | Self::TooFewTargets
            | Self::TooFewParts
            | Self::StrategyRefused => K::NoTarget,
            Self::Stopping | Self::Cancelled => K::Cancelled,
            Self::Limit
            | Self::UnknownOption
            | Self::OptionIsParameter
            | Self::UnknownDestination
            | Self::Invalid => K::Invalid,
            Self::Declined | Self::WriteFailed | Self::FolderFailed | Self::Internal => K::Internal,
        }
    }
}

impl SpecError {
    pub(super) fn reason(&self) -> FailureReason {
        match self {
            Self::TooLong(..) | Self::Level { of_settings: true, .. } => FailureReason::Limit,
            Self::OptionDenied(..) => FailureReason::OptionDenied,
            Self::UnknownOption { .. } | Self::OptionValue { .. } => FailureReason::UnknownOption,
            Self::OptionIsParameter(_) => FailureReason::OptionIsParameter,
            _ => FailureReason::Invalid,
        }
    }
}

impl ReservationError {
    pub(super) fn reason(&self) -> FailureReason {
        match self {
            Self::LateStart(_) => FailureReason::LateStart,
            Self::Start(error) => error.reason(),
            Self::LeaseOver(_) => FailureReason::CallerSilent,
            Self::NoStart => FailureReason::NoStart,
            Self::HungUp => FailureReason::Cancelled,
            Self::OutOfOrder(_) => FailureReason::Invalid,
        }
    }
}

pub(super) fn of_call(call: ProfilerCall, error: &client::Error) -> FailureReason {
    use FailureReason as R;
    use client::Error as E;
    match error {
        E::Unreachable(_) => R::Unreachable,
        E::Broken(_) => R::ConnectionLost,
        E::NothingListens(_) => R::NotListening,
        E::NotAProfiler(_) | E::Garbage(_) | E::Compressed => R::NotAProfiler,
        E::Busy(_) => R::ForeignSession,
        E::AlreadyExists(_) => R::ForeignContinuous,
        E::Declined { .. } | E::NoSession(_) | E::NoMethod(_) => R::Declined,
        E::EmptyTrace => R::EmptyTrace,
        E::Timeout { .. } => match call {
            ProfilerCall::Probe => R::ProbeTimeout,
            ProfilerCall::ProbeWithin => R::CallerTimeout,
            ProfilerCall::Profile => R::Timeout,
        },
        E::TooLarge { .. } => R::TooLarge,
        E::TooLargeToSend { .. } | E::ZeroBytes => R::Unsendable,
        E::Damaged(_) | E::CutShort { .. } => R::Damaged,
        E::NotTaken => R::Cancelled,
        E::NoSpace => R::NoSpace,
        E::Write(error) if is_no_space(error.kind()) => R::NoSpace,
        E::Write(error) if is_denied(error.kind()) => R::WriteDenied,
        E::Write(_) => R::WriteFailed,
    }
}

pub(super) fn of_session(error: &SessionError) -> FailureReason {
    use FailureReason as R;
    match error {
        SessionError::Exists(_) => R::SessionExists,
        SessionError::Running(_) => R::SessionBeingWritten,
        SessionError::Elsewhere(_) => R::OtherFileSystem,
        SessionError::Link(_) => R::Link,
        error => match error.io_kind() {
            Some(kind) if is_no_space(kind) => R::NoSpace,
            Some(kind) if is_denied(kind) => R::FolderDenied,
            Some(io::ErrorKind::NotFound) => R::FolderMissing,
            Some(kind) if is_no_folder(kind) => R::FolderImpossible,
            _ => R::FolderFailed,
        },
    }
}

pub(super) fn is_no_space(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn is_denied(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// No folder can be created there: a file is in the way.
fn is_no_folder(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists)
}

impl FailureReason {
    /// Why the agent's store refuses.
    pub fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::BeingWritten(_) => FailureReason::SessionBeingWritten,
            StoreError::LowDisk { .. } | StoreError::State(StateError::Full { .. }) => FailureReason::NoSpace,
            StoreError::State(StateError::ReadOnly { .. }) => FailureReason::FolderDenied,
            StoreError::State(StateError::Io { source, .. }) if is_denied(source.kind()) => {
                FailureReason::FolderDenied
            }
            StoreError::State(StateError::NotAFile { .. }) => FailureReason::FolderImpossible,
            StoreError::NotFound(_) | StoreError::Panicked(_) | StoreError::State(_) => {
                FailureReason::Internal
            }
            StoreError::Session(error) => of_session(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_told_apart() {
        for &reason in FailureReason::ALL {
            assert_eq!(FailureReason::named(reason.as_str()), reason);
        }
        let names: BTreeSet<_> = FailureReason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), FailureReason::ALL.len());
        assert_eq!(FailureReason::named("of a later version"), FailureReason::Internal);
    }
}
