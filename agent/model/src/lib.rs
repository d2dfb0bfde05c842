//! Plain types, units and validated ids that all crates of the agent share.
//!
//! Must never do I/O, or hold a bad value that came from outside. Only `time::SystemClock`, `schedule` and `liveness`
//! read a clock.

#![forbid(unsafe_code)]

pub mod absolute_path;
pub mod backoff;
pub mod bounded_log;
pub mod catalog;
pub mod device;
pub mod distribution;
pub mod host_list;
pub mod job;
pub mod label;
pub mod liveness;
pub mod log_budget;
pub mod metric;
pub mod pace;
pub mod registry;
pub mod sample;
pub mod schedule;
pub mod secrets;
pub mod snapshot;
pub mod step_times;
pub mod suggestion;
pub mod time;
pub mod unit;
pub mod untrusted;
pub mod workload;
pub mod workload_label;
