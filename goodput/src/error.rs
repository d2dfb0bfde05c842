//! Why a query has no answer: the library's exceptions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The library's exception types. In JSON, each has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ExceptionKind {
    /// The values are invalid.
    ValueError,
    /// A required key is missing.
    KeyError,
    /// A value is of the wrong type.
    TypeError,
}

impl ExceptionKind {
    /// The exception's name.
    pub fn name(self) -> &'static str {
        match self {
            ExceptionKind::ValueError => "ValueError",
            ExceptionKind::KeyError => "KeyError",
            ExceptionKind::TypeError => "TypeError",
        }
    }
}

/// An error of the library: exception type and message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct Error {
    /// The exception's type.
    pub kind: ExceptionKind,
    /// The exception's text.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

impl Error {
    /// A `ValueError`.
    pub fn value(message: impl Into<String>) -> Self {
        Self { kind: ExceptionKind::ValueError, message: message.into() }
    }

    /// A `KeyError`; the library's text is the key in quotes.
    pub fn key(key: &str) -> Self {
        Self { kind: ExceptionKind::KeyError, message: format!("'{key}'") }
    }

    /// A `TypeError`.
    pub fn type_(message: impl Into<String>) -> Self {
        Self { kind: ExceptionKind::TypeError, message: message.into() }
    }

    pub(crate) fn total_is_zero() -> Self {
        Self::value("Total job time is zero, Goodput cannot be calculated. Please fix the logging entries.")
    }

    pub(crate) fn productive_is_invalid() -> Self {
        Self::value("Productive training time is invalid. Please fix the logging entries.")
    }

    pub(crate) fn window_is_empty() -> Self {
        Self::value("Start time is on or after end time, cannot compute total job time.")
    }
}
