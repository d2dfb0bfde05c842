//! A collector of OpenTelemetry that takes metrics over gRPC, keeps what it got, and answers as a test wants.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use prost::Message as _;
use proto::opentelemetry::proto::{
    collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
    },
    common::v1::{KeyValue, any_value},
    metrics::v1::{Metric, metric::Data, number_data_point},
};

use crate::fake_grpc::{GrpcServer, Manner, Reply, ServerAddress};

const EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// One message as it was sent.
pub type OtlpMessage = ExportMetricsServiceRequest;

#[derive(Default)]
struct ReceivedMetrics {
    reply: Option<Reply>,
    messages: Vec<OtlpMessage>,
    bytes: Vec<usize>,
}

/// The running collector.
pub struct FakeCollector {
    server: GrpcServer,
    received: Arc<Mutex<ReceivedMetrics>>,
}

/// A number of a series, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct SentNumber {
    /// The attributes, as `name=value`, in their order.
    pub attributes: Vec<String>,
    /// The value.
    pub value: f64,
    /// The start in nanoseconds since the epoch; 0 without one.
    pub start: u64,
    /// The time in nanoseconds since the epoch.
    pub time: u64,
}

impl FakeCollector {
    /// One on a free port of 127.0.0.1 that takes everything.
    pub fn start() -> Self {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// The same at an address.
    pub fn at(address: SocketAddr) -> Self {
        let received: Arc<Mutex<ReceivedMetrics>> = Arc::default();
        let receiving = received.clone();
        let handler = move |path: &str, message: &[u8]| {
            if path != EXPORT {
                return Reply::Status(12, "unknown".into());
            }
            let mut received = receiving.lock().unwrap();
            let Ok(request) = ExportMetricsServiceRequest::decode(message) else {
                return Reply::Status(3, "no ExportMetricsServiceRequest".into());
            };
            received.messages.push(request);
            received.bytes.push(message.len());
            let taken = || Reply::of(&ExportMetricsServiceResponse::default());
            received.reply.clone().unwrap_or_else(taken)
        };
        Self { server: GrpcServer::start(ServerAddress::Tcp(address), Arc::new(handler)), received }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The settings of an agent that exports to it every second, and further ones of the section.
    pub fn settings(&self, rest: &str) -> String {
        format!("[export.otlp]\nendpoint = 'http://{}'\ninterval = '1s'\n{rest}", self.address())
    }

    /// Answers so from now on; `None`: it takes everything.
    pub fn set_reply(&self, reply: Option<Reply>) {
        self.lock().reply = reply;
    }

    /// From now on it rejects so many points of each message, and says why.
    pub fn reject(&self, rejected_data_points: i64, why: &str) {
        let partial = ExportMetricsPartialSuccess { rejected_data_points, error_message: why.to_owned() };
        self.set_reply(Some(Reply::of(&ExportMetricsServiceResponse { partial_success: Some(partial) })));
    }

    /// How connections that are accepted from now on are treated.
    pub fn set_manner(&self, manner: Manner) {
        self.server.set_manner(manner);
    }

    /// A header of the last message.
    pub fn header(&self, name: &str) -> Option<String> {
        self.server.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// The number of connections so far.
    pub fn connections(&self) -> u64 {
        self.server.connections()
    }

    /// The messages so far; they are taken out.
    pub fn take(&self) -> Vec<OtlpMessage> {
        std::mem::take(&mut self.lock().messages)
    }

    /// The number of messages that are not taken out.
    pub fn messages(&self) -> usize {
        self.lock().messages.len()
    }

    /// The bytes of each message so far.
    pub fn sizes(&self) -> Vec<usize> {
        self.lock().bytes.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ReceivedMetrics> {
        self.received.lock().unwrap()
    }
}

/// All metrics of messages, in their order.
pub fn metrics(messages: &[OtlpMessage]) -> impl Iterator<Item = &Metric> {
    let scopes =
        messages.iter().flat_map(|message| &message.resource_metrics).flat_map(|host| &host.scope_metrics);
    scopes.flat_map(|scope| &scope.metrics)
}

/// Attributes as `name=value`.
pub fn texts(attributes: &[KeyValue]) -> Vec<String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => format!("{}={text}", attribute.key),
        None => attribute.key.clone(),
    };
    attributes.iter().map(text).collect()
}

/// The numbers of a gauge or a sum; none of a histogram.
pub fn numbers(metric: &Metric) -> Vec<SentNumber> {
    let points = match &metric.data {
        Some(Data::Gauge(gauge)) => &gauge.data_points[..],
        Some(Data::Sum(sum)) => &sum.data_points,
        _ => &[],
    };
    let number = |point: &proto::opentelemetry::proto::metrics::v1::NumberDataPoint| {
        let value = point.value.as_ref().map_or(f64::NAN, |number_data_point::Value::AsDouble(value)| *value);
        SentNumber {
            attributes: texts(&point.attributes),
            value,
            start: point.start_time_unix_nano,
            time: point.time_unix_nano,
        }
    };
    points.iter().map(number).collect()
}

/// The number of points of a metric.
pub fn points(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        None => 0,
    }
}
