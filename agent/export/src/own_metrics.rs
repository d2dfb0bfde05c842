//! The agent's own metrics of its process, and of the exporters.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use host::process_memory::resident_bytes;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use model::time::Timestamp;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};

const BUILD_INFO: &str = "tpuscope_build_info";
const START_TIME: &str = "tpuscope_start_time_seconds";
const CPU: &str = "tpuscope_cpu_seconds_total";
const MEMORY: &str = "tpuscope_resident_memory_bytes";
const TENSORBOARD_POINTS: &str = "tpuscope_tensorboard_points_total";
const TENSORBOARD_FAILURES: &str = "tpuscope_tensorboard_failures_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(BUILD_INFO, "1, with the agent's version.");
    describe_gauge!(START_TIME, Unit::Seconds, "When the agent started.");
    describe_counter!(CPU, Unit::Seconds, "CPU time of the agent without its children.");
    describe_gauge!(MEMORY, Unit::Bytes, "Memory of the agent without its children.");
    describe_counter!(TENSORBOARD_POINTS, "Points of jobs that were written to event files for TensorBoard.");
    describe_counter!(TENSORBOARD_FAILURES, "Points of jobs that could not be written to event files.");
    counter!(TENSORBOARD_POINTS).absolute(0);
    counter!(TENSORBOARD_FAILURES).absolute(0);
}

/// Counts points in event files.
pub(super) fn tensorboard_points(points: usize) {
    counter!(TENSORBOARD_POINTS).increment(points as u64);
}

/// Counts points that could not be written.
pub(super) fn tensorboard_failures(points: usize) {
    counter!(TENSORBOARD_FAILURES).increment(points as u64);
}

/// Sets what never changes.
pub fn started(at: Timestamp) {
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!(START_TIME).set(at.0 as f64 / 1e9);
}

/// Reads CPU time and memory.
pub(super) fn update() {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        gauge!(CPU).set(seconds(usage.user_time()) + seconds(usage.system_time()));
    }
    if let Some(bytes) = resident_bytes(None) {
        gauge!(MEMORY).set(bytes as f64);
    }
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}
