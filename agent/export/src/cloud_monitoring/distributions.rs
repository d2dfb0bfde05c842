//! The distributions of libtpu as series of Cloud Monitoring.
//!
//! A count is sent with the time of its read, and each read once: the service refuses a second point of one time. Must
//! never know a metric by name.

use model::{
    metric::Unit,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
};

use super::series::{CloudPoint, CloudSeries, MonitoredResource};

/// Metrics that users define are below it.
const PREFIX: &str = "custom.googleapis.com/tpuscope/";
/// The labels that are added: none of the sample's own can take their name.
const ADDED: [&str; 2] = ["workload", "workload_kind"];

/// The series of the distributions that the runtime services of workloads gave after `after`.
pub(super) fn series(
    samples: &[&Sample],
    resource: &MonitoredResource,
    after: Option<Timestamp>,
) -> Vec<CloudSeries> {
    let mut new: Vec<&Sample> = samples
        .iter()
        .copied()
        .filter(|sample| sample.origin == Origin::Runtime && after.is_none_or(|after| sample.at > after))
        .collect();
    new.sort_by(|a, b| a.cmp_series(b));
    let mut series: Vec<CloudSeries> =
        new.into_iter().filter_map(|sample| of_sample(sample, resource)).collect();
    series.dedup_by(|a, b| a.is_same_series(b));
    series
}

fn of_sample(sample: &Sample, resource: &MonitoredResource) -> Option<CloudSeries> {
    let SampleValue::Distribution(distribution) = &sample.value else { return None };
    Some(CloudSeries {
        metric: format!("{PREFIX}{}", sample.metric.name),
        labels: labels(sample),
        resource: resource.clone(),
        point: CloudPoint::Cumulative {
            at: sample.at,
            distribution: distribution.clone(),
            unit: unit(sample.metric.unit),
        },
    })
}

fn labels(sample: &Sample) -> Vec<(String, String)> {
    let own = sample.labels.iter().filter(|(name, _)| !ADDED.contains(name));
    let mut labels: Vec<_> = own.map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    if let Some(label) = sample.workload_label() {
        labels.push(("workload".to_owned(), label.workload.to_owned()));
        labels.push(("workload_kind".to_owned(), label.kind.as_str().to_owned()));
    }
    labels
}

/// The service's notation, which is that of UCUM.
fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "By",
        Unit::Seconds => "s",
        Unit::BytesPerSecond => "By/s",
        Unit::Ratio | Unit::Count | Unit::Score => "1",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        catalog,
        distribution::{Distribution, Histogram},
        job::{Job, JobKind},
        label::{CORE, Labels},
        metric::MetricKind,
        workload::{Workload, WorkloadId},
    };

    use super::*;

    fn sample(origin: Origin, at: i64, core: u32) -> Sample {
        let metric = catalog::METRICS.iter().find(|metric| metric.kind == MetricKind::Histogram).unwrap();
        let histogram = Histogram { since: Timestamp(1), bounds: [0.5].into(), counts: vec![1, 2], sum: 2.0 };
        let job = Job { kind: JobKind::Slurm, id: "42".into(), ..Job::default() };
        let workload =
            Workload { id: WorkloadId::of(&job, 0), label: job.id.clone(), job, owners: Vec::new() };
        Sample {
            metric: (*metric).into(),
            labels: Labels::one(CORE, core).with("workload", "theirs"),
            value: SampleValue::Distribution(Arc::new(Distribution::first(histogram))),
            origin,
            at: Timestamp(at),
            workload: Some(Arc::new(workload)),
        }
    }

    #[test]
    fn each_read_of_a_distribution_is_sent_once_with_its_time() {
        let all = [
            sample(Origin::Runtime, 20, 1),
            sample(Origin::Runtime, 10, 0),
            sample(Origin::Runtime, 20, 1),
            sample(Origin::OrbaxGrain, 20, 2),
            Sample { value: SampleValue::Gauge(1.0), ..sample(Origin::Runtime, 20, 3) },
        ];
        let all: Vec<&Sample> = all.iter().collect();
        let resource = MonitoredResource { kind: "generic_node", labels: Vec::new() };
        let times = |after: Option<i64>| {
            let series = series(&all, &resource, after.map(Timestamp));
            let time = |series: &CloudSeries| match series.point {
                CloudPoint::Cumulative { at, .. } => at.0,
                CloudPoint::Gauge { .. } => 0,
            };
            series.iter().map(time).collect::<Vec<_>>()
        };
        assert_eq!((times(None), times(Some(10)), times(Some(20))), (vec![10, 20], vec![20], vec![]));
        let first = series(&all, &resource, None).remove(0);
        let labels: Vec<_> =
            first.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("core", "0"), ("workload", "42"), ("workload_kind", "slurm")]);
        assert!(first.metric.starts_with("custom.googleapis.com/tpuscope/tpu_") && first.is_sound());
    }
}
