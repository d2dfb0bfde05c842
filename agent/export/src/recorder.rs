//! The agent's own metrics: what its crates count with the `metrics` facade, kept for the metrics page.
//!
//! Each crate describes its metrics once; a metric that nobody described is dropped. Everything is bounded. Must never
//! serve anything itself: the page asks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use super::page::{Label, Page, Type};

/// Maximum number of metrics.
const MAX_METRICS: usize = 256;
/// Maximum number of series of one metric.
const MAX_SERIES: usize = 64;

/// Keeps the agent's own metrics; clones share them.
#[derive(Debug, Clone, Default)]
pub struct OwnMetrics(Arc<Mutex<BTreeMap<String, OwnMetric>>>);

#[derive(Debug)]
struct OwnMetric {
    kind: Type,
    help: String,
    /// By labels, in the order of registration.
    series: BTreeMap<Vec<(String, String)>, Arc<Cell>>,
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
    pub fn described(&self) -> Vec<(String, &'static str, String)> {
        let described =
            |(name, metric): (&String, &OwnMetric)| (name.clone(), metric.kind.as_str(), metric.help.clone());
        self.metrics().iter().map(described).collect()
    }

    /// Adds every metric that has a series.
    pub(super) fn write(&self, page: &mut Page) {
        for (name, metric) in self.metrics().iter().filter(|(_, metric)| !metric.series.is_empty()) {
            page.family(name, metric.kind, &metric.help);
            for (labels, cell) in &metric.series {
                let labels: Vec<(&str, Label<'_>)> =
                    labels.iter().map(|(name, value)| (name.as_str(), Label::Text(value))).collect();
                page.sample(name, &labels, f64::from_bits(cell.0.load(Ordering::Relaxed)));
            }
        }
    }

    fn metrics(&self) -> MutexGuard<'_, BTreeMap<String, OwnMetric>> {
        // The map changes in single steps: it is whole even if a holder panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, kind: Type, help: &SharedString) {
        let mut metrics = self.metrics();
        if metrics.len() < MAX_METRICS {
            let metric = OwnMetric { kind, help: help.to_string(), series: BTreeMap::new() };
            metrics.entry(name.as_str().to_owned()).or_insert(metric);
        }
    }

    fn cell(&self, key: &Key) -> Option<Arc<Cell>> {
        let mut metrics = self.metrics();
        let series = &mut metrics.get_mut(key.name())?.series;
        let labels: Vec<(String, String)> =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        if !series.contains_key(&labels) && series.len() >= MAX_SERIES {
            return None;
        }
        Some(Arc::clone(series.entry(labels).or_default()))
    }
}

impl Recorder for OwnMetrics {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, Type::Counter, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, Type::Gauge, &help);
    }

    /// The agent has no histogram of its own.
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

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
    use crate::page::Format;

    fn page(own: &OwnMetrics) -> String {
        let mut page = Page::new(Format::Text, 0);
        own.write(&mut page);
        page.finish()
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
