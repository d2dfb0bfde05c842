//! Distributions that count since the start of a workload, made into windows: what happened between two reads.
//!
//! A count that went down is a workload that started again: everything it now counts is new. Must never give a
//! window for the first read, which would show the workload's whole past as the present.

use model::sample::Distribution;
use proto::tpu::monitoring::runtime::{
    self as wire,
    distribution::{BucketOptions, bucket_options::Options},
};

/// More buckets than any real distribution has.
const MOST_BUCKETS: usize = 512;

/// Why a distribution cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WindowError {
    /// Absurd size.
    #[error("it has more than {MOST_BUCKETS} buckets")]
    TooManyBuckets,
    /// Bounds that do not rise, or are no numbers.
    #[error("its bucket bounds do not rise")]
    Bounds,
    /// Counts below zero.
    #[error("it counts less than nothing")]
    Negative,
    /// More counts than buckets.
    #[error("it has more counts than buckets")]
    Counts,
    /// A mean that is no number.
    #[error("its mean is no number")]
    Mean,
    /// Series of one label that cannot be added.
    #[error("series of one label have different buckets")]
    Mixed,
}

/// Everything counted since the start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Total {
    /// As in [`Distribution`].
    pub(super) bounds: Vec<f64>,
    /// As in [`Distribution`].
    pub(super) counts: Vec<u64>,
    /// Sum of all values.
    pub(super) sum: f64,
}

impl Total {
    /// What the wire says, times `scale`.
    pub(super) fn from_wire(wire: &wire::Distribution, scale: f64) -> Result<Self, WindowError> {
        let count = u64::try_from(wire.count).map_err(|_| WindowError::Negative)?;
        if !wire.mean.is_finite() {
            return Err(WindowError::Mean);
        }
        let mut bounds = wire.bucket_options.as_ref().map_or(Ok(Vec::new()), bounds)?;
        if bounds.is_empty() {
            let sum = wire.mean * count as f64 * scale;
            return Ok(Self { bounds, counts: vec![count], sum });
        }
        bounds.iter_mut().for_each(|bound| *bound *= scale);
        if wire.bucket_counts.len() > bounds.len() + 1 {
            return Err(WindowError::Counts);
        }
        let counted = wire.bucket_counts.iter().map(|&count| u64::try_from(count));
        let mut counts: Vec<u64> = counted.collect::<Result<_, _>>().map_err(|_| WindowError::Negative)?;
        // Empty buckets at the end may be left out.
        counts.resize(bounds.len() + 1, 0);
        let samples = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
        Ok(Self { bounds, counts, sum: wire.mean * samples as f64 * scale })
    }

    /// Adds another series of the same label, bucket by bucket.
    pub(super) fn add(&mut self, other: &Self) -> Result<(), WindowError> {
        if self.bounds != other.bounds {
            return Err(WindowError::Mixed);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum += other.sum;
        Ok(())
    }

    /// The same in another unit.
    pub(super) fn scale(&mut self, by: f64) {
        self.bounds.iter_mut().for_each(|bound| *bound *= by);
        self.sum *= by;
    }

    /// What was counted since `before`; everything, if the counting started again in between.
    pub(super) fn since(&self, before: &Self) -> Distribution {
        let risen: Option<Vec<u64>> =
            self.counts.iter().zip(&before.counts).map(|(now, then)| now.checked_sub(*then)).collect();
        match risen {
            Some(counts) if self.bounds == before.bounds => {
                let sum = self.sum - before.sum;
                window(&self.bounds, counts, sum)
            }
            _ => window(&self.bounds, self.counts.clone(), self.sum),
        }
    }
}

fn window(bounds: &[f64], counts: Vec<u64>, sum: f64) -> Distribution {
    let mut window = Distribution { bounds: bounds.to_vec(), counts, mean: 0.0 };
    let samples = window.samples();
    if samples > 0 {
        window.mean = sum / samples as f64;
    }
    window
}

/// The upper bounds of all buckets but the last.
fn bounds(options: &BucketOptions) -> Result<Vec<f64>, WindowError> {
    let finite = |count: i32| {
        let count = usize::try_from(count).map_err(|_| WindowError::Negative)?;
        if count > MOST_BUCKETS { Err(WindowError::TooManyBuckets) } else { Ok(0..=count) }
    };
    let bounds: Vec<f64> = match &options.options {
        None => Vec::new(),
        Some(Options::Regular(regular)) => regular.bounds.clone(),
        Some(Options::Explicit(explicit)) => explicit.bounds.clone(),
        Some(Options::Exponential(it)) => finite(it.num_finite_buckets)?
            .scan(it.scale, |bound, _| {
                let this = *bound;
                *bound *= it.growth_factor;
                Some(this)
            })
            .collect(),
        Some(Options::Linear(it)) => {
            finite(it.num_finite_buckets)?.map(|bucket| it.offset + it.width * bucket as f64).collect()
        }
    };
    if bounds.len() > MOST_BUCKETS + 1 {
        return Err(WindowError::TooManyBuckets);
    }
    let rising = bounds.windows(2).all(|pair| pair[0] < pair[1]) && bounds.iter().all(|b| b.is_finite());
    if rising { Ok(bounds) } else { Err(WindowError::Bounds) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::distribution::bucket_options;

    use super::*;

    fn wire(counts: Vec<i64>, mean: f64, options: Options) -> wire::Distribution {
        wire::Distribution {
            count: counts.iter().sum(),
            mean,
            bucket_counts: counts,
            bucket_options: Some(BucketOptions { options: Some(options) }),
            ..wire::Distribution::default()
        }
    }

    fn doubling(finite: i32) -> Options {
        Options::Exponential(bucket_options::Exponential {
            num_finite_buckets: finite,
            growth_factor: 2.0,
            scale: 1.0,
        })
    }

    #[test]
    fn bounds_of_every_kind() {
        let of = |options| bounds(&BucketOptions { options: Some(options) });
        assert_eq!(of(doubling(3)), Ok(vec![1.0, 2.0, 4.0, 8.0]));
        let linear = bucket_options::Linear { num_finite_buckets: 2, width: 5.0, offset: 10.0 };
        assert_eq!(of(Options::Linear(linear)), Ok(vec![10.0, 15.0, 20.0]));
        let explicit = bucket_options::Explicit { bounds: vec![1.0, 3.0] };
        assert_eq!(of(Options::Explicit(explicit)), Ok(vec![1.0, 3.0]));
        assert_eq!(of(doubling(i32::MAX)), Err(WindowError::TooManyBuckets));
        assert_eq!(of(doubling(-1)), Err(WindowError::Negative));
        let falling = bucket_options::Explicit { bounds: vec![3.0, 1.0] };
        assert_eq!(of(Options::Explicit(falling)), Err(WindowError::Bounds));
    }

    #[test]
    fn a_window_is_what_came_since_and_a_falling_count_is_a_new_start() {
        let total = |counts, mean| Total::from_wire(&wire(counts, mean, doubling(2)), 1e-6).unwrap();
        let (before, now) = (total(vec![0, 10, 0, 0], 1.5), total(vec![0, 10, 6, 0], 2.25));
        let window = now.since(&before);
        assert_eq!(window.counts, [0, 0, 6, 0]);
        assert!((window.mean - 3.5e-6).abs() < 1e-12, "{}", window.mean);
        let restarted = total(vec![0, 2, 0, 0], 1.5).since(&now);
        assert_eq!(restarted.counts, [0, 2, 0, 0]);
        assert!((restarted.mean - 1.5e-6).abs() < 1e-12);
        assert_eq!(now.since(&now).samples(), 0);
    }

    proptest! {
        #[test]
        fn windows_add_up_to_the_total(steps in prop::collection::vec(prop::collection::vec(0_i64..1000, 4), 1..20)) {
            let mut running = vec![0_i64; 4];
            let mut before = Total::from_wire(&wire(running.clone(), 0.0, doubling(2)), 1.0).unwrap();
            let mut added = vec![0_u64; 4];
            for step in steps {
                running.iter_mut().zip(&step).for_each(|(sum, more)| *sum += more);
                let now = Total::from_wire(&wire(running.clone(), 3.0, doubling(2)), 1.0).unwrap();
                let window = now.since(&before);
                added.iter_mut().zip(&window.counts).for_each(|(sum, more)| *sum += more);
                prop_assert!(window.mean.is_finite());
                before = now;
            }
            prop_assert_eq!(added, before.counts);
        }
    }
}
