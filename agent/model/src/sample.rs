//! What a source measured.

use std::{borrow::Cow, time::Duration};

use serde::Serialize;

use super::{device::ChipIndex, job::Job, time::Timestamp};

/// The unit of a value; series names carry it as a suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// 0 to 1.
    Ratio,
    /// A plain number.
    Count,
    /// Bytes per second.
    BytesPerSecond,
    /// A score or a state, as its description says.
    Score,
}

/// Where a sample comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A workload's RuntimeMetricService.
    Runtime,
    /// The host's VBARControl service.
    HostService,
    /// The Orbax and Grain endpoint.
    OrbaxGrain,
    /// The libtpu SDK in the child.
    Libtpu,
    /// sysfs and procfs of this host.
    Host,
    /// The simulator.
    Sim,
}

impl Origin {
    /// As it stands in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::HostService => "host_service",
            Self::OrbaxGrain => "orbax_grain",
            Self::Libtpu => "libtpu",
            Self::Host => "host",
            Self::Sim => "sim",
        }
    }
}

/// A bucketed distribution over a window (already differenced, when the wire gave it since the start).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distribution {
    /// Upper bounds of all buckets but the last, rising; the last bucket is open.
    pub bounds: Vec<f64>,
    /// One count per bucket: `bounds.len() + 1`.
    pub counts: Vec<u64>,
    /// Mean of the window's values.
    pub mean: f64,
}

impl Distribution {
    /// How many values.
    pub fn samples(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The value below which the share `q` (0 to 1) of all values lies, interpolated in the bucket that holds it;
    /// in the open last bucket its lower bound. `None` without values or without buckets.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let samples = self.samples();
        if samples == 0 || self.bounds.is_empty() {
            return None;
        }
        // Counts beyond 2^53 lose their last digits, which no quantile shows.
        let rank = q.clamp(0.0, 1.0) * samples as f64;
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

/// A measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// A level.
    Gauge(f64),
    /// A rising total since some start.
    Counter(f64),
    /// What happened in the window before the sample.
    Window(Distribution),
}

/// What a series is about. Absent labels are `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Default)]
pub struct Labels {
    /// The chip.
    pub chip: Option<u32>,
    /// The core: the JAX device id.
    pub core: Option<u32>,
    /// One further label of this metric (`buffer_size`, `link`, `device`, …), bounded and escaped.
    pub extra: Option<(Cow<'static, str>, String)>,
}

impl Labels {
    /// Of one chip.
    pub fn chip(chip: ChipIndex) -> Self {
        Self { chip: Some(chip.0), ..Self::default() }
    }
}

/// One value of one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Our stable metric name with its unit suffix, such as `tpu_hbm_used_bytes`; `docs/metrics.md` lists them.
    pub metric: Cow<'static, str>,
    /// What it is about.
    pub labels: Labels,
    /// The value.
    pub value: Value,
    /// Its unit.
    pub unit: Unit,
    /// Who measured it.
    pub origin: Origin,
    /// When it was measured, by the source's clock where it says, else when it was read.
    pub at: Timestamp,
    /// The job whose process gave it, where there is one.
    pub job: Option<std::sync::Arc<Job>>,
}

impl Sample {
    /// How old the sample is.
    pub fn age(&self, now: Timestamp) -> Duration {
        self.at.age(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated_and_absent_without_values() {
        let spread = Distribution { bounds: vec![1.0, 2.0, 4.0], counts: vec![0, 2, 2, 0], mean: 2.2 };
        assert_eq!(spread.quantile(0.5), Some(2.0));
        assert_eq!(spread.quantile(0.25), Some(1.5));
        assert_eq!(spread.quantile(1.0), Some(4.0));
        assert_eq!(Distribution { counts: vec![0, 0, 0, 7], ..spread.clone() }.quantile(0.5), Some(4.0));
        assert_eq!(Distribution { counts: vec![4, 0, 0, 0], ..spread.clone() }.quantile(0.5), Some(0.5));
        assert_eq!(Distribution { counts: vec![0; 4], ..spread }.quantile(0.5), None);
        let bare = Distribution { bounds: vec![], counts: vec![3], mean: 1.0 };
        assert_eq!((bare.quantile(0.5), bare.samples()), (None, 3));
    }
}
