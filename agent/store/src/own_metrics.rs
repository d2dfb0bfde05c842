//! The agent's own metrics of this crate: what the store holds.

use metrics::{Unit, describe_gauge, gauge};

use crate::Stored;

const BYTES: &str = "tpuscope_store_bytes";
const SESSIONS: &str = "tpuscope_store_sessions";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(BYTES, Unit::Bytes, "Bytes of the sessions in the store.");
    describe_gauge!(SESSIONS, "Sessions in the store.");
}

/// Sets the metrics to these sessions, which are all.
pub(crate) fn holds(sessions: &[Stored]) {
    gauge!(BYTES).set(sessions.iter().map(|session| session.bytes).sum::<u64>() as f64);
    gauge!(SESSIONS).set(sessions.len() as f64);
}
