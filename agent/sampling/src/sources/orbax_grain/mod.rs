//! The Prometheus endpoint that Orbax and Grain open inside a workload: checkpoints and input.
//!
//! A scrape costs the workload's interpreter a little, so it is made seldom. Must never follow a redirect, read more
//! than [`LONGEST_PAGE`], or wait beyond [`DEADLINE`].

mod prometheus_text;
mod scrape;

use std::{collections::HashMap, future::Future, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use model::{
    catalog,
    distribution::Distribution,
    label::Labels,
    metric::{Descriptor, MetricKind, MetricRef, Scale, Unit},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::{Address, EndpointKind, Workload},
};
use prometheus_text::{MetricFamily, SeriesValue};
use tokio::time::Instant;

use super::{Absence, Reading, Source, Tick, retry::Retry};

/// How long a scrape may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// The longest page that is read.
pub(super) const LONGEST_PAGE: usize = 512 * 1024;
/// Endpoints that are read at the same time.
const AT_ONCE: usize = 4;
/// More endpoints than any host has.
const MOST_ENDPOINTS: usize = 64;
/// Most descriptors that are kept for one endpoint.
const MOST_DESCRIPTORS: usize = 1024;
/// Help of a series that the catalog does not list: Orbax and Grain name theirs themselves.
const HELP: &str = "A series that the workload exports under this name.";

const NO_ENDPOINT: &str = "no workload opens the endpoint: it does when ENABLE_ORBAX_PROMETHEUS_TELEMETRY or \
                           ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY is true in its environment";

/// The source.
#[derive(Default)]
pub struct OrbaxGrainSource {
    targets: Vec<ScrapeTarget>,
}

/// One endpoint.
struct ScrapeTarget {
    address: Address,
    workload: Option<Arc<Workload>>,
    retry: Retry,
    fault: Option<String>,
    /// The distributions of the last page.
    distributions: HashMap<(String, Labels), Arc<Distribution>>,
    /// What their metrics are here, so that the samples of a series share one descriptor.
    descriptors: HashMap<(String, MetricKind), (MetricRef, Scale)>,
}

impl OrbaxGrainSource {
    /// Targets exactly for the reachable endpoints; known ones keep what they counted.
    fn follow(&mut self, tick: &Tick) -> Vec<Absence> {
        let mut absent = Vec::new();
        let mut before = std::mem::take(&mut self.targets);
        for (owner, endpoint) in tick.endpoints(EndpointKind::OrbaxGrain) {
            if let Some(why) = &endpoint.unreachable {
                absent.push(Absence::of_endpoint(&endpoint.address, why.clone()));
                continue;
            }
            let twice = self.targets.iter().any(|target| target.address == endpoint.address);
            if twice || self.targets.len() == MOST_ENDPOINTS {
                continue;
            }
            let workload = owner.and_then(|owner| tick.workload(owner));
            let id = |workload: &Option<Arc<Workload>>| workload.as_ref().map(|workload| workload.id.clone());
            let known = before.iter().position(|target| {
                target.address == endpoint.address && id(&target.workload) == id(&workload)
            });
            let mut target = known.map_or_else(
                || ScrapeTarget::new(endpoint.address.clone()),
                |known| before.swap_remove(known),
            );
            target.workload = workload;
            self.targets.push(target);
        }
        absent
    }
}

/// The samples of pages that one endpoint showed one after the other, without I/O.
pub fn decode_pages(pages: &[&str]) -> Vec<Sample> {
    let (mut target, at) = (ScrapeTarget::new(Address::Unix(PathBuf::new())), Timestamp(0));
    pages.iter().flat_map(|page| target.samples(prometheus_text::parse(page, at), at)).collect()
}

impl Source for OrbaxGrainSource {
    fn origin(&self) -> Origin {
        Origin::OrbaxGrain
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async move {
            let absent = self.follow(tick);
            if self.targets.is_empty() && absent.is_empty() {
                return Reading::unused(NO_ENDPOINT);
            }
            let mut whole = Reading { absent, ..Reading::default() };
            let reads: Vec<_> = self.targets.iter_mut().map(|target| target.read(tick.at)).collect();
            let readings: Vec<Reading> = stream::iter(reads).buffered(AT_ONCE).collect().await;
            for reading in readings {
                whole.samples.extend(reading.samples);
                whole.absent.extend(reading.absent);
            }
            whole
        })
    }
}

impl ScrapeTarget {
    fn new(address: Address) -> Self {
        Self {
            address,
            workload: None,
            retry: Retry::default(),
            fault: None,
            distributions: HashMap::new(),
            descriptors: HashMap::new(),
        }
    }

    async fn read(&mut self, at: Timestamp) -> Reading {
        let mut reading = Reading::default();
        let now = Instant::now();
        if self.retry.due(now) {
            match scrape::get(&self.address).await {
                Ok(page) => {
                    self.retry.succeeded();
                    let families = prometheus_text::parse(&page, at);
                    self.fault =
                        families.is_empty().then(|| "the page has no value of Orbax or Grain yet".to_owned());
                    reading.samples = self.samples(families, at);
                }
                Err(error) => {
                    self.retry.failed(now);
                    self.fault = Some(error.to_string());
                }
            }
        }
        if let Some(why) = &self.fault {
            reading.absent.push(Absence::of_endpoint(&self.address, why.clone()));
        }
        reading
    }

    fn samples(&mut self, families: Vec<MetricFamily>, at: Timestamp) -> Vec<Sample> {
        let mut before = std::mem::take(&mut self.distributions);
        let mut samples = Vec::new();
        for family in families {
            for (labels, value) in family.series {
                let (metric, scale) = self.describe(&family.name, value.kind());
                let value = match value {
                    // Declared as a gauge, but only ever counted up.
                    SeriesValue::Gauge(number) if metric.kind == MetricKind::Counter => {
                        SampleValue::Counter(scale.apply(number))
                    }
                    SeriesValue::Gauge(number) => SampleValue::Gauge(scale.apply(number)),
                    SeriesValue::Counter(number) => SampleValue::Counter(scale.apply(number)),
                    SeriesValue::Histogram(mut now) => {
                        now.bounds = now.bounds.iter().map(|bound| scale.apply(*bound)).collect();
                        now.sum = scale.apply(now.sum);
                        let key = (family.name.clone(), labels.clone());
                        let next = Arc::new(match before.remove(&key) {
                            Some(before) => Distribution::following(now, &before.histogram),
                            None => Distribution::first(now),
                        });
                        self.distributions.insert(key, next.clone());
                        SampleValue::Distribution(next)
                    }
                };
                samples.push(Sample {
                    metric,
                    labels,
                    value,
                    origin: Origin::OrbaxGrain,
                    at,
                    workload: self.workload.clone(),
                });
            }
        }
        samples
    }

    /// What a metric of theirs is here.
    fn describe(&mut self, theirs: &str, kind: MetricKind) -> (MetricRef, Scale) {
        if self.descriptors.len() >= MOST_DESCRIPTORS {
            self.descriptors.clear();
        }
        let key = (theirs.to_owned(), kind);
        self.descriptors.entry(key).or_insert_with(|| describe(theirs, kind)).clone()
    }
}

/// The metric of the catalog, else theirs with its unit made a base unit.
fn describe(theirs: &str, kind: MetricKind) -> (MetricRef, Scale) {
    // These libraries declare what they count as gauges.
    let counts = kind == MetricKind::Gauge && theirs.ends_with("_start");
    let kind = if counts { MetricKind::Counter } else { kind };
    let (name, unit, scale) = match catalog::by_origin(Origin::OrbaxGrain, theirs) {
        Some((metric, named)) if metric.kind == kind => return (metric.into(), named.scale),
        Some((metric, named)) => (metric.name.to_string(), metric.unit, named.scale),
        None => by_rule(theirs),
    };
    // What the catalog says is about a value of its own kind.
    let help = HELP.into();
    let name = name.strip_suffix("_total").map_or(name.clone(), str::to_owned);
    let name = if kind == MetricKind::Counter { format!("{name}_total") } else { name };
    let descriptor = Descriptor { name: name.into(), help, unit, kind, labels: &[], origins: &[] };
    (Arc::new(descriptor).into(), scale)
}

/// Their name with the suffix of a base unit, the unit, and the scale to it.
fn by_rule(theirs: &str) -> (String, Unit, Scale) {
    const RULES: &[(&str, Unit, Scale)] = &[
        ("_gbytes_per_sec", Unit::BytesPerSecond, Scale::times(1e9)),
        ("_gbytes", Unit::Bytes, Scale::times(1e9)),
        ("_secs", Unit::Seconds, Scale::ONE),
        ("_ns", Unit::Seconds, Scale::over(1e9)),
        ("_ms", Unit::Seconds, Scale::over(1e3)),
        ("_seconds", Unit::Seconds, Scale::ONE),
        ("_bytes", Unit::Bytes, Scale::ONE),
    ];
    for (suffix, unit, scale) in RULES {
        if let Some(stem) = theirs.strip_suffix(suffix) {
            return (format!("{stem}{}", unit.suffix()), *unit, *scale);
        }
    }
    (theirs.to_owned(), Unit::Count, Scale::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> ScrapeTarget {
        ScrapeTarget::new(Address::Tcp(([127, 0, 0, 1], 9431).into()))
    }

    fn shown(samples: &[Sample]) -> Vec<(&str, SampleValue)> {
        samples.iter().map(|sample| (sample.metric.name.as_ref(), sample.value.clone())).collect()
    }

    fn distribution(sample: &Sample) -> &Distribution {
        let SampleValue::Distribution(distribution) = &sample.value else { panic!("{sample:?}") };
        distribution
    }

    #[test]
    fn names_of_the_catalog_and_by_rule() {
        for (theirs, ours, scaled) in [
            ("jax_orbax_write_gbytes", "jax_orbax_write_bytes", 1e9),
            ("grain_python_dataset_next_duration_ns", "grain_python_dataset_next_duration_seconds", 1e-9),
            (
                "jax_checkpoint_write_duration_since_last_checkpoint_secs",
                "jax_checkpoint_write_duration_since_last_checkpoint_seconds",
                1.0,
            ),
            ("grain_python_other", "grain_python_other", 1.0),
        ] {
            let (metric, scale) = describe(theirs, MetricKind::Gauge);
            assert_eq!((metric.name.as_ref(), scale.apply(1.0)), (ours, scaled));
        }
        let (metric, _) = describe("jax_orbax_write_gbytes", MetricKind::Histogram);
        assert_eq!((metric.kind, metric.name.as_ref()), (MetricKind::Histogram, "jax_orbax_write_bytes"));
        assert_eq!(metric.help, HELP);
        // What is counted is a counter, whether the catalog knows it or not.
        for (theirs, ours) in [
            ("jax_orbax_write_async_start", "jax_orbax_write_async_start_total"),
            ("jax_orbax_emergency_start", "jax_orbax_emergency_start_total"),
        ] {
            for kind in [MetricKind::Gauge, MetricKind::Counter] {
                let (metric, _) = describe(theirs, kind);
                assert_eq!((metric.kind, metric.name.as_ref()), (MetricKind::Counter, ours));
            }
            let page = format!("# TYPE {theirs} gauge\n{theirs} 8\n");
            let samples = target().samples(prometheus_text::parse(&page, Timestamp(0)), Timestamp(0));
            assert_eq!(shown(&samples), [(ours, SampleValue::Counter(8.0))]);
        }
    }

    #[test]
    fn a_histogram_is_kept_with_a_window_of_what_is_new() {
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
        let mut target = target();
        let first = target.samples(prometheus_text::parse(&text(3, 1, 7.5), Timestamp(5)), Timestamp(5));
        assert_eq!(distribution(&first[0]).window, None);
        let samples = target.samples(prometheus_text::parse(&text(4, 3, 17.5), Timestamp(6)), Timestamp(6));
        assert_eq!(samples[0].metric.name, "jax_checkpoint_write_x_seconds");
        let Distribution { histogram, window } = distribution(&samples[0]);
        assert_eq!(
            (histogram.counts.as_slice(), histogram.sum, histogram.since),
            (&[4, 3, 0][..], 17.5, Timestamp(5))
        );
        let window = window.as_ref().unwrap();
        assert_eq!((window.counts.as_slice(), window.mean), (&[1, 2, 0][..], 10.0 / 3.0));
        assert_eq!(window.bounds[..], [1.0, 10.0]);
    }

    #[test]
    fn gauges_counters_and_summaries() {
        let text = "# TYPE grain_python_reads counter\ngrain_python_reads_total 5\ngrain_python_reads_created 1e9\n\
                    # TYPE grain_python_wait_ns summary\ngrain_python_wait_ns_count 2\ngrain_python_wait_ns_sum 6e9\n\
                    jax_orbax_write_gbytes{kind=\"full\"} 1.5\nprocess_cpu_seconds_total 3\n";
        let mut target = target();
        let first = target.samples(prometheus_text::parse(text, Timestamp(0)), Timestamp(0));
        assert_eq!(
            shown(&first)[..2],
            [
                ("grain_python_reads_total", SampleValue::Counter(5.0)),
                ("grain_python_wait_seconds", first[1].value.clone()),
            ]
        );
        assert_eq!(shown(&first)[2], ("jax_orbax_write_bytes", SampleValue::Gauge(1.5e9)));
        assert_eq!(first[2].labels, Labels::one("kind", "full"));
        let later = text.replace("6e9", "9e9").replace("ns_count 2", "ns_count 3");
        let later = target.samples(prometheus_text::parse(&later, Timestamp(1)), Timestamp(1));
        let Distribution { histogram, window } = distribution(&later[1]);
        assert_eq!((histogram.counts.as_slice(), histogram.sum), (&[3][..], 9.0));
        assert_eq!(window.as_ref().map(|window| (window.count(), window.mean)), Some((1, 3.0)));
        // The samples of a series share one descriptor.
        assert!(
            matches!((&first[1].metric, &later[1].metric), (MetricRef::Shared(a), MetricRef::Shared(b)) if Arc::ptr_eq(a, b))
        );
    }
}
