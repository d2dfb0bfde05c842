//! The exact ledger: the numbers of ml-goodput-measurement, including its faults, at `O(log n)` a step.
//!
//! ```text
//! EventLog ──read rule──▶ Calculator ──new entries──▶ LogWalk ──▶ StepSegment (steps of one attempt)
//!                             │                         │  └────▶ custom events, checkpoints, elastic events
//!                             │                         └───────▶ productive seconds and buckets
//!                             └───────────────────────▶ ExactStepTimes (order statistics) ──▶ StepInfo
//! ```
//!
//! The library walks all entries at every query. Here a [`LogWalk`] is kept between queries and reads only
//! new entries; what the library finds by reading all entries again (a custom event that closes late, an
//! earlier smallest step) is an update of a running sum. Only windows and exclusions are walked again.

mod calculator;
mod checkpoints;
mod compat;
mod customs;
pub(crate) mod elastic;
mod exclusions;
mod ranges;
mod ranked;
mod results;
mod segment;
pub(crate) mod step_info;
pub(crate) mod step_times;
mod walk;

pub use calculator::{Calculator, CalculatorOptions};
pub use compat::{Compat, UnknownVersion};
pub use elastic::SliceEfficiency;
pub use results::{CountedUntil, CumulativeResult, ExclusionsResult, IntervalResult, LastResult};
pub use step_info::{DEVIATION_STEPS, FromBaseline, StepInfo};
