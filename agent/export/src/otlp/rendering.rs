//! Samples as messages of OTLP: the series of the metrics page, with the same names and labels.
//!
//! A gauge is a gauge, a counter a monotonic sum with its start, a distribution a cumulative histogram since the start of the
//! workload. Every point has the time of the rendering, as a scrape has. Must never know a metric by name.

use model::{
    distribution::Histogram,
    sample::{Sample, SampleValue},
    time::Timestamp,
};

use super::{
    fields::{attribute_field, bytes_field, fixed_field, fixed_list},
    message_writer::{EncodedMessage, MessageWriter},
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
    /// The host as a field of `ResourceMetrics`.
    resource: Vec<u8>,
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
        let (mut of_resource, mut resource) = (Vec::new(), Vec::new());
        attributes.iter().for_each(|(key, value)| attribute_field(1, key, value, &mut of_resource));
        bytes_field(1, &of_resource, &mut resource);
        Self { resource, starts: StartTimes::new(host.started) }
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
            for sample in family.samples() {
                write_point(sample, at, &mut self.starts, &mut messages);
            }
        }
        self.starts.rendered();
        messages.finish()
    }
}

/// The point of a sample. A number that is not finite has none: collectors write JSON, which has no such numbers.
fn write_point(sample: &Sample, at: Timestamp, starts: &mut StartTimes, messages: &mut MessageWriter<'_>) {
    match &sample.value {
        SampleValue::Distribution(distribution) => {
            let histogram = &distribution.histogram;
            if histogram.counts.len() == histogram.bounds.len() + 1 && histogram.sum.is_finite() {
                messages.point(|to| write_histogram(sample, histogram, at, to));
            }
        }
        SampleValue::Gauge(value) if value.is_finite() => {
            messages.point(|to| write_number(sample, *value, 0, at, to));
        }
        SampleValue::Counter(value) if value.is_finite() => {
            let since = unix_ns(starts.of(sample, *value, at));
            messages.point(|to| write_number(sample, *value, since, at, to));
        }
        _ => {}
    }
}

/// The fields of a `NumberDataPoint`.
fn write_number(sample: &Sample, value: f64, since_unix_ns: u64, at: Timestamp, to: &mut Vec<u8>) {
    fixed_field(2, since_unix_ns, to);
    fixed_field(3, unix_ns(at), to);
    fixed_field(4, value.to_bits(), to);
    write_attributes(7, sample, to);
}

/// The fields of a `HistogramDataPoint`. Counts are those of each bucket alone. Where the origin excludes a bucket's upper bound,
/// OTLP includes it: a value that equals a bound is counted one bucket higher.
fn write_histogram(sample: &Sample, histogram: &Histogram, at: Timestamp, to: &mut Vec<u8>) {
    // A workload whose clock is ahead of ours does not start after the point.
    fixed_field(2, unix_ns(histogram.since.min(at)), to);
    fixed_field(3, unix_ns(at), to);
    fixed_field(4, histogram.count(), to);
    fixed_field(5, histogram.sum.to_bits(), to);
    fixed_list(6, histogram.counts.iter().copied(), to);
    fixed_list(7, histogram.bounds.iter().map(|bound| bound.to_bits()), to);
    write_attributes(9, sample, to);
}

fn write_attributes(tag: u32, sample: &Sample, to: &mut Vec<u8>) {
    for (name, value) in labels(sample) {
        match value {
            LabelText::Text(text) => attribute_field(tag, name, text, to),
            LabelText::Number(number) => attribute_field(tag, name, itoa::Buffer::new().format(number), to),
        }
    }
}

/// An instant before the epoch becomes the epoch.
fn unix_ns(at: Timestamp) -> u64 {
    u64::try_from(at.0).unwrap_or(0)
}

#[cfg(test)]
#[path = "rendering_tests.rs"]
mod tests;
