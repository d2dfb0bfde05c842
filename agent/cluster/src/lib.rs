//! Other hosts: which ones a command means, and how their agents are reached.
//!
//! Must never start a shell, leave a command behind, or wait for a host without a limit.

#![forbid(unsafe_code)]

pub mod channel;
pub mod clock_offset;
pub mod dial;
mod going_away;
pub mod hosts;
pub mod identity;
pub mod reach;
pub mod relay;
