//! The constants of the proxy's definition and its limits.

/// A chip is active above this duty cycle, in percent.
pub const THETA: f64 = 10.0;
/// The longest idle run between two productive slots that is part of a step, in seconds.
pub const GAP: usize = 10;
/// The number of seconds after its own for which a duty sample is valid.
pub const HOLD: i64 = 5;
/// The share of device memory from which on a job has started to load.
pub const HBM0: f64 = 0.02;
/// The minimum share of known time for a ratio.
pub const MIN_COVER: f64 = 0.5;
/// The minimum number of seconds for a ratio.
pub const MIN_SECONDS: usize = 60;
/// The longest window, in seconds: 400 days.
pub const MAX_SECONDS: i64 = 400 * 86_400;
/// The maximum of chips times seconds: 8 chips for 97 days.
pub const MAX_CHIP_SECONDS: usize = 64 << 20;
