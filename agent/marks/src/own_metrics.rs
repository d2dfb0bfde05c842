//! The agent's own metrics of this crate: what became of marks.

use metrics::{counter, describe_counter};

use crate::mark_line::MarkFault;

const STORED: &str = "tpuscope_marks_stored_total";
const DOUBLED: &str = "tpuscope_marks_doubled_total";
const LOST: &str = "tpuscope_marks_lost_total";
const REFUSED: &str = "tpuscope_marks_refused_total";
const BAD_PACKETS: &str = "tpuscope_marks_bad_packets_total";
const HELD_BACK: &str = "tpuscope_marks_held_back_total";

/// Describes the metrics of this crate.
pub fn describe() {
    describe_counter!(STORED, "Marks of programs that were stored.");
    describe_counter!(DOUBLED, "Marks that came again and were stored before.");
    describe_counter!(
        LOST,
        "Marks that never came: their program had no room for them. The numbers show it."
    );
    describe_counter!(
        REFUSED,
        "Marks that were refused: too_long, no_time, time (absurd), not_json, no_job, job_name, value (missing, no number, \
         negative or absurd)."
    );
    describe_counter!(BAD_PACKETS, "Packets that were none; their connections were closed.");
    describe_counter!(
        HELD_BACK,
        "Times that a program was read more slowly because its user exceeds marks.max_rate."
    );
    // What has not happened yet is zero, not absent.
    for metric in [STORED, DOUBLED, LOST, BAD_PACKETS, HELD_BACK] {
        counter!(metric).absolute(0);
    }
    for fault in MarkFault::ALL {
        counter!(REFUSED, "reason" => fault.as_str()).absolute(0);
    }
}

/// Counts what a batch brought.
pub(crate) fn appended(added: u64, doubled: u64, lost: u64) {
    counter!(STORED).increment(added);
    counter!(DOUBLED).increment(doubled);
    counter!(LOST).increment(lost);
}

/// Counts marks that were refused.
pub fn refused(fault: MarkFault, count: usize) {
    counter!(REFUSED, "reason" => fault.as_str()).increment(count as u64);
}

/// Counts a packet that was none.
pub fn bad_packet() {
    counter!(BAD_PACKETS).increment(1);
}

/// Counts that a program was held back.
pub fn held_back() {
    counter!(HELD_BACK).increment(1);
}
