//! The SDK's strings made into samples.
//!
//! A number per chip or core in the order of the service that gave it (`20.57`), a number with its label
//! (`0-tensorcore: 7`), or mean and quantiles of a distribution since the workload's start
//! (`8MB+-AllReduce, 123.46, 12.00, 90.00, 95.00, 99.90`). Must never name a chip that it cannot be sure of, nor
//! show a since-the-start figure under the name of a window.

use std::{borrow::Cow, sync::Arc};

use model::{
    catalog::{self, Kind, Metric},
    device::Chip,
    job::Job,
    sample::{Labels, Origin, Sample, Value},
    time::Timestamp,
    untrusted::{self, clean},
};

/// Most series of one metric.
const MOST_SERIES: usize = 1024;
/// What the SDK gives of a distribution, in its order.
const FIGURES: [&str; 5] = ["mean", "p50", "p90", "p95", "p999"];

/// What is needed to make samples, beside the strings.
#[derive(Debug, Clone)]
pub(super) struct Context<'a> {
    pub(super) at: Timestamp,
    pub(super) chips: &'a [Chip],
    /// The job of the workload that the SDK reads from, where there is one alone.
    pub(super) job: Option<Arc<Job>>,
}

/// The samples of one metric, and what could not be used, in words.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decoded {
    pub(super) samples: Vec<Sample>,
    pub(super) trouble: Option<String>,
}

/// The samples of the metric that the SDK calls `name`.
pub(super) fn decode(name: &str, values: &[String], context: &Context<'_>) -> Decoded {
    let Some((metric, wire)) = catalog::by_wire(Origin::Libtpu, name) else {
        return Decoded {
            trouble: Some("tpuscope does not know this metric".to_owned()),
            ..Decoded::default()
        };
    };
    let mut decoded = Decoded::default();
    for (position, value) in values.iter().take(MOST_SERIES).enumerate() {
        let read = match metric.kind {
            Kind::Window => figures(metric, value),
            Kind::Gauge | Kind::Counter => level(metric, value, position, values.len(), context.chips),
        };
        match read {
            Some(series) => {
                decoded.samples.extend(series.into_iter().map(|(metric_name, labels, number)| {
                    sample(metric, metric_name, labels, number * wire.scale, context)
                }));
            }
            None => decoded.trouble = Some(format!("libtpu answers `{}`", clean(value, untrusted::LABEL))),
        }
    }
    if values.len() > MOST_SERIES {
        decoded.trouble = Some(format!("{} of its values are left out", values.len() - MOST_SERIES));
    }
    decoded
}

fn sample(
    metric: &'static Metric,
    name: Cow<'static, str>,
    labels: Labels,
    number: f64,
    context: &Context<'_>,
) -> Sample {
    // What the host's service gives belongs to no job.
    let of_host = metric.wires.iter().any(|wire| wire.origin == Origin::HostService);
    Sample {
        metric: name,
        labels,
        value: Value::Gauge(number),
        unit: metric.unit,
        origin: Origin::Libtpu,
        at: context.at,
        job: if of_host { None } else { context.job.clone() },
    }
}

type Series = (Cow<'static, str>, Labels, f64);

/// A finite number; 0.0.13 writes a unit behind it.
fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    text.strip_suffix('V').unwrap_or(text).parse().ok().filter(|number: &f64| number.is_finite())
}

/// One value, with the label that stands before it or that its position gives.
fn level(
    metric: &'static Metric,
    value: &str,
    position: usize,
    count: usize,
    chips: &[Chip],
) -> Option<Vec<Series>> {
    let (label, number) = match value.rsplit_once(": ") {
        Some((label, value)) => (Some(label), number(value)?),
        None => (None, number(value)?),
    };
    let labels = match label {
        Some(label) => labelled(metric, label),
        None => placed(metric, position, count, chips),
    };
    Some(vec![(Cow::Borrowed(metric.name), labels, number)])
}

/// Mean and quantiles behind an optional label. The label may hold commas, so it is read from the end.
fn figures(metric: &'static Metric, value: &str) -> Option<Vec<Series>> {
    let mut rest = value;
    let mut numbers = Vec::with_capacity(FIGURES.len());
    for _ in FIGURES {
        let (before, last) = rest.rsplit_once(',').unwrap_or(("", rest));
        numbers.push(number(last)?);
        rest = before;
    }
    let labels = if rest.is_empty() { Labels::default() } else { labelled(metric, rest) };
    let named = FIGURES.iter().zip(numbers.into_iter().rev());
    Some(
        named.map(|(figure, number)| (metric.lifetime_name(figure).into(), labels.clone(), number)).collect(),
    )
}

/// Labels of a text like `0-tensorcore`, `1-0`, `tray1.chip0.ici0.int` or `8MB+-AllReduce`.
fn labelled(metric: &Metric, label: &str) -> Labels {
    let extra = |name: &'static str, text: &str| Some((Cow::Borrowed(name), clean(text, untrusted::LABEL)));
    let own = metric.labels.iter().find(|name| !["chip", "core"].contains(*name));
    if metric.labels.contains(&"core_type") {
        let (core, kind) = match label.split_once('-') {
            Some((core, kind)) if core.parse::<u32>().is_ok() => (core.parse().ok(), kind),
            _ => (None, label),
        };
        return Labels { chip: None, core, extra: extra("core_type", kind) };
    }
    Labels { extra: own.and_then(|name| extra(name, label)), ..Labels::default() }
}

/// Labels of the value at a position. The SDK drops what says which chip a value is of; only where there is one
/// chip with one value it is known.
fn placed(metric: &Metric, position: usize, count: usize, chips: &[Chip]) -> Labels {
    match chips {
        _ if !metric.labels.contains(&"chip") => Labels::default(),
        [only] if count == 1 => Labels::chip(only.index),
        _ => Labels { extra: Some((Cow::Borrowed("position"), position.to_string())), ..Labels::default() },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use model::{device::ChipIndex, job::JobKind};

    fn chip(index: u32) -> Chip {
        Chip { index: ChipIndex(index), ..Chip::default() }
    }

    fn context(chips: &[Chip]) -> Context<'_> {
        let job = Job {
            kind: JobKind::Process,
            id: "1-2".to_owned(),
            attempt: None,
            name: None,
            user: None,
            rank: None,
            hosts: vec![],
        };
        Context { at: Timestamp(5), chips, job: Some(Arc::new(job)) }
    }

    /// `metric{labels} value`, one for each sample.
    fn shown(name: &str, values: &[&str]) -> Vec<String> {
        let chips = [chip(0), chip(1)];
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let decoded = decode(name, &values, &context(&chips));
        assert_eq!(decoded.trouble, None, "{name}");
        let label = |sample: &Sample| {
            let Labels { chip, core, extra } = &sample.labels;
            let mut parts = Vec::new();
            parts.extend(chip.map(|chip| format!("chip={chip}")));
            parts.extend(core.map(|core| format!("core={core}")));
            parts.extend(extra.as_ref().map(|(name, value)| format!("{name}={value}")));
            parts.join(",")
        };
        let value = |sample: &Sample| match sample.value {
            // Twelve digits: scaling by a power of ten costs the last bit.
            Value::Gauge(value) => format!("{value:.11e}").parse::<f64>().unwrap(),
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
            ["tpu_ici_link_health_score{link=tray1.chip0.ici0.int} 5"]
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
        assert!(duty.samples[0].job.is_some());
        let utilization = decode("hbm_util", &["50".to_owned()], &context(&chips));
        assert_eq!(utilization.samples[0].job, None);
    }

    #[test]
    fn every_name_of_the_sdk_is_known() {
        let newest = "0.0.52".parse().unwrap();
        let names = tpu_sys::version::metric_names(Some(&newest), 17);
        assert_eq!(names.len(), 32);
        for name in names {
            assert!(catalog::by_wire(Origin::Libtpu, name).is_some(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_finite_sample_or_a_trouble(
            at in 0_usize..32,
            values in proptest::collection::vec(".{0,40}|[-0-9.,: inafe]{0,30}", 0..20),
        ) {
            let newest = "0.0.52".parse().unwrap();
            let name = tpu_sys::version::metric_names(Some(&newest), 17)[at];
            let decoded = decode(name, &values, &context(&[]));
            for sample in &decoded.samples {
                let Value::Gauge(value) = sample.value else { panic!("no gauge") };
                prop_assert!(value.is_finite());
            }
            prop_assert!(decoded.trouble.is_some() || decoded.samples.len() >= values.len());
        }
    }
}
