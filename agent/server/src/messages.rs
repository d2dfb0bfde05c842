//! Conversion of the agent's types to protobuf messages.

#![expect(clippy::cast_precision_loss, reason = "a chip has less than 2^53 bytes of memory")]

use std::collections::BTreeMap;

use model::{
    catalog::{TPU_HBM_TOTAL_BYTES, TPU_HBM_USED_BYTES, TPU_TENSORCORE_DUTY_CYCLE_RATIO},
    device::{Chip, ChipIndex},
    job::Job,
    label::{CHIP, CORE, Labels},
    metric::{Descriptor, MetricRef, Unit},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::{Endpoint, EndpointKind, EndpointOrigin, Owner, WorkloadId},
};
use proto::tpuscope::v1::{
    AbsenceStatus, ChipStatus, CumulativeHistogram, EndpointStatus, History, JobIdentity, OwnerStatus, Point,
    SeriesValue, SourceStatus, WindowDistribution, series_value,
};
use sampling::{
    sampler::{HistorySeries, SourceView, Statistic},
    sources::Absence,
};

/// One chip with its owners and its load. `absent` is what the sources could not read.
pub(super) fn chip(
    chip: &Chip,
    owners: &[Owner],
    samples: &[&Sample],
    absent: &[&Absence],
    now: Timestamp,
) -> ChipStatus {
    let owners: Vec<u32> =
        owners.iter().filter(|it| it.chips.contains(&chip.index)).map(|it| it.process.pid).collect();
    let cores = |metric: &'static Descriptor| Cores::of(chip.index, metric, samples);
    let duty = cores(&TPU_TENSORCORE_DUTY_CYCLE_RATIO);
    let (used, total) = (cores(&TPU_HBM_USED_BYTES), cores(&TPU_HBM_TOTAL_BYTES));
    let oldest = [duty.oldest, used.oldest, total.oldest].into_iter().flatten().min();
    let lacks: Vec<&str> = [("duty cycle", &duty), ("HBM used", &used), ("HBM total", &total)]
        .into_iter()
        .filter(|(_, cores)| cores.values == 0)
        .map(|(name, _)| name)
        .collect();
    ChipStatus {
        index: chip.index.0,
        generation: chip.generation.to_string(),
        name: chip.name.clone(),
        pci: chip.pci.clone(),
        nodes: chip.nodes.iter().map(|node| node.display().to_string()).collect(),
        cores: chip.cores,
        numa_node: chip.numa_node,
        faults: chip.faults.clone(),
        duty_cycle: duty.mean(),
        hbm_used_bytes: used.sum(),
        hbm_total_bytes: total.sum().or(chip.hbm_bytes.map(|bytes| bytes as f64)),
        age_seconds: oldest.map(|at| at.age(now).as_secs_f64()),
        missing: missing(&lacks, owners.is_empty(), absent),
        owners,
    }
}

/// The values of one metric over the cores of one chip.
#[derive(Default)]
struct Cores {
    values: u32,
    total: f64,
    oldest: Option<Timestamp>,
}

impl Cores {
    fn of(chip: ChipIndex, metric: &'static Descriptor, samples: &[&Sample]) -> Self {
        let metric = MetricRef::from(metric);
        let mut cores = Self::default();
        let mut seen = Vec::new();
        for sample in samples {
            let SampleValue::Gauge(value) = sample.value else { continue };
            // Two sources of one core's value are one value.
            let core = sample.labels.number(CORE);
            let is_it = sample.metric == metric && sample.labels.number(CHIP) == Some(chip.0);
            if !is_it || seen.contains(&core) {
                continue;
            }
            seen.push(core);
            cores.values += 1;
            cores.total += value;
            cores.oldest = Some(cores.oldest.map_or(sample.at, |oldest| oldest.min(sample.at)));
        }
        cores
    }

    fn mean(&self) -> Option<f64> {
        (self.values > 0).then(|| self.total / f64::from(self.values))
    }

    fn sum(&self) -> Option<f64> {
        (self.values > 0).then_some(self.total)
    }
}

fn missing(lacks: &[&str], idle: bool, absent: &[&Absence]) -> String {
    if lacks.is_empty() {
        return String::new();
    }
    let what = lacks.join(", ");
    match absent.first() {
        _ if idle => format!("{what}: no process uses the chip, and only its runtime has the value"),
        Some(absence) => format!("{what}: {}: {}", absence.what, absence.why),
        None => format!("{what}: no source has it"),
    }
}

/// A process that holds chips.
pub(super) fn owner(owner: &Owner) -> OwnerStatus {
    OwnerStatus {
        pid: owner.process.pid,
        start_ticks: owner.process.start_ticks,
        container_pid: owner.container_pid,
        uid: owner.uid,
        command: owner.command.clone(),
        chips: owner.chips.iter().map(|chip| chip.0).collect(),
        framework: owner.framework.clone(),
        job: Some(job(&owner.job)),
        endpoints: owner.endpoints.iter().map(endpoint).collect(),
        notes: owner.notes.clone(),
    }
}

fn job(job: &Job) -> JobIdentity {
    JobIdentity {
        kind: job.kind.as_str().into(),
        id: job.id.clone(),
        attempt: job.attempt,
        name: job.name.clone(),
        user: job.user.clone(),
        rank: job.rank,
        hosts: job.hosts.clone(),
    }
}

fn endpoint(endpoint: &Endpoint) -> EndpointStatus {
    let kind = match endpoint.kind {
        EndpointKind::RuntimeMetrics => "runtime_metrics",
        EndpointKind::Profiler => "profiler",
        EndpointKind::OrbaxGrain => "orbax_grain",
        EndpointKind::HostService => "host_service",
    };
    let origin = match &endpoint.origin {
        EndpointOrigin::Variable(name) => format!("the variable {name}"),
        EndpointOrigin::KnownDefault => "its known default port".into(),
        EndpointOrigin::Config => "the settings".into(),
        EndpointOrigin::Probe => "probing".into(),
    };
    EndpointStatus {
        kind: kind.into(),
        address: endpoint.address.to_string(),
        origin,
        unreachable: endpoint.unreachable.clone(),
    }
}

/// Something that a source could not read.
pub(super) fn absence(absence: &Absence) -> AbsenceStatus {
    AbsenceStatus { what: absence.what.clone(), why: absence.why.clone() }
}

/// The state of one source.
pub(super) fn source(source: &SourceView, now: Timestamp) -> SourceStatus {
    let counters = &source.counters;
    SourceStatus {
        source: source.origin.as_str().into(),
        reads: counters.reads,
        errors: counters.errors,
        series: source.samples(now).count() as u64,
        last_read_seconds: counters.read_at.map(|_| counters.duration.as_secs_f64()),
        age_seconds: source.age(now).map(|age| age.as_secs_f64()),
        absent: source.absent().iter().map(absence).collect(),
    }
}

/// One sample.
pub(super) fn sample(sample: &Sample) -> SeriesValue {
    let (value, histogram) = match &sample.value {
        SampleValue::Gauge(value) => (Some(series_value::Value::Gauge(*value)), None),
        SampleValue::Counter(value) => (Some(series_value::Value::Counter(*value)), None),
        SampleValue::Distribution(distribution) => {
            let window = distribution.window.as_ref().map(|window| {
                series_value::Value::Window(WindowDistribution {
                    bounds: window.bounds.to_vec(),
                    counts: window.counts.clone(),
                    mean: window.mean,
                })
            });
            let histogram = &distribution.histogram;
            let histogram = CumulativeHistogram {
                since_unix_ns: histogram.since.0,
                bounds: histogram.bounds.to_vec(),
                counts: histogram.counts.clone(),
                sum: histogram.sum,
            };
            (window, Some(histogram))
        }
    };
    SeriesValue {
        metric: sample.metric.to_string(),
        labels: labels(&sample.labels, sample.origin, sample.workload_id()),
        unit: unit(sample.metric.unit).into(),
        at_unix_ns: sample.at.0,
        value,
        histogram,
    }
}

/// As on the metrics page.
fn labels(labels: &Labels, origin: Origin, workload: Option<&WorkloadId>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        labels.iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    all.insert("source".to_owned(), origin.as_str().to_owned());
    if let Some(id) = workload {
        all.insert("job".to_owned(), id.job.clone());
        all.insert("job_kind".to_owned(), id.kind.as_str().to_owned());
    }
    all
}

/// One series of the history.
pub(super) fn history(series: HistorySeries) -> History {
    let key = series.key;
    let mut labels = labels(&key.labels, key.origin, key.workload_id());
    let statistic = match key.statistic {
        Statistic::Value => None,
        Statistic::Mean => Some("mean"),
        Statistic::Median => Some("median"),
        Statistic::P99 => Some("p99"),
    };
    labels.extend(statistic.map(|statistic| ("part".to_owned(), statistic.to_owned())));
    let points = series.points.into_iter().map(|point| Point {
        at_unix_ns: point.at.0,
        value: point.value,
        min: point.min,
        max: point.max,
    });
    History { metric: key.metric.to_string(), labels, points: points.collect() }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "bytes",
        Unit::Seconds => "seconds",
        Unit::Ratio => "ratio",
        Unit::Count => "count",
        Unit::BytesPerSecond => "bytes_per_second",
        Unit::Score => "score",
    }
}
