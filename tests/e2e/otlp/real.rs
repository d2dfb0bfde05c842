//! Through a real collector into a real database, asked with PromQL.
//!
//! The database of Debian is older than its support of OTLP: what the collector passes on is put into it in the text format of
//! Prometheus, by the usual rules (the name and the labels as they are, `job` and `instance` from the resource).

use std::fmt::Write;

use fakes::{
    fake_collector::{FakeCollector, OtlpMessage, numbers, texts},
    fake_runtime,
    otlp_peers::{Rotel, VictoriaMetrics},
    wait::{LIMIT, wait_with},
};
use proto::opentelemetry::proto::metrics::v1::{HistogramDataPoint, Metric, metric::Data};

use super::OtlpAgent;

/// Messages as samples of Prometheus.
fn samples(messages: &[OtlpMessage]) -> String {
    let mut text = String::new();
    for host in messages.iter().flat_map(|message| &message.resource_metrics) {
        let of_host = texts(&host.resource.as_ref().unwrap().attributes);
        let target: Vec<String> = of_host
            .iter()
            .filter_map(|attribute| match attribute.split_once('=')? {
                ("service.name", value) => Some(format!("job=\"{value}\"")),
                ("service.instance.id", value) => Some(format!("instance=\"{value}\"")),
                _ => None,
            })
            .collect();
        host.scope_metrics
            .iter()
            .flat_map(|scope| &scope.metrics)
            .for_each(|metric| add(&mut text, metric, &target));
    }
    text
}

fn add(text: &mut String, metric: &Metric, target: &[String]) {
    let name = &metric.name;
    let labels = |attributes: &[String]| {
        let own = attributes.iter().filter_map(|attribute| attribute.split_once('='));
        let own = own.map(|(name, value)| format!("{name}={value:?}"));
        target.iter().cloned().chain(own).collect::<Vec<_>>().join(",")
    };
    for number in numbers(metric) {
        let (labels, milliseconds) = (labels(&number.attributes), number.time / 1_000_000);
        writeln!(text, "{name}{{{labels}}} {} {milliseconds}", number.value).unwrap();
    }
    let Some(Data::Histogram(histogram)) = &metric.data else { return };
    for HistogramDataPoint {
        attributes, time_unix_nano, count, sum, bucket_counts, explicit_bounds, ..
    } in &histogram.data_points
    {
        let (labels, milliseconds) = (labels(&texts(attributes)), time_unix_nano / 1_000_000);
        let bounds = explicit_bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut up_to = 0;
        for (bound, of_bucket) in bounds.zip(bucket_counts) {
            up_to += of_bucket;
            writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {up_to} {milliseconds}").unwrap();
        }
        writeln!(text, "{name}_sum{{{labels}}} {} {milliseconds}", sum.unwrap()).unwrap();
        writeln!(text, "{name}_count{{{labels}}} {count} {milliseconds}").unwrap();
    }
}

fn value(database: &VictoriaMetrics, query: &str) -> Option<f64> {
    let found = database.query(query);
    assert!(found.len() < 2, "{query}: {found:?}");
    found.first()?["value"][1].as_str()?.parse().ok()
}

#[test]
fn a_real_collector_passes_on_what_a_real_database_answers_with_promql() {
    let behind = FakeCollector::start();
    let (rotel, database) = (Rotel::to(behind.address()), VictoriaMetrics::new());
    let exporting = OtlpAgent::start(&format!(
        "[export.otlp]\nendpoint = 'http://{}'\ninterval = '1s'\n[sampler]\ninterval = '250ms'\n",
        rotel.address()
    ));
    exporting.runtime.set_all(fake_runtime::workload(&[0, 1, 2, 3], 40));
    // Every step of the workload since its start: 20 programs on each core of each chip.
    let executions = "sum(tpu_hlo_execution_seconds_count)";
    let evidence = || {
        let passed_on = (behind.connections(), behind.sizes());
        format!("{passed_on:?} {:?}\n{}", value(&database, executions), exporting.agent.log())
    };
    wait_with("the database to have every step", LIMIT, evidence, || {
        let messages = behind.take();
        if !messages.is_empty() {
            database.import(&samples(&messages));
        }
        (value(&database, executions) == Some(3200.0)).then_some(())
    });

    let page = exporting.agent.get("/metrics", "").body;
    let on_page = |start: &str| -> f64 {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(start))
            .unwrap_or_else(|| panic!("{start}\n{page}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    let total = "tpu_hbm_total_bytes{chip=\"2\",core=\"2\"";
    assert_eq!(value(&database, "tpu_hbm_total_bytes{chip=\"2\",source=\"runtime\"}"), Some(on_page(total)));
    assert_eq!(value(&database, "count(tpu_hbm_used_bytes{job=\"tpuscope\",instance=\"vm-7\"})"), Some(4.0));
    let sum =
        value(&database, "sum(tpu_hlo_execution_seconds_sum{chip=\"1\",core_type=\"tensorcore\"})").unwrap();
    assert!(
        (sum - on_page("tpu_hlo_execution_seconds_sum{chip=\"1\",core=\"1\",core_type=\"tensorcore\"")).abs()
            < 1e-9
    );
    let median = "histogram_quantile(0.5, sum by (le) (tpu_hlo_execution_seconds_bucket))";
    assert!(value(&database, median).is_some_and(|median| median > 0.0 && median < 10.0));
    let reads = value(&database, "tpuscope_source_reads_total{source=\"runtime\"}").unwrap();
    assert!(reads >= 1.0 && reads <= on_page("tpuscope_source_reads_total{source=\"runtime\"}"), "{reads}");
    // The database keeps some digits less.
    let started = value(&database, "tpuscope_start_time_seconds").unwrap();
    assert!((started - on_page("tpuscope_start_time_seconds")).abs() < 1e-3, "{started}");
    assert!(!exporting.agent.log().contains("not exported"), "{}", exporting.agent.log());
}
