//! Why a capture, or one target of it, failed: a kind that programs can tell, a line, and what to do.

use std::{fmt, io};

use serde::Serialize;
use xprof::{client, session::SessionError};

/// The kinds of failure. Their names are stable: they stand in JSON and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The host or its network does not answer.
    Unreachable,
    /// Nothing listens on the port.
    NotListening,
    /// Something listens, but it is no profiler.
    NotAProfiler,
    /// The workload's profiler is in use.
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
    /// Not allowed, by us or by the file system.
    Denied,
    /// A session of that name is there, or too many captures run.
    Conflict,
    /// The caller ended it.
    Cancelled,
    /// A fault of the system or of ours.
    Internal,
}

impl Kind {
    const ALL: [Self; 14] = [
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
        Self::Internal,
    ];

    /// As it stands in JSON and on the wire.
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
            Self::Internal => "internal",
        }
    }

    /// The kind of this name; a name of a later version is [`Kind::Internal`].
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).unwrap_or(Self::Internal)
    }
}

/// What failed and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The kind.
    pub kind: Kind,
    /// One line: what was wrong. May quote a peer; whoever prints it escapes it.
    pub message: String,
    /// One line: what to do; empty where there is nothing to add.
    pub remedy: String,
}

impl Failure {
    /// A failure.
    pub fn new(kind: Kind, message: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), remedy: remedy.to_string() }
    }

    /// The failure of one target.
    pub fn of_target(at: &client::Target, error: &client::Error) -> Self {
        use client::Error as E;
        let (kind, remedy) = match error {
            E::Unreachable(_) => (Kind::Unreachable, "check the host name, its network and its firewall"),
            E::Broken(_) => {
                (Kind::Unreachable, "the process ended or its host went away: is the job still running?")
            }
            E::NothingListens => (
                Kind::NotListening,
                "call jax.profiler.start_server(PORT) in the job, and keep what it returns",
            ),
            E::NotAProfiler(_) | E::Garbage(_) | E::Compressed => {
                (Kind::NotAProfiler, "name the port that was given to jax.profiler.start_server")
            }
            E::Busy(_) => (Kind::Busy, "wait until the other session ends, then try again"),
            E::AlreadyExists(_) => {
                (Kind::Busy, "whoever started continuous profiling must stop it first; it is left alone")
            }
            E::Declined { .. } => (Kind::Internal, "the job's own log may say more"),
            E::EmptyTrace => (
                Kind::EmptyTrace,
                "the process did nothing that its tracers saw: try a longer --duration or a \
                                    higher --host-tracer-level",
            ),
            E::Timeout { .. } => {
                (Kind::Timeout, "give it longer with --timeout, or ask for a shorter --duration")
            }
            E::TooLarge { .. } => (
                Kind::TooLarge,
                "ask for a shorter --duration or lower tracer levels, or raise capture.max_size",
            ),
            E::Damaged(_) | E::CutShort { .. } => (
                Kind::Damaged,
                "nothing was kept; traces of more than 2 GiB cannot be sent: try a shorter --duration",
            ),
            E::NoSpace => (Kind::NoSpace, "make room, or name another folder with --output"),
            E::Write(error) => (io_kind(error.kind()), "check the folder's permissions"),
        };
        Self::new(kind, format_args!("{at}: {error}"), remedy)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fn io_kind(kind: io::ErrorKind) -> Kind {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        _ => Kind::Internal,
    }
}

/// No folder can be made there: a file is in the way, or the file system makes none (/proc).
fn no_folder(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(kind, K::NotADirectory | K::AlreadyExists | K::NotFound)
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let (kind, remedy) = match &error {
            SessionError::Exists(_) | SessionError::Running(_) => {
                (Kind::Conflict, "choose another --session name")
            }
            SessionError::Elsewhere(_) => {
                (Kind::Denied, "move it beside the other, or name another folder with --output")
            }
            SessionError::Link(_) => {
                (Kind::Denied, "remove the link if it is yours, or name another folder with --output")
            }
            _ => match error.io_kind().map(io_kind) {
                Some(Kind::NoSpace) => (Kind::NoSpace, "make room, or name another folder with --output"),
                Some(Kind::Denied) => (Kind::Denied, "name a folder that you may write with --output"),
                _ if error.io_kind().is_some_and(no_folder) => {
                    (Kind::Denied, "name a folder with --output, or one that can be made")
                }
                _ => (Kind::Internal, "check the folder named with --output"),
            },
        };
        Self::new(kind, error, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_told_apart() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.as_str()), kind);
            assert_eq!(serde_json::to_value(kind).expect("plain"), kind.as_str());
        }
        assert_eq!(Kind::named("of a later version"), Kind::Internal);
    }
}
