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
