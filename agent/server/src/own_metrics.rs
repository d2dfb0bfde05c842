//! The agent's own metrics of this crate: whether it is ready, and connections that it refused.

use metrics::{counter, describe_counter, describe_gauge, gauge};

const READY: &str = "tpuscope_ready";
const REFUSED: &str = "tpuscope_refused_connections_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(READY, "1 when samples are taken, 0 when not.");
    describe_counter!(REFUSED, "Connections that were refused because too many were open.");
    counter!(REFUSED).absolute(0);
}

/// Sets whether samples are taken.
pub(crate) fn ready(ready: bool) {
    gauge!(READY).set(f64::from(u8::from(ready)));
}

/// Counts a refused connection.
pub(crate) fn connection_refused() {
    counter!(REFUSED).increment(1);
}
