//! Conversion of the agent's types to protobuf messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    catalog::{TPU_HBM_TOTAL_BYTES, TPU_HBM_USED_BYTES, TPU_TENSORCORE_DUTY_CYCLE_RATIO},
    device::{Chip, ChipIndex, Generation},
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

/// One chip with its owners and its load. The reason for a missing value is one that `sources` observed.
pub(super) fn chip(
    chip: &Chip,
    owners: &[Owner],
    samples: &[&Sample],
    sources: &[Arc<SourceView>],
    now: Timestamp,
) -> ChipStatus {
    let owners: Vec<&Owner> = owners.iter().filter(|it| it.chips.contains(&chip.index)).collect();
    let cores = |metric: &'static Descriptor| Cores::of(chip.index, metric, samples);
    let duty = cores(&TPU_TENSORCORE_DUTY_CYCLE_RATIO);
    let (used, total) = (cores(&TPU_HBM_USED_BYTES), cores(&TPU_HBM_TOTAL_BYTES));
    let oldest = [duty.oldest, used.oldest, total.oldest].into_iter().flatten().min();
    let lacks: Vec<&str> = [(DUTY_CYCLE, &duty), (HBM_USED, &used), (HBM_TOTAL, &total)]
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
        missing: missing(&lacks, chip, &owners, sources),
        owners: owners.iter().map(|owner| owner.process.pid).collect(),
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

/// The values of a chip in `status`.
const DUTY_CYCLE: &str = "duty cycle";
const HBM_USED: &str = "HBM used";
const HBM_TOTAL: &str = "HBM total";

fn missing(lacks: &[&str], chip: &Chip, owners: &[&Owner], sources: &[Arc<SourceView>]) -> String {
    if lacks.is_empty() {
        return String::new();
    }
    let why = match chip.faults.first() {
        Some(fault) => fault.clone(),
        None if owners.is_empty() => "no process uses the chip, and only its runtime has the value".into(),
        None => owners
            .iter()
            .find_map(|owner| why_missing(lacks, owner, sources))
            .unwrap_or_else(|| "its runtime does not list the value".into()),
    };
    format!("{}: {why}", lacks.join(", "))
}

/// Why the runtime of `owner` did not give the values, as its endpoints or the reads of them say.
fn why_missing(lacks: &[&str], owner: &Owner, sources: &[Arc<SourceView>]) -> Option<String> {
    let is_runtime = |endpoint: &&Endpoint| endpoint.kind == EndpointKind::RuntimeMetrics;
    let mut endpoints = owner.endpoints.iter().filter(is_runtime).peekable();
    if endpoints.peek().is_none() {
        return Some(format!("process {} has no known port for runtime metrics", owner.process.pid));
    }
    let runtime = sources.iter().filter(|source| source.origin == Origin::Runtime);
    let absent: Vec<&Absence> = runtime.flat_map(|source| source.absent()).collect();
    // As libtpu names them.
    let part = if lacks.contains(&DUTY_CYCLE) { "duty_cycle" } else { "hbm" };
    endpoints.find_map(|endpoint| {
        let address = endpoint.address.to_string();
        let unreachable = endpoint.unreachable.clone().map(|why| format!("{address}: {why}"));
        let of_metric = |absence: &&&Absence| absence.what.contains(part) && absence.what.ends_with(&address);
        let absence = absent.iter().find(|absence| absence.what == address);
        let absence = absence.or_else(|| absent.iter().find(of_metric));
        unreachable.or_else(|| absence.map(|absence| format!("{}: {}", absence.what, absence.why)))
    })
}

/// The simulated chips: those with simulated samples that are not chips of this host.
pub(super) fn simulated_chips(samples: &[&Sample], chips: &[Chip]) -> Vec<Chip> {
    let simulated = samples.iter().filter(|sample| sample.origin == Origin::Sim);
    let indexes: BTreeSet<u32> = simulated.filter_map(|sample| sample.labels.number(CHIP)).collect();
    let unknown = indexes.into_iter().filter(|index| chips.iter().all(|chip| chip.index.0 != *index));
    unknown
        .map(|index| Chip {
            index: ChipIndex(index),
            generation: Generation::Unknown,
            name: "sim".into(),
            pci: String::new(),
            nodes: Vec::new(),
            cores: None,
            hbm_bytes: None,
            peak: None,
            duty_cycle_per: None,
            numa_node: None,
            faults: Vec::new(),
        })
        .collect()
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
fn absence(absence: &Absence, since: Timestamp) -> AbsenceStatus {
    AbsenceStatus { what: absence.what.clone(), why: absence.why.clone(), since_unix_ns: since.0 }
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
        absent: source.missing().map(|(what, since)| absence(what, since)).collect(),
        unused: source.unused().unwrap_or_default().into(),
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use model::{
        label::Labels,
        workload::{Address, ProcessKey},
    };

    use super::*;

    fn chip_status(chip: &Chip, owners: &[Owner]) -> ChipStatus {
        chip_of(chip, owners, &[])
    }

    fn chip_of(chip: &Chip, owners: &[Owner], samples: &[&Sample]) -> ChipStatus {
        super::chip(chip, owners, samples, &[], Timestamp(0))
    }

    fn a_chip(faults: &[&str]) -> Chip {
        let [simulated] = &simulated_chips(&[&simulated_sample()], &[])[..] else { panic!("one chip") };
        Chip { faults: faults.iter().map(|fault| (*fault).to_owned()).collect(), ..simulated.clone() }
    }

    fn simulated_sample() -> Sample {
        Sample {
            metric: (&TPU_HBM_USED_BYTES).into(),
            labels: Labels::one(CHIP, 3),
            value: SampleValue::Gauge(1.0),
            origin: Origin::Sim,
            at: Timestamp(0),
            workload: None,
        }
    }

    fn owner(endpoints: Vec<Endpoint>) -> Owner {
        Owner {
            process: ProcessKey { pid: 7, ..ProcessKey::default() },
            chips: vec![ChipIndex(3)],
            endpoints,
            ..Owner::default()
        }
    }

    fn endpoint(kind: EndpointKind, unreachable: Option<&str>) -> Endpoint {
        Endpoint {
            kind,
            address: Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8431))),
            origin: EndpointOrigin::KnownDefault,
            listeners: Vec::new(),
            unreachable: unreachable.map(str::to_owned),
        }
    }

    #[test]
    fn a_missing_value_has_the_reason_that_was_observed() {
        let why = |chip: &Chip, owners: &[Owner]| {
            let missing = chip_status(chip, owners).missing;
            missing.strip_prefix("duty cycle, HBM used, HBM total: ").expect("no value is there").to_owned()
        };
        let chip = a_chip(&[]);
        assert_eq!(why(&chip, &[]), "no process uses the chip, and only its runtime has the value");
        assert_eq!(why(&a_chip(&["its node is absent"]), &[owner(Vec::new())]), "its node is absent");
        // An endpoint of another kind has nothing to do with it.
        let orbax = endpoint(EndpointKind::OrbaxGrain, Some("nothing listens"));
        let no_port = "process 7 has no known port for runtime metrics";
        assert_eq!(why(&chip, &[owner(vec![orbax.clone()])]), no_port);
        let closed = endpoint(EndpointKind::RuntimeMetrics, Some("it is closed"));
        assert_eq!(why(&chip, &[owner(vec![orbax, closed])]), "127.0.0.1:8431: it is closed");
        let silent = endpoint(EndpointKind::RuntimeMetrics, None);
        assert_eq!(why(&chip, &[owner(vec![silent])]), "its runtime does not list the value");
    }

    #[test]
    fn simulated_chips_are_seen_beside_real_ones() {
        let sample = simulated_sample();
        let chips = simulated_chips(&[&sample], &[]);
        let shown: Vec<_> = chips.iter().map(|chip| (chip.index.0, chip.name.as_str())).collect();
        assert_eq!(shown, [(3, "sim")]);
        assert_eq!(chip_of(&chips[0], &[], &[&sample]).hbm_used_bytes, Some(1.0));
        assert_eq!(simulated_chips(&[&sample], &chips), []);
    }
}
