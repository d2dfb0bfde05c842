//! The agent's own metrics of this crate: what the discovery has found and what it costs.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use model::snapshot::HostSnapshot;

const CHIPS: &str = "tpuscope_chips";
const OWNERS: &str = "tpuscope_owners";
const SCANS: &str = "tpuscope_process_scans_total";
const SCAN_DURATION: &str = "tpuscope_process_scan_duration_seconds";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(
        CHIPS,
        "Chips found on this host, whatever their state. Absent while the PCI functions cannot be listed."
    );
    describe_gauge!(
        OWNERS,
        "Processes that were seen to hold chips of this host; with workload.discover = any, also those that have a TPU library mapped."
    );
    describe_counter!(SCANS, "Scans of all processes.");
    describe_gauge!(SCAN_DURATION, Unit::Seconds, "Duration of the last scan of all processes.");
}

/// Sets what a tick of the discovery has found.
pub(crate) fn found(snapshot: &HostSnapshot) {
    // Not a number: the gauge has no series.
    let chips = if snapshot.chips_unknown.is_some() { f64::NAN } else { snapshot.chips.len() as f64 };
    gauge!(CHIPS).set(chips);
    gauge!(OWNERS).set(snapshot.workloads.owners.len() as f64);
}

/// Counts a scan of all processes.
pub(crate) fn scanned(duration: Duration) {
    counter!(SCANS).increment(1);
    gauge!(SCAN_DURATION).set(duration.as_secs_f64());
}
