//! Step times in the order in which the steps were first logged, and their order statistics.
//!
//! A step's time is known when the next number follows it in the log. A step repeated after a restart
//! overwrites its time in the old position.

use std::collections::HashMap;

use super::ranked::Ranked;

/// Steps shorter than this never count for the ideal step time.
const SHORTEST: f64 = 1.0;

/// All step times of a walk.
#[derive(Debug, Default)]
pub(crate) struct ExactStepTimes {
    previous: Option<(i64, f64)>,
    times: Vec<(i64, f64)>,
    /// Position by step; built when a step is not in ascending order.
    positions: Option<HashMap<i64, usize>>,
    ranked: Ranked,
    /// Changes that `ranked` does not contain yet: removed time, added time.
    changes: Vec<(Option<f64>, f64)>,
    /// Position and time of the values overwritten since the last [`ExactStepTimes::mark`].
    overwritten: Vec<(usize, f64)>,
    work: u64,
}

impl ExactStepTimes {
    /// Step times in their order.
    pub(crate) fn listed(times: Vec<(i64, f64)>) -> Self {
        let mut listed = Self { times, ..Self::default() };
        // The order statistics are to be built.
        listed.changes.push((None, 0.0));
        listed
    }

    /// Logs a step start.
    pub(crate) fn push(&mut self, step: i64, start: f64) {
        self.work += 1;
        if let Some((previous, previous_start)) = self.previous.replace((step, start))
            && previous.checked_add(1) == Some(step)
        {
            self.record(previous, start - previous_start);
        }
    }

    /// Makes the next step not follow the last one.
    pub(crate) fn interrupt(&mut self) {
        self.previous = None;
    }

    fn record(&mut self, step: i64, time: f64) {
        let position = match (&self.positions, self.times.last()) {
            (Some(positions), _) => positions.get(&step).copied(),
            (None, Some((last, _))) if *last >= step => {
                self.times.binary_search_by_key(&step, |(step, _)| *step).ok()
            }
            (None, _) => None,
        };
        if let Some(position) = position {
            let old = std::mem::replace(&mut self.times[position].1, time);
            self.changes.push((Some(old), time));
            self.overwritten.push((position, old));
            return;
        }
        if self.positions.is_none() && self.times.last().is_some_and(|(last, _)| *last > step) {
            self.work += self.times.len() as u64;
            self.positions = Some(self.times.iter().enumerate().map(|(at, (step, _))| (*step, at)).collect());
        }
        if let Some(positions) = &mut self.positions {
            positions.insert(step, self.times.len());
        }
        self.times.push((step, time));
        self.changes.push((None, time));
    }

    /// Step and time, in order.
    pub(crate) fn times(&self) -> &[(i64, f64)] {
        &self.times
    }

    /// Saves the current times for [`ExactStepTimes::marked`].
    pub(crate) fn mark(&mut self) -> usize {
        self.overwritten.clear();
        self.times.len()
    }

    /// The times as they were at the last mark, when there were `count` of them.
    pub(crate) fn marked(&self, count: usize) -> Vec<(i64, f64)> {
        let mut times = self.times[..count].to_vec();
        for (position, old) in self.overwritten.iter().rev().filter(|(position, _)| *position < count) {
            times[*position].1 = *old;
        }
        times
    }

    /// Elementary operations so far.
    pub(crate) fn work(&self) -> u64 {
        self.work + self.ranked.work()
    }

    /// Applies the changes to the order statistics, one by one or, where that is cheaper, all at once.
    fn settle(&mut self) {
        if self.changes.len() > self.ranked.len() / 8 {
            self.changes.clear();
            self.ranked.rebuild(self.times.iter().map(|(_, time)| *time).collect());
            return;
        }
        for (old, new) in self.changes.drain(..) {
            if let Some(old) = old {
                self.ranked.remove(old);
            }
            self.ranked.insert(new);
        }
    }

    /// The mean of the times of at least a second that are not above the median by more than three times
    /// their median distance from it.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    pub(crate) fn ideal(&mut self) -> Option<f64> {
        self.settle();
        let short = self.ranked.up_to(SHORTEST, false);
        let counted = self.ranked.len() - short.count;
        if counted == 0 {
            return None;
        }
        let median = middle(counted, |rank| self.ranked.at(short.count + rank));
        let below = self.ranked.up_to(median, false).count - short.count;
        let mad = middle(counted, |rank| self.distance(short.count, below, counted, median, rank));
        let normal = self.ranked.up_to(median + mad * 3.0, true);
        let count = normal.count - short.count;
        (count > 0).then(|| (normal.sum - short.sum) / count as f64)
    }

    /// The `rank`-th smallest distance from `median` among `counted` times, of which the `below` ones before
    /// the median have ascending distances in reverse order, and the others in order.
    fn distance(&mut self, first: usize, below: usize, counted: usize, median: f64, rank: usize) -> f64 {
        let above = counted - below;
        // How many of the `rank + 1` nearest lie below the median: the least for which the next one below
        // is no nearer than the last taken above.
        let mut low = (rank + 1).saturating_sub(above);
        let mut high = below.min(rank + 1);
        while low < high {
            let taken = low.midpoint(high);
            let next_below = median - self.ranked.at(first + below - 1 - taken);
            let last_above = self.ranked.at(first + below + rank - taken) - median;
            if next_below < last_above {
                low = taken + 1;
            } else {
                high = taken;
            }
        }
        let last_below = (low > 0).then(|| median - self.ranked.at(first + below - low));
        let last_above = (rank + 1 > low).then(|| self.ranked.at(first + below + rank - low) - median);
        last_below.unwrap_or(0.0).max(last_above.unwrap_or(0.0))
    }

    /// The mean distance of all times from `ideal`; `None` without times.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    pub(crate) fn mean_distance(&mut self, ideal: f64) -> Option<f64> {
        self.settle();
        let (all, below) = (self.ranked.all(), self.ranked.up_to(ideal, false));
        let under = below.count as f64 * ideal - below.sum;
        let over = (all.sum - below.sum) - (all.count - below.count) as f64 * ideal;
        (all.count > 0).then(|| (under + over) / all.count as f64)
    }
}

/// The median of `count` ascending numbers: the mean of the two in the middle.
fn middle(count: usize, mut at: impl FnMut(usize) -> f64) -> f64 {
    if count % 2 == 1 { at(count / 2) } else { f64::midpoint(at(count / 2 - 1), at(count / 2)) }
}

/// The ideal step time of a plain list.
pub(crate) fn ideal_of(times: &[(i64, f64)]) -> Option<f64> {
    ExactStepTimes::listed(times.to_vec()).ideal()
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "a few hundred steps")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn median(sorted: &mut [f64]) -> f64 {
        sorted.sort_unstable_by(f64::total_cmp);
        middle(sorted.len(), |at| sorted[at])
    }

    fn plain_ideal(times: &[f64]) -> Option<f64> {
        let mut counted: Vec<f64> = times.iter().copied().filter(|t| *t >= 1.0).collect();
        if counted.is_empty() {
            return None;
        }
        let med = median(&mut counted);
        let mut distances: Vec<f64> = counted.iter().map(|t| (t - med).abs()).collect();
        let mad = median(&mut distances);
        counted.retain(|t| *t <= med + mad * 3.0);
        Some(counted.iter().sum::<f64>() / counted.len() as f64)
    }

    proptest! {
        #[test]
        fn ideal_and_mean_distance_equal_the_plain_rule(
            steps in prop::collection::vec((0..40i64, 0..64u8), 1..200),
            every in 1..20usize,
        ) {
            let mut times = ExactStepTimes::default();
            let mut now = 0.0;
            for (at, (step, quarter)) in steps.iter().enumerate() {
                // Runs of consecutive steps with jumps between them.
                let step = step / 8 + i64::try_from(at % 8).unwrap();
                times.push(step, now);
                now += f64::from(*quarter) / 8.0;
                if at % every == 0 {
                    let plain: Vec<f64> = times.times().iter().map(|(_, t)| *t).collect();
                    let (a, b) = (times.ideal(), plain_ideal(&plain));
                    prop_assert_eq!(a.is_some(), b.is_some());
                    if let (Some(a), Some(b)) = (a, b) {
                        prop_assert!((a - b).abs() < 1e-9, "{} {}", a, b);
                        let mean = plain.iter().map(|t| (t - a).abs()).sum::<f64>() / plain.len() as f64;
                        prop_assert!((times.mean_distance(a).unwrap() - mean).abs() < 1e-9);
                    }
                }
            }
        }
    }
}
