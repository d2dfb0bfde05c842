//! The agent's own metrics of this crate: captures by their result.

use metrics::{counter, describe_counter};

use crate::captures::Done;

const CAPTURES: &str = "tpuscope_captures_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_counter!(CAPTURES, "Captures that ended: complete, partial or failed.");
    // A result that has not happened yet is zero, not absent.
    for result in ["complete", "partial", "failed"] {
        counter!(CAPTURES, "result" => result).absolute(0);
    }
}

/// Counts a capture that ended.
pub(crate) fn ended<E>(result: &Result<Done, E>) {
    let result = match result {
        Ok(done) if done.stored.is_partial() => "partial",
        Ok(_) => "complete",
        Err(_) => "failed",
    };
    counter!(CAPTURES, "result" => result).increment(1);
}
