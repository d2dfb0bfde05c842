//! libtpu's RuntimeMetricService as a workload process serves it, with values that a test sets.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use prost::Message as _;
use proto::tpu::monitoring::runtime::{
    AttrValue, Attribute, Distribution, Gauge, GetTpuRuntimeStatusResponse, KeyValueList,
    ListSupportedMetricsResponse, Metric, MetricRequest, MetricResponse, SupportedMetric, TpuMetric,
    attr_value::Attr,
    distribution::{BucketOptions, bucket_options},
    gauge,
    metric::Measure,
};

use crate::fake_grpc::{GrpcServer, Manner, Reply, ServerAddress};

const SERVICE: &str = "/tpu.monitoring.runtime.RuntimeMetricService/";

/// The duty cycle.
pub const DUTY: &str = "tpu.runtime.tensorcore.dutycycle.percent";
/// The memory in use.
pub const HBM_USED: &str = "tpu.runtime.hbm.memory.usage.bytes";
/// The memory of each device.
pub const HBM_BYTES: f64 = 32.0 * GIB;

const GIB: f64 = 1_073_741_824.0;

/// All metrics that libtpu 0.0.52 has.
pub const NAMES: &[&str] = &[
    "tpu.runtime.hbm.memory.total.bytes",
    HBM_USED,
    DUTY,
    "tpu.runtime.hbm.utilization.percent",
    "tpu.runtime.tensorcore.idle_duration.seconds",
    "hlo.queue.size.gauge",
    "hlo.execution.timing.distribution.microseconds",
    "megascale.dcn_transfer_latencies.microsecond.cumulative.distribution",
    "megascale.dcn_inbound_transfer_latencies.microsecond.cumulative.distribution",
    "megascale.host_to_device_transfer_latencies.microsecond.cumulative.distribution",
    "megascale.device_to_host_transfer_latencies.microsecond.cumulative.distribution",
    "megascale.collective_end_to_end_latencies.microsecond.cumulative.distribution",
    "megascale.mxla_compute_latencies.microsecond.cumulative.distribution",
    "megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution",
    "megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution",
];

#[derive(Default)]
struct Script {
    metrics: BTreeMap<String, Reply>,
    asked: BTreeMap<String, u64>,
    list: Option<Reply>,
    status: Option<Reply>,
}

/// The running service.
pub struct FakeRuntime {
    server: GrpcServer,
    script: Arc<Mutex<Script>>,
}

impl FakeRuntime {
    /// A service with no metric yet: as a workload before its first program.
    pub fn start(listen: ServerAddress) -> Self {
        let script: Arc<Mutex<Script>> = Arc::default();
        let answering = script.clone();
        let server =
            GrpcServer::start(listen, Arc::new(move |path, message| reply(&answering, path, message)));
        Self { server, script }
    }

    /// A service on a free port of 127.0.0.1 with all metrics of these devices.
    pub fn with_devices(devices: &[i64]) -> Self {
        let fake = Self::start(ServerAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))));
        fake.set_all(workload(devices, 1));
        fake
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Sets what one metric answers, and lists it.
    pub fn set(&self, metric: &TpuMetric) {
        let message = MetricResponse { metric: Some(metric.clone()) };
        self.set_reply(&metric.name, Reply::of(&message));
    }

    /// Sets several metrics.
    pub fn set_all(&self, metrics: impl IntoIterator<Item = TpuMetric>) {
        for metric in metrics {
            self.set(&metric);
        }
    }

    /// Sets any reply for one metric, and lists it.
    pub fn set_reply(&self, name: &str, reply: Reply) {
        self.script.lock().unwrap().metrics.insert(name.to_owned(), reply);
    }

    /// Takes a metric away: no longer listed, and NOT_FOUND.
    pub fn remove(&self, name: &str) {
        self.script.lock().unwrap().metrics.remove(name);
    }

    /// Sets what ListSupportedMetrics answers; `None` lists what is set.
    pub fn set_list(&self, reply: Option<Reply>) {
        self.script.lock().unwrap().list = reply;
    }

    /// Sets what GetTpuRuntimeStatus answers.
    pub fn set_status(&self, status: &GetTpuRuntimeStatusResponse) {
        self.script.lock().unwrap().status = Some(Reply::of(status));
    }

    /// How connections accepted from now on are treated.
    pub fn set_manner(&self, manner: Manner) {
        self.server.set_manner(manner);
    }

    /// How often each metric was asked.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        self.script.lock().unwrap().asked.clone()
    }

    /// How often each method was called, by its bare name.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let bare = |path: String| path.strip_prefix(SERVICE).map_or(path.clone(), str::to_owned);
        self.server.calls().into_iter().map(|(path, count)| (bare(path), count)).collect()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.server.connections()
    }
}

fn reply(script: &Mutex<Script>, path: &str, message: &[u8]) -> Reply {
    let mut script = script.lock().unwrap();
    match path.strip_prefix(SERVICE) {
        Some("GetRuntimeMetric") => {
            let Ok(request) = MetricRequest::decode(message) else {
                return Reply::Status(13, "the request is no MetricRequest".into());
            };
            let name = request.metric_name;
            *script.asked.entry(name.clone()).or_default() += 1;
            let missing = || Reply::Status(5, format!("Metric {name} is not found"));
            script.metrics.get(&name).cloned().unwrap_or_else(missing)
        }
        Some("ListSupportedMetrics") => script.list.clone().unwrap_or_else(|| {
            let named = |name: &String| SupportedMetric { metric_name: name.clone() };
            Reply::of(&ListSupportedMetricsResponse {
                supported_metric: script.metrics.keys().map(named).collect(),
            })
        }),
        Some("GetTpuRuntimeStatus") => {
            script.status.clone().unwrap_or_else(|| Reply::of(&GetTpuRuntimeStatusResponse::default()))
        }
        _ => Reply::Status(12, "unimplemented".into()),
    }
}

/// An attribute value that is a whole number.
pub fn int(value: i64) -> AttrValue {
    AttrValue { attr: Some(Attr::IntAttr(value)) }
}

/// An attribute value that is text.
pub fn text(value: &str) -> AttrValue {
    AttrValue { attr: Some(Attr::StringAttr(value.to_owned())) }
}

/// An attribute value that is a list of pairs.
pub fn pairs(pairs: &[(&str, AttrValue)]) -> AttrValue {
    let attribute = |(key, value): &(&str, AttrValue)| attribute(key, value.clone());
    AttrValue {
        attr: Some(Attr::KvlistAttr(KeyValueList { attributes: pairs.iter().map(attribute).collect() })),
    }
}

/// One attribute.
pub fn attribute(key: &str, value: AttrValue) -> Attribute {
    Attribute { key: key.to_owned(), value: Some(value) }
}

/// One series: its attribute and what was measured.
pub fn series(attribute: Option<Attribute>, measure: Measure) -> Metric {
    Metric { attribute, measure: Some(measure), ..Metric::default() }
}

/// A metric of these series.
pub fn metric(name: &str, metrics: Vec<Metric>) -> TpuMetric {
    TpuMetric { name: name.to_owned(), description: format!("fake {name}"), metrics }
}

/// A whole number.
pub fn int_gauge(value: i64) -> Measure {
    Measure::Gauge(Gauge { value: Some(gauge::Value::AsInt(value)) })
}

/// A number.
pub fn double_gauge(value: f64) -> Measure {
    Measure::Gauge(Gauge { value: Some(gauge::Value::AsDouble(value)) })
}

/// A gauge of one value per device, keyed as libtpu does.
pub fn per_device(name: &str, values: &[(i64, f64)], whole: bool) -> TpuMetric {
    #[expect(clippy::cast_possible_truncation, reason = "the caller asks for whole numbers")]
    let measure = |value: f64| if whole { int_gauge(value as i64) } else { double_gauge(value) };
    let one =
        |&(device, value): &(i64, f64)| series(Some(attribute("device-id", int(device))), measure(value));
    metric(name, values.iter().map(one).collect())
}

/// A distribution with exponential buckets: bounds 1, 2, 4, … microseconds.
pub fn doubling(counts: &[i64], mean: f64) -> Measure {
    let finite = i32::try_from(counts.len()).unwrap() - 2;
    let options = bucket_options::Exponential { num_finite_buckets: finite, growth_factor: 2.0, scale: 1.0 };
    Measure::Distribution(Distribution {
        count: counts.iter().sum(),
        mean,
        bucket_options: Some(BucketOptions { options: Some(bucket_options::Options::Exponential(options)) }),
        bucket_counts: counts.to_vec(),
        ..Distribution::default()
    })
}

/// The labels of a queue or an execution timing; old libtpu numbers the device, new libtpu spells it.
pub fn core(device: i64, old: bool) -> Attribute {
    let ordinal = if old { int(device) } else { text(&device.to_string()) };
    attribute("core", pairs(&[("device_ordinal", ordinal), ("core_type", text("tensorcore"))]))
}

/// All metrics of a workload with these devices; values move with `step`, distributions grow with it.
pub fn workload(devices: &[i64], step: i64) -> Vec<TpuMetric> {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let wave = |device: i64, top: f64| top * (0.75 + 0.2 * ((step + 3 * device) as f64 / 7.0).sin());
    let spread = |value: &dyn Fn(i64) -> f64| devices.iter().map(|&d| (d, value(d))).collect::<Vec<_>>();
    let queue = |&d: &i64| series(Some(core(d, false)), int_gauge((step + d) % 3));
    let timing = |&d: &i64| {
        series(Some(core(d, false)), doubling(&[0, step, 4 * step, 9 * step, 5 * step, step, 0], 7.5))
    };
    let mut all = vec![
        per_device(NAMES[0], &spread(&|_| HBM_BYTES), true),
        per_device(NAMES[1], &spread(&|d| wave(d, 30.0 * GIB).round()), true),
        per_device(NAMES[2], &spread(&|d| wave(d, 100.0)), false),
        per_device(NAMES[3], &spread(&|d| wave(d, 80.0)), false),
        per_device(NAMES[4], &spread(&|_| 0.0), false),
        metric(NAMES[5], devices.iter().map(queue).collect()),
        metric(NAMES[6], devices.iter().map(timing).collect()),
    ];
    for name in &NAMES[7..13] {
        let sized = |size: &str| {
            let labels = pairs(&[("buffer-size", text(size)), ("direction", text("send"))]);
            series(Some(attribute("labels", labels)), doubling(&[0, 0, step, 6 * step, 3 * step, 0], 9.0))
        };
        all.push(metric(name, vec![sized("2MB+"), sized("8MB+"), sized("64MB+")]));
    }
    for name in &NAMES[13..] {
        all.push(metric(name, vec![series(None, doubling(&[0, 0, 0, 2 * step, step, 0], 12.0))]));
    }
    all
}
