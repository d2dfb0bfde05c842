//! Periods in the order they were logged, and a search for those that may overlap another period.
//!
//! The periods are not sorted by time: they are mostly logged in the order of time, so that few periods are
//! between the first and the last that may overlap. After the clock was set back there are more.

use std::ops::Range;

/// The periods by number.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The latest end of the periods up to each.
    latest: Vec<f64>,
    /// The starts that are before all later starts, ascending, with their numbers.
    earliest: Vec<(f64, usize)>,
}

impl Ranges {
    /// Adds the next period.
    pub(super) fn push(&mut self, start: f64, end: f64) {
        let number = self.latest.len();
        let latest = self.latest.last().map_or(end, |latest| latest.max(end));
        self.latest.push(latest);
        while self.earliest.last().is_some_and(|(other, _)| *other >= start) {
            self.earliest.pop();
        }
        self.earliest.push((start, number));
    }

    /// A range with all periods that start at or before `latest_start` and end at or after `earliest_end`.
    pub(super) fn overlapping(&self, latest_start: f64, earliest_end: f64) -> Range<usize> {
        let first = self.latest.partition_point(|latest| *latest < earliest_end);
        let last = self.earliest.partition_point(|(start, _)| *start <= latest_start);
        let end = last.checked_sub(1).map_or(0, |at| self.earliest[at].1 + 1);
        first..end.max(first)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn none_is_missed(
            periods in prop::collection::vec((0..40i32, 0..9i32), 0..30),
            latest_start in 0..50i32,
            earliest_end in 0..50i32,
        ) {
            let mut ranges = Ranges::default();
            for (start, length) in &periods {
                ranges.push(f64::from(*start), f64::from(start + length));
            }
            let found = ranges.overlapping(f64::from(latest_start), f64::from(earliest_end));
            for (number, (start, length)) in periods.iter().enumerate() {
                prop_assert!(found.contains(&number) || *start > latest_start || start + length < earliest_end);
            }
            prop_assert!(found.end <= periods.len());
        }
    }

    #[test]
    fn of_many_that_follow_one_another_few_are_named() {
        let mut ranges = Ranges::default();
        (0..1000).for_each(|at| ranges.push(f64::from(at), f64::from(at + 1)));
        assert_eq!(ranges.overlapping(500.2, 500.4), 500..501);
        assert_eq!(ranges.overlapping(500.0, 500.0), 499..501);
    }
}
