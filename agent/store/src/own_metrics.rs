//! The agent's own metrics of this crate: what the store holds.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use metrics::{Unit, describe_gauge, gauge};

use super::catalog::rows::Totals;

const BYTES: &str = "tpuscope_store_bytes";
const FREE: &str = "tpuscope_store_free_bytes";
const SESSIONS: &str = "tpuscope_store_sessions";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(BYTES, Unit::Bytes, "Bytes of the sessions in the store.");
    describe_gauge!(
        FREE,
        Unit::Bytes,
        "Free bytes of the disk of the store, for the agent's user; up to a minute old."
    );
    describe_gauge!(SESSIONS, "Sessions in the store.");
    stored(Totals::default());
}

/// Sets the free bytes of the disk.
pub(crate) fn free(bytes: u64) {
    gauge!(FREE).set(bytes as f64);
}

/// Sets the metrics after a change of the catalog.
pub(crate) fn stored(totals: Totals) {
    gauge!(SESSIONS).set(totals.sessions as f64);
    gauge!(BYTES).set(totals.bytes as f64);
}
