//! The exact ledger: the numbers of ml-goodput-measurement, its faults included, at `O(log n)` a step.
//!
//! ```text
//! Log ──read rule──▶ Calculator ──new entries──▶ Walk ──▶ Segment (steps of one attempt)
//!                        │                        │  └──▶ Customs, checkpoints, elastic events
//!                        │                        └─────▶ productive seconds and buckets
//!                        └──────────────────────▶ StepTimes (order statistics) ──▶ StepInfo
//! ```
//!
//! The library walks all entries at every query. Here a [`Walk`] is kept between queries and only takes in
//! what is new; whatever the library would find by looking again (a custom event that closes late, an
//! earlier smallest step) is an update of a running sum. Only windows and exclusions are walked afresh.

mod calculator;
mod checkpoints;
mod customs;
pub(crate) mod elastic;
mod exclusions;
mod ranges;
mod ranked;
mod segment;
pub(crate) mod step_info;
pub(crate) mod step_times;
mod walk;

pub use calculator::{Calculator, Cumulative, Excluded, Interval, Options, Remembered};
pub use elastic::Efficiency;
pub use step_info::{FromBaseline, StepInfo};

use std::{fmt, str::FromStr};

/// Which version of the library the numbers follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compat {
    /// ml-goodput-measurement 0.2.3.
    #[default]
    V0_2_3,
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compat::V0_2_3 => f.write_str("0.2.3"),
        }
    }
}

/// A version whose numbers are not known.
#[derive(Debug, thiserror::Error)]
#[error("version {0:?} is not known; known: 0.2.3")]
pub struct UnknownVersion(String);

impl FromStr for Compat {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "0.2.3" => Ok(Compat::V0_2_3),
            other => Err(UnknownVersion(other.to_owned())),
        }
    }
}
