//! The real libtpu, three versions, in a network namespace of their own: what the source reads through the child is
//! what the metric services served.

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
};

use fakes::{
    fake_host_service, fake_orbax,
    fake_runtime::workload,
    harness::{artifact, peer},
};
use model::{
    catalog,
    metric::{Descriptor, MetricKind},
    sample::Origin,
};
use proto::{
    libtpu::tpunetd::MetricType,
    tpu::monitoring::runtime::{gauge, metric::Measure},
};
use serde_json::Value;

const CHIPS: u32 = 4;

/// Values by metric, each with its further label, in the order of the service.
type Values = BTreeMap<String, Vec<(Option<String>, f64)>>;

/// The name of the samples that the SDK gives for a metric; of a distribution, those of its mean.
fn sample_name(metric: &Descriptor) -> String {
    match metric.kind {
        MetricKind::Histogram => metric.lifetime_name("mean"),
        MetricKind::Gauge | MetricKind::Counter => metric.name.to_string(),
    }
}

/// What the three services serve, in our names and units, with the names that the SDK has for them.
fn served() -> BTreeMap<&'static str, Values> {
    let mut all: BTreeMap<&'static str, Values> = BTreeMap::new();
    let mut put = |origin, wire: &str, label: Option<String>, number: f64| {
        let (metric, named) = catalog::by_origin(origin, wire).expect("a metric of the catalog");
        let Some(sdk) = metric.at(Origin::Libtpu) else { return };
        all.entry(sdk.name)
            .or_default()
            .entry(sample_name(metric))
            .or_default()
            .push((label, named.scale.apply(number)));
    };
    let devices: Vec<i64> = (0..i64::from(CHIPS)).collect();
    for metric in workload(&devices, 1) {
        for series in &metric.metrics {
            let number = match series.measure.as_ref().unwrap() {
                Measure::Gauge(gauge) => match gauge.value.as_ref().unwrap() {
                    gauge::Value::AsDouble(number) => *number,
                    gauge::Value::AsInt(number) => *number as f64,
                    other => panic!("{other:?}"),
                },
                Measure::Distribution(distribution) => distribution.mean,
                other => panic!("{other:?}"),
            };
            put(Origin::Runtime, &metric.name, None, number);
        }
    }
    for chip in fake_host_service::metrics(CHIPS, 1).metrics_data {
        for metric in &chip.metrics {
            let kind = MetricType::try_from(metric.metric_type).unwrap();
            put(Origin::HostService, kind.as_str_name(), None, metric.utilization.into());
        }
        let health = chip.tpu_health_metrics.unwrap();
        let throttling = health.chip_throttling_metric.unwrap();
        let tray_chip = format!("{}-{}", throttling.tray_id, throttling.chip_id);
        put(Origin::HostService, "throttling_score", Some(tray_chip), throttling.throttling_score as f64);
        for link in health.ici_link_metrics {
            put(Origin::HostService, "link_health", Some(link.port_id), link.link_health as f64);
        }
    }
    for line in
        fake_orbax::page(1).lines().filter(|line| !line.starts_with('#') && !line.starts_with("process_"))
    {
        let (name, number) = line.split_once(' ').unwrap();
        put(Origin::OrbaxGrain, name, None, number.parse().unwrap());
    }
    all
}

/// One round of the source with this libtpu, in a network namespace where the services listen.
fn read(version: &str) -> Value {
    let library = peer(&format!("libtpu/{version}/libtpu/libtpu.so"));
    let output = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", r#"ip link set lo up && exec "$@""#, "sh"])
        .arg(artifact("read-libtpu"))
        .arg(library)
        .args(["--serve", &CHIPS.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "read-libtpu with {version} failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A gauge's or a counter's value.
fn number(value: &Value) -> f64 {
    value["gauge"].as_f64().or_else(|| value["counter"].as_f64()).expect("a gauge or a counter")
}

fn seen(round: &Value) -> Values {
    let mut all = Values::new();
    for sample in round["samples"].as_array().unwrap() {
        assert_eq!(sample["origin"], "libtpu");
        let metric = sample["metric"].as_str().unwrap().to_owned();
        let own = sample["labels"]
            .as_object()
            .unwrap()
            .iter()
            .find(|(name, _)| !["chip", "core"].contains(&name.as_str()));
        let label = own.map(|(_, value)| value.as_str().unwrap().to_owned());
        all.entry(metric).or_default().push((label, number(&sample["value"])));
    }
    all
}

fn compare(version: &str) {
    let round = read(version);
    let seen = seen(&round);
    let served = served();
    let number: tpu_sys::version::Version = version.parse().unwrap();
    let known = catalog::of_origin(Origin::Libtpu).filter(|(_, named)| number.at_least(named.since));
    let asked: Vec<_> = known.map(|(_, named)| named.name).collect();
    assert!(asked.len() > 1);
    assert_eq!(round["absent"], serde_json::json!([]), "{version}");
    for name in asked {
        let (entry, named) = catalog::by_origin(Origin::Libtpu, name).unwrap();
        let Some(served) = served.get(name) else {
            // Only the SDK has it: there is nothing to compare its values with.
            assert!(
                entry.origins.iter().all(|named| named.origin == Origin::Libtpu),
                "no fake serves {name}"
            );
            assert!(seen.contains_key(&sample_name(entry)), "{version}: no {name}");
            continue;
        };
        for (metric, expected) in served {
            let got = seen.get(metric).unwrap_or_else(|| panic!("{version}: no {metric} for {name}"));
            assert_eq!(got.len(), expected.len(), "{version} {name}: {got:?}");
            for ((got_label, got), (label, expected)) in got.iter().zip(expected) {
                // Two digits after the point is what the SDK gives.
                let close = (got - expected).abs() <= named.scale.apply(0.00501);
                assert!(close, "{version} {name}: {got} is not {expected}");
                if label.is_some() {
                    assert_eq!(got_label, label, "{version} {name}");
                }
            }
            if entry.kind == MetricKind::Histogram {
                let figure = |figure: &str| seen[&entry.lifetime_name(figure)][0].1;
                let quantiles = ["p50", "p90", "p95", "p999"].map(figure);
                assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{version} {name}: {quantiles:?}");
            }
        }
    }
}

#[test]
fn all_metrics_of_the_newest() {
    compare("0.0.52");
}

#[test]
fn all_metrics_of_an_older_one() {
    compare("0.0.30");
}

#[test]
fn all_metrics_of_one_that_aborts_at_unknown_names() {
    compare("0.0.21");
}
