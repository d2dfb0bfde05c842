//! The agent's own metrics of this crate: captures and windows of the recorder by their result.

use metrics::{counter, describe_counter};

use crate::{CaptureError, capture_runner::StoredCapture};

const CAPTURES: &str = "tpuscope_captures_total";
const WINDOWS: &str = "tpuscope_recorder_windows_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_counter!(
        CAPTURES,
        "Captures by result: complete, partial, failed, or refused before any profiler was called."
    );
    // A result that has not happened yet is zero, not absent.
    for result in ["complete", "partial", "failed", "refused"] {
        counter!(CAPTURES, "result" => result).absolute(0);
    }
    describe_counter!(
        WINDOWS,
        "Windows of the recorder by result: recorded, failed, capture (one used the profiler) or foreign_use."
    );
    for result in ["recorded", "failed", "capture", "foreign_use"] {
        counter!(WINDOWS, "result" => result).absolute(0);
    }
}

/// Counts a capture that ended.
pub(crate) fn ended(result: &Result<StoredCapture, CaptureError>) {
    let result = match result {
        Ok(capture) if capture.stored.partial => "partial",
        Ok(_) => "complete",
        Err(_) => "failed",
    };
    counter!(CAPTURES, "result" => result).increment(1);
}

/// Counts a capture that was passed on.
pub(crate) fn passed_on(result: &Result<(), CaptureError>) {
    counter!(CAPTURES, "result" => if result.is_ok() { "complete" } else { "failed" }).increment(1);
}

/// Counts a capture that was refused before any profiler was called.
pub(crate) fn refused() {
    counter!(CAPTURES, "result" => "refused").increment(1);
}

/// Counts a window of the recorder by how it ended.
pub(crate) fn window(result: &'static str) {
    counter!(WINDOWS, "result" => result).increment(1);
}
