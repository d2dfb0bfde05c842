//! What a collector receives, decoded from the bytes.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use model::{
    distribution::Distribution,
    job::{Job, JobKind},
    label::{CHIP, Labels},
    metric::{Descriptor, MetricKind, MetricRef, Unit},
    sample::Origin,
    workload::{Workload, WorkloadId},
};
use proptest::prelude::*;
use prost::Message;
use proto::opentelemetry::proto::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, Sum, metric::Data,
        number_data_point,
    },
};

use super::*;

const LIMIT: usize = 4 << 20;

fn named(name: &'static str, kind: MetricKind, unit: Unit) -> MetricRef {
    let (name, help) = (Cow::Borrowed(name), Cow::Borrowed("Help."));
    Arc::new(Descriptor { name, help, unit, kind, labels: &[], origins: &[] }).into()
}

fn sample(metric: &MetricRef, labels: Labels, value: SampleValue) -> Sample {
    Sample {
        metric: metric.clone(),
        labels,
        value,
        origin: Origin::Runtime,
        at: Timestamp(1),
        workload: None,
    }
}

fn renderer() -> Renderer {
    Renderer::new(&ExportingHost { host: "vm-7".into(), started: Timestamp(500) })
}

fn render(renderer: &mut Renderer, samples: &[Sample], at: i64, limit: usize) -> Vec<EncodedMessage> {
    renderer.render(samples.iter().collect(), Timestamp(at), limit)
}

fn decoded(message: &EncodedMessage) -> ResourceMetrics {
    let mut request = ExportMetricsServiceRequest::decode(&*message.bytes).unwrap();
    assert_eq!(request.resource_metrics.len(), 1);
    request.resource_metrics.remove(0)
}

fn metrics(messages: &[EncodedMessage]) -> Vec<Metric> {
    messages.iter().flat_map(|message| decoded(message).scope_metrics.remove(0).metrics).collect()
}

fn texts(attributes: &[KeyValue]) -> Vec<String> {
    let text = |attribute: &KeyValue| {
        let any_value::Value::StringValue(text) = attribute.value.clone().unwrap().value.unwrap();
        format!("{}={text}", attribute.key)
    };
    attributes.iter().map(text).collect()
}

fn numbers(metric: &Metric) -> Vec<(f64, u64, u64)> {
    let (Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. })) =
        metric.data.as_ref().unwrap()
    else {
        panic!("{metric:?}")
    };
    let number = |point: &NumberDataPoint| {
        let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!("{point:?}") };
        (value, point.start_time_unix_nano, point.time_unix_nano)
    };
    data_points.iter().map(number).collect()
}

#[test]
fn each_kind_has_its_form_with_unit_times_and_the_labels_of_the_page() {
    let job = Job { kind: JobKind::Slurm, id: "42".into(), ..Job::default() };
    let workload = Workload { id: WorkloadId::of(&job), label: job.id.clone(), job, owners: Vec::new() };
    let histogram =
        Histogram { since: Timestamp(700), bounds: [0.5, 2.0].into(), counts: vec![1, 2, 3], sum: 12.5 };
    let distribution = SampleValue::Distribution(Arc::new(Distribution::first(histogram)));
    let chip = || Labels::one(CHIP, 1);
    let of_job = Sample {
        workload: Some(Arc::new(workload)),
        ..sample(&named("c_seconds", MetricKind::Histogram, Unit::Seconds), chip(), distribution)
    };
    let samples = [
        of_job,
        sample(&named("a_bytes", MetricKind::Gauge, Unit::Bytes), chip(), SampleValue::Gauge(5.0)),
        sample(
            &named("b_total", MetricKind::Counter, Unit::Count),
            Labels::none(),
            SampleValue::Counter(7.0),
        ),
        sample(
            &named("nothing", MetricKind::Gauge, Unit::Count),
            Labels::none(),
            SampleValue::Gauge(f64::NAN),
        ),
    ];
    let messages = render(&mut renderer(), &samples, 1000, LIMIT);
    assert_eq!((messages.len(), messages[0].points), (1, 3));
    let host = decoded(&messages[0]);
    assert_eq!(
        texts(&host.resource.unwrap().attributes),
        [
            "service.name=tpuscope",
            concat!("service.version=", env!("CARGO_PKG_VERSION")),
            "service.instance.id=vm-7",
            "host.name=vm-7"
        ]
    );
    let metrics = metrics(&messages);
    let heads: Vec<_> =
        metrics.iter().map(|metric| (&*metric.name, &*metric.description, &*metric.unit)).collect();
    assert_eq!(heads, [("a_bytes", "Help.", "By"), ("b_total", "Help.", ""), ("c_seconds", "Help.", "s")]);
    assert_eq!(numbers(&metrics[0]), [(5.0, 0, 1000)]);
    assert_eq!(numbers(&metrics[1]), [(7.0, 1000, 1000)]);
    let cumulative = i32::from(AggregationTemporality::Cumulative);
    let Some(Data::Sum(sum)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
    assert_eq!((sum.aggregation_temporality, sum.is_monotonic), (cumulative, true));
    let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
    assert_eq!(histogram.aggregation_temporality, cumulative);
    let point = &histogram.data_points[0];
    assert_eq!(texts(&point.attributes), ["chip=1", "source=runtime", "workload=42", "workload_kind=slurm"]);
    assert_eq!(
        (point.start_time_unix_nano, point.time_unix_nano, point.count, point.sum),
        (700, 1000, 6, Some(12.5))
    );
    assert_eq!((&*point.bucket_counts, &*point.explicit_bounds), (&[1, 2, 3][..], &[0.5, 2.0][..]));
}

#[test]
fn a_clock_that_is_set_back_puts_no_start_after_its_point() {
    let counter = named("b_total", MetricKind::Counter, Unit::Count);
    let own = Sample { origin: Origin::Agent, ..sample(&counter, Labels::none(), SampleValue::Counter(1.0)) };
    let histogram = Histogram { since: Timestamp(900), bounds: [].into(), counts: vec![1], sum: 1.0 };
    let distribution = SampleValue::Distribution(Arc::new(Distribution::first(histogram)));
    let samples = [
        sample(&counter, Labels::none(), SampleValue::Counter(1.0)),
        own,
        sample(&named("c_seconds", MetricKind::Histogram, Unit::Seconds), Labels::none(), distribution),
    ];
    let mut renderer = renderer();
    for at in [1000, 100, 2000] {
        let metrics = metrics(&render(&mut renderer, &samples, at, LIMIT));
        let mut times: Vec<_> = numbers(&metrics[0]).iter().map(|(_, start, time)| (*start, *time)).collect();
        let Some(Data::Histogram(histogram)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        times.extend(
            histogram.data_points.iter().map(|point| (point.start_time_unix_nano, point.time_unix_nano)),
        );
        assert_eq!(times.len(), 3);
        let at = u64::try_from(at).unwrap();
        assert!(times.iter().all(|(start, time)| start <= time && *time == at), "{at} {times:?}");
    }
}

#[test]
fn ten_thousand_series_are_some_messages() {
    let metric = named("a_bytes", MetricKind::Gauge, Unit::Bytes);
    let of_chip = |chip| sample(&metric, Labels::one(CHIP, chip), SampleValue::Gauge(f64::from(chip)));
    let samples: Vec<_> = (0..10_000).map(of_chip).collect();
    let messages = render(&mut renderer(), &samples, 1000, crate::otlp::MAX_MESSAGE);
    assert_eq!(messages.iter().map(|message| message.points).sum::<u64>(), 10_000);
    let sizes: Vec<_> = messages.iter().map(|message| message.bytes.len()).collect();
    assert!(sizes.len() > 1 && sizes.iter().all(|size| *size <= 512 << 10), "{sizes:?}");
}

proptest! {
    /// Whatever the limit and the sizes, no point is lost or doubled, and no message is larger than the limit.
    #[test]
    fn messages_are_bounded_and_complete(
        limit in 2_000..20_000usize,
        counts in prop::collection::vec(0..120u32, 1..6),
        length in 0..60usize,
    ) {
        let names = ["a", "b_total", "c", "d_total", "e"];
        let mut samples = Vec::new();
        for (name, count) in names.into_iter().zip(&counts) {
            let counts = name.ends_with("_total");
            let kind = if counts { MetricKind::Counter } else { MetricKind::Gauge };
            let metric = named(name, kind, Unit::Count);
            for number in 0..*count {
                let value = f64::from(number);
                let value = if counts { SampleValue::Counter(value) } else { SampleValue::Gauge(value) };
                let labels = Labels::one(CHIP, number).with("text", "x".repeat(length));
                samples.push(sample(&metric, labels, value));
            }
        }
        let messages = render(&mut renderer(), &samples, 1000, limit);
        let mut seen = BTreeSet::new();
        for message in &messages {
            prop_assert!(message.bytes.len() <= limit, "{} of {limit}", message.bytes.len());
            let metrics = metrics(std::slice::from_ref(message));
            let mut points = 0;
            for metric in &metrics {
                let numbers = numbers(metric);
                prop_assert!(!numbers.is_empty());
                points += numbers.len() as u64;
                for (value, ..) in numbers {
                    prop_assert!(seen.insert((metric.name.clone(), value.to_bits())));
                }
            }
            prop_assert_eq!(points, message.points);
        }
        prop_assert_eq!(seen.len(), samples.len());
    }
}
