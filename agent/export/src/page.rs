//! The metrics page: families in the text formats of Prometheus.

use model::{
    distribution::Histogram,
    sample::{Sample, SampleValue},
};

use super::{
    families::{Families, Family, labels},
    page_writer::{Number, PageWriter},
};

/// Writes all samples.
pub(super) fn write(samples: Vec<&Sample>, page: &mut PageWriter) {
    for family in Families::of(samples).iter() {
        write_family(&family, page);
    }
}

fn write_family(family: &Family<'_>, page: &mut PageWriter) {
    let descriptor = family.descriptor;
    let name = &descriptor.name;
    page.family(name, descriptor.kind, &descriptor.help);
    for sample in family.samples() {
        page.series();
        labels(sample).for_each(|(name, value)| page.label(name, value));
        match &sample.value {
            SampleValue::Gauge(value) | SampleValue::Counter(value) => page.line(name, "", Number(*value)),
            SampleValue::Distribution(distribution) => write_histogram(name, &distribution.histogram, page),
        }
    }
}

/// Cumulative buckets, as both formats want them. Where the origin excludes a bucket's upper bound, `le` includes it: a
/// value that equals a bound is counted one bucket higher.
fn write_histogram(name: &str, histogram: &Histogram, page: &mut PageWriter) {
    let uppers = histogram.bounds.iter().copied().chain([f64::INFINITY]);
    let mut up_to: u64 = 0;
    for (upper, count) in uppers.zip(&histogram.counts) {
        up_to = up_to.saturating_add(*count);
        page.bucket(name, upper, up_to);
    }
    page.line(name, "_sum", Number(histogram.sum));
    page.line(name, "_count", up_to);
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, sync::Arc};

    use model::{
        catalog,
        distribution::Distribution,
        job::{Job, JobKind},
        label::{CHIP, Labels},
        metric::{Descriptor, MetricKind, MetricRef, Unit},
        sample::Origin,
        time::Timestamp,
        workload::{Workload, WorkloadId},
    };

    use super::*;
    use crate::page_writer::TextFormat;

    fn sample(metric: MetricRef, labels: Labels, value: SampleValue) -> Sample {
        Sample { metric, labels, value, origin: Origin::Runtime, at: Timestamp(0), workload: None }
    }

    fn distribution() -> SampleValue {
        let histogram =
            Histogram { since: Timestamp(0), bounds: [0.5, 2.0].into(), counts: vec![1, 2, 3], sum: 12.5 };
        SampleValue::Distribution(Arc::new(Distribution::first(histogram)))
    }

    fn page(samples: &[Sample], format: TextFormat) -> String {
        let mut page = PageWriter::new(format, 0);
        write(samples.iter().collect(), &mut page);
        page.finish()
    }

    fn named(name: &'static str, kind: MetricKind) -> MetricRef {
        let (name, help) = (Cow::Borrowed(name), Cow::Borrowed("Help."));
        Arc::new(Descriptor { name, help, unit: Unit::Seconds, kind, labels: &[], origins: &[] }).into()
    }

    #[test]
    fn a_distribution_is_a_cumulative_histogram_in_both_formats() {
        let job = Job { kind: JobKind::Slurm, id: "42".into(), ..Job::default() };
        let workload =
            Workload { id: WorkloadId::of(&job, 0), label: job.id.clone(), job, owners: Vec::new() };
        let metric = named("x_seconds", MetricKind::Histogram);
        let of_job = Sample {
            workload: Some(Arc::new(workload)),
            ..sample(metric.clone(), Labels::one(CHIP, 1).with("core_type", "tc"), distribution())
        };
        let bare = Sample { origin: Origin::Agent, ..sample(metric, Labels::none(), distribution()) };
        let lines = "x_seconds_bucket{le=\"0.5\"} 1\n\
                     x_seconds_bucket{le=\"2.0\"} 3\n\
                     x_seconds_bucket{le=\"+Inf\"} 6\n\
                     x_seconds_sum 12.5\n\
                     x_seconds_count 6\n\
                     x_seconds_bucket{chip=\"1\",core_type=\"tc\",source=\"runtime\",workload=\"42\",workload_kind=\"slurm\",le=\"0.5\"} 1\n\
                     x_seconds_bucket{chip=\"1\",core_type=\"tc\",source=\"runtime\",workload=\"42\",workload_kind=\"slurm\",le=\"2.0\"} 3\n\
                     x_seconds_bucket{chip=\"1\",core_type=\"tc\",source=\"runtime\",workload=\"42\",workload_kind=\"slurm\",le=\"+Inf\"} 6\n\
                     x_seconds_sum{chip=\"1\",core_type=\"tc\",source=\"runtime\",workload=\"42\",workload_kind=\"slurm\"} 12.5\n\
                     x_seconds_count{chip=\"1\",core_type=\"tc\",source=\"runtime\",workload=\"42\",workload_kind=\"slurm\"} 6\n";
        let head = "# HELP x_seconds Help.\n# TYPE x_seconds histogram\n";
        let samples = [of_job, bare];
        assert_eq!(page(&samples, TextFormat::Text), format!("{head}{lines}"));
        assert_eq!(page(&samples, TextFormat::OpenMetrics), format!("{head}{lines}# EOF\n"));
    }

    #[test]
    fn every_metric_of_the_catalog_is_rendered_from_its_descriptor_alone() {
        for metric in catalog::METRICS {
            let value = match metric.kind {
                MetricKind::Gauge => SampleValue::Gauge(1.5),
                MetricKind::Counter => SampleValue::Counter(1.5),
                MetricKind::Histogram => distribution(),
            };
            let text = page(&[sample((*metric).into(), Labels::none(), value)], TextFormat::Text);
            let kind = match metric.kind {
                MetricKind::Gauge => "gauge",
                MetricKind::Counter => "counter",
                MetricKind::Histogram => "histogram",
            };
            let name = &metric.name;
            assert!(
                text.starts_with(&format!("# HELP {name} {}\n# TYPE {name} {kind}\n{name}", metric.help)),
                "{text}"
            );
        }
    }

    #[test]
    fn what_would_break_the_page_is_left_out() {
        let gauge = |name, labels| sample(named(name, MetricKind::Gauge), labels, SampleValue::Gauge(1.0));
        let mut evil = Labels::one("source", "theirs").with("le", "1");
        evil.push("a-b".into(), "x");
        evil.push("c".into(), "y\"");
        let wrong_kind = sample(named("n", MetricKind::Gauge), Labels::none(), distribution());
        let clash = sample(named("m", MetricKind::Histogram), Labels::one("z", "1"), distribution());
        let twice = || gauge("m", Labels::none());
        let samples =
            [gauge("k", evil), gauge("bad name", Labels::none()), wrong_kind, twice(), twice(), clash];
        assert_eq!(
            page(&samples, TextFormat::Text),
            "# HELP k Help.\n# TYPE k gauge\nk{c=\"y\\\"\",source=\"runtime\"} 1.0\n\
             # HELP m Help.\n# TYPE m gauge\nm{source=\"runtime\"} 1.0\n"
        );
    }
}
