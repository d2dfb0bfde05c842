//! Plain types, units and validated ids that every room shares.
//!
//! Must never do I/O, read a clock, or hold a bad value that came from outside.

#![forbid(unsafe_code)]

pub mod backoff;
pub mod catalog;
pub mod device;
pub mod distribution;
pub mod hostlist;
pub mod job;
pub mod label;
pub mod liveness;
pub mod log_budget;
pub mod metric;
pub mod pace;
pub mod registry;
pub mod sample;
pub mod schedule;
pub mod snapshot;
pub mod time;
pub mod unit;
pub mod untrusted;
pub mod workload;
