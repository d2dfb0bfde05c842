//! Which segments of a process can stand beside each other in one trace. Pure.
//!
//! Segments follow each other, unless the clock was set back: then two may have the same time, or one ends before it began.
//! Of two with the same time the one that was kept later holds: its time is what people mean by that time now.
//! Must never choose by the times alone: they are what is wrong.

use std::{cmp::Reverse, collections::BTreeMap};

use model::time::Timestamp;
use store::segments::{SegmentGap, StoredSegment};

/// The segments of a process, sorted out.
pub(super) struct TimeLine<'a> {
    /// Those that follow each other, by time.
    pub(super) kept: Vec<&'a StoredSegment>,
    /// The stretches of the others, with why they are left out.
    pub(super) left_out: Vec<SegmentGap>,
}

impl<'a> TimeLine<'a> {
    /// Sorts out the segments of one process.
    pub(super) fn of(past: &'a [StoredSegment]) -> Self {
        let mut newest: Vec<&StoredSegment> = past.iter().collect();
        // An earlier version counted nothing: its segments are by time.
        newest.sort_by_key(|segment| Reverse((segment.order, segment.start, segment.number)));
        let (mut kept, mut left_out) = (BTreeMap::new(), Vec::new());
        let has_others = past.iter().any(|segment| !segment.facts.clock_set_back);
        for segment in newest {
            if segment.facts.clock_set_back && (has_others || !kept.is_empty()) {
                left_out.push(gap(segment, "the clock was set back while it was recorded"));
            } else if is_taken(&kept, segment) {
                left_out
                    .push(gap(segment, "the clock was set back, and what was recorded later has its time"));
            } else {
                kept.insert(segment.start, segment);
            }
        }
        left_out.sort_by_key(|gap| gap.start);
        Self { kept: kept.into_values().collect(), left_out }
    }
}

/// Whether one of those that are kept, which do not overlap, has a part of the segment's time.
fn is_taken(kept: &BTreeMap<Timestamp, &StoredSegment>, segment: &StoredSegment) -> bool {
    let before = kept.range(..segment.stop).next_back();
    kept.contains_key(&segment.start) || before.is_some_and(|(_, before)| before.stop > segment.start)
}

fn gap(segment: &StoredSegment, reason: &str) -> SegmentGap {
    let StoredSegment { process, start, stop, .. } = segment;
    SegmentGap { process: process.clone(), start: *start, stop: *stop, windows: 1, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use model::{
        job::JobKind,
        workload::{ProcessKey, WorkloadId},
    };
    use proptest::prelude::*;
    use store::segments::{RecordedProcess, SegmentFacts};

    use super::*;

    fn segment(order: u64, start: i64, stop: i64) -> StoredSegment {
        StoredSegment {
            number: start,
            order,
            process: RecordedProcess {
                workload: WorkloadId { kind: JobKind::Process, job: "1".into() },
                process: ProcessKey::default(),
                port: 1,
                uid: 1,
            },
            start: Timestamp(start),
            stop: Timestamp(stop),
            bytes: 1,
            trace_bytes: 1,
            facts: SegmentFacts::default(),
        }
    }

    fn starts(past: &[StoredSegment]) -> (Vec<i64>, Vec<i64>) {
        let TimeLine { kept, left_out } = TimeLine::of(past);
        (kept.iter().map(|kept| kept.start.0).collect(), left_out.iter().map(|gap| gap.start.0).collect())
    }

    #[test]
    fn what_was_recorded_after_the_clock_was_set_back_holds() {
        // Three windows, the clock goes back, and three again: two of them at the time of the first three.
        let past = [(1, 100, 102), (2, 110, 112), (3, 120, 122), (4, 99, 101), (5, 109, 111), (6, 119, 120)];
        let past: Vec<StoredSegment> = past.into_iter().map(|(order, a, b)| segment(order, a, b)).collect();
        assert_eq!(starts(&past), (vec![99, 109, 119, 120], vec![100, 110]));
        let unordered: Vec<StoredSegment> =
            past.iter().map(|old| segment(0, old.start.0, old.stop.0)).collect();
        assert_eq!(starts(&unordered).0.len(), 4, "an earlier version counted nothing");
    }

    #[test]
    fn a_segment_in_which_the_clock_was_set_back_stands_beside_no_other() {
        let mut past = vec![segment(1, 100, 110), segment(2, 50, 60), segment(3, 61, 70)];
        past[1].facts.clock_set_back = true;
        assert_eq!(starts(&past), (vec![61, 100], vec![50]));
        let alone = past.remove(1);
        assert_eq!(starts(std::slice::from_ref(&alone)), (vec![50], vec![]));
        let later = StoredSegment { order: 9, start: Timestamp(20), ..alone.clone() };
        assert_eq!(starts(&[alone, later]), (vec![20], vec![50]), "the newest of such segments alone");
    }

    proptest! {
        #[test]
        fn those_that_are_kept_never_overlap_and_the_last_one_is_among_them(
            past in prop::collection::vec((0..60_i64, 0..12_i64, prop::bool::weighted(0.1)), 1..20),
        ) {
            let past: Vec<StoredSegment> = (1..)
                .zip(past)
                .map(|(order, (start, length, clock_set_back))| {
                    let facts = SegmentFacts { clock_set_back, ..SegmentFacts::default() };
                    StoredSegment { facts, ..segment(order, start, start + length) }
                })
                .collect();
            let TimeLine { kept, left_out } = TimeLine::of(&past);
            prop_assert_eq!(kept.len() + left_out.len(), past.len());
            prop_assert!(!kept.is_empty());
            prop_assert!(kept.windows(2).all(|pair| pair[0].stop <= pair[1].start && pair[0].start < pair[1].start));
            let whole = past.iter().filter(|segment| !segment.facts.clock_set_back);
            let newest = whole.map(|segment| segment.order).max().unwrap_or(past.len() as u64);
            prop_assert!(kept.iter().any(|segment| segment.order == newest));
        }
    }
}
