//! Ideal step time and deviations of the last query that computed them.

use super::step_times::ExactStepTimes;

/// The number of last step times that the exported scalar depends on, once the ideal step time is known.
pub const DEVIATION_STEPS: usize = RECENT + BASELINE;
/// The number of recent steps of the exported scalar, and of the steps before them that are its baseline.
const RECENT: usize = 100;
const BASELINE: usize = 1000;
const PERCENTILE: f64 = 0.9;

/// The exported "deviation from baseline", in the library's two modes.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FromBaseline {
    /// Against the thousand steps before the last hundred.
    pub cumulative: f64,
    /// The last hundred alone.
    pub interval: f64,
}

/// Step statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// The ideal step time.
    pub ideal: f64,
    /// Mean deviation; `None` without deviations.
    pub mean: Option<f64>,
    /// The exported scalar.
    pub from_baseline: FromBaseline,
    pub(crate) deviations: Deviations,
}

/// The source of the deviations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Deviations {
    /// |time - ideal| of each step time at the last mark, and the number of step times then.
    OfTimes(usize),
    /// As listed.
    Listed(Vec<(i64, f64)>),
}

impl StepInfo {
    /// The statistics of step times in the order in which the steps were first logged. `None` if none of them is long
    /// enough to count for the ideal step time.
    pub fn of_list(times: Vec<(i64, f64)>) -> Option<Self> {
        let mut times = ExactStepTimes::listed(times);
        let ideal = times.ideal()?;
        Some(Self::of_times(&mut times, ideal))
    }

    /// Deviations of all step times from `ideal`.
    pub(crate) fn of_times(times: &mut ExactStepTimes, ideal: f64) -> Self {
        let first = times.times().len().saturating_sub(DEVIATION_STEPS);
        let tail: Vec<f64> = times.times()[first..].iter().map(|(_, time)| (time - ideal).abs()).collect();
        let from_baseline = from_baseline(&tail);
        let deviations = Deviations::OfTimes(times.mark());
        Self { ideal, mean: times.mean_distance(ideal), from_baseline, deviations }
    }

    /// Deviations as listed.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    pub(crate) fn listed(ideal: f64, deviations: Vec<(i64, f64)>) -> Self {
        let first = deviations.len().saturating_sub(DEVIATION_STEPS);
        let tail: Vec<f64> = deviations[first..].iter().map(|(_, deviation)| deviation.abs()).collect();
        let sum: f64 = deviations.iter().map(|(_, deviation)| deviation).sum();
        Self {
            ideal,
            mean: (!deviations.is_empty()).then(|| sum / deviations.len() as f64),
            from_baseline: from_baseline(&tail),
            deviations: Deviations::Listed(deviations),
        }
    }

    /// Whether there is any deviation.
    pub(crate) fn has_deviations(&self) -> bool {
        self.mean.is_some()
    }

    /// Step and deviation, in order.
    pub(crate) fn deviations(&self, times: &ExactStepTimes) -> Vec<(i64, f64)> {
        match &self.deviations {
            Deviations::OfTimes(count) => {
                let marked = times.marked(*count);
                marked.into_iter().map(|(step, time)| (step, (time - self.ideal).abs())).collect()
            }
            Deviations::Listed(deviations) => deviations.clone(),
        }
    }
}

/// The scalar over the last deviations, at most [`DEVIATION_STEPS`] of them.
#[expect(clippy::cast_precision_loss, reason = "a count of at most 1100")]
fn from_baseline(tail: &[f64]) -> FromBaseline {
    if tail.is_empty() {
        return FromBaseline::default();
    }
    if tail.len() < RECENT {
        let mean = tail.iter().sum::<f64>() / tail.len() as f64;
        return FromBaseline { cumulative: mean, interval: mean };
    }
    let (before, recent) = tail.split_at(tail.len() - RECENT);
    let recent = percentile(recent, PERCENTILE);
    let baseline = if before.len() < BASELINE { 0.0 } else { percentile(before, 0.5) };
    FromBaseline { cumulative: recent - baseline, interval: recent }
}

/// Linear interpolation between the two nearest ranks.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index into at most 1100 values"
)]
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = (sorted.len() - 1) as f64 * share;
    let lower = index as usize;
    let upper = (lower + 1).min(sorted.len() - 1);
    sorted[lower] + (sorted[upper] - sorted[lower]) * (index - lower as f64)
}
