//! The catalog against the docs and the rules of names.

use std::collections::BTreeSet;

use super::*;

fn row(metric: &Descriptor) -> String {
    let kind = match metric.kind {
        MetricKind::Gauge => "gauge",
        MetricKind::Counter => "counter",
        MetricKind::Histogram => "histogram",
    };
    let unit = match metric.unit {
        Unit::Bytes => "bytes",
        Unit::Seconds => "seconds",
        Unit::Ratio => "ratio",
        Unit::Count => "count",
        Unit::BytesPerSecond => "bytes/s",
        Unit::Score => "score",
    };
    let origins: Vec<_> =
        metric.origins.iter().map(|named| format!("{} `{}`", named.origin.as_str(), named.name)).collect();
    let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    format!(
        "| `{}` | {kind} | {unit} | {} | {} | {} |",
        metric.name,
        labels.join(" "),
        metric.help,
        origins.join(", ")
    )
}

#[test]
fn the_docs_show_this_table() {
    let docs = include_str!("../../../docs/metrics.md");
    let prefixes = ["| `tpu_", "| `jax_", "| `grain_", "| `host_", "| `cgroup_"];
    let shown: Vec<_> =
        docs.lines().filter(|line| prefixes.iter().any(|prefix| line.starts_with(prefix))).collect();
    let wanted: Vec<_> = METRICS.iter().map(|metric| row(metric)).collect();
    assert_eq!(shown, wanted, "docs/metrics.md must hold these rows:\n{}", wanted.join("\n"));
}

#[test]
fn names_follow_the_conventions() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        assert!(names.insert(&metric.name), "{} stands twice", metric.name);
        assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
        let stem = metric.name.strip_suffix("_total").unwrap_or(&metric.name);
        let foreign = ["grain_python_data_sources_bytes_read"].contains(&stem);
        assert!(foreign || stem.ends_with(metric.unit.suffix()), "{} lacks its unit", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        let named =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte));
        assert!(named(&metric.name) && metric.labels.iter().all(|label| named(label)), "{}", metric.name);
    }
}

#[test]
fn names_of_an_origin_lead_to_one_metric() {
    let mut seen = BTreeSet::new();
    for named in METRICS.iter().flat_map(|metric| metric.origins) {
        assert!(seen.insert((named.origin, named.name)), "{} stands twice", named.name);
        assert_eq!(named.since > 0, named.origin == Origin::Libtpu, "{}", named.name);
    }
    let (metric, named) = by_origin(Origin::Libtpu, "duty_cycle_pct").expect("known");
    assert_eq!((metric.name.as_ref(), named.scale.apply(29.0)), ("tpu_tensorcore_duty_cycle_ratio", 0.29));
    assert_eq!(metric.lifetime_name("p50"), "tpu_tensorcore_duty_cycle_lifetime_p50_ratio");
}
