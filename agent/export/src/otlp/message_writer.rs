//! Points of metrics, written as messages of a bounded size: `ExportMetricsServiceRequest` in its encoding, without objects in
//! between, which would cost some times the memory and the time.
//!
//! A metric goes on in the next message where one is full. Must never hold more than one message that is not whole.

use std::mem;

use bytes::Bytes;
use model::metric::{Descriptor, MetricKind, Unit};
use proto::opentelemetry::proto::metrics::v1::AggregationTemporality;

use super::fields::{bytes_field, head_bytes, message_head, number_field};

/// The bytes of the tags and lengths around the metrics of a message, and around a metric, at most.
const AROUND: usize = 64;
/// A message grows from here.
const FIRST_BYTES: usize = 16 << 10;

/// A message that can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncodedMessage {
    /// An `ExportMetricsServiceRequest`.
    pub(super) bytes: Bytes,
    /// The number of its points.
    pub(super) points: u64,
}

/// Messages under way.
pub(super) struct MessageWriter<'r> {
    /// The resource as a field of `ResourceMetrics`.
    resource: &'r [u8],
    /// The scope as a field of `ScopeMetrics`.
    scope: Vec<u8>,
    limit: usize,
    done: Vec<EncodedMessage>,
    /// The whole metrics of the message under way, as fields of `ScopeMetrics`.
    metrics: Vec<u8>,
    points: u64,
    /// The metric under way.
    metric: MetricParts,
    /// The point under way.
    point: Vec<u8>,
}

/// A metric in parts.
struct MetricParts {
    /// Its name, description and unit, as fields of `Metric`.
    head: Vec<u8>,
    kind: MetricKind,
    /// Its points, as fields of its data.
    data: Vec<u8>,
}

impl<'r> MessageWriter<'r> {
    /// Messages about the resource with these fields, none with more than `limit` bytes unless a single point has.
    pub(super) fn new(resource: &'r [u8], limit: usize) -> Self {
        let mut of_scope = Vec::new();
        bytes_field(1, b"tpuscope", &mut of_scope);
        bytes_field(2, env!("CARGO_PKG_VERSION").as_bytes(), &mut of_scope);
        let mut scope = Vec::new();
        bytes_field(1, &of_scope, &mut scope);
        Self {
            resource,
            scope,
            limit,
            done: Vec::new(),
            metrics: Vec::with_capacity(FIRST_BYTES),
            points: 0,
            metric: MetricParts { head: Vec::new(), kind: MetricKind::Gauge, data: Vec::new() },
            point: Vec::new(),
        }
    }

    /// Begins a metric. It is left out of a message in which it has no point.
    pub(super) fn metric(&mut self, descriptor: &Descriptor) {
        self.finish_metric();
        let head = &mut self.metric.head;
        head.clear();
        bytes_field(1, descriptor.name.as_bytes(), head);
        bytes_field(2, descriptor.help.as_bytes(), head);
        bytes_field(3, ucum(descriptor.unit).as_bytes(), head);
        self.metric.kind = descriptor.kind;
    }

    /// Adds a point to the metric: the fields that `write` appends, of the point of its kind.
    pub(super) fn point(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.point.clear();
        write(&mut self.point);
        if self.bytes() + self.point.len() + AROUND > self.limit && self.points > 0 {
            self.finish_message();
        }
        bytes_field(1, &self.point, &mut self.metric.data);
        self.points += 1;
    }

    /// All messages. Each has a point.
    pub(super) fn finish(mut self) -> Vec<EncodedMessage> {
        self.finish_message();
        self.done
    }

    /// What the message has at most when it is whole.
    fn bytes(&self) -> usize {
        let metric = self.metric.head.len() + self.metric.data.len() + AROUND;
        self.resource.len() + self.scope.len() + self.metrics.len() + metric + AROUND
    }

    /// Adds the metric under way to the message. Its head stays, for the case that it goes on in the next one.
    fn finish_metric(&mut self) {
        let MetricParts { head, kind, data } = &mut self.metric;
        if data.is_empty() {
            return;
        }
        let cumulative = i32::from(AggregationTemporality::Cumulative).unsigned_abs().into();
        let tag = match kind {
            MetricKind::Gauge => 5,
            MetricKind::Counter => {
                number_field(2, cumulative, data);
                // It is monotonic.
                number_field(3, 1, data);
                7
            }
            MetricKind::Histogram => {
                number_field(2, cumulative, data);
                9
            }
        };
        message_head(2, head.len() + head_bytes(tag, data.len()) + data.len(), &mut self.metrics);
        self.metrics.extend_from_slice(head);
        bytes_field(tag, data, &mut self.metrics);
        data.clear();
    }

    fn finish_message(&mut self) {
        self.finish_metric();
        let points = mem::take(&mut self.points);
        if points == 0 {
            return;
        }
        let of_scope = self.scope.len() + self.metrics.len();
        let of_host = self.resource.len() + head_bytes(2, of_scope) + of_scope;
        let mut bytes = Vec::with_capacity(head_bytes(1, of_host) + of_host);
        message_head(1, of_host, &mut bytes);
        bytes.extend_from_slice(self.resource);
        message_head(2, of_scope, &mut bytes);
        bytes.extend_from_slice(&self.scope);
        bytes.extend_from_slice(&self.metrics);
        self.metrics.clear();
        self.done.push(EncodedMessage { bytes: bytes.into(), points });
    }
}

/// The unit in UCUM. Collectors make the suffixes of Prometheus names of it, which our names have already: none is added
/// twice. A plain number has no unit, because "1" would become `_ratio`.
fn ucum(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "By",
        Unit::Seconds => "s",
        Unit::Ratio => "1",
        Unit::BytesPerSecond => "By/s",
        Unit::Count | Unit::Score => "",
    }
}
