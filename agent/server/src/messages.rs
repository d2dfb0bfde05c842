//! Conversion of the agent's types to protobuf messages.

use std::{collections::BTreeMap, time::Duration};

use model::{
    device::{Chip, ChipIndex},
    job::Job,
    sample::{Labels, Origin, Sample, Unit, Value},
    time::Timestamp,
    workload::{Endpoint, EndpointKind, EndpointOrigin, Owner},
};
use proto::tpuscope::v1::{
    AbsenceStatus, ChipStatus, EndpointStatus, History, JobIdentity, OwnerStatus, Point, SeriesValue,
    SourceStatus, WindowDistribution, series_value,
};
use sampling::{
    sampler::{Part, Series},
    sources::Absence,
};

/// The metrics that `status` shows of a chip.
const DUTY_CYCLE: &str = "tpu_tensorcore_duty_cycle_ratio";
const HBM_USED: &str = "tpu_hbm_used_bytes";
const HBM_TOTAL: &str = "tpu_hbm_total_bytes";

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
    let cores = |metric: &str| Cores::of(chip.index, metric, samples);
    let (duty, used, total) = (cores(DUTY_CYCLE), cores(HBM_USED), cores(HBM_TOTAL));
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
    fn of(chip: ChipIndex, metric: &str, samples: &[&Sample]) -> Self {
        let mut cores = Self::default();
        let mut seen = Vec::new();
        for sample in samples {
            let Value::Gauge(value) = sample.value else { continue };
            // Two sources of one core's value are one value.
            let core = sample.labels.core;
            if sample.metric != metric || sample.labels.chip != Some(chip.0) || seen.contains(&core) {
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
pub(super) fn source(figures: &export::SourceFigures, absent: &[Absence]) -> SourceStatus {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    SourceStatus {
        source: figures.origin.as_str().into(),
        reads: figures.reads,
        errors: figures.errors,
        series: figures.series as u64,
        last_read_seconds: seconds(figures.last_read),
        age_seconds: seconds(figures.age),
        absent: absent.iter().map(absence).collect(),
    }
}

/// One sample.
pub(super) fn sample(sample: &Sample) -> SeriesValue {
    SeriesValue {
        metric: sample.metric.to_string(),
        labels: labels(&sample.labels, sample.origin, sample.job.as_deref()),
        unit: unit(sample.unit).into(),
        at_unix_ns: sample.at.0,
        value: Some(match &sample.value {
            Value::Gauge(value) => series_value::Value::Gauge(*value),
            Value::Counter(value) => series_value::Value::Counter(*value),
            Value::Window(window) => series_value::Value::Window(WindowDistribution {
                bounds: window.bounds.clone(),
                counts: window.counts.clone(),
                mean: window.mean,
            }),
        }),
    }
}

/// As on the metrics page.
fn labels(labels: &Labels, origin: Origin, job: Option<&Job>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("source".to_owned(), origin.as_str().to_owned())]);
    let mut add = |name: &str, value: Option<String>| {
        all.extend(value.map(|value| (name.to_owned(), value)));
    };
    add("chip", labels.chip.map(|chip| chip.to_string()));
    add("core", labels.core.map(|core| core.to_string()));
    add("job", job.map(|job| job.id.clone()));
    add("job_kind", job.map(|job| job.kind.as_str().to_owned()));
    if let Some((name, value)) = &labels.extra {
        all.entry(name.to_string()).or_insert_with(|| value.clone());
    }
    all
}

/// One series of the history.
pub(super) fn history(series: Series) -> History {
    let key = series.key;
    let mut labels = labels(&key.labels, key.origin, key.job.as_deref());
    let part = match key.part {
        Part::Value => None,
        Part::Mean => Some("mean"),
        Part::Median => Some("median"),
        Part::P99 => Some("p99"),
    };
    labels.extend(part.map(|part| ("part".to_owned(), part.to_owned())));
    let points = series.points.into_iter().map(|point| Point {
        at_unix_ns: point.at.0,
        value: point.value,
        least: point.least,
        most: point.most,
    });
    History { metric: key.metric.into_owned(), labels, points: points.collect() }
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
