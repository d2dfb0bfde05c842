//! The proxy ledger: goodput estimated from duty cycles and device opens, where no recorder writes events.
//!
//! Time is cut into whole-second slots; each slot has one state (see [`SlotState`]). The numbers are this
//! project's own definition, described in `docs/goodput.md`: an estimate with its coverage, never mixed
//! with the exact ledger's.

mod error;
mod estimated;
mod hosts;
mod limits;
pub mod live;
mod observations;
mod ratios;
mod slots;
mod wasted;

pub use error::Error;
pub use estimated::Estimated;
pub use hosts::{Combined, HostSlots, combine};
pub use limits::{GAP, HBM0, HOLD, MAX_CHIP_SECONDS, MAX_SECONDS, MIN_COVER, MIN_SECONDS, THETA};
pub use observations::{DeviceOpen, DutySamples, Hbm, HostObservations, StepStart};
pub use ratios::{Proxy, SlotBuckets};
pub use slots::{SlotState, Slots};
pub use wasted::wasted_seconds;

/// The proxy ledger of one host.
///
/// # Errors
/// If the observations are invalid or exceed a limit.
pub fn proxy(observed: &HostObservations) -> Result<Proxy, Error> {
    let slots = Slots::new(observed)?;
    let wasted = observed.steps.as_deref().and_then(|steps| wasted_seconds(steps, &slots));
    let estimated = estimated::estimate(observed, &slots);
    Ok(ratios::ratios(observed, &slots, wasted, estimated))
}
