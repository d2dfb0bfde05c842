//! Samples as families of series, in order of name: what the metrics page and an exporter have in common.
//!
//! A sample's descriptor says all that is needed: its name, help and kind; no metric is treated in a way of its own.

use model::{
    label::{LabelValue, RESERVED},
    metric::{Descriptor, MetricKind},
    sample::{Origin, Sample, SampleValue},
};

/// The labels that are added to every measured sample: none of its own can take their name.
const ADDED: [&str; 3] = ["source", "workload", "workload_kind"];

/// Samples, in order of their series, one of each.
pub(super) struct Families<'a>(Vec<&'a Sample>);

/// The series of one metric, in order of their labels.
pub(super) struct Family<'s> {
    /// Its name, help, unit and kind.
    pub(super) descriptor: &'s Descriptor,
    samples: &'s [&'s Sample],
}

impl<'a> Families<'a> {
    /// Those of some samples. What has no name that every format can write is left out.
    pub(super) fn of(mut samples: Vec<&'a Sample>) -> Self {
        samples
            .retain(|sample| is_name(&sample.metric.name) && value_fits(sample.metric.kind, &sample.value));
        samples.sort_by(|a, b| a.cmp_series(b));
        // One sample a series: a page with two is refused as a whole.
        samples.dedup_by(|a, b| a.is_same_series(b));
        Self(samples)
    }

    /// Each family, in order of name. Several sources may give a metric; its family is of the kind that the first says.
    pub(super) fn iter(&self) -> impl Iterator<Item = Family<'_>> {
        let families = self.0.chunk_by(|a, b| a.metric == b.metric);
        families.filter_map(|samples| Some(Family { descriptor: &samples.first()?.metric, samples }))
    }
}

impl<'s> Family<'s> {
    /// Its samples, whose values are of its kind.
    pub(super) fn samples(&self) -> impl Iterator<Item = &'s Sample> {
        let kind = self.descriptor.kind;
        self.samples.iter().copied().filter(move |sample| value_fits(kind, &sample.value))
    }
}

fn value_fits(kind: MetricKind, value: &SampleValue) -> bool {
    matches!(
        (kind, value),
        (MetricKind::Gauge, SampleValue::Gauge(_))
            | (MetricKind::Counter, SampleValue::Counter(_))
            | (MetricKind::Histogram, SampleValue::Distribution(_))
    )
}

/// The value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LabelText<'a> {
    Number(u32),
    Text(&'a str),
}

impl<'a> From<&'a LabelValue> for LabelText<'a> {
    fn from(value: &'a LabelValue) -> Self {
        match value {
            LabelValue::Number(number) => Self::Number(*number),
            LabelValue::Text(text) => Self::Text(text),
        }
    }
}

impl<'a> From<&'a str> for LabelText<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

/// The sample's own labels in their order, then those of the source and the workload.
pub(super) fn labels(sample: &Sample) -> impl Iterator<Item = (&str, LabelText<'_>)> {
    let measured = sample.origin != Origin::Agent;
    let is_taken = move |name| {
        RESERVED.contains(&name) && (ADDED.contains(&name) && measured || ["le", "quantile"].contains(&name))
    };
    let own = sample.labels.iter().filter(move |(name, _)| is_name(name) && !is_taken(*name));
    let own = own.map(|(name, value)| (name, value.into()));
    // The agent's own metrics are about a source, or about none.
    let source = measured.then(|| ("source", sample.origin.as_str().into()));
    let workload = sample.workload_label().into_iter();
    let workload = workload
        .flat_map(|label| [("workload", label.workload), ("workload_kind", label.kind.as_str())])
        .map(|(name, value)| (name, value.into()));
    own.chain(source).chain(workload)
}

/// Whether `name` can name a series or (without colons, which this refuses too) a label.
pub(super) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(is_name("tpu_x1") && is_name("_x"));
        assert!(!is_name("") && !is_name("1x") && !is_name("a-b") && !is_name("a b") && !is_name("ä"));
    }
}
