//! The agent's own metrics of this crate: whether it is ready, and what its listeners refused.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::refusals::RefusalReason;

const READY: &str = "tpuscope_ready";
/// Connections that a listener refused.
pub(crate) const REFUSED_CONNECTIONS: &str = "tpuscope_refused_connections_total";
/// Requests that a listener refused.
pub(crate) const REFUSED_REQUESTS: &str = "tpuscope_refused_requests_total";

/// Every listener with what it may refuse.
const LISTENERS: [(&str, &[RefusalReason]); 4] = [
    ("socket", &[RefusalReason::NoSlot, RefusalReason::UnknownPeer]),
    ("http", &[RefusalReason::Replaced]),
    ("grpc", &[RefusalReason::Replaced]),
    (
        "metrics",
        &[
            RefusalReason::Replaced,
            RefusalReason::Handshake,
            RefusalReason::Unauthorized,
            RefusalReason::RateLimit,
            RefusalReason::PasswordLimit,
        ],
    ),
];

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(READY, "1 when samples are taken, 0 when not.");
    describe_counter!(
        REFUSED_CONNECTIONS,
        "Connections that were closed: no_slot and replaced (too many were open), unknown_peer, tls_handshake."
    );
    describe_counter!(
        REFUSED_REQUESTS,
        "Requests that were refused: unauthorized (401), rate_limit and password_limit (429)."
    );
    // What has not happened yet is zero, not absent.
    for (listener, reasons) in LISTENERS {
        for (metric, reason) in reasons.iter().map(|reason| reason.metric()) {
            counter!(metric, "listener" => listener, "reason" => reason).absolute(0);
        }
    }
}

/// Sets whether samples are taken.
pub(crate) fn ready(ready: bool) {
    gauge!(READY).set(f64::from(u8::from(ready)));
}
