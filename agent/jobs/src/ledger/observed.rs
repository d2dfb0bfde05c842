//! What the host shows of its jobs: which chips they have open, and what a batch measured of them.
//!
//! Pure. Must never attribute a chip to a job whose processes do not have it open.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    catalog,
    job::JobKey,
    label::CHIP,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    snapshot::HostSnapshot,
    workload::{Owner, ProcessKey, Workload},
};
use sampling::sampler::Batch;

use super::causes::StallValues;
use crate::observed::key_of;

/// Chips of most hosts.
const USUAL_CHIPS: usize = 8;

/// A job whose processes have chips open.
#[derive(Debug, Clone)]
pub(super) struct ObservedJob {
    pub(super) key: JobKey,
    pub(super) name: String,
    pub(super) workload: Arc<Workload>,
    /// Of its first process; `None` when it may not be read.
    pub(super) pid_namespace: Option<u64>,
    /// The open chips by number, each with a process that has it open.
    pub(super) chips: Vec<(u32, ProcessKey)>,
}

/// The jobs that have chips open.
pub(super) fn jobs(host: &HostSnapshot) -> Vec<ObservedJob> {
    let mut jobs: BTreeMap<JobKey, ObservedJob> = BTreeMap::new();
    let owners = host.workloads.owners.iter().filter(|owner| !owner.chips.is_empty());
    for owner in owners {
        let Some(workload) = host.workload_of(owner.process) else { continue };
        let job = jobs.entry(key_of(owner)).or_insert_with(|| first_of(owner, workload));
        job.chips.extend(owner.chips.iter().map(|chip| (chip.0, owner.process)));
    }
    let mut jobs: Vec<_> = jobs.into_values().collect();
    for job in &mut jobs {
        job.chips.sort_unstable();
        job.chips.dedup_by_key(|chip| chip.0);
    }
    jobs
}

fn first_of(owner: &Owner, workload: &Arc<Workload>) -> ObservedJob {
    ObservedJob {
        key: key_of(owner),
        name: owner.job.name.clone().unwrap_or_default(),
        workload: Arc::clone(workload),
        pid_namespace: owner.pid_namespace,
        chips: Vec::new(),
    }
}

/// Whether both are of one job. What did not change is the same object.
pub(super) fn is_same(a: &Arc<Workload>, b: &Arc<Workload>) -> bool {
    Arc::ptr_eq(a, b) || a.id == b.id
}

/// What a batch measured of one chip of a workload.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChipReading<'a> {
    pub(super) workload: &'a Arc<Workload>,
    pub(super) chip: u32,
    /// The lowest duty cycle of its cores, in percent.
    pub(super) duty: Option<f64>,
    /// The share of the memory in use.
    pub(super) hbm: Option<f64>,
}

/// How much a source is believed where two measured a chip in one second.
pub(super) fn rank(origin: Origin) -> u8 {
    match origin {
        Origin::Runtime => 2,
        Origin::Libtpu => 1,
        _ => 0,
    }
}

/// What a batch measured of the chips of workloads.
pub(super) fn chip_readings(batch: &Batch) -> Vec<ChipReading<'_>> {
    if rank(batch.origin) == 0 {
        return Vec::new();
    }
    let mut sums: Vec<ChipSums> = Vec::with_capacity(USUAL_CHIPS);
    for sample in &batch.samples {
        let Some(metric) = ChipMetric::of(sample) else { continue };
        let (Some(chip), Some(workload)) = (sample.labels.number(CHIP), &sample.workload) else { continue };
        let SampleValue::Gauge(value) = sample.value else { continue };
        let known = sums.iter().position(|sum| sum.chip == chip && is_same(sum.workload, workload));
        let at = known.unwrap_or_else(|| {
            sums.push(ChipSums { chip, workload, duty: None, used: None, total: 0.0 });
            sums.len() - 1
        });
        sums[at].add(metric, value);
    }
    sums.into_iter().map(ChipSums::reading).collect()
}

#[derive(Debug, Clone, Copy)]
enum ChipMetric {
    Duty,
    Used,
    Total,
}

impl ChipMetric {
    fn of(sample: &Sample) -> Option<Self> {
        let is = |metric: &'static Descriptor| std::ptr::eq::<Descriptor>(&*sample.metric, metric);
        match () {
            () if is(&catalog::TPU_TENSORCORE_DUTY_CYCLE_RATIO) => Some(Self::Duty),
            () if is(&catalog::TPU_HBM_USED_BYTES) => Some(Self::Used),
            () if is(&catalog::TPU_HBM_TOTAL_BYTES) => Some(Self::Total),
            () => None,
        }
    }
}

/// What the cores of a chip add up to.
struct ChipSums<'a> {
    chip: u32,
    workload: &'a Arc<Workload>,
    duty: Option<f64>,
    used: Option<f64>,
    total: f64,
}

impl<'a> ChipSums<'a> {
    fn add(&mut self, metric: ChipMetric, value: f64) {
        match metric {
            ChipMetric::Duty => self.duty = Some(self.duty.map_or(value, |lowest| lowest.min(value))),
            ChipMetric::Used => self.used = Some(self.used.unwrap_or(0.0) + value),
            ChipMetric::Total => self.total += value,
        }
    }

    fn reading(self) -> ChipReading<'a> {
        ChipReading {
            workload: self.workload,
            chip: self.chip,
            duty: self.duty.map(|ratio| ratio * 100.0).filter(|percent| percent.is_finite()),
            hbm: self.used.filter(|_| self.total > 0.0).map(|used| used / self.total),
        }
    }
}

/// What a batch of Orbax and Grain says of each workload.
pub(super) fn stall_readings(batch: &Batch) -> Vec<(Arc<Workload>, StallValues)> {
    if batch.origin != Origin::OrbaxGrain {
        return Vec::new();
    }
    let mut readings: Vec<(Arc<Workload>, StallValues)> = Vec::new();
    for sample in &batch.samples {
        let Some(workload) = &sample.workload else { continue };
        let known = readings.iter().position(|(known, _)| is_same(known, workload));
        let at = known.unwrap_or_else(|| {
            readings.push((Arc::clone(workload), StallValues::default()));
            readings.len() - 1
        });
        readings[at].1.take(sample);
    }
    readings
}
