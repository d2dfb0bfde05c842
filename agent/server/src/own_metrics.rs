//! The agent's own metrics of this crate: whether it is ready, and what its listeners refused.

use jiff::Timestamp;
use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::refusals::RefusalReason;

const READY: &str = "tpuscope_ready";
/// Connections that a listener refused.
pub(crate) const REFUSED_CONNECTIONS: &str = "tpuscope_refused_connections_total";
/// Requests that a listener refused.
pub(crate) const REFUSED_REQUESTS: &str = "tpuscope_refused_requests_total";

const CERTIFICATE_END: &str = "tpuscope_remote_certificate_expiry_timestamp_seconds";
/// Whether the files of `[api.remote]` are not those in use.
const FILES_UNUSED: &str = "tpuscope_remote_files_unused";

/// Every listener with what it may refuse.
const LISTENERS: [(&str, &[RefusalReason]); 6] = [
    ("socket", &[RefusalReason::NoSlot, RefusalReason::UnknownPeer]),
    ("marks", &[RefusalReason::NoSlot, RefusalReason::UnknownPeer]),
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
    (
        "remote",
        &[
            RefusalReason::Replaced,
            RefusalReason::Handshake,
            RefusalReason::FailureLimit,
            RefusalReason::NoSlot,
        ],
    ),
];

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(READY, "1 when samples are taken, 0 when not.");
    describe_counter!(
        REFUSED_CONNECTIONS,
        "Connections that were closed: no_slot and replaced (too many were open), unknown_peer, tls_handshake, \
         failure_limit (too many failed handshakes)."
    );
    describe_counter!(
        REFUSED_REQUESTS,
        "Requests that were refused: unauthorized (401), rate_limit and password_limit (429)."
    );
    describe_gauge!(
        CERTIFICATE_END,
        "Time when the certificate of the agent (cert) or the last authority of callers (client_ca) of api.remote expires, \
         in seconds since the epoch."
    );
    describe_gauge!(
        FILES_UNUSED,
        "1 while the files of api.remote have changed and cannot be used, so that the earlier ones stay in use; 0 when not."
    );
    // What has not happened yet is zero, not absent.
    for (listener, reasons) in LISTENERS {
        for (metric, reason) in reasons.iter().map(|reason| reason.metric()) {
            counter!(metric, "listener" => listener, "reason" => reason).absolute(0);
        }
    }
}

/// Sets when the certificate in a file of `[api.remote]` expires.
pub(crate) fn certificate_end(file: &'static str, end: Timestamp) {
    #[expect(clippy::cast_precision_loss, reason = "whole seconds of any date are exact")]
    gauge!(CERTIFICATE_END, "file" => file).set(end.as_second() as f64);
}

/// Sets whether the files of `[api.remote]` are not those in use.
pub(crate) fn files_unused(unused: bool) {
    gauge!(FILES_UNUSED).set(f64::from(u8::from(unused)));
}

/// Sets whether samples are taken.
pub(crate) fn ready(ready: bool) {
    gauge!(READY).set(f64::from(u8::from(ready)));
}
