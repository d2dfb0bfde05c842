//! The protobuf wire format, read by hand: from any `Read` through one bounded buffer ([`Scanner`]), or from
//! a slice ([`Fields`]). The one protobuf walker of the workspace: also for replies that are not traces.
//!
//! Every length is checked against what encloses it before anything is done with it, and every error names
//! the byte and what was expected there. Must never panic on any input, never allocate by a length that the
//! input claims beyond [`Scanner`]'s limit, and never know what the fields mean.

mod push;
mod scanner;
mod slice;

use std::{fmt, io};

pub(crate) use push::PushedVarint;
pub use scanner::{FieldPayload, Header, Scanner};
pub use slice::{Field, FieldValue, Fields, varint};

/// Why the bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The medium failed.
    #[error("cannot read at byte {offset}: {source}")]
    Io {
        /// Offset in the file, bytes.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes are no protobuf message of the expected nesting.
    #[error("damaged at byte {offset}: expected {expected}, found {found}")]
    Damaged {
        /// Offset in the file, bytes.
        offset: u64,
        /// What should have been there.
        expected: &'static str,
        /// What is there.
        found: Found,
    },
    /// The bytes are well formed but exceed what this program holds at once.
    #[error("at byte {offset}: {what} over the limit of {limit}")]
    TooLarge {
        /// Offset in the file, bytes.
        offset: u64,
        /// What exceeds.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

impl Error {
    /// Where in the input.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Io { offset, .. } | Self::Damaged { offset, .. } | Self::TooLarge { offset, .. } => *offset,
        }
    }

    /// The same error in an input that begins `by` bytes later.
    #[must_use]
    pub(crate) fn moved_back(mut self, by: u64) -> Self {
        let (Self::Io { offset, .. } | Self::Damaged { offset, .. } | Self::TooLarge { offset, .. }) =
            &mut self;
        *offset = offset.saturating_sub(by);
        self
    }

    #[cold]
    pub(crate) fn damaged(offset: u64, expected: &'static str, found: Found) -> Self {
        Self::Damaged { offset, expected, found }
    }
}

/// What stands where something else was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The input, or the enclosing message, ends here.
    End,
    /// A varint that does not end within ten bytes or the enclosing message.
    Varint,
    /// A length beyond the enclosing message.
    Length {
        /// The length it claims.
        claimed: u64,
        /// The bytes that are left.
        left: u64,
    },
    /// A wire type that is not in use (groups, 6, 7).
    WireType(u8),
    /// A field number of zero or beyond 2^29.
    FieldNumber(u64),
    /// A known field with another wire type.
    OtherType,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("the end"),
            Self::Varint => f.write_str("a number that does not end"),
            Self::Length { claimed, left } => {
                write!(f, "a length of {claimed} bytes where {left} are left")
            }
            Self::WireType(wire) => write!(f, "wire type {wire}"),
            Self::FieldNumber(number) => write!(f, "field number {number}"),
            Self::OtherType => f.write_str("a value of another type"),
        }
    }
}

/// A range of bytes of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Span {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }
}
