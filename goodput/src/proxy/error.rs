//! Why a proxy cannot be computed.

use super::limits::{MAX_CHIP_SECONDS, MAX_SECONDS};

/// Why a proxy cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The window is too long.
    #[error("the window has {0} seconds; the limit is {MAX_SECONDS}")]
    TooLong(i64),
    /// Too many chips for so long a window.
    #[error("{chips} chips for {seconds} seconds exceed the limit of {MAX_CHIP_SECONDS} chip-seconds")]
    TooManyChips {
        /// The number of chips.
        chips: usize,
        /// Seconds from the first open to now.
        seconds: usize,
    },
    /// The observations contradict each other or are out of range.
    #[error("{0}")]
    Invalid(String),
}
