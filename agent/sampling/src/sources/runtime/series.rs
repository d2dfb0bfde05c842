//! Series of the wire made into samples: which core, which chip, which window.
//!
//! Must never name a chip that it cannot be sure of.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use model::{
    catalog::{Kind, Metric},
    job::Job,
    sample::{Labels, Origin, Sample, Value},
    time::Timestamp,
};
use proto::tpu::monitoring::runtime::{Metric as Wire, metric::Measure};

use super::{Cores, decode};
use crate::sources::{
    said_at,
    window::{Total, WindowError},
};

/// What must be remembered of one endpoint from read to read.
#[derive(Default)]
pub(super) struct Interpreter {
    job: Option<Arc<Job>>,
    /// The cores of its owners, and of the whole host: one port may answer for all.
    cores: [Cores; 2],
    /// All device ids that it has named, rising.
    devices: Vec<u32>,
    /// What was counted at the last read, by metric.
    totals: HashMap<&'static str, Vec<(Labels, Total)>>,
}

/// What came of one metric.
#[derive(Default)]
pub(super) struct Found {
    pub(super) samples: Vec<Sample>,
    /// What could not be used, in words.
    pub(super) trouble: Option<String>,
}

impl Interpreter {
    pub(super) fn new(job: Option<Arc<Job>>) -> Self {
        Self { job, ..Self::default() }
    }

    pub(super) fn job(&self) -> Option<&Arc<Job>> {
        self.job.as_ref()
    }

    pub(super) fn set_cores(&mut self, own: Cores, host: Cores) {
        self.cores = [own, host];
    }

    /// A new connection may be to a new process, with other devices.
    pub(super) fn forget_devices(&mut self) {
        self.devices.clear();
    }

    /// Notes which devices there are, before any of them gets its labels.
    pub(super) fn learn(&mut self, metric: &Metric, found: &decode::Series) {
        if !metric.labels.contains(&"core") || self.counts_chips(metric) {
            return;
        }
        for device in found.good.iter().filter_map(|series| decode::device(series.attribute.as_ref())) {
            if let Err(place) = self.devices.binary_search(&device)
                && self.devices.len() < decode::MOST_SERIES
            {
                self.devices.insert(place, device);
            }
        }
    }

    /// The samples of one metric.
    pub(super) fn samples(
        &mut self,
        metric: &'static Metric,
        scale: f64,
        found: decode::Series,
        at: Timestamp,
    ) -> Found {
        let (bad, beyond) = (found.bad, found.beyond);
        let mut out = match metric.kind {
            Kind::Window => self.windows(metric, scale, &found.good, at),
            Kind::Gauge | Kind::Counter => self.gauges(metric, scale, &found.good, at),
        };
        if bad > 0 {
            out.trouble = Some(format!("{bad} of its series cannot be read"));
        } else if beyond > 0 {
            out.trouble =
                Some(format!("{beyond} series beyond the first {} are left out", decode::MOST_SERIES));
        }
        out
    }

    fn gauges(&self, metric: &'static Metric, scale: f64, series: &[Wire], at: Timestamp) -> Found {
        let mut found = Found { samples: Vec::with_capacity(series.len()), trouble: None };
        let chips = if self.counts_chips(metric) { self.chips(series) } else { None };
        for (position, one) in series.iter().enumerate() {
            let Some(number) = one.measure.as_ref().and_then(decode::number) else {
                found.trouble = Some("a value of it is no finite number".to_owned());
                continue;
            };
            let labels = match &chips {
                Some(chips) => Labels { chip: Some(chips[position]), ..Labels::default() },
                None => self.labels(metric, one),
            };
            found.samples.push(self.sample(metric, labels, Value::Gauge(number * scale), measured(one, at)));
        }
        found
    }

    fn windows(&mut self, metric: &'static Metric, scale: f64, series: &[Wire], at: Timestamp) -> Found {
        let mut found = Found::default();
        let mut now: Vec<(Labels, Total)> = Vec::with_capacity(series.len());
        for one in series {
            let Some(Measure::Distribution(wire)) = &one.measure else {
                found.trouble = Some("a series of it is no distribution".to_owned());
                continue;
            };
            let labels = self.labels(metric, one);
            if let Err(error) = Total::from_wire(wire, scale).and_then(|total| add(&mut now, labels, total)) {
                found.trouble = Some(format!("a distribution of it cannot be used: {error}"));
            }
        }
        let before = self.totals.remove(metric.name).unwrap_or_default();
        for (position, (labels, total)) in now.iter().enumerate() {
            // Almost always in the same place as before.
            let same = before.get(position).filter(|(other, _)| other == labels);
            if let Some((_, before)) = same.or_else(|| before.iter().find(|(other, _)| other == labels)) {
                let window = Value::Window(total.since(before));
                found.samples.push(self.sample(metric, labels.clone(), window, at));
            }
        }
        self.totals.insert(metric.name, now);
        found
    }

    fn sample(&self, metric: &'static Metric, labels: Labels, value: Value, at: Timestamp) -> Sample {
        Sample {
            metric: Cow::Borrowed(metric.name),
            labels,
            value,
            unit: metric.unit,
            origin: Origin::Runtime,
            at,
            job: self.job.clone(),
        }
    }

    fn labels(&self, metric: &Metric, series: &Wire) -> Labels {
        let attribute = series.attribute.as_ref();
        let mut labels = Labels::default();
        if metric.labels.contains(&"core") {
            labels.core = decode::device(attribute);
            labels.chip = labels.core.and_then(|core| self.chip(core));
        }
        if metric.labels.contains(&"core_type") {
            labels.extra =
                decode::label(attribute, "core_type", false).map(|text| ("core_type".into(), text));
        }
        if metric.labels.contains(&"buffer_size") {
            labels.extra =
                decode::label(attribute, "buffer-size", true).map(|text| ("buffer_size".into(), text));
        }
        labels
    }

    /// The chip of a device id, if there are as many ids as cores: ids are job-wide, so only their order tells.
    fn chip(&self, device: u32) -> Option<u32> {
        let cores = self.cores.iter().find(|cores| cores.of_core.len() == self.devices.len())?;
        cores.of_core.get(self.devices.binary_search(&device).ok()?).copied()
    }

    /// On v2 and v3 the duty cycle is per chip, though a device has two cores.
    fn counts_chips(&self, metric: &Metric) -> bool {
        metric.name == "tpu_tensorcore_duty_cycle_ratio" && self.cores.iter().any(|cores| cores.duty_per_chip)
    }

    /// The chip of each series of a metric that counts chips, if there are as many as chips.
    fn chips(&self, series: &[Wire]) -> Option<Vec<u32>> {
        let ids = series.iter().map(|one| decode::device(one.attribute.as_ref()));
        let ids: Vec<u32> = ids.collect::<Option<_>>()?;
        let mut order = ids.clone();
        order.sort_unstable();
        order.dedup();
        let cores =
            self.cores.iter().find(|cores| cores.chips.len() == order.len() && ids.len() == order.len())?;
        ids.iter().map(|id| order.binary_search(id).ok().map(|place| cores.chips[place])).collect()
    }
}

/// Adds a total under its labels; series of one label are one.
fn add(all: &mut Vec<(Labels, Total)>, labels: Labels, total: Total) -> Result<(), WindowError> {
    match all.iter_mut().find(|(known, _)| *known == labels) {
        Some((_, sum)) => sum.add(&total),
        None => {
            all.push((labels, total));
            Ok(())
        }
    }
}

/// When a series was measured.
fn measured(series: &Wire, read: Timestamp) -> Timestamp {
    series.timestamp.as_ref().map_or(read, |said| said_at(said.seconds, said.nanos, read))
}
