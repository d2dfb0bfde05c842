//! The proxy ledger: goodput estimated from duty cycles and device opens, where no recorder writes events.
//!
//! Time is cut into whole-second slots; each slot has one state (see [`State`]). The numbers are this
//! project's own definition, described in `docs/goodput.md`: an estimate with its coverage, never mixed
//! with the exact ledger's.

mod estimated;
mod hosts;
mod ratios;
mod slots;
mod trace;
mod wasted;

pub use estimated::Estimated;
pub use hosts::{Combined, HostSlots, combine};
pub use ratios::{Proxy, SlotBuckets};
pub use slots::{Slots, State};
pub use trace::{Duty, Hbm, Open, StepStart, Trace};

/// A chip is at work above this duty cycle, in percent.
pub const THETA: f64 = 10.0;
/// Idle runs of at most so many seconds between two productive slots are part of a step.
pub const GAP: usize = 10;
/// A duty sample stands for so many seconds after its own.
pub const HOLD: i64 = 5;
/// From this share of device memory on, a job has begun to load.
pub const HBM0: f64 = 0.02;
/// Below this share of known time there is no ratio.
pub const MIN_COVER: f64 = 0.5;
/// Below this many seconds there is no ratio.
pub const MIN_SECONDS: usize = 60;
/// The longest window that is looked at: 400 days.
pub const MAX_SECONDS: i64 = 400 * 86_400;

/// So many chips times seconds are looked at: 8 chips for 97 days.
pub const MAX_CHIP_SECONDS: usize = 64 << 20;

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The window is too long.
    #[error("the window has {0} seconds; at most {MAX_SECONDS} are looked at")]
    TooLong(i64),
    /// Too many chips for so long a window.
    #[error("{chips} chips for {seconds} seconds are more than {MAX_CHIP_SECONDS} chip-seconds")]
    TooMuch {
        /// Chips.
        chips: usize,
        /// Seconds from the first open to now.
        seconds: usize,
    },
    /// What was observed makes no sense.
    #[error("{0}")]
    Nonsense(String),
}

/// The proxy of a trace.
///
/// # Errors
/// If the window cannot be looked at.
pub fn proxy(trace: &Trace) -> Result<Proxy, Error> {
    let slots = Slots::new(trace)?;
    let wasted = wasted::seconds(trace, &slots);
    let estimated = estimated::estimate(trace, &slots);
    Ok(ratios::ratios(trace, &slots, wasted, estimated))
}
