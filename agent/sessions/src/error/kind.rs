//! The kinds of capture errors. Their names are stable: they stand in JSON and cross the API.

use serde::Serialize;

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
    /// Nothing of that name.
    NotFound,
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
    const ALL: [Self; 16] = [
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
        Self::NotFound,
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
            Self::NotFound => "not_found",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::named(kind.as_str()), kind);
            assert_eq!(serde_json::to_value(kind).expect("plain"), kind.as_str());
        }
        assert_eq!(FailureKind::named("of a later version"), FailureKind::Internal);
    }
}
