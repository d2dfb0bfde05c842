//! The series that a reply of the host's service names. As a rule each reply names the same: they are worked out once.
//!
//! No I/O. Must never give two values of one reply to one series, or a value to the series of a reply that named others.

#![expect(clippy::cast_precision_loss, reason = "a sample is an f64, and scores are small")]

use std::{collections::HashSet, sync::Arc};

use model::{
    catalog,
    device::Chip,
    label::{CHIP, Labels},
    metric::{Descriptor, Scale},
    sample::Origin,
    time::Timestamp,
    untrusted::clean_label,
};
use proto::libtpu::tpunetd::{MetricType, TpuHealthMetrics, UtilizationMetricData};

use crate::sources::{
    said_at,
    tray_chip::{self, TrayChips},
};

/// Maximum number of series of one reply.
const MAX_SERIES: usize = 4096;

/// One series.
#[derive(Debug)]
pub(super) struct ServiceSeries {
    pub(super) metric: &'static Descriptor,
    pub(super) labels: Labels,
    pub(super) scale: Scale,
}

/// The series of the last reply.
#[derive(Debug, Default)]
pub(super) struct NamedSeries {
    entries: Vec<UtilizationMetricData>,
    chips: Arc<[Chip]>,
    /// For each value of the reply in order; `None` where it has no series.
    series: Vec<Option<ServiceSeries>>,
    /// The labels of each name of a chip.
    infos: Vec<Labels>,
}

impl NamedSeries {
    /// The number of entries of the last reply.
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The maximum number of samples of the last reply.
    pub(super) fn len(&self) -> usize {
        self.series.len() + self.infos.len()
    }

    /// Takes the entries of another reply, on a host with these chips.
    pub(super) fn follow(&mut self, entries: &mut Vec<UtilizationMetricData>, chips: &Arc<[Chip]>) {
        let same = Arc::ptr_eq(&self.chips, chips)
            && self.entries.len() == entries.len()
            && self.entries.iter().zip(entries.iter()).all(|(old, new)| name_the_same(old, new));
        std::mem::swap(&mut self.entries, entries);
        if !same {
            self.chips = Arc::clone(chips);
            self.work_out();
        }
    }

    /// Each value of the last reply that has a series, with the time when it was measured.
    pub(super) fn values(&self, read: Timestamp) -> impl Iterator<Item = (f64, Timestamp, &ServiceSeries)> {
        let values = self.entries.iter().flat_map(move |entry| {
            let at = measured(entry, read);
            values(entry).map(move |value| (value, at))
        });
        values.zip(&self.series).filter_map(|((value, at), series)| Some((value, at, series.as_ref()?)))
    }

    /// The labels of each name of a chip.
    pub(super) fn infos(&self) -> &[Labels] {
        &self.infos
    }

    fn work_out(&mut self) {
        let (mut seen, mut names) = (HashSet::new(), TrayChips::default());
        self.series.clear();
        for (position, entry) in self.entries.iter().enumerate() {
            let of_chip = chip_labels(&entry.chip_identifier, position, &self.chips);
            for (name, labels) in value_names(entry, &of_chip) {
                let series = catalog::by_origin(Origin::HostService, name).and_then(|(metric, named)| {
                    let is_first = seen.len() < MAX_SERIES && seen.insert((named.name, labels.clone()));
                    is_first.then_some(ServiceSeries { metric, labels, scale: named.scale })
                });
                self.series.push(series);
            }
            tray_chips(entry).for_each(|name| names.add(name, of_chip.number(CHIP)));
        }
        self.infos = names.series().collect();
    }
}

fn name_the_same(one: &UtilizationMetricData, other: &UtilizationMetricData) -> bool {
    let same_health = |one: &TpuHealthMetrics, other: &TpuHealthMetrics| {
        let throttled = |health: &TpuHealthMetrics| {
            health.chip_throttling_metric.as_ref().map(|it| (it.tray_id, it.chip_id))
        };
        let links = |health: &TpuHealthMetrics| health.ici_link_metrics.len();
        let mut both = one.ici_link_metrics.iter().zip(&other.ici_link_metrics);
        throttled(one) == throttled(other)
            && links(one) == links(other)
            && both.all(|(one, other)| one.port_id == other.port_id)
    };
    let mut metrics = one.metrics.iter().zip(&other.metrics);
    one.chip_identifier == other.chip_identifier
        && one.metrics.len() == other.metrics.len()
        && metrics.all(|(one, other)| one.metric_type == other.metric_type)
        && match (&one.tpu_health_metrics, &other.tpu_health_metrics) {
            (Some(one), Some(other)) => same_health(one, other),
            (None, None) => true,
            _ => false,
        }
}

/// The values of an entry, in the order of [`value_names`].
fn values(entry: &UtilizationMetricData) -> impl Iterator<Item = f64> {
    let health = entry.tpu_health_metrics.iter();
    entry.metrics.iter().map(|metric| f64::from(metric.utilization)).chain(health.flat_map(|health| {
        let throttled = health.chip_throttling_metric.iter().map(|it| it.throttling_score as f64);
        throttled.chain(health.ici_link_metrics.iter().map(|link| link.link_health as f64))
    }))
}

/// The name of each value of an entry in the reply, and its labels.
fn value_names<'a>(
    entry: &'a UtilizationMetricData,
    of_chip: &'a Labels,
) -> impl Iterator<Item = (&'static str, Labels)> + 'a {
    let used = entry.metrics.iter().map(|metric| match metric.metric_type() {
        // No metric has this name.
        MetricType::Unspecified => ("", of_chip.clone()),
        known => (known.as_str_name(), of_chip.clone()),
    });
    used.chain(entry.tpu_health_metrics.iter().flat_map(|health| {
        let throttled = health
            .chip_throttling_metric
            .iter()
            .map(|it| ("throttling_score", tray_chip::labels(&tray_chip::name(it.tray_id, it.chip_id))));
        let links = health.ici_link_metrics.iter();
        throttled.chain(links.map(|link| ("link_health", tray_chip::link_labels(&link.port_id))))
    }))
}

/// What the entry calls its chip where it speaks of throttling and links.
fn tray_chips(entry: &UtilizationMetricData) -> impl Iterator<Item = String> {
    entry.tpu_health_metrics.iter().flat_map(|health| {
        let throttled =
            health.chip_throttling_metric.iter().map(|it| tray_chip::name(it.tray_id, it.chip_id));
        throttled.chain(health.ici_link_metrics.iter().filter_map(|link| tray_chip::of_link(&link.port_id)))
    })
}

/// The chip, if the identifier is its position or its PCI address; else the identifier as it is. Where a chip was removed
/// or added, nothing tells which one the service counts as which.
fn chip_labels(identifier: &str, position: usize, chips: &[Chip]) -> Labels {
    let by_pci = chips.iter().find(|chip| !identifier.is_empty() && chip.pci == identifier);
    let by_index = || {
        let position: u32 = identifier.parse().ok()?;
        let counted = (0..).zip(chips).all(|(position, chip)| chip.index.0 == position);
        chips.iter().find(|chip| counted && chip.index.0 == position)
    };
    match by_pci.or_else(by_index) {
        Some(chip) => Labels::chip(chip.index),
        None if identifier.is_empty() => Labels::one("chip_id", format!("entry {position}")),
        None => Labels::one("chip_id", clean_label(identifier)),
    }
}

/// When an entry was measured: as it says, if that is within a minute before now.
fn measured(entry: &UtilizationMetricData, read: Timestamp) -> Timestamp {
    let Some(said) = &entry.timestamp else { return read };
    said_at(said.seconds, said.nanos, read)
}
