//! The catalog is all that a metric needs: every entry with a name at the runtime service becomes samples as its
//! descriptor says, without a line of code for that metric.

use std::{borrow::Cow, sync::Arc};

use model::{
    catalog,
    device::Chip,
    label::{CHIP, CORE},
    metric::{Descriptor, MetricKind, OriginName, Scale, Unit},
    sample::{Sample, SampleValue},
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Owner, ProcessKey, Workloads},
};
use proto::tpu::monitoring::runtime::{
    AttrValue, Attribute, Distribution, Gauge, KeyValueList, Metric as WireSeries,
    attr_value::Attr,
    distribution::{BucketOptions, bucket_options},
    gauge,
    metric::Measure,
};

use super::{CoreMap, interpreter::Interpreter, reply::SeriesOfMetric, why_no_endpoint, why_no_port};
use crate::sources::Tick;

/// A metric of a libtpu yet to come: this entry is all that it needs.
static NEWCOMER: Descriptor = Descriptor {
    name: Cow::Borrowed("tpu_sparsecore_queue_wait_seconds"),
    help: Cow::Borrowed("Time of a program in the queue of a SparseCore."),
    unit: Unit::Seconds,
    kind: MetricKind::Histogram,
    labels: &["chip", "core", "queue", "direction"],
    origins: &[OriginName {
        origin: model::sample::Origin::Runtime,
        name: "sparsecore.queue.wait.milliseconds",
        scale: Scale::over(1e3),
        since: 0,
    }],
};

fn attribute(key: &str, attr: Attr) -> Attribute {
    Attribute { key: key.to_owned(), value: Some(AttrValue { attr: Some(attr) }) }
}

/// A series as libtpu would send it: its device and the descriptor's own labels, with keys in libtpu's spelling.
fn wire(metric: &Descriptor) -> WireSeries {
    let mut attributes = Vec::new();
    for label in metric.labels.iter().filter(|label| **label != CHIP) {
        let (key, text) = match *label {
            CORE => ("device_ordinal".to_owned(), "1".to_owned()),
            label => (label.replace('_', "-"), format!("a {label}")),
        };
        attributes.push(attribute(&key, Attr::StringAttr(text)));
    }
    let bounds = bucket_options::Explicit { bounds: vec![1.0, 10.0] };
    let measure = match metric.kind {
        MetricKind::Histogram => Measure::Distribution(Distribution {
            count: 4,
            mean: 5.0,
            bucket_options: Some(BucketOptions { options: Some(bucket_options::Options::Explicit(bounds)) }),
            bucket_counts: vec![1, 2, 1],
            ..Distribution::default()
        }),
        _ => Measure::Gauge(Gauge { value: Some(gauge::Value::AsDouble(5.0)) }),
    };
    let attribute = attribute("labels", Attr::KvlistAttr(KeyValueList { attributes }));
    WireSeries { attribute: Some(attribute), measure: Some(measure), ..WireSeries::default() }
}

/// The one sample of a host with two chips of one core each.
fn read(metric: &'static Descriptor, named: &OriginName, series: WireSeries) -> Sample {
    let cores = CoreMap { chips: vec![0, 1], of_core: vec![0, 1], duty_per_chip: false };
    let mut interpreter = Interpreter::default();
    interpreter.set_cores(cores.clone(), cores);
    let device = |id: i64| WireSeries {
        attribute: Some(attribute("device-id", Attr::IntAttr(id))),
        ..WireSeries::default()
    };
    let devices = SeriesOfMetric { good: vec![device(0), device(1)], ..SeriesOfMetric::default() };
    interpreter.learn(&catalog::TPU_HBM_USED_BYTES, &devices);
    let series = SeriesOfMetric { good: vec![series], ..SeriesOfMetric::default() };
    let mut read = interpreter.samples(metric, named.scale, series, Timestamp(7));
    assert_eq!((read.fault, read.samples.len()), (None, 1), "{}", metric.name);
    read.samples.remove(0)
}

#[test]
fn an_entry_of_the_catalog_is_all_that_a_metric_needs() {
    let of_catalog = catalog::of_origin(model::sample::Origin::Runtime);
    for (metric, named) in of_catalog.chain([(&NEWCOMER, &NEWCOMER.origins[0])]) {
        let sample = read(metric, named, wire(metric));
        // Real services give the labels of a series in either order.
        let mut turned = wire(metric);
        if let Some(Attr::KvlistAttr(list)) =
            turned.attribute.as_mut().and_then(|it| it.value.as_mut()?.attr.as_mut())
        {
            list.attributes.reverse();
        }
        assert_eq!(read(metric, named, turned), sample);
        assert!(std::ptr::eq::<Descriptor>(&*sample.metric, metric));
        let shown: Vec<_> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let wanted: Vec<_> = metric
            .labels
            .iter()
            .map(|label| match *label {
                CHIP | CORE => format!("{label}=1"),
                label => format!("{label}=a {label}"),
            })
            .collect();
        assert_eq!(shown, wanted, "{}", metric.name);
        match (metric.kind, &sample.value) {
            (MetricKind::Histogram, SampleValue::Distribution(distribution)) => {
                assert_eq!(distribution.histogram.counts, [1, 2, 1]);
                assert_eq!(distribution.histogram.sum, named.scale.apply(20.0));
                assert_eq!(
                    distribution.histogram.bounds[..],
                    [1.0, 10.0].map(|bound| named.scale.apply(bound))
                );
            }
            (MetricKind::Gauge, SampleValue::Gauge(value)) => assert_eq!(*value, named.scale.apply(5.0)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_missing_port_has_the_reason_of_each_process() {
    let owner = |pid: u32, why: Option<&str>| Owner {
        process: ProcessKey { pid, start_ticks: 1 },
        no_metrics: why.map(str::to_owned),
        ..Owner::default()
    };
    let off = Some("its metric service is off");
    let owners = [owner(1, off), owner(2, None), owner(3, off)];
    assert_eq!(
        why_no_port(&owners),
        "no process that was found has a metrics port: processes 1, 3: its metric service is off; process 2: nothing \
         names a metrics port"
    );
    let many: Vec<_> = (0..90).map(|pid| owner(pid, off)).collect();
    assert!(why_no_port(&many).ends_with("processes 0, 1, 2, 3, others: its metric service is off"));
}

#[test]
fn no_process_holds_a_chip_only_where_each_would_have_been_seen() {
    let chip = |node: &[&str]| Chip { nodes: node.iter().map(Into::into).collect(), ..Chip::default() };
    let why = |chips: &[Chip], hidden: Option<&str>| {
        let workloads = Workloads { hidden: hidden.map(str::to_owned), ..Workloads::default() };
        let host =
            HostSnapshot { chips: chips.into(), workloads: Arc::new(workloads), ..HostSnapshot::default() };
        why_no_endpoint(&Tick { at: Timestamp(0), host })
    };
    let known = chip(&["/dev/vfio/0"]);
    assert_eq!(why(std::slice::from_ref(&known), None), "no process on this host holds a chip");
    assert!(why(&[known.clone(), chip(&[])], None).contains("device node is not known"));
    assert!(why(&[known], Some("another pid namespace")).contains("another pid namespace"));
    assert!(why(&[], Some("another pid namespace")).contains("another pid namespace"));
}
