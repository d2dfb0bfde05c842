//! Plain types, units and validated ids that every room shares.
//!
//! Must never do I/O, read a clock, or hold a bad value that came from outside.

pub mod device;
pub mod hostlist;
pub mod job;
pub mod sample;
pub mod time;
pub mod unit;
pub mod workload;
