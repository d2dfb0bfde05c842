//! Distributions as libtpu's metric service gives them, made into histograms.
//!
//! Must never take more than [`MOST_BUCKETS`], or bounds that do not rise.

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and counts below 2^53 are exact")]

use model::{distribution::Histogram, metric::Scale, time::Timestamp};
use proto::tpu::monitoring::runtime::{
    self as wire,
    distribution::{BucketOptions, bucket_options::Options},
};

/// More buckets than any real distribution has.
const MOST_BUCKETS: usize = 512;

/// Why a distribution cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum DistributionError {
    /// Absurd size.
    #[error("it has more than {MOST_BUCKETS} buckets")]
    TooManyBuckets,
    /// Bounds that do not rise, or are no numbers.
    #[error("its bucket bounds do not rise")]
    Bounds,
    /// Counts below zero.
    #[error("it has a negative count")]
    Negative,
    /// More counts than buckets.
    #[error("it has more counts than buckets")]
    Counts,
    /// A mean that is no number.
    #[error("its mean is not a number")]
    Mean,
    /// Series of one label that cannot be added.
    #[error("series of one label have different buckets")]
    Mixed,
}

/// The histogram of a wire distribution, counted since `since`.
pub(super) fn histogram(
    wire: &wire::Distribution,
    scale: Scale,
    since: Timestamp,
) -> Result<Histogram, DistributionError> {
    let count = u64::try_from(wire.count).map_err(|_| DistributionError::Negative)?;
    if !wire.mean.is_finite() {
        return Err(DistributionError::Mean);
    }
    let mut bounds = wire.bucket_options.as_ref().map_or(Ok(Vec::new()), bounds)?;
    if bounds.is_empty() {
        // Counts beyond 2^53 lose their last digits, here and below.
        let sum = scale.apply(wire.mean * count as f64);
        return Ok(Histogram { since, bounds: bounds.into(), counts: vec![count], sum });
    }
    bounds.iter_mut().for_each(|bound| *bound = scale.apply(*bound));
    if wire.bucket_counts.len() > bounds.len() + 1 {
        return Err(DistributionError::Counts);
    }
    let counted = wire.bucket_counts.iter().map(|&count| u64::try_from(count));
    let mut counts: Vec<u64> = counted.collect::<Result<_, _>>().map_err(|_| DistributionError::Negative)?;
    // Empty buckets at the end may be left out.
    counts.resize(bounds.len() + 1, 0);
    let mut histogram = Histogram { since, bounds: bounds.into(), counts, sum: 0.0 };
    histogram.sum = scale.apply(wire.mean * histogram.count() as f64);
    Ok(histogram)
}

/// The upper bounds of all buckets but the last.
fn bounds(options: &BucketOptions) -> Result<Vec<f64>, DistributionError> {
    let finite = |count: i32| {
        let count = usize::try_from(count).map_err(|_| DistributionError::Negative)?;
        if count > MOST_BUCKETS { Err(DistributionError::TooManyBuckets) } else { Ok(0..=count) }
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
        return Err(DistributionError::TooManyBuckets);
    }
    let rising = bounds.windows(2).all(|pair| pair[0] < pair[1]) && bounds.iter().all(|b| b.is_finite());
    if rising { Ok(bounds) } else { Err(DistributionError::Bounds) }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(of(doubling(i32::MAX)), Err(DistributionError::TooManyBuckets));
        assert_eq!(of(doubling(-1)), Err(DistributionError::Negative));
        let falling = bucket_options::Explicit { bounds: vec![3.0, 1.0] };
        assert_eq!(of(Options::Explicit(falling)), Err(DistributionError::Bounds));
    }

    #[test]
    fn units_become_base_units_without_stray_digits() {
        let read =
            histogram(&wire(vec![0, 10, 6, 0], 2.25, doubling(2)), Scale::over(1e6), Timestamp(7)).unwrap();
        assert_eq!(read.bounds[..], [1e-6, 2e-6, 4e-6]);
        assert_eq!((read.counts.as_slice(), read.sum, read.since), (&[0, 10, 6, 0][..], 36e-6, Timestamp(7)));
        let short = histogram(&wire(vec![3], 0.5, doubling(2)), Scale::ONE, Timestamp(7)).unwrap();
        assert_eq!((short.counts.as_slice(), short.sum), (&[3, 0, 0, 0][..], 1.5));
        let bare = wire::Distribution { count: 4, mean: 2.0, ..wire::Distribution::default() };
        let bare = histogram(&bare, Scale::ONE, Timestamp(7)).unwrap();
        assert_eq!((bare.bounds.len(), bare.counts.as_slice(), bare.sum), (0, &[4][..], 8.0));
    }

    #[test]
    fn nonsense_is_refused() {
        let read =
            |counts: Vec<i64>, mean| histogram(&wire(counts, mean, doubling(2)), Scale::ONE, Timestamp(0));
        assert_eq!(read(vec![1, -1, 1], 1.0), Err(DistributionError::Negative));
        assert_eq!(read(vec![0; 5], 1.0), Err(DistributionError::Counts));
        assert_eq!(read(vec![1], f64::NAN), Err(DistributionError::Mean));
    }
}
