//! The SDK's strings made into samples.
//!
//! A number per chip or core in the order of the service that gave it (`20.57`), a number with its label
//! (`0-tensorcore: 7`), or mean and quantiles of a distribution since the workload's start
//! (`8MB+-AllReduce, 123.46, 12.00, 90.00, 95.00, 99.90`). Must never name a chip that it cannot be sure of, nor
//! show a since-the-start figure under the name of a window.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use model::{
    catalog,
    device::Chip,
    label::{CHIP, CORE, Labels, SmolStr},
    metric::{Descriptor, MetricKind, MetricRef},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    untrusted::{self, clean, clean_label},
    workload::Workload,
};

use crate::sources::tray_chip;

/// Most series of one metric.
const MOST_SERIES: usize = 1024;
/// The values of a distribution in the SDK, in their order.
const FIGURES: [&str; 5] = ["mean", "p50", "p90", "p95", "p999"];

/// The descriptors of the figures of each distribution: gauges of all values since the start of the workload.
static LIFETIME: LazyLock<HashMap<&str, [MetricRef; 5]>> = LazyLock::new(|| {
    let distributions =
        catalog::of_origin(Origin::Libtpu).filter(|(metric, _)| metric.kind == MetricKind::Histogram);
    distributions.map(|(metric, _)| (&*metric.name, FIGURES.map(|figure| lifetime(metric, figure)))).collect()
});

fn lifetime(metric: &Descriptor, figure: &str) -> MetricRef {
    let what = if figure == "mean" { "Mean" } else { "Percentile" };
    let help = format!("{} {what} since the start of the workload, as the SDK gives it.", metric.help);
    Arc::new(Descriptor {
        name: metric.lifetime_name(figure).into(),
        help: help.into(),
        unit: metric.unit,
        kind: MetricKind::Gauge,
        labels: metric.labels,
        origins: &[],
    })
    .into()
}

/// What is needed to make samples, beside the strings.
#[derive(Debug, Clone)]
pub(super) struct SampleContext<'a> {
    pub(super) at: Timestamp,
    pub(super) chips: &'a [Chip],
    /// The workload that the SDK reads from, where there is one alone.
    pub(super) workload: Option<Arc<Workload>>,
}

/// The samples of one metric, and what could not be used.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DecodedMetric {
    pub(super) samples: Vec<Sample>,
    pub(super) fault: Option<String>,
}

/// The samples of the metric that the SDK calls `name`.
pub(super) fn decode(name: &str, values: &[String], context: &SampleContext<'_>) -> DecodedMetric {
    let Some((metric, named)) = catalog::by_origin(Origin::Libtpu, name) else {
        let fault = Some("the catalog does not list this metric".to_owned());
        return DecodedMetric { fault, ..DecodedMetric::default() };
    };
    let mut decoded = DecodedMetric::default();
    for (position, value) in values.iter().take(MOST_SERIES).enumerate() {
        let read = match metric.kind {
            MetricKind::Histogram => figures(metric, value),
            MetricKind::Gauge | MetricKind::Counter => {
                level(metric, value, position, values.len(), context.chips)
            }
        };
        match read {
            Some(series) => {
                decoded.samples.extend(series.into_iter().map(|(shown, labels, number)| {
                    sample(metric, shown, labels, named.scale.apply(number), context)
                }));
            }
            None => {
                decoded.fault = Some(format!("cannot read the value `{}`", clean(value, untrusted::LABEL)));
            }
        }
    }
    if values.len() > MOST_SERIES {
        decoded.fault = Some(format!("values beyond the first {MOST_SERIES} are ignored"));
    }
    decoded
}

fn sample(
    metric: &'static Descriptor,
    shown: MetricRef,
    labels: Labels,
    number: f64,
    context: &SampleContext<'_>,
) -> Sample {
    // The values of the host service belong to no workload.
    let of_host = metric.at(Origin::HostService).is_some();
    let counts = shown.kind == MetricKind::Counter;
    Sample {
        metric: shown,
        labels,
        value: if counts { SampleValue::Counter(number) } else { SampleValue::Gauge(number) },
        origin: Origin::Libtpu,
        at: context.at,
        workload: if of_host { None } else { context.workload.clone() },
    }
}

type DecodedSeries = (MetricRef, Labels, f64);

/// A finite number; 0.0.13 writes a unit behind it.
fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    text.strip_suffix('V').unwrap_or(text).parse().ok().filter(|number: &f64| number.is_finite())
}

/// One value, with the label before it or the label of its position.
fn level(
    metric: &'static Descriptor,
    value: &str,
    position: usize,
    count: usize,
    chips: &[Chip],
) -> Option<Vec<DecodedSeries>> {
    let (label, number) = match value.rsplit_once(": ") {
        Some((label, value)) => (Some(label), number(value)?),
        None => (None, number(value)?),
    };
    let labels = match label {
        Some(label) => labelled(metric, label),
        None => placed(metric, position, count, chips),
    };
    Some(vec![(metric.into(), labels, number)])
}

/// Mean and quantiles behind an optional label. The label may hold commas, so it is read from the end.
fn figures(metric: &'static Descriptor, value: &str) -> Option<Vec<DecodedSeries>> {
    let mut rest = value;
    let mut numbers = Vec::with_capacity(FIGURES.len());
    for _ in FIGURES {
        let (before, last) = rest.rsplit_once(',').unwrap_or(("", rest));
        numbers.push(number(last)?);
        rest = before;
    }
    let labels = if rest.is_empty() { Labels::none() } else { labelled(metric, rest) };
    let shown = LIFETIME.get(&*metric.name)?;
    Some(
        shown
            .iter()
            .zip(numbers.into_iter().rev())
            .map(|(shown, number)| (shown.clone(), labels.clone(), number))
            .collect(),
    )
}

/// Labels of a text like `0-tensorcore`, `1-0`, `tray1.chip0.ici0.int` or `8MB+-AllReduce`: of a metric per core its
/// core, then the metric's own label.
fn labelled(metric: &Descriptor, text: &str) -> Labels {
    let own = metric.labels.iter().find(|name| ![CHIP, CORE].contains(*name));
    let mut labels = Labels::none();
    let mut rest = text;
    if metric.has_label(CORE)
        && let Some((core, behind)) = text.split_once('-')
        && let Ok(core) = core.parse::<u32>()
    {
        labels.push(SmolStr::new_static(CORE), core);
        rest = behind;
    }
    if own == Some(&"link") {
        return tray_chip::link_labels(rest);
    }
    if let Some(own) = own {
        labels.push(SmolStr::new_static(own), clean_label(rest));
    }
    labels
}

/// Labels of the value at a position. The SDK drops the chip of a value. It is known only if there is one
/// chip with one value.
fn placed(metric: &Descriptor, position: usize, count: usize, chips: &[Chip]) -> Labels {
    match chips {
        _ if !metric.has_label(CHIP) => Labels::none(),
        [only] if count == 1 => Labels::chip(only.index),
        _ => Labels::one("position", position.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::{
        device::ChipIndex,
        job::{Job, JobKind},
        workload::WorkloadId,
    };

    fn chip(index: u32) -> Chip {
        Chip { index: ChipIndex(index), ..Chip::default() }
    }

    fn context(chips: &[Chip]) -> SampleContext<'_> {
        let job = Job { kind: JobKind::Process, id: "1-2".to_owned(), ..Job::default() };
        let workload =
            Workload { id: WorkloadId::of(&job, 0), label: job.id.clone(), job, owners: Vec::new() };
        SampleContext { at: Timestamp(5), chips, workload: Some(Arc::new(workload)) }
    }

    /// `metric{labels} value`, one for each sample.
    fn shown(name: &str, values: &[&str]) -> Vec<String> {
        let chips = [chip(0), chip(1)];
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let decoded = decode(name, &values, &context(&chips));
        assert_eq!(decoded.fault, None, "{name}");
        let label = |sample: &Sample| {
            let parts: Vec<_> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            parts.join(",")
        };
        let value = |sample: &Sample| match sample.value {
            // Twelve digits: scaling by a power of ten costs the last bit.
            SampleValue::Gauge(value) | SampleValue::Counter(value) => {
                format!("{value:.11e}").parse::<f64>().unwrap()
            }
            _ => panic!("no gauge"),
        };
        decoded.samples.iter().map(|one| format!("{}{{{}}} {}", one.metric, label(one), value(one))).collect()
    }

    #[test]
    fn levels_get_our_names_and_units() {
        assert_eq!(
            shown("tensorcore_util", &["10.50", "25.00"]),
            [
                "tpu_chip_tensorcore_utilization_ratio{position=0} 0.105",
                "tpu_chip_tensorcore_utilization_ratio{position=1} 0.25"
            ]
        );
        assert_eq!(
            shown("hbm_capacity_total", &["33550229504"]),
            ["tpu_hbm_total_bytes{position=0} 33550229504"]
        );
        assert_eq!(shown("idle_duration", &["3.14"]), ["tpu_tensorcore_idle_seconds{position=0} 3.14"]);
        assert_eq!(shown("orbax_write_size", &["1.50"]), ["jax_orbax_write_bytes{} 1500000000"]);
        // As 0.0.13 writes it.
        assert_eq!(
            shown("tensorcore_util", &["10.50V"]),
            ["tpu_chip_tensorcore_utilization_ratio{position=0} 0.105"]
        );
    }

    #[test]
    fn labels_are_taken_apart() {
        assert_eq!(
            shown("hlo_queue_size", &["12-tensorcore: 7", "unknown: 2"]),
            ["tpu_hlo_queue_size{core=12,core_type=tensorcore} 7", "tpu_hlo_queue_size{core_type=unknown} 2"]
        );
        assert_eq!(shown("tpu_throttle_score", &["1-0: 3"]), ["tpu_chip_throttle_score{tray_chip=1-0} 3"]);
        assert_eq!(
            shown("ici_link_health", &["tray1.chip0.ici0.int: 5"]),
            ["tpu_ici_link_health_score{link=tray1.chip0.ici0.int,tray_chip=1-0} 5"]
        );
    }

    #[test]
    fn distributions_since_the_start_have_names_of_their_own() {
        assert_eq!(
            shown("buffer_transfer_latency", &["8MB+-a, b, 100.00, 10.00, 90.00, 95.00, 99.00"]),
            [
                "tpu_dcn_transfer_lifetime_mean_seconds{buffer_size=8MB+-a, b} 0.0001",
                "tpu_dcn_transfer_lifetime_p50_seconds{buffer_size=8MB+-a, b} 0.00001",
                "tpu_dcn_transfer_lifetime_p90_seconds{buffer_size=8MB+-a, b} 0.00009",
                "tpu_dcn_transfer_lifetime_p95_seconds{buffer_size=8MB+-a, b} 0.000095",
                "tpu_dcn_transfer_lifetime_p999_seconds{buffer_size=8MB+-a, b} 0.000099"
            ]
        );
        let rate = shown("tcp_delivery_rate", &["8.00, 16.00, 24.00, 32.00, 40.00"]);
        assert_eq!(rate[0], "tpu_dcn_tcp_delivery_rate_lifetime_mean_bytes_per_second{} 1000000");
        let timing = shown("hlo_execution_timing", &["3-tensorcore, 1.00, 1.00, 1.00, 1.00, 1.00"]);
        assert_eq!(
            timing[0],
            "tpu_hlo_execution_lifetime_mean_seconds{core=3,core_type=tensorcore} 0.000001"
        );
    }

    #[test]
    fn one_chip_is_named_and_the_hosts_metrics_have_no_job() {
        let chips = [chip(0)];
        let duty = decode("duty_cycle_pct", &["50".to_owned()], &context(&chips));
        assert_eq!(duty.samples[0].labels, Labels::chip(ChipIndex(0)));
        assert!(duty.samples[0].workload.is_some());
        let utilization = decode("hbm_util", &["50".to_owned()], &context(&chips));
        assert_eq!(utilization.samples[0].workload, None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_finite_sample_or_a_fault(
            at in 0..catalog::of_origin(Origin::Libtpu).count(),
            values in proptest::collection::vec(".{0,40}|[-0-9.,: inafe]{0,30}", 0..20),
        ) {
            let (_, named) = catalog::of_origin(Origin::Libtpu).nth(at).unwrap();
            let decoded = decode(named.name, &values, &context(&[]));
            for sample in &decoded.samples {
                let (SampleValue::Gauge(value) | SampleValue::Counter(value)) = sample.value else {
                    panic!("{sample:?}")
                };
                prop_assert!(value.is_finite());
            }
            prop_assert!(decoded.fault.is_some() || decoded.samples.len() >= values.len());
        }
    }
}
