//! The agent's own metrics of its process (version, start, CPU time and memory), and of what the exporters send.

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
const POINTS: &str = "tpuscope_export_points_total";
const FAILURES: &str = "tpuscope_export_failures_total";
const LAST_SUCCESS: &str = "tpuscope_export_last_success_timestamp_seconds";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(BUILD_INFO, "1, with the agent's version.");
    describe_gauge!(START_TIME, Unit::Seconds, "When the agent started.");
    describe_counter!(CPU, Unit::Seconds, "CPU time of the agent without its children.");
    describe_gauge!(MEMORY, Unit::Bytes, "Memory of the agent without its children.");
    describe_counter!(POINTS, "Points of exporters that are on, by result: sent, or dropped.");
    describe_counter!(FAILURES, "Times that an exporter failed to send points, by reason.");
    describe_gauge!(LAST_SUCCESS, Unit::Seconds, "When an exporter last sent points without a failure.");
}

/// Sets what never changes.
pub fn started(at: Timestamp) {
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!(START_TIME).set(at.0 as f64 / 1e9);
}

/// Counts what one exporter sends. What is off is not counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExportCounters(&'static str);

impl ExportCounters {
    /// Of the exporter with this name in labels.
    pub(super) fn new(exporter: &'static str) -> Self {
        let counters = Self(exporter);
        // What has not happened yet is zero, not absent.
        counters.sent(0);
        counters.dropped(0);
        counters
    }

    /// Points that arrived.
    pub(super) fn sent(&self, points: u64) {
        counter!(POINTS, "exporter" => self.0, "result" => "sent").increment(points);
    }

    /// Points that were left out or not taken.
    pub(super) fn dropped(&self, points: u64) {
        counter!(POINTS, "exporter" => self.0, "result" => "dropped").increment(points);
    }

    /// A failure.
    pub(super) fn failed(&self, reason: &'static str) {
        counter!(FAILURES, "exporter" => self.0, "reason" => reason).increment(1);
    }

    /// All points of a round arrived.
    pub(super) fn succeeded(&self, at: Timestamp) {
        gauge!(LAST_SUCCESS, "exporter" => self.0).set(at.0 as f64 / 1e9);
    }
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
