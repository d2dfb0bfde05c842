//! Count, mean, median, 95th percentile and maximum.

use serde::Serialize;

/// A summary of durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DurationSummary {
    /// Number of values.
    pub count: u64,
    /// Their mean, rounded to the nearest.
    pub mean_ps: i64,
    /// The middle one; of an even number the mean of the middle two.
    pub median_ps: i64,
    /// The smallest that at least 95 % do not exceed.
    pub p95_ps: i64,
    /// The greatest.
    pub max_ps: i64,
}

impl DurationSummary {
    /// Of `durations`, in any order.
    pub(super) fn of(mut durations: Vec<i64>) -> Self {
        durations.sort_unstable();
        let count = durations.len();
        let Some(&max_ps) = durations.last() else { return Self::default() };
        Self {
            count: count as u64,
            mean_ps: mean(&durations),
            median_ps: median_of_sorted(&durations),
            p95_ps: durations[(count * 95).div_ceil(100) - 1],
            max_ps,
        }
    }
}

/// The mean, rounded; 0 of none.
pub(super) fn mean(values: &[i64]) -> i64 {
    let count = values.len() as i128;
    if count == 0 {
        return 0;
    }
    let sum: i128 = values.iter().copied().map(i128::from).sum();
    ((sum + sum.signum() * (count / 2)) / count) as i64
}

/// The median; 0 of none.
pub(crate) fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    median_of_sorted(&values)
}

fn median_of_sorted(sorted: &[i64]) -> i64 {
    let (half, odd) = (sorted.len() / 2, sorted.len() % 2 == 1);
    match sorted.get(half) {
        None => 0,
        Some(&middle) if odd => middle,
        Some(&middle) => ((i128::from(middle) + i128::from(sorted[half - 1])) / 2) as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sets() {
        assert_eq!(DurationSummary::of(Vec::new()), DurationSummary::default());
        let one = DurationSummary::of(vec![7]);
        assert_eq!((one.count, one.mean_ps, one.median_ps, one.p95_ps, one.max_ps), (1, 7, 7, 7, 7));
        let many = DurationSummary::of((1..=100).rev().collect());
        assert_eq!((many.mean_ps, many.median_ps, many.p95_ps, many.max_ps), (51, 50, 95, 100));
        assert_eq!(median(vec![4, 1]), 2);
    }
}
