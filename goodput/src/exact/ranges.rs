//! Stretches of time in the order they were logged, and which of them may touch another stretch.
//!
//! Nothing is sorted by time here: what is logged mostly follows in time what was logged before, so that few
//! stretches lie between the first and the last that may touch. A clock that stepped back only makes more.

use std::ops::Range;

/// The stretches by number.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The latest end up to each.
    latest: Vec<f64>,
    /// Beginnings that no later stretch is before, ascending, with their numbers.
    earliest: Vec<(f64, usize)>,
}

impl Ranges {
    /// Adds the next stretch.
    pub(super) fn push(&mut self, begin: f64, end: f64) {
        let number = self.latest.len();
        let latest = self.latest.last().map_or(end, |latest| latest.max(end));
        self.latest.push(latest);
        while self.earliest.last().is_some_and(|(other, _)| *other >= begin) {
            self.earliest.pop();
        }
        self.earliest.push((begin, number));
    }

    /// Among these are all that begin at or before `begun` and end at or after `open`.
    pub(super) fn among(&self, begun: f64, open: f64) -> Range<usize> {
        let first = self.latest.partition_point(|latest| *latest < open);
        let last = self.earliest.partition_point(|(begin, _)| *begin <= begun);
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
            stretches in prop::collection::vec((0..40i32, 0..9i32), 0..30),
            begun in 0..50i32,
            open in 0..50i32,
        ) {
            let mut ranges = Ranges::default();
            for (begin, length) in &stretches {
                ranges.push(f64::from(*begin), f64::from(begin + length));
            }
            let among = ranges.among(f64::from(begun), f64::from(open));
            for (number, (begin, length)) in stretches.iter().enumerate() {
                prop_assert!(among.contains(&number) || *begin > begun || begin + length < open);
            }
            prop_assert!(among.end <= stretches.len());
        }
    }

    #[test]
    fn of_many_that_follow_one_another_few_are_named() {
        let mut ranges = Ranges::default();
        (0..1000).for_each(|at| ranges.push(f64::from(at), f64::from(at + 1)));
        assert_eq!(ranges.among(500.2, 500.4), 500..501);
        assert_eq!(ranges.among(500.0, 500.0), 499..501);
    }
}
