//! The Prometheus endpoint that Orbax and Grain open inside a workload: checkpoints and input.
//!
//! A scrape costs the workload's interpreter a little, so it is made seldom. Must never follow a redirect, read more
//! than [`LONGEST_PAGE`], or wait beyond [`DEADLINE`].

mod scrape;
mod text;

use std::{
    borrow::Cow, collections::HashMap, future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration,
};

use futures_util::{StreamExt, stream};
use model::{
    catalog::{self, suffix},
    job::Job,
    sample::{Labels, Origin, Sample, Unit, Value},
    time::Timestamp,
    workload::{Address, EndpointKind},
};
use text::{Family, Measure};
use tokio::time::Instant;

use super::{Absence, Reading, Source, Tick, backoff::Backoff, endpoints, window::Total};

/// How long a scrape may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// The longest page that is read.
pub(super) const LONGEST_PAGE: usize = 512 * 1024;
/// Endpoints that are read at the same time.
const AT_ONCE: usize = 4;
/// More endpoints than any host has.
const MOST_ENDPOINTS: usize = 64;

/// The source.
#[derive(Default)]
pub struct OrbaxGrain {
    pages: Vec<Page>,
}

/// One endpoint.
struct Page {
    address: Address,
    job: Option<Arc<Job>>,
    backoff: Backoff,
    trouble: Option<String>,
    totals: HashMap<(String, Labels), Total>,
}

impl OrbaxGrain {
    /// Pages exactly for the reachable endpoints; known ones keep what they counted.
    fn follow(&mut self, tick: &Tick) -> Vec<Absence> {
        let mut absent = Vec::new();
        let mut before = std::mem::take(&mut self.pages);
        for (owner, endpoint) in endpoints(&tick.workloads, EndpointKind::OrbaxGrain) {
            if let Some(why) = &endpoint.unreachable {
                absent.push(Absence { what: endpoint.address.to_string(), why: why.clone() });
                continue;
            }
            let twice = self.pages.iter().any(|page| page.address == endpoint.address);
            if twice || self.pages.len() == MOST_ENDPOINTS {
                continue;
            }
            let job = owner.map(|owner| Arc::new(owner.job.clone()));
            let known = before.iter().position(|page| page.address == endpoint.address && page.job == job);
            self.pages.push(
                known.map_or_else(
                    || Page::new(endpoint.address.clone(), job),
                    |known| before.swap_remove(known),
                ),
            );
        }
        if self.pages.is_empty() && absent.is_empty() {
            let why = "no workload opens the endpoint: it does when ENABLE_ORBAX_PROMETHEUS_TELEMETRY or \
                       ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY is true in its environment";
            absent.push(Absence { what: "Orbax and Grain".to_owned(), why: why.to_owned() });
        }
        absent
    }
}

/// The samples of pages that one endpoint showed one after the other, without I/O.
pub fn decode_pages(pages: &[&str]) -> Vec<Sample> {
    let mut endpoint = Page::new(Address::Unix(PathBuf::new()), None);
    pages.iter().flat_map(|page| endpoint.samples(text::parse(page), Timestamp(0))).collect()
}

impl Source for OrbaxGrain {
    fn origin(&self) -> Origin {
        Origin::OrbaxGrain
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async move {
            let mut whole = Reading { samples: Vec::new(), absent: self.follow(tick) };
            let reads: Vec<_> = self.pages.iter_mut().map(|page| page.read(tick.at)).collect();
            let readings: Vec<Reading> = stream::iter(reads).buffered(AT_ONCE).collect().await;
            for reading in readings {
                whole.samples.extend(reading.samples);
                whole.absent.extend(reading.absent);
            }
            whole
        })
    }
}

impl Page {
    fn new(address: Address, job: Option<Arc<Job>>) -> Self {
        Self { address, job, backoff: Backoff::default(), trouble: None, totals: HashMap::new() }
    }

    async fn read(&mut self, at: Timestamp) -> Reading {
        let mut reading = Reading::default();
        let now = Instant::now();
        if self.backoff.due(now) {
            match scrape::get(&self.address).await {
                Ok(page) => {
                    self.backoff.succeeded();
                    let families = text::parse(&page);
                    self.trouble = families
                        .is_empty()
                        .then(|| "it answers and has no value of Orbax or Grain yet".to_owned());
                    reading.samples = self.samples(families, at);
                }
                Err(error) => {
                    self.backoff.failed(now);
                    self.trouble = Some(error.to_string());
                }
            }
        }
        if let Some(why) = &self.trouble {
            reading.absent.push(Absence { what: self.address.to_string(), why: why.clone() });
        }
        reading
    }

    fn samples(&mut self, families: Vec<Family>, at: Timestamp) -> Vec<Sample> {
        let mut before = std::mem::take(&mut self.totals);
        let mut samples = Vec::new();
        for family in families {
            let named = name(&family.name);
            for (labels, measure) in family.series {
                let (metric, value) = match measure {
                    Measure::Gauge(number) => (named.metric.clone(), Value::Gauge(number * named.scale)),
                    Measure::Counter(number) => {
                        (Cow::Owned(format!("{}_total", named.metric)), Value::Counter(number * named.scale))
                    }
                    Measure::Total(mut total) => {
                        total.scale(named.scale);
                        let key = (family.name.clone(), labels.clone());
                        let window = before.remove(&key).map(|before| total.since(&before));
                        self.totals.insert(key, total);
                        let Some(window) = window else { continue };
                        (named.metric.clone(), Value::Window(window))
                    }
                };
                samples.push(Sample {
                    metric,
                    labels,
                    value,
                    unit: named.unit,
                    origin: Origin::OrbaxGrain,
                    at,
                    job: self.job.clone(),
                });
            }
        }
        samples
    }
}

/// What we call a metric of theirs.
struct Named {
    metric: Cow<'static, str>,
    unit: Unit,
    scale: f64,
}

/// The name of the table, else theirs with its unit made a base unit.
fn name(theirs: &str) -> Named {
    if let Some((metric, wire)) = catalog::by_wire(Origin::OrbaxGrain, theirs) {
        return Named { metric: Cow::Borrowed(metric.name), unit: metric.unit, scale: wire.scale };
    }
    const RULES: &[(&str, Unit, f64)] = &[
        ("_gbytes_per_sec", Unit::BytesPerSecond, 1e9),
        ("_gbytes", Unit::Bytes, 1e9),
        ("_secs", Unit::Seconds, 1.0),
        ("_ns", Unit::Seconds, 1e-9),
        ("_ms", Unit::Seconds, 1e-3),
        ("_seconds", Unit::Seconds, 1.0),
        ("_bytes", Unit::Bytes, 1.0),
    ];
    for (ending, unit, scale) in RULES {
        if let Some(stem) = theirs.strip_suffix(ending) {
            let metric = Cow::Owned(format!("{stem}{}", suffix(*unit)));
            return Named { metric, unit: *unit, scale: *scale };
        }
    }
    Named { metric: Cow::Owned(theirs.to_owned()), unit: Unit::Count, scale: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::new(Address::Tcp(([127, 0, 0, 1], 9431).into()), None)
    }

    fn shown(samples: &[Sample]) -> Vec<(&str, Value)> {
        samples.iter().map(|sample| (sample.metric.as_ref(), sample.value.clone())).collect()
    }

    #[test]
    fn names_of_the_table_and_by_rule() {
        for (theirs, ours, scale) in [
            ("jax_orbax_write_gbytes", "jax_orbax_write_bytes", 1e9),
            ("grain_python_dataset_next_duration_ns", "grain_python_dataset_next_duration_seconds", 1e-9),
            (
                "jax_checkpoint_write_duration_since_last_checkpoint_secs",
                "jax_checkpoint_write_duration_since_last_checkpoint_seconds",
                1.0,
            ),
            ("grain_python_other", "grain_python_other", 1.0),
        ] {
            let named = name(theirs);
            assert_eq!((named.metric.as_ref(), named.scale), (ours, scale));
        }
    }

    #[test]
    fn a_histogram_becomes_a_window_of_what_is_new() {
        let text = |fast: u64, slow: u64, sum: f64| {
            format!(
                "# TYPE jax_checkpoint_write_x_secs histogram\n\
                 jax_checkpoint_write_x_secs_bucket{{le=\"1\"}} {fast}\n\
                 jax_checkpoint_write_x_secs_bucket{{le=\"10\"}} {}\n\
                 jax_checkpoint_write_x_secs_bucket{{le=\"+Inf\"}} {}\n\
                 jax_checkpoint_write_x_secs_sum {sum}\n\
                 jax_checkpoint_write_x_secs_count {}\n",
                fast + slow,
                fast + slow,
                fast + slow
            )
        };
        let mut page = page();
        assert!(page.samples(text::parse(&text(3, 1, 7.5)), Timestamp(0)).is_empty());
        let samples = page.samples(text::parse(&text(4, 3, 17.5)), Timestamp(1));
        let window =
            model::sample::Distribution { bounds: vec![1.0, 10.0], counts: vec![1, 2, 0], mean: 10.0 / 3.0 };
        assert_eq!(shown(&samples), [("jax_checkpoint_write_x_seconds", Value::Window(window))]);
    }

    #[test]
    fn gauges_counters_and_summaries() {
        let text = "# TYPE grain_python_reads counter\ngrain_python_reads_total 5\ngrain_python_reads_created 1e9\n\
                    # TYPE grain_python_wait_ns summary\ngrain_python_wait_ns_count 2\ngrain_python_wait_ns_sum 6e9\n\
                    jax_orbax_write_gbytes{kind=\"full\"} 1.5\nprocess_cpu_seconds_total 3\n";
        let mut page = page();
        let first = page.samples(text::parse(text), Timestamp(0));
        assert_eq!(
            shown(&first),
            [
                ("grain_python_reads_total", Value::Counter(5.0)),
                ("jax_orbax_write_bytes", Value::Gauge(1.5e9))
            ]
        );
        assert_eq!(first[1].labels.extra, Some(("kind".into(), "full".into())));
        let later = page.samples(
            text::parse(&text.replace("6e9", "9e9").replace("ns_count 2", "ns_count 3")),
            Timestamp(1),
        );
        let window = model::sample::Distribution { bounds: vec![], counts: vec![1], mean: 3.0 };
        assert!(shown(&later).contains(&("grain_python_wait_seconds", Value::Window(window))));
    }
}
