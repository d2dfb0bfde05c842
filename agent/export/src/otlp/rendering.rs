//! Samples as messages of OTLP: the series of the metrics page, with the same names and labels.
//!
//! A gauge is a gauge, a counter a monotonic sum with its start, a distribution a cumulative histogram since the start of the
//! workload. Every point has the time of the rendering, as a scrape has. Must never know a metric by name.

use model::{
    distribution::Histogram,
    sample::{Sample, SampleValue},
    time::Timestamp,
};
use proto::opentelemetry::proto::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{HistogramDataPoint, NumberDataPoint, number_data_point},
    resource::v1::Resource,
};

use super::{
    message_writer::{DataPoint, EncodedMessage, MessageWriter},
    start_times::StartTimes,
};
use crate::families::{Families, LabelText, labels};

/// Who exports.
#[derive(Debug, Clone)]
pub struct ExportingHost {
    /// The name of the host.
    pub host: String,
    /// When the agent started.
    pub started: Timestamp,
}

/// Renders the samples of one host.
#[derive(Debug)]
pub(super) struct Renderer {
    resource: Resource,
    starts: StartTimes,
}

impl Renderer {
    pub(super) fn new(host: &ExportingHost) -> Self {
        let attributes = [
            ("service.name", "tpuscope"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            // A host has one agent.
            ("service.instance.id", &host.host),
            ("host.name", &host.host),
        ];
        let attributes = attributes.map(|(key, value)| attribute(key, value.to_owned()));
        Self { resource: Resource { attributes: attributes.into() }, starts: StartTimes::new(host.started) }
    }

    /// The messages with all samples, none with more than `limit` bytes unless a single point has.
    pub(super) fn render(
        &mut self,
        samples: Vec<&Sample>,
        at: Timestamp,
        limit: usize,
    ) -> Vec<EncodedMessage> {
        let mut messages = MessageWriter::new(&self.resource, limit);
        for family in Families::of(samples).iter() {
            messages.metric(family.descriptor);
            let points = family.samples().filter_map(|sample| point(sample, at, &mut self.starts));
            points.for_each(|point| messages.point(point));
        }
        self.starts.rendered();
        messages.finish()
    }
}

/// The point of a sample. A number that is not finite has none: collectors write JSON, which has no such numbers.
fn point(sample: &Sample, at: Timestamp, starts: &mut StartTimes) -> Option<DataPoint> {
    let (value, start_time_unix_nano) = match &sample.value {
        SampleValue::Distribution(distribution) => {
            return histogram(sample, &distribution.histogram, at).map(DataPoint::Histogram);
        }
        SampleValue::Gauge(value) => (*value, 0),
        SampleValue::Counter(value) => (*value, unix_ns(starts.of(sample, *value, at))),
    };
    value.is_finite().then(|| {
        DataPoint::Number(NumberDataPoint {
            attributes: attributes(sample),
            start_time_unix_nano,
            time_unix_nano: unix_ns(at),
            value: Some(number_data_point::Value::AsDouble(value)),
        })
    })
}

/// Counts are those of each bucket alone. Where the origin excludes a bucket's upper bound, OTLP includes it: a value that
/// equals a bound is counted one bucket higher.
fn histogram(sample: &Sample, histogram: &Histogram, at: Timestamp) -> Option<HistogramDataPoint> {
    let is_whole = histogram.counts.len() == histogram.bounds.len() + 1 && histogram.sum.is_finite();
    is_whole.then(|| HistogramDataPoint {
        attributes: attributes(sample),
        // A workload whose clock is ahead of ours does not start after the point.
        start_time_unix_nano: unix_ns(histogram.since.min(at)),
        time_unix_nano: unix_ns(at),
        count: histogram.count(),
        sum: Some(histogram.sum),
        bucket_counts: histogram.counts.clone(),
        explicit_bounds: histogram.bounds.to_vec(),
    })
}

fn attributes(sample: &Sample) -> Vec<KeyValue> {
    let text = |value: LabelText<'_>| match value {
        LabelText::Text(text) => text.to_owned(),
        LabelText::Number(number) => number.to_string(),
    };
    labels(sample).map(|(name, value)| attribute(name, text(value))).collect()
}

fn attribute(key: &str, value: String) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value)) }),
    }
}

/// An instant before the epoch becomes the epoch.
fn unix_ns(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or(0)
}

#[cfg(test)]
#[path = "rendering_tests.rs"]
mod tests;
