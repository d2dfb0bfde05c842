//! Why a profiler could not be used.

use std::{io, time::Duration};

use thiserror::Error;

use crate::check::Damage;

/// Every way a call to a profiler fails. Text that came from the peer is bounded, and escaped where it is shown.
#[derive(Debug, Error)]
pub enum Error {
    /// The name does not resolve, no route, or no answer to the connection attempt.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The host answers that the port is closed.
    #[error("port {0} is closed: nothing listens on it")]
    NothingListens(u16),
    /// It speaks, but not as a profiler does.
    #[error("not a profiler: {0}")]
    NotAProfiler(String),
    /// Another client uses the profiler.
    #[error("the profiler is in use: {0}")]
    Busy(String),
    /// Continuous profiling runs already.
    #[error("continuous profiling is already running: {0}")]
    AlreadyExists(String),
    /// The profiler declined, with this gRPC code and text.
    #[error("the profiler declined (gRPC code {code}): {message}")]
    Declined {
        /// The gRPC status code.
        code: u32,
        /// The text beside it.
        message: String,
    },
    /// Continuous profiling does not run, so there is nothing to take or to stop.
    #[error("continuous profiling does not run: {0}")]
    NoSession(String),
    /// It is a profiler whose version has no such method.
    #[error("the profiler has no method {0}")]
    NoMethod(&'static str),
    /// Nothing was recorded.
    #[error("the trace is empty")]
    EmptyTrace,
    /// It has a trace and cannot send it: it exceeds a limit of its gRPC library or of its serialization.
    #[error("the profiler could not send its trace (gRPC code {code}): {message}")]
    TooLargeToSend {
        /// The gRPC status code.
        code: u32,
        /// The text beside it.
        message: String,
    },
    /// The answer has no trace, and does not say that the trace is empty: an XSpace that cannot be serialized leaves
    /// nothing.
    #[error("the answer has 0 bytes of a trace, and does not say that the trace is empty")]
    ZeroBytes,
    /// The deadline passed.
    #[error("no complete answer within {:.1} s ({received} bytes so far)", within.as_secs_f64())]
    Timeout {
        /// How long it was given.
        within: Duration,
        /// What had arrived by then.
        received: u64,
    },
    /// More than the limit.
    #[error("the answer has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Bytes announced.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A compressed message, which was not asked for.
    #[error("the answer is compressed, although that was not offered")]
    Compressed,
    /// The answer is no gRPC message or no `ProfileResponse`.
    #[error("garbage: {0}")]
    Garbage(String),
    /// The trace inside is no sound XSpace.
    #[error("the trace is damaged: {0}")]
    Damaged(#[from] Damage),
    /// The answer ended before its length.
    #[error("the answer was cut short, {missing} bytes are missing")]
    CutShort {
        /// Bytes that did not come.
        missing: u64,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// Who asked for the trace takes no more of it.
    #[error("the caller takes no more of the trace: it hung up, or its file cannot be written")]
    NotTaken,
    /// The disk is full.
    #[error("the disk is full")]
    NoSpace,
    /// The file cannot be written for another reason.
    #[error("cannot write the trace: {0}")]
    Write(io::Error),
}

impl Error {
    pub(super) fn write(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Write(error),
        }
    }
}
