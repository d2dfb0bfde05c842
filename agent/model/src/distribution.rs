//! Distributions: what was counted since the start of the workload, and what of it is new since the read before.
//!
//! Must never let a sum or a count fall while the same workload runs: a scraper takes a fall for a restart.

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and counts below 2^53 are exact")]

use std::sync::Arc;

use serde::Serialize;

use crate::time::Timestamp;

/// Everything counted since the start of the workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Histogram {
    /// When the counting started: as the workload says, else when the agent first saw it.
    pub since: Timestamp,
    /// Upper bounds of all buckets but the last, rising; the last bucket is open.
    pub bounds: Arc<[f64]>,
    /// One count per bucket: `bounds.len() + 1`.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

/// What was counted between two reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistogramWindow {
    /// As in [`Histogram`].
    pub bounds: Arc<[f64]>,
    /// One count per bucket: `bounds.len() + 1`.
    pub counts: Vec<u64>,
    /// Mean of the values; 0 without any.
    pub mean: f64,
}

/// A distribution at one read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    /// Since the start of the workload.
    pub histogram: Histogram,
    /// Since the read before; `None` at the first one, which would show the whole past as the present.
    pub window: Option<HistogramWindow>,
}

fn total(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

impl Histogram {
    /// How many values.
    pub fn count(&self) -> u64 {
        total(&self.counts)
    }

    /// Adds another process's, bucket by bucket; false, and unchanged, when its buckets are others.
    pub fn add(&mut self, other: &Self) -> bool {
        if self.bounds != other.bounds || self.counts.len() != other.counts.len() {
            return false;
        }
        add_counts(&mut self.counts, &other.counts);
        self.sum += other.sum;
        // A restart of either is one of both.
        self.since = self.since.max(other.since);
        true
    }

    /// The counts that are new since `before`; `None` when the counting started again in between.
    fn rise(&self, before: &Self) -> Option<Vec<u64>> {
        if self.bounds != before.bounds || self.counts.len() != before.counts.len() {
            return None;
        }
        self.counts.iter().zip(&before.counts).map(|(now, then)| now.checked_sub(*then)).collect()
    }
}

impl HistogramWindow {
    fn of(bounds: Arc<[f64]>, counts: Vec<u64>, sum: f64) -> Self {
        let count = total(&counts);
        // Counts beyond 2^53 lose their last digits, which no mean shows.
        let mean = if count > 0 { sum / count as f64 } else { 0.0 };
        Self { bounds, counts, mean }
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        total(&self.counts)
    }

    /// Adds another process's, bucket by bucket; false, and unchanged, when its buckets are others.
    pub fn add(&mut self, other: &Self) -> bool {
        if self.bounds != other.bounds || self.counts.len() != other.counts.len() {
            return false;
        }
        let (a, b) = (self.count() as f64, other.count() as f64);
        if a + b > 0.0 {
            self.mean = (self.mean * a + other.mean * b) / (a + b);
        }
        add_counts(&mut self.counts, &other.counts);
        true
    }

    /// The value below which the share `q` (0 to 1) of all values lies, interpolated in the bucket that holds it;
    /// in the open last bucket its lower bound. `None` without values or without buckets.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 || self.bounds.is_empty() {
            return None;
        }
        // Counts beyond 2^53 lose their last digits, which no quantile shows.
        let rank = q.clamp(0.0, 1.0) * count as f64;
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let up_to = below + count as f64;
            if count > 0 && up_to >= rank {
                return Some(self.within(bucket, (rank - below) / count as f64));
            }
            below = up_to;
        }
        self.bounds.last().copied()
    }

    /// The value at `share` of the way through a bucket.
    fn within(&self, bucket: usize, share: f64) -> f64 {
        let Some(&upper) = self.bounds.get(bucket) else {
            return self.bounds.last().copied().unwrap_or(f64::NAN);
        };
        let lower = match bucket.checked_sub(1) {
            Some(before) => self.bounds[before],
            // The first bucket has no lower bound; durations and rates start at 0.
            None => upper.min(0.0),
        };
        lower + (upper - lower) * share
    }
}

impl Distribution {
    /// The distribution of the first read.
    pub fn first(histogram: Histogram) -> Self {
        Self { histogram, window: None }
    }

    /// The distribution of the read after `before`. A count that fell is a workload that started again: then
    /// everything in `now` is new, and `now.since` holds.
    pub fn following(mut now: Histogram, before: &Histogram) -> Self {
        let window = match now.rise(before) {
            Some(counts) => {
                now.since = before.since;
                now.bounds = before.bounds.clone();
                // The wire gives the mean: its rounding may let the product fall.
                now.sum = now.sum.max(before.sum);
                HistogramWindow::of(now.bounds.clone(), counts, now.sum - before.sum)
            }
            None => HistogramWindow::of(now.bounds.clone(), now.counts.clone(), now.sum),
        };
        Self { histogram: now, window: Some(window) }
    }
}

fn add_counts(mine: &mut [u64], theirs: &[u64]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = mine.saturating_add(*theirs);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(counts: [u64; 4]) -> HistogramWindow {
        HistogramWindow { bounds: [1.0, 2.0, 4.0].into(), counts: counts.into(), mean: 2.2 }
    }

    fn histogram(since: i64, counts: [u64; 4], sum: f64) -> Histogram {
        Histogram { since: Timestamp(since), bounds: [1.0, 2.0, 4.0].into(), counts: counts.into(), sum }
    }

    #[test]
    fn quantiles_are_interpolated_and_absent_without_values() {
        let spread = window([0, 2, 2, 0]);
        assert_eq!(spread.quantile(0.5), Some(2.0));
        assert_eq!(spread.quantile(0.25), Some(1.5));
        assert_eq!(spread.quantile(1.0), Some(4.0));
        assert_eq!(window([0, 0, 0, 7]).quantile(0.5), Some(4.0));
        assert_eq!(window([4, 0, 0, 0]).quantile(0.5), Some(0.5));
        assert_eq!(window([0; 4]).quantile(0.5), None);
        let bare = HistogramWindow { bounds: [].into(), counts: vec![3], mean: 1.0 };
        assert_eq!((bare.quantile(0.5), bare.count()), (None, 3));
    }

    #[test]
    fn a_window_is_what_is_new_and_a_fallen_count_is_a_new_start() {
        let first = histogram(5, [0, 10, 0, 0], 15.0);
        let next = Distribution::following(histogram(9, [0, 10, 6, 0], 36.0), &first);
        assert_eq!(next.histogram, histogram(5, [0, 10, 6, 0], 36.0));
        assert_eq!(next.window, Some(HistogramWindow { mean: 3.5, ..window([0, 0, 6, 0]) }));
        let restarted = Distribution::following(histogram(12, [0, 2, 0, 0], 3.0), &next.histogram);
        assert_eq!(restarted.histogram, histogram(12, [0, 2, 0, 0], 3.0));
        assert_eq!(restarted.window, Some(HistogramWindow { mean: 1.5, ..window([0, 2, 0, 0]) }));
    }

    #[test]
    fn histograms_of_two_processes_add_up_and_start_with_the_later_one() {
        let mut both = histogram(5, [1, 2, 3, 4], 20.0);
        assert!(both.add(&histogram(8, [0, 1, 0, 1], 7.5)));
        assert_eq!(both, histogram(8, [1, 3, 3, 5], 27.5));
        assert!(!both.add(&Histogram { bounds: [1.0].into(), counts: vec![1, 0], ..both.clone() }));
    }

    proptest! {
        /// However the mean is rounded, sum and counts rise with the workload, and the windows add up to them.
        #[test]
        fn nothing_falls_while_a_workload_runs(
            steps in prop::collection::vec((prop::array::uniform4(0_u64..1000), -1e-3..1e-3), 1..30)
        ) {
            let mut running = [0; 4];
            let mut before = histogram(1, running, 0.0);
            let mut added = vec![0; 4];
            for (step, rounding) in steps {
                running.iter_mut().zip(step).for_each(|(sum, more)| *sum += more);
                let count: u64 = running.iter().sum();
                let next = Distribution::following(histogram(2, running, (1.5 + rounding) * count as f64), &before);
                prop_assert!(next.histogram.sum >= before.sum);
                prop_assert_eq!(next.histogram.since, Timestamp(1));
                let window = next.window.expect("a later read has a window");
                prop_assert!(window.mean.is_finite() && window.mean >= 0.0);
                add_counts(&mut added, &window.counts);
                before = next.histogram;
            }
            prop_assert_eq!(added, before.counts);
        }
    }
}
