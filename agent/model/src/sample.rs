//! What a source measured.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    distribution::Distribution,
    label::Labels,
    metric::MetricRef,
    time::Timestamp,
    workload::{Workload, WorkloadId},
    workload_label::WorkloadLabel,
};

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
    /// Traces of the workloads that the recorder or a capture took.
    Trace,
    /// The simulator.
    Sim,
    /// The agent, about itself.
    Agent,
}

impl Origin {
    /// The value of the label `source`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::HostService => "host_service",
            Self::OrbaxGrain => "orbax_grain",
            Self::Libtpu => "libtpu",
            Self::Host => "host",
            Self::Trace => "trace",
            Self::Sim => "sim",
            Self::Agent => "agent",
        }
    }
}

/// A measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleValue {
    /// A value that goes up and down.
    Gauge(f64),
    /// A rising total since some start.
    Counter(f64),
    /// A distribution.
    Distribution(Arc<Distribution>),
}

/// One value of one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// The metric.
    pub metric: MetricRef,
    /// What it is about.
    pub labels: Labels,
    /// The value, in the metric's unit.
    pub value: SampleValue,
    /// Who measured it.
    pub origin: Origin,
    /// When it was measured, by the source's clock where it says, else when it was read.
    pub at: Timestamp,
    /// The workload whose process gave it, where there is one.
    pub workload: Option<Arc<Workload>>,
}

impl Sample {
    /// How old the sample is.
    pub fn age(&self, now: Timestamp) -> Duration {
        self.at.age(now)
    }

    /// The id of its workload.
    pub fn workload_id(&self) -> Option<&WorkloadId> {
        self.workload.as_deref().map(|workload| &workload.id)
    }

    /// The labels of its workload.
    pub fn workload_label(&self) -> Option<WorkloadLabel<'_>> {
        self.workload.as_deref().map(Workload::labels)
    }

    /// Orders by all that tells series apart: metric, labels, origin, workload.
    pub fn cmp_series(&self, other: &Self) -> Ordering {
        self.metric
            .cmp(&other.metric)
            .then_with(|| self.labels.cmp(&other.labels))
            .then_with(|| self.origin.cmp(&other.origin))
            .then_with(|| self.workload_label().cmp(&other.workload_label()))
    }

    /// Whether both are values of one series.
    pub fn is_same_series(&self, other: &Self) -> bool {
        self.cmp_series(other) == Ordering::Equal
    }
}
