//! The agent's own metrics: what its crates count with the `metrics` facade, kept for the metrics page as samples.
//!
//! Each crate describes its metrics once; a metric without a description is dropped. Everything is bounded. Must never
//! serve anything itself: the page asks.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
};

use model::{
    label::{Labels, SmolStr},
    metric::{Descriptor, MetricKind, Unit},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
};

/// Maximum number of metrics.
const MAX_METRICS: usize = 256;
/// Maximum number of series of one metric.
const MAX_SERIES: usize = 64;

/// Keeps the agent's own metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct OwnMetrics(Arc<Mutex<BTreeMap<String, OwnMetric>>>);

#[derive(Debug)]
struct OwnMetric {
    descriptor: Arc<Descriptor>,
    series: BTreeMap<Labels, Arc<Cell>>,
}

/// The value of one series, as the bits of an `f64`: exact for counts up to 2^53.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Cell {
    fn update(&self, new: impl Fn(f64) -> f64) {
        let bits = |old: u64| Some(new(f64::from_bits(old)).to_bits());
        // The closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, bits);
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.update(|old| old + value as f64);
    }

    fn absolute(&self, value: u64) {
        self.update(|old| old.max(value as f64));
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.update(|old| old + value);
    }

    fn decrement(&self, value: f64) {
        self.update(|old| old - value);
    }

    fn set(&self, value: f64) {
        self.update(|_| value);
    }
}

impl OwnMetrics {
    /// Makes these the metrics of this process. False when it has some already; those stay.
    pub fn install(&self) -> bool {
        metrics::set_global_recorder(self.clone()).is_ok()
    }

    /// Name, kind and help of every metric, by name.
    pub fn described(&self) -> Vec<(String, MetricKind, String)> {
        let described = |(name, metric): (&String, &OwnMetric)| {
            (name.clone(), metric.descriptor.kind, metric.descriptor.help.to_string())
        };
        self.metrics().iter().map(described).collect()
    }

    /// A sample of every series, as they are at `at`. A gauge that is not a number is unknown, and has none.
    pub(super) fn samples(&self, at: Timestamp) -> Vec<Sample> {
        let metrics = self.metrics();
        let of_metric = |metric: &OwnMetric| {
            let sample = |(labels, cell): (&Labels, &Arc<Cell>)| {
                let value = f64::from_bits(cell.0.load(Ordering::Relaxed));
                let counts = metric.descriptor.kind == MetricKind::Counter;
                Sample {
                    metric: Arc::clone(&metric.descriptor).into(),
                    labels: labels.clone(),
                    value: if counts { SampleValue::Counter(value) } else { SampleValue::Gauge(value) },
                    origin: Origin::Agent,
                    at,
                    workload: None,
                }
            };
            let is_known =
                |(_, cell): &(&Labels, &Arc<Cell>)| !f64::from_bits(cell.0.load(Ordering::Relaxed)).is_nan();
            metric.series.iter().filter(is_known).map(sample).collect::<Vec<_>>()
        };
        metrics.values().flat_map(of_metric).collect()
    }

    fn metrics(&self) -> MutexGuard<'_, BTreeMap<String, OwnMetric>> {
        // The map changes in single steps: it is whole even if a holder panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, kind: MetricKind, unit: Option<metrics::Unit>, help: &SharedString) {
        let mut metrics = self.metrics();
        if metrics.len() < MAX_METRICS {
            let descriptor = Descriptor {
                name: name.as_str().to_owned().into(),
                help: help.to_string().into(),
                unit: match unit {
                    Some(metrics::Unit::Seconds) => Unit::Seconds,
                    Some(metrics::Unit::Bytes) => Unit::Bytes,
                    _ => Unit::Count,
                },
                kind,
                labels: &[],
                origins: &[],
            };
            let metric = OwnMetric { descriptor: Arc::new(descriptor), series: BTreeMap::new() };
            metrics.entry(name.as_str().to_owned()).or_insert(metric);
        }
    }

    fn cell(&self, key: &Key) -> Option<Arc<Cell>> {
        let mut metrics = self.metrics();
        let series = &mut metrics.get_mut(key.name())?.series;
        let mut labels = Labels::none();
        key.labels().for_each(|label| labels.push(SmolStr::new(label.key()), label.value()));
        if !series.contains_key(&labels) && series.len() >= MAX_SERIES {
            return None;
        }
        Some(Arc::clone(series.entry(labels).or_default()))
    }
}

impl Recorder for OwnMetrics {
    fn describe_counter(&self, name: KeyName, unit: Option<metrics::Unit>, help: SharedString) {
        self.describe(&name, MetricKind::Counter, unit, &help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<metrics::Unit>, help: SharedString) {
        self.describe(&name, MetricKind::Gauge, unit, &help);
    }

    /// The agent has no histogram of its own.
    fn describe_histogram(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.cell(key).map_or_else(Counter::noop, Counter::from_arc)
    }

    /// A counter that is read rather than counted, such as CPU time, is described as a counter and set as a gauge.
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.cell(key).map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};

    use super::*;
    use crate::{TextFormat, page, page_writer::PageWriter};

    fn page(own: &OwnMetrics) -> String {
        let samples = own.samples(Timestamp(0));
        let mut writer = PageWriter::new(TextFormat::Text, 0);
        page::write(samples.iter().collect(), &mut writer);
        writer.finish()
    }

    #[test]
    fn what_is_described_and_counted_is_on_the_page() {
        let own = OwnMetrics::default();
        with_local_recorder(&own, || {
            describe_counter!("b_total", "Bs.");
            describe_gauge!("a", "As.");
            describe_gauge!("silent", "Never set.");
            describe_counter!("cpu_seconds_total", "CPU.");
            counter!("b_total", "result" => "x").increment(2);
            counter!("b_total", "result" => "x").absolute(7);
            counter!("b_total", "result" => "x").absolute(5);
            counter!("b_total", "result" => "y").increment(1);
            gauge!("a").set(1.5);
            gauge!("cpu_seconds_total").set(0.25);
            counter!("unknown_total").increment(1);
        });
        assert_eq!(
            page(&own),
            "# HELP a As.\n# TYPE a gauge\na 1.5\n# HELP b_total Bs.\n# TYPE b_total counter\n\
             b_total{result=\"x\"} 7.0\nb_total{result=\"y\"} 1.0\n\
             # HELP cpu_seconds_total CPU.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 0.25\n"
        );
    }

    #[test]
    fn series_are_bounded() {
        let own = OwnMetrics::default();
        with_local_recorder(&own, || {
            describe_counter!("b_total", "Bs.");
            for number in 0..2 * MAX_SERIES {
                counter!("b_total", "number" => number.to_string()).increment(1);
            }
        });
        assert_eq!(page(&own).lines().count(), 2 + MAX_SERIES);
    }
}
