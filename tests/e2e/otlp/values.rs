//! What a collector gets: the series of the metrics page, whole and in messages of a bounded size.

use std::collections::{BTreeMap, BTreeSet};

use fakes::{
    fake_collector::{self, FakeCollector, SentNumber, metrics, numbers, texts},
    fake_host::FakeHost,
    running_agent::RunningAgent,
    wait::eventually,
};
use model::device::Generation;
use proto::opentelemetry::proto::metrics::v1::{
    AggregationTemporality, HistogramDataPoint, Metric, metric::Data,
};

use super::OtlpAgent;

/// Name and labels of each series of a page, without those of its histograms' buckets.
fn of_page(page: &str) -> BTreeSet<String> {
    let histograms: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram")).collect();
    let series = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, _) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').map_or((series, ""), |(name, labels)| (name, labels));
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        match base.filter(|base| histograms.contains(base)) {
            Some(base) => name.ends_with("_count").then(|| format!("{base}{{{labels}")),
            None => Some(format!("{name}{{{labels}")),
        }
    });
    series.map(|series| series.trim_end_matches('}').to_owned()).collect()
}

fn histograms(metric: &Metric) -> &[HistogramDataPoint] {
    match &metric.data {
        Some(Data::Histogram(histogram)) => &histogram.data_points,
        _ => &[],
    }
}

/// The same of messages.
fn of_messages<'m>(metrics: impl Iterator<Item = &'m Metric>) -> BTreeSet<String> {
    let with = |metric: &Metric, attributes: Vec<String>| {
        let quoted = attributes.iter().filter_map(|text| text.split_once('='));
        let quoted: Vec<String> = quoted.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        format!("{}{{{}", metric.name, quoted.join(","))
    };
    let series = metrics.flat_map(|metric| {
        let of_numbers = numbers(metric).into_iter().map(|number| number.attributes);
        let of_histograms = histograms(metric).iter().map(|point| texts(&point.attributes));
        of_numbers.chain(of_histograms).map(|attributes| with(metric, attributes)).collect::<Vec<_>>()
    });
    series.collect()
}

fn named<'m>(messages: &'m [fake_collector::OtlpMessage], name: &str) -> &'m Metric {
    metrics(messages).find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} is missing"))
}

#[test]
fn a_collector_gets_the_series_of_the_page_with_their_kinds_units_and_starts() {
    let collector = FakeCollector::start();
    let exporting = OtlpAgent::to(&collector, "");
    // What comes and goes with the seconds is on one of two pages.
    let (page, messages) = eventually("the series of the page", || {
        let before = of_page(&exporting.agent.get("/metrics", "").body);
        collector.take();
        let messages =
            eventually("an export", || Some(collector.take()).filter(|messages| !messages.is_empty()));
        let after = of_page(&exporting.agent.get("/metrics", "").body);
        let sent = of_messages(metrics(&messages));
        (before == after && sent == after).then_some((after, messages))
    });
    assert!(page.iter().any(|series| series.starts_with("tpu_hlo_execution_seconds{chip=\"0\"")), "{page:?}");
    assert!(page.iter().any(|series| series.starts_with("tpuscope_export_points_total{")), "{page:?}");

    let resource = messages[0].resource_metrics[0].resource.as_ref().unwrap();
    let version = format!("service.version={}", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        texts(&resource.attributes),
        ["service.name=tpuscope", &version, "service.instance.id=vm-7", "host.name=vm-7"]
    );
    let used = named(&messages, "tpu_hbm_used_bytes");
    assert_eq!((used.unit.as_str(), numbers(used).len()), ("By", 4));
    assert!(matches!(used.data, Some(Data::Gauge(_))), "{used:?}");
    let reads = named(&messages, "tpuscope_source_reads_total");
    let Some(Data::Sum(sum)) = &reads.data else { panic!("{reads:?}") };
    let cumulative = i32::from(AggregationTemporality::Cumulative);
    assert_eq!((sum.is_monotonic, sum.aggregation_temporality), (true, cumulative));
    let started = numbers(named(&messages, "tpuscope_start_time_seconds"))[0].value;
    for SentNumber { start, time, .. } in numbers(reads) {
        assert!((start as f64 / 1e9 - started).abs() < 1e-3 && start < time, "{start} {started} {time}");
    }
    let executions = named(&messages, "tpu_hlo_execution_seconds");
    assert_eq!(executions.unit, "s");
    for point in histograms(executions) {
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count, "{point:?}");
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.start_time_unix_nano <= point.time_unix_nano && point.sum.is_some_and(|sum| sum > 0.0));
    }
}

/// The series that a metric has on the page, where each bucket is one.
fn series_on_page(metric: &Metric) -> usize {
    let of_histograms = histograms(metric).iter().map(|point| point.bucket_counts.len() + 2);
    numbers(metric).len() + of_histograms.sum::<usize>()
}

#[test]
fn ten_thousand_series_go_out_in_messages_of_a_bounded_size() {
    let collector = FakeCollector::start();
    let host = FakeHost::with(Generation::V6e, 0);
    let settings = format!("{}[sampler]\nsim_chips = 1024\n", collector.settings("timeout = '60s'\n"));
    let agent = RunningAgent::start(&host, &settings);
    let mut exports: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    let (messages, exported) = eventually("a whole export", || {
        for message in collector.take() {
            let numbers_of = |metric| Some(numbers(metric).first()?.time);
            let time = metrics(std::slice::from_ref(&message)).find_map(numbers_of);
            exports.entry(time?).or_default().push(message);
        }
        // The last one may not be whole yet.
        let (_, messages) = exports.iter().rev().nth(1)?;
        let series = of_messages(metrics(messages));
        let on_page: usize = metrics(messages).map(series_on_page).sum();
        (on_page >= 10_000).then_some((messages.len(), series))
    });
    assert!(messages > 1, "{messages}");
    assert!(collector.sizes().iter().all(|size| *size <= 512 << 10), "{:?}", collector.sizes());
    for chip in [0, 511, 1023] {
        let start = format!("tpu_hbm_used_bytes{{chip=\"{chip}\",");
        assert!(exported.iter().any(|series| series.starts_with(&start)), "{start}");
    }
    assert!(!agent.log().contains("not exported"), "{}", agent.log());
}
