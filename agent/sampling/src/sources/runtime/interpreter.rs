//! Series of the wire made into samples: which core, which chip, since when it is counted.
//!
//! The descriptor says all that is needed of a metric: its kind decides how a value is read, its labels what is taken
//! from the attributes. Must never name a chip that it cannot be sure of.

use std::{collections::HashMap, sync::Arc};

use model::{
    catalog,
    distribution::{Distribution, Histogram},
    label::{CHIP, CORE, Labels, SmolStr},
    metric::{Descriptor, MetricKind, Scale},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::Workload,
};
use proto::tpu::monitoring::runtime::{Metric as WireSeries, metric::Measure};

use super::{CoreMap, reply};
use crate::sources::{
    distribution::{DistributionError, histogram},
    said_at,
};

/// The most buckets of all series of one metric that are taken from one endpoint.
const MOST_BUCKETS: usize = 8192;

/// What must be remembered of one endpoint from read to read.
#[derive(Default)]
pub(super) struct Interpreter {
    workload: Option<Arc<Workload>>,
    /// The cores of its owners, and of the whole host: one port may answer for all.
    cores: [CoreMap; 2],
    /// All device ids that it has named, rising.
    devices: Vec<u32>,
    /// The distributions of the last read that had them.
    distributions: HashMap<&'static str, LastRead>,
}

/// The distributions of one metric at the last read that had them.
struct LastRead {
    metric: &'static Descriptor,
    series: Vec<(Labels, Arc<Distribution>)>,
}

/// What came of one metric.
#[derive(Default)]
pub(super) struct Interpreted {
    pub(super) samples: Vec<Sample>,
    /// What could not be used.
    pub(super) fault: Option<String>,
}

impl Interpreter {
    pub(super) fn new(workload: Option<Arc<Workload>>) -> Self {
        Self { workload, ..Self::default() }
    }

    pub(super) fn set_workload(&mut self, workload: Option<Arc<Workload>>) {
        self.workload = workload;
    }

    /// Whether `workload` is another one than before, or another attempt of it.
    pub(super) fn is_other_workload(&self, workload: Option<&Arc<Workload>>) -> bool {
        let life = |workload: &Arc<Workload>| (workload.id.clone(), workload.job.attempt);
        self.workload.as_ref().map(life) != workload.map(life)
    }

    pub(super) fn workload(&self) -> Option<&Arc<Workload>> {
        self.workload.as_ref()
    }

    pub(super) fn set_cores(&mut self, own: CoreMap, host: CoreMap) {
        self.cores = [own, host];
    }

    /// A new connection may be to a new process, with other devices.
    pub(super) fn forget_devices(&mut self) {
        self.devices.clear();
    }

    /// All distributions of the last reads that had them.
    pub(super) fn distributions(
        &self,
    ) -> impl Iterator<Item = (&'static Descriptor, &Labels, &Arc<Distribution>)> {
        self.distributions
            .values()
            .flat_map(|read| read.series.iter().map(|(labels, last)| (read.metric, labels, last)))
    }

    /// Notes which devices there are, before any of them gets its labels.
    pub(super) fn learn(&mut self, metric: &Descriptor, series: &reply::SeriesOfMetric) {
        if !metric.has_label(CORE) || self.is_per_chip(metric) {
            return;
        }
        for device in series.good.iter().filter_map(|series| reply::device(series.attribute.as_ref())) {
            if let Err(position) = self.devices.binary_search(&device)
                && self.devices.len() < reply::MOST_SERIES
            {
                self.devices.insert(position, device);
            }
        }
    }

    /// The samples of one metric.
    pub(super) fn samples(
        &mut self,
        metric: &'static Descriptor,
        scale: Scale,
        series: reply::SeriesOfMetric,
        at: Timestamp,
    ) -> Interpreted {
        let (bad, beyond) = (series.bad, series.beyond);
        let mut out = match metric.kind {
            MetricKind::Histogram => self.histograms(metric, scale, &series.good, at),
            MetricKind::Gauge | MetricKind::Counter => self.numbers(metric, scale, &series.good, at),
        };
        if bad > 0 {
            out.fault = Some(format!("{bad} of its series cannot be read"));
        } else if beyond > 0 {
            out.fault = Some(format!("{beyond} series beyond the first {} are ignored", reply::MOST_SERIES));
        }
        out
    }

    fn numbers(
        &self,
        metric: &'static Descriptor,
        scale: Scale,
        series: &[WireSeries],
        at: Timestamp,
    ) -> Interpreted {
        let mut out = Interpreted { samples: Vec::with_capacity(series.len()), fault: None };
        let chips = if self.is_per_chip(metric) || self.has_one_per_chip(metric, series) {
            self.chips(series)
        } else {
            None
        };
        for (position, one) in series.iter().enumerate() {
            let Some(number) = one.measure.as_ref().and_then(reply::number) else {
                out.fault = Some("a value of it is not a finite number".to_owned());
                continue;
            };
            let labels = match &chips {
                Some(chips) => Labels::one(CHIP, chips[position]),
                None => self.labels(metric, one),
            };
            let number = scale.apply(number);
            let value = if metric.kind == MetricKind::Counter {
                SampleValue::Counter(number)
            } else {
                SampleValue::Gauge(number)
            };
            out.samples.push(self.sample(metric, labels, value, measured(one, at)));
        }
        out
    }

    fn histograms(
        &mut self,
        metric: &'static Descriptor,
        scale: Scale,
        series: &[WireSeries],
        at: Timestamp,
    ) -> Interpreted {
        let mut out = Interpreted::default();
        let mut now: Vec<(Labels, Histogram)> = Vec::with_capacity(series.len());
        let mut buckets = 0;
        for one in series {
            let Some(Measure::Distribution(wire)) = &one.measure else {
                out.fault = Some("a series of it is not a distribution".to_owned());
                continue;
            };
            let since = one.start_timestamp.as_ref().map_or(at, |start| {
                let start = start.seconds.saturating_mul(1_000_000_000).saturating_add(start.nanos.into());
                Timestamp(start).min(at)
            });
            let read = histogram(wire, scale, since).and_then(|histogram| {
                buckets += histogram.counts.len();
                if buckets > MOST_BUCKETS {
                    Ok(())
                } else {
                    add(&mut now, self.labels(metric, one), histogram)
                }
            });
            if let Err(error) = read {
                out.fault = Some(format!("a distribution of it cannot be used: {error}"));
            }
        }
        if buckets > MOST_BUCKETS {
            out.fault = Some(format!("series beyond {MOST_BUCKETS} buckets in all are ignored"));
        }
        let before = self.distributions.remove(&*metric.name).map(|read| read.series).unwrap_or_default();
        let mut after = Vec::with_capacity(now.len());
        for (position, (labels, histogram)) in now.into_iter().enumerate() {
            // Almost always in the same position as before.
            let same = before.get(position).filter(|(other, _)| *other == labels);
            let last = same.or_else(|| before.iter().find(|(other, _)| *other == labels));
            let next = Arc::new(match last {
                Some((_, last)) => Distribution::following(histogram, &last.histogram),
                None => Distribution::first(histogram),
            });
            out.samples.push(self.sample(
                metric,
                labels.clone(),
                SampleValue::Distribution(next.clone()),
                at,
            ));
            after.push((labels, next));
        }
        self.distributions.insert(&metric.name, LastRead { metric, series: after });
        out
    }

    fn sample(
        &self,
        metric: &'static Descriptor,
        labels: Labels,
        value: SampleValue,
        at: Timestamp,
    ) -> Sample {
        Sample {
            metric: metric.into(),
            labels,
            value,
            origin: Origin::Runtime,
            at,
            workload: self.workload.clone(),
        }
    }

    /// The labels that the descriptor names, as far as the series has them.
    fn labels(&self, metric: &Descriptor, series: &WireSeries) -> Labels {
        let attribute = series.attribute.as_ref();
        let core = if metric.has_label(CORE) { reply::device(attribute) } else { None };
        let mut labels = Labels::none();
        for name in metric.labels {
            let known = SmolStr::new_static(name);
            match *name {
                CHIP => {
                    if let Some(chip) = core.and_then(|core| self.chip(core)) {
                        labels.push(known, chip);
                    }
                }
                CORE => {
                    if let Some(core) = core {
                        labels.push(known, core);
                    }
                }
                name => {
                    // The only label of a metric may have another name on the wire.
                    if let Some(text) = reply::label(attribute, name, metric.labels.len() == 1) {
                        labels.push(known, text);
                    }
                }
            }
        }
        labels
    }

    /// The chip of a device id, if there are as many ids as cores: ids are unique in the job, so only their order identifies the chip.
    fn chip(&self, device: u32) -> Option<u32> {
        let cores = self.cores.iter().find(|cores| cores.of_core.len() == self.devices.len())?;
        cores.of_core.get(self.devices.binary_search(&device).ok()?).copied()
    }

    /// On v2 and v3 the duty cycle is per chip, though a device has two cores.
    fn is_per_chip(&self, metric: &Descriptor) -> bool {
        std::ptr::eq(metric, &catalog::TPU_TENSORCORE_DUTY_CYCLE_RATIO)
            && self.cores.iter().any(|cores| cores.duty_per_chip)
    }

    /// Whether there is one value for each chip of several cores, by the owners' cores or else the host's: then the ids
    /// count chips, not cores.
    fn has_one_per_chip(&self, metric: &Descriptor, series: &[WireSeries]) -> bool {
        if !metric.has_label(CORE) {
            return false;
        }
        let mut ids: Vec<_> = series.iter().filter_map(|one| reply::device(one.attribute.as_ref())).collect();
        ids.sort_unstable();
        ids.dedup();
        let fits = |cores: &&CoreMap| cores.of_core.len() == ids.len() || cores.chips.len() == ids.len();
        let cores = self.cores.iter().filter(|cores| !cores.of_core.is_empty()).find(fits);
        cores.is_some_and(|cores| cores.of_core.len() != ids.len())
    }

    /// The chip of each series of a metric that is per chip, if there are as many as chips.
    fn chips(&self, series: &[WireSeries]) -> Option<Vec<u32>> {
        let ids = series.iter().map(|one| reply::device(one.attribute.as_ref()));
        let ids: Vec<u32> = ids.collect::<Option<_>>()?;
        let mut order = ids.clone();
        order.sort_unstable();
        order.dedup();
        let cores =
            self.cores.iter().find(|cores| cores.chips.len() == order.len() && ids.len() == order.len())?;
        ids.iter().map(|id| order.binary_search(id).ok().map(|position| cores.chips[position])).collect()
    }
}

/// Adds a histogram under its labels; series of one label are one.
fn add(
    all: &mut Vec<(Labels, Histogram)>,
    labels: Labels,
    histogram: Histogram,
) -> Result<(), DistributionError> {
    match all.iter_mut().find(|(known, _)| *known == labels) {
        Some((_, sum)) => {
            if sum.add(&histogram) {
                Ok(())
            } else {
                Err(DistributionError::Mixed)
            }
        }
        None => {
            all.push((labels, histogram));
            Ok(())
        }
    }
}

/// When a series was measured.
fn measured(series: &WireSeries, read: Timestamp) -> Timestamp {
    series.timestamp.as_ref().map_or(read, |said| said_at(said.seconds, said.nanos, read))
}
