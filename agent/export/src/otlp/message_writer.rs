//! Points of metrics, packed into messages of a bounded size.
//!
//! A metric goes on in the next message where one is full. Must never hold more than one message that is not encoded: as
//! objects, points take some times the memory of their bytes.

use std::mem;

use bytes::Bytes;
use model::metric::{Descriptor, MetricKind, Unit};
use prost::Message;
use proto::opentelemetry::proto::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::InstrumentationScope,
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, metric::Data,
    },
    resource::v1::Resource,
};

/// The bytes around a point, a metric, or all metrics of a message, at most: a tag and a length for each level.
const AROUND: usize = 32;

/// A message that can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncodedMessage {
    /// An `ExportMetricsServiceRequest`.
    pub(super) bytes: Bytes,
    /// The number of its points.
    pub(super) points: u64,
}

/// One value of one series.
pub(super) enum DataPoint {
    /// Of a gauge or a counter.
    Number(NumberDataPoint),
    /// Of a histogram.
    Histogram(HistogramDataPoint),
}

impl DataPoint {
    fn encoded_len(&self) -> usize {
        match self {
            Self::Number(point) => point.encoded_len(),
            Self::Histogram(point) => point.encoded_len(),
        }
    }
}

/// Messages under way.
pub(super) struct MessageWriter<'r> {
    resource: &'r Resource,
    limit: usize,
    done: Vec<EncodedMessage>,
    /// The metrics of the message under way; the last one may get more points.
    metrics: Vec<Metric>,
    /// What the message has at most when it is encoded.
    bytes: usize,
    points: u64,
}

impl<'r> MessageWriter<'r> {
    /// Messages about `resource`, none with more than `limit` bytes unless a single point has.
    pub(super) fn new(resource: &'r Resource, limit: usize) -> Self {
        let mut writer = Self { resource, limit, done: Vec::new(), metrics: Vec::new(), bytes: 0, points: 0 };
        writer.bytes = writer.empty_bytes();
        writer
    }

    /// Begins a metric. It is left out of a message in which it has no point.
    pub(super) fn metric(&mut self, descriptor: &Descriptor) {
        self.drop_empty();
        let metric = empty_metric(descriptor);
        self.bytes += metric.encoded_len() + AROUND;
        self.metrics.push(metric);
    }

    /// Adds a point to the metric, which is of its kind.
    pub(super) fn point(&mut self, point: DataPoint) {
        let bytes = point.encoded_len() + AROUND;
        if self.bytes + bytes > self.limit && self.points > 0 {
            let going_on = self.metrics.last().map(without_points);
            self.finish_message();
            if let Some(metric) = going_on {
                self.bytes += metric.encoded_len() + AROUND;
                self.metrics.push(metric);
            }
        }
        self.bytes += bytes;
        self.points += 1;
        match (self.metrics.last_mut().and_then(|metric| metric.data.as_mut()), point) {
            (Some(Data::Gauge(gauge)), DataPoint::Number(point)) => gauge.data_points.push(point),
            (Some(Data::Sum(sum)), DataPoint::Number(point)) => sum.data_points.push(point),
            (Some(Data::Histogram(histogram)), DataPoint::Histogram(point)) => {
                histogram.data_points.push(point);
            }
            // The values of a family are of its kind.
            _ => self.points -= 1,
        }
    }

    /// All messages. Each has a point.
    pub(super) fn finish(mut self) -> Vec<EncodedMessage> {
        self.finish_message();
        self.done
    }

    fn finish_message(&mut self) {
        self.drop_empty();
        let (metrics, points) = (mem::take(&mut self.metrics), mem::take(&mut self.points));
        if points > 0 {
            let scope =
                InstrumentationScope { name: "tpuscope".into(), version: env!("CARGO_PKG_VERSION").into() };
            let of_scope = ScopeMetrics { scope: Some(scope), metrics };
            let of_host =
                ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics: vec![of_scope] };
            let request = ExportMetricsServiceRequest { resource_metrics: vec![of_host] };
            self.done.push(EncodedMessage { bytes: request.encode_to_vec().into(), points });
        }
        self.bytes = self.empty_bytes();
    }

    /// Removes the last metric if it has no point.
    fn drop_empty(&mut self) {
        self.metrics.pop_if(|metric| match &metric.data {
            Some(Data::Gauge(gauge)) => gauge.data_points.is_empty(),
            Some(Data::Sum(sum)) => sum.data_points.is_empty(),
            Some(Data::Histogram(histogram)) => histogram.data_points.is_empty(),
            None => true,
        });
    }

    fn empty_bytes(&self) -> usize {
        // Resource, scope with its name and version, and what they are in.
        self.resource.encoded_len() + 4 * AROUND
    }
}

fn empty_metric(descriptor: &Descriptor) -> Metric {
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match descriptor.kind {
        MetricKind::Gauge => Data::Gauge(Gauge::default()),
        MetricKind::Counter => {
            Data::Sum(Sum { aggregation_temporality: cumulative, is_monotonic: true, ..Sum::default() })
        }
        MetricKind::Histogram => {
            Data::Histogram(Histogram { aggregation_temporality: cumulative, ..Histogram::default() })
        }
    };
    Metric {
        name: descriptor.name.to_string(),
        description: descriptor.help.to_string(),
        unit: ucum(descriptor.unit).into(),
        data: Some(data),
    }
}

/// The head of a metric that goes on in the next message.
fn without_points(metric: &Metric) -> Metric {
    let data = metric.data.as_ref().map(|data| match data {
        Data::Gauge(_) => Data::Gauge(Gauge::default()),
        Data::Sum(sum) => Data::Sum(Sum { data_points: Vec::new(), ..*sum }),
        Data::Histogram(histogram) => Data::Histogram(Histogram { data_points: Vec::new(), ..*histogram }),
    });
    Metric {
        name: metric.name.clone(),
        description: metric.description.clone(),
        unit: metric.unit.clone(),
        data,
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
