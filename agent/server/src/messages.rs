//! Conversion of the agent's types to protobuf messages.

#![expect(clippy::cast_precision_loss, reason = "a chip has less than 2^53 bytes of memory")]

use std::collections::{BTreeMap, BTreeSet};

use model::{
    catalog::{TPU_HBM_TOTAL_BYTES, TPU_HBM_USED_BYTES, TPU_TENSORCORE_DUTY_CYCLE_RATIO},
    device::{Chip, ChipIndex},
    job::Job,
    label::{CHIP, CORE, Labels},
    metric::{Descriptor, MetricRef, Unit},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::{Endpoint, EndpointKind, EndpointOrigin, Owner, Workloads},
    workload_label::WorkloadLabel,
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
    workloads: &Workloads,
    samples: &[&Sample],
    absent: &[&Absence],
    now: Timestamp,
) -> ChipStatus {
    let held_by: Vec<&Owner> =
        workloads.owners.iter().filter(|owner| owner.chips.contains(&chip.index)).collect();
    let owners_unknown = workloads.owners_unknown(chip).map(str::to_owned);
    let (status, lacks) = load(chip, samples, now);
    ChipStatus {
        missing: missing(&lacks, |metric| {
            why_absent(metric, chip, &held_by, owners_unknown.as_deref(), absent)
        }),
        owners_unknown: owners_unknown.unwrap_or_default(),
        owners: held_by.iter().map(|owner| owner.process.pid).collect(),
        ..status
    }
}

/// The simulated chips: those with simulated samples that are not chips of this host. They have no owners.
pub(super) fn simulated_chips(chips: &[Chip], samples: &[&Sample], now: Timestamp) -> Vec<ChipStatus> {
    let simulated = samples.iter().filter(|sample| sample.origin == Origin::Sim);
    let indices: BTreeSet<u32> = simulated.filter_map(|sample| sample.labels.number(CHIP)).collect();
    let shown = indices.into_iter().filter(|index| chips.iter().all(|chip| chip.index.0 != *index));
    let status = |index| {
        let chip = Chip { index: ChipIndex(index), name: Origin::Sim.as_str().into(), ..Chip::default() };
        // There is no device that could have a state.
        ChipStatus { state: String::new(), ..load(&chip, samples, now).0 }
    };
    shown.map(status).collect()
}

/// A value of `status` that a chip lacks: what it is called, and its metric.
type Lacking = (&'static str, &'static Descriptor);

/// What is known of a chip and its load without its owners, and the values that it lacks.
fn load(chip: &Chip, samples: &[&Sample], now: Timestamp) -> (ChipStatus, Vec<Lacking>) {
    let cores = |metric: &'static Descriptor| Cores::of(chip.index, metric, samples);
    let duty = cores(&TPU_TENSORCORE_DUTY_CYCLE_RATIO);
    let (used, total) = (cores(&TPU_HBM_USED_BYTES), cores(&TPU_HBM_TOTAL_BYTES));
    let oldest = [duty.oldest, used.oldest, total.oldest].into_iter().flatten().min();
    let lacks = [
        ("duty cycle", &TPU_TENSORCORE_DUTY_CYCLE_RATIO, &duty),
        ("HBM used", &TPU_HBM_USED_BYTES, &used),
        ("HBM total", &TPU_HBM_TOTAL_BYTES, &total),
    ]
    .into_iter()
    .filter(|(_, _, cores)| cores.values == 0)
    .map(|(name, metric, _)| (name, metric))
    // The total of a known type of chip is shown all the same.
    .filter(|(_, metric)| !std::ptr::eq(*metric, &TPU_HBM_TOTAL_BYTES) || chip.hbm_bytes.is_none())
    .collect();
    let status = ChipStatus {
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
        state: chip.state.as_str().into(),
        ..ChipStatus::default()
    };
    (status, lacks)
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

/// The reasons for the values that a chip lacks, each reason once: `duty cycle, HBM used: WHY`.
fn missing(lacks: &[Lacking], why: impl Fn(&'static Descriptor) -> String) -> String {
    let mut reasons: Vec<(Vec<&str>, String)> = Vec::new();
    for (name, metric) in lacks {
        let why = why(metric);
        match reasons.iter_mut().find(|(_, known)| *known == why) {
            Some((names, _)) => names.push(name),
            None => reasons.push((vec![name], why)),
        }
    }
    let reasons = reasons.into_iter().map(|(names, why)| format!("{}: {why}", names.join(", ")));
    reasons.collect::<Vec<_>>().join("; ")
}

/// Why the runtime of a chip's owners does not give a metric of the chip: from the endpoints of these owners alone,
/// because no other source has it.
fn why_absent(
    metric: &'static Descriptor,
    chip: &Chip,
    owners: &[&Owner],
    owners_unknown: Option<&str>,
    absent: &[&Absence],
) -> String {
    let Some(first) = owners.first() else {
        return match owners_unknown {
            // No process can open it.
            _ if chip.is_up() == Some(false) => chip.faults.join(", "),
            Some(why) => format!("its owner is unknown ({why}), and only its runtime has the value"),
            None => "no process uses the chip, and only its runtime has the value".into(),
        };
    };
    let endpoints = owners.iter().flat_map(|owner| &owner.endpoints);
    let mut endpoints = endpoints.filter(|endpoint| endpoint.kind == EndpointKind::RuntimeMetrics).peekable();
    if endpoints.peek().is_none() {
        let why = owners.iter().find_map(|owner| Some((owner.process.pid, owner.no_metrics.as_deref()?)));
        return match why {
            Some((pid, why)) => format!("process {pid}: {why}"),
            None => format!("no metric service of process {} is known", first.process.pid),
        };
    }
    let mut silent = None;
    for endpoint in endpoints {
        let of_endpoint =
            absent.iter().filter(|absence| absence.endpoint.as_ref() == Some(&endpoint.address));
        let (mut of_all, mut of_metric) = (None, None);
        for absence in of_endpoint {
            match absence.metric {
                Some(name) if *name == metric.name => of_metric = of_metric.or(Some(*absence)),
                Some(_) => {}
                None => of_all = of_all.or(Some(*absence)),
            }
        }
        if let Some(absence) = of_metric.or(of_all) {
            return format!("{}: {}", absence.what, absence.why);
        }
        silent = silent.or(Some(&endpoint.address));
    }
    silent.map_or_else(String::new, |address| {
        format!("{address} gives no value that is known to be this chip's")
    })
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
        framework: owner.framework(),
        job: Some(job(&owner.job)),
        endpoints: owner.endpoints.iter().map(endpoint).collect(),
        notes: owner.notes.clone(),
    }
}

/// A job as a message.
pub(super) fn job(job: &Job) -> JobIdentity {
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
    AbsenceStatus {
        what: absence.what.clone(),
        why: absence.why.clone(),
        since_unix_ns: since.0,
        partial: absence.partial,
    }
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
        labels: labels(&sample.labels, sample.origin, sample.workload_label()),
        unit: unit(sample.metric.unit).into(),
        at_unix_ns: sample.at.0,
        value,
        histogram,
    }
}

/// As on the metrics page.
fn labels(labels: &Labels, origin: Origin, workload: Option<WorkloadLabel<'_>>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        labels.iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    all.insert("source".to_owned(), origin.as_str().to_owned());
    if let Some(label) = workload {
        all.insert("workload".to_owned(), label.workload.to_owned());
        all.insert("workload_kind".to_owned(), label.kind.as_str().to_owned());
    }
    all
}

/// One series of the history.
pub(super) fn history(series: HistorySeries) -> History {
    let key = series.key;
    let mut labels = labels(&key.labels, key.origin, key.workload_label());
    let statistic = match key.statistic {
        Statistic::Value => None,
        Statistic::Mean => Some("mean"),
        Statistic::Median => Some("median"),
        Statistic::P99 => Some("p99"),
    };
    labels.extend(statistic.map(|statistic| ("part".to_owned(), statistic.to_owned())));
    let per_second = key.metric.kind == model::metric::MetricKind::Counter;
    let points = series.points.into_iter().map(|point| Point {
        at_unix_ns: point.at.0,
        value: point.value,
        min: point.min,
        max: point.max,
    });
    History { metric: key.metric.to_string(), labels, points: points.collect(), per_second }
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
    use model::{device::ChipState, workload::ProcessKey};

    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        Endpoint {
            kind: EndpointKind::RuntimeMetrics,
            address: address.parse().unwrap(),
            origin: EndpointOrigin::KnownDefault,
            listeners: Vec::new(),
            unreachable: None,
        }
    }

    fn owner(pid: u32, chip: u32, endpoints: &[&str], no_metrics: Option<&str>) -> Owner {
        Owner {
            process: ProcessKey { pid, start_ticks: 1 },
            chips: vec![ChipIndex(chip)],
            endpoints: endpoints.iter().map(|address| endpoint(address)).collect(),
            no_metrics: no_metrics.map(str::to_owned),
            ..Owner::default()
        }
    }

    /// What is missing of chip 0.
    fn missing_of(workloads: &Workloads, absent: &[Absence]) -> String {
        let of_chip = Chip { nodes: vec!["/dev/vfio/0".into()], ..Chip::default() };
        let absent: Vec<_> = absent.iter().collect();
        chip(&of_chip, workloads, &[], &absent, Timestamp(0)).missing
    }

    #[test]
    fn each_value_has_the_reason_of_its_own_chip() {
        let (own, other) = ("127.0.0.1:8431", "127.0.0.1:8432");
        let of = |address: &str, metric: Option<&'static Descriptor>, why: &str| Absence {
            metric: metric.map(|metric| &*metric.name),
            ..Absence::of_endpoint(&address.parse().unwrap(), why)
        };
        let held = |owner: Owner| Workloads { owners: vec![owner], ..Workloads::default() };
        // Neither the host service nor another owner's port is blamed.
        let host_service = Absence::new("127.0.0.1:8353", "connection refused");
        let absent = [host_service, of(other, None, "hangs"), of(own, Some(&TPU_HBM_USED_BYTES), "is empty")];
        let one = held(owner(7, 0, &[own], None));
        assert_eq!(
            missing_of(&one, &absent),
            "duty cycle, HBM total: 127.0.0.1:8431 gives no value that is known to be this chip's; \
             HBM used: 127.0.0.1:8431: is empty"
        );
        let hung = [of(own, None, "no answer within 500 ms")];
        assert!(missing_of(&one, &hung).ends_with("HBM total: 127.0.0.1:8431: no answer within 500 ms"));
        let local = held(owner(7, 0, &[], Some("TPU_PROCESS_ADDRESSES is `local`")));
        assert!(missing_of(&local, &absent).ends_with(": process 7: TPU_PROCESS_ADDRESSES is `local`"));
    }

    #[test]
    fn a_chip_that_cannot_be_opened_lacks_its_values_for_that_reason() {
        let mut of_chip = Chip { nodes: vec!["/dev/vfio/0".into()], ..Chip::default() };
        of_chip.faults = vec!["its node is absent".into()];
        let missing = |state, workloads: &Workloads| {
            let of_chip = Chip { state, ..of_chip.clone() };
            chip(&of_chip, workloads, &[], &[], Timestamp(0)).missing
        };
        let hidden = Workloads { hidden: Some("another pid namespace".into()), ..Workloads::default() };
        for state in [ChipState::Absent, ChipState::Fault] {
            for workloads in [&Workloads::default(), &hidden] {
                let missing = missing(state, workloads);
                assert_eq!(missing, "duty cycle, HBM used, HBM total: its node is absent");
            }
        }
        // Its node may only be unreadable from here, and a process that has it open is asked all the same.
        assert!(missing(ChipState::Unknown, &hidden).contains("its owner is unknown"));
        let absent_here = Chip { state: ChipState::Absent, absent_here_only: true, ..of_chip.clone() };
        assert!(chip(&absent_here, &hidden, &[], &[], Timestamp(0)).missing.contains("its owner is unknown"));
        let held = Workloads { owners: vec![owner(7, 0, &[], Some("no port"))], ..Workloads::default() };
        assert!(missing(ChipState::Absent, &held).ends_with("process 7: no port"));
    }

    #[test]
    fn simulated_chips_are_seen_beside_the_hosts_own_and_have_no_owner() {
        let sample = |chip: u32, origin| Sample {
            metric: (&TPU_HBM_USED_BYTES).into(),
            labels: Labels::one(CHIP, chip),
            value: SampleValue::Gauge(1.0),
            origin,
            at: Timestamp(0),
            workload: None,
        };
        let own = Chip::default();
        let samples = [sample(0, Origin::Runtime), sample(1, Origin::Sim), sample(2, Origin::Sim)];
        let samples: Vec<_> = samples.iter().collect();
        let shown = simulated_chips(&[own], &samples, Timestamp(2_000_000_000));
        let cells: Vec<_> =
            shown.iter().map(|it| (it.index, it.name.as_str(), it.hbm_used_bytes, it.age_seconds)).collect();
        assert_eq!(cells, [(1, "sim", Some(1.0), Some(2.0)), (2, "sim", Some(1.0), Some(2.0))]);
        for chip in &shown {
            assert!(chip.owners.is_empty() && chip.owners_unknown.is_empty() && chip.missing.is_empty());
            assert_eq!(chip.state, "");
        }
    }

    #[test]
    fn a_total_that_is_known_from_the_type_of_the_chip_is_not_missing() {
        let of_chip = Chip { hbm_bytes: Some(32 << 30), ..Chip::default() };
        let shown = chip(&of_chip, &Workloads::default(), &[], &[], Timestamp(0));
        assert_eq!(shown.hbm_total_bytes, Some(f64::from(1 << 30) * 32.0));
        assert!(shown.missing.starts_with("duty cycle, HBM used: "), "{}", shown.missing);
    }

    #[test]
    fn a_chip_without_an_owner_is_free_only_where_all_processes_are_seen() {
        let elsewhere = Workloads { owners: vec![owner(7, 1, &[], None)], ..Workloads::default() };
        assert!(missing_of(&elsewhere, &[]).contains("no process uses the chip"));
        let hidden = Workloads { hidden: Some("another pid namespace".into()), ..elsewhere.clone() };
        let missing = missing_of(&hidden, &[]);
        assert!(missing.contains("owner is unknown (another pid namespace)"), "{missing}");
        let status = chip(&Chip::default(), &elsewhere, &[], &[], Timestamp(0));
        assert!(status.owners_unknown.contains("node is not known"), "{status:?}");
    }
}
