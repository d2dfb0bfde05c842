//! The agent's own metrics of this crate: what the store holds.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::destinations::target::FailureClass;

use super::catalog::rows::StoreTotals;

const BYTES: &str = "tpuscope_store_bytes";
const FREE: &str = "tpuscope_store_free_bytes";
const SESSIONS: &str = "tpuscope_store_sessions";
const RECORDED: &str = "tpuscope_recorder_bytes";
const MARKED: &str = "tpuscope_marks_bytes";
const UPLOADS_WAITING: &str = "tpuscope_uploads_waiting";
const UPLOADS_FAILED: &str = "tpuscope_uploads_failed";
const UPLOADS_OLDEST: &str = "tpuscope_uploads_oldest_age_seconds";
const UPLOADS_DONE: &str = "tpuscope_uploads_done_total";
const UPLOAD_BYTES: &str = "tpuscope_upload_bytes_total";
const UPLOAD_FAILURES: &str = "tpuscope_upload_failures_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_gauge!(BYTES, Unit::Bytes, "Bytes of the sessions in the store.");
    describe_gauge!(
        FREE,
        Unit::Bytes,
        "Free bytes of the disk of the store, for the agent's user; up to a minute old."
    );
    describe_gauge!(SESSIONS, "Sessions in the store.");
    stored(StoreTotals::default());
    describe_gauge!(RECORDED, Unit::Bytes, "Bytes of the segments that the recorder keeps.");
    recorded(0);
    describe_gauge!(MARKED, Unit::Bytes, "Bytes of the marks of programs that are kept.");
    marked(0);
    describe_uploads();
}

fn describe_uploads() {
    describe_gauge!(UPLOADS_WAITING, "Uploads that wait or run.");
    describe_gauge!(UPLOADS_FAILED, "Uploads that do not go on by themselves.");
    describe_gauge!(
        UPLOADS_OLDEST,
        Unit::Seconds,
        "Time since the oldest upload that is not done was queued; 0 without one."
    );
    describe_counter!(UPLOADS_DONE, "Sessions that were uploaded, once for each destination.");
    describe_counter!(UPLOAD_BYTES, Unit::Bytes, "Bytes that destinations have received.");
    describe_counter!(UPLOAD_FAILURES, "Attempts to upload a session that failed, by class.");
    upload_queue(0, 0, Duration::ZERO);
    counter!(UPLOADS_DONE).absolute(0);
    counter!(UPLOAD_BYTES).absolute(0);
    for class in FailureClass::ALL {
        counter!(UPLOAD_FAILURES, "class" => class.as_str()).absolute(0);
    }
}

/// Sets the metrics of the queue of uploads.
pub(crate) fn upload_queue(waiting: usize, failed: usize, oldest: Duration) {
    gauge!(UPLOADS_WAITING).set(waiting as f64);
    gauge!(UPLOADS_FAILED).set(failed as f64);
    gauge!(UPLOADS_OLDEST).set(oldest.as_secs_f64());
}

/// Counts a session that was uploaded.
pub(crate) fn uploaded() {
    counter!(UPLOADS_DONE).increment(1);
}

/// Counts bytes that a destination received.
pub(crate) fn sent(bytes: u64) {
    counter!(UPLOAD_BYTES).increment(bytes);
}

/// Counts an attempt that failed.
pub(crate) fn upload_failed(class: FailureClass) {
    counter!(UPLOAD_FAILURES, "class" => class.as_str()).increment(1);
}

/// Sets the free bytes of the disk.
pub(crate) fn free(bytes: u64) {
    gauge!(FREE).set(bytes as f64);
}

/// Sets the metrics after a change of the catalog.
pub(crate) fn stored(totals: StoreTotals) {
    gauge!(SESSIONS).set(totals.sessions as f64);
    gauge!(BYTES).set(totals.bytes as f64);
}

/// Sets the bytes of the marks.
pub(crate) fn marked(bytes: u64) {
    gauge!(MARKED).set(bytes as f64);
}

/// Sets the bytes of the segments.
pub(crate) fn recorded(bytes: u64) {
    gauge!(RECORDED).set(bytes as f64);
}
