//! What a metric is: its descriptor, which travels with every sample.
//!
//! Must never be looked up by name where a sample is at hand: the sample carries it.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use serde::{Serialize, Serializer};

use crate::sample::Origin;

/// The unit of a value; metric names carry it as a suffix.
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
    /// A score or a state, as the help text says.
    Score,
}

impl Unit {
    /// What names of this unit end in.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Bytes => "_bytes",
            Self::Seconds => "_seconds",
            Self::Ratio => "_ratio",
            Self::BytesPerSecond => "_bytes_per_second",
            Self::Count | Self::Score => "",
        }
    }
}

/// What a series does over time; decides how it is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// A value that goes up and down.
    Gauge,
    /// A rising total; the name ends in `_total`.
    Counter,
    /// A cumulative distribution.
    Histogram,
}

/// How an origin's number becomes ours: `x * times / over`. Dividing by 100 is exact to the last digit where
/// multiplying by 0.01 is not, so bucket bounds stay short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    times: f64,
    over: f64,
}

impl Scale {
    /// The origin has our unit.
    pub const ONE: Self = Self::times(1.0);

    /// Ours is a multiple of theirs.
    pub const fn times(factor: f64) -> Self {
        Self { times: factor, over: 1.0 }
    }

    /// Ours is a fraction of theirs.
    pub const fn over(divisor: f64) -> Self {
        Self { times: 1.0, over: divisor }
    }

    /// Their number in our unit.
    pub fn apply(self, number: f64) -> f64 {
        number * self.times / self.over
    }
}

/// What an origin calls a metric.
#[derive(Debug, Clone, Copy)]
pub struct OriginName {
    /// The origin.
    pub origin: Origin,
    /// The metric's name there.
    pub name: &'static str,
    /// From their unit to ours.
    pub scale: Scale,
    /// For [`Origin::Libtpu`] the first 0.0.N that knows the name: an older one may abort when it is asked. Else 0.
    pub since: u32,
}

/// One metric.
#[derive(Debug, Clone)]
pub struct Descriptor {
    /// Our name, with the unit as suffix.
    pub name: Cow<'static, str>,
    /// One sentence for HELP.
    pub help: Cow<'static, str>,
    /// The unit of our value.
    pub unit: Unit,
    /// Gauge, counter or histogram.
    pub kind: MetricKind,
    /// The labels that it may carry beside those of the source and the job, in the order in which they are shown.
    pub labels: &'static [&'static str],
    /// Its names elsewhere.
    pub origins: &'static [OriginName],
}

impl Descriptor {
    /// The name of a figure of all values since the start of the workload, which is what the SDK gives of a
    /// distribution: `tpu_x_lifetime_p95_seconds` for `tpu_x_seconds`.
    pub fn lifetime_name(&self, figure: &str) -> String {
        let suffix = self.unit.suffix();
        format!("{}_lifetime_{figure}{suffix}", self.name.strip_suffix(suffix).unwrap_or(&self.name))
    }

    /// Whether it may carry this label.
    pub fn has_label(&self, label: &str) -> bool {
        self.labels.contains(&label)
    }

    /// What `origin` calls it.
    pub fn at(&self, origin: Origin) -> Option<&'static OriginName> {
        self.origins.iter().find(|name| name.origin == origin)
    }
}

/// The descriptor of a sample: of the catalog, or shared by the samples of a series that the workload named itself.
///
/// Two are equal when their names are.
#[derive(Debug, Clone)]
pub enum MetricRef {
    /// Of the catalog.
    Static(&'static Descriptor),
    /// Made at run time.
    Shared(Arc<Descriptor>),
}

impl Deref for MetricRef {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        match self {
            Self::Static(descriptor) => descriptor,
            Self::Shared(descriptor) => descriptor,
        }
    }
}

impl From<&'static Descriptor> for MetricRef {
    fn from(descriptor: &'static Descriptor) -> Self {
        Self::Static(descriptor)
    }
}

impl From<Arc<Descriptor>> for MetricRef {
    fn from(descriptor: Arc<Descriptor>) -> Self {
        Self::Shared(descriptor)
    }
}

impl PartialEq for MetricRef {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq::<Descriptor>(&**self, &**other) || self.name == other.name
    }
}

impl Eq for MetricRef {}

impl PartialOrd for MetricRef {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MetricRef {
    fn cmp(&self, other: &Self) -> Ordering {
        if std::ptr::eq::<Descriptor>(&**self, &**other) {
            return Ordering::Equal;
        }
        self.name.cmp(&other.name)
    }
}

impl Hash for MetricRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for MetricRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for MetricRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}
