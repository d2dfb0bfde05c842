//! One time series with its one point, as the method timeSeries.create of Cloud Monitoring takes it.
//!
//! A request has at most [`MOST_IN_REQUEST`] of them. Must never contain what the service is known to refuse: one such
//! series costs the others of its request.

use std::sync::Arc;

use goodput::export::{PointValue, TimeSeries};
use model::{
    distribution::{Distribution, Histogram},
    time::Timestamp,
};
use serde::{Serialize, Serializer};

/// The most series in a request.
pub const MOST_IN_REQUEST: usize = 200;
/// The longest value of a label in bytes.
const MOST_LABEL: usize = 1024;
/// The most labels of a metric.
const MOST_LABELS: usize = 30;
/// The most buckets of a distribution.
const MOST_BUCKETS: usize = 200;
/// The metrics of ml-goodput-measurement.
const WORKLOAD_PREFIX: &str = "compute.googleapis.com/workload/";
const WORKLOAD_RESOURCE: &str = "compute.googleapis.com/Workload";

/// What a series is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoredResource {
    /// Its type, such as `generic_node`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: Vec<(&'static str, String)>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudSeries {
    /// The type of its metric.
    pub metric: String,
    /// The labels of its metric.
    pub labels: Vec<(String, String)>,
    /// What it is about.
    pub resource: MonitoredResource,
    /// Its point.
    pub point: CloudPoint,
}

/// The point of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum CloudPoint {
    /// A value at a time.
    Gauge {
        /// The time.
        at: Timestamp,
        /// The value.
        value: PointValue,
    },
    /// What was counted since the start of a workload.
    Cumulative {
        /// The time of the count.
        at: Timestamp,
        /// The count.
        distribution: Arc<Distribution>,
        /// Its unit, in the service's notation.
        unit: &'static str,
    },
}

impl CloudSeries {
    /// A series of a goodput ledger.
    pub fn of_ledger(series: TimeSeries, at: Timestamp) -> Self {
        Self {
            metric: format!("{WORKLOAD_PREFIX}{}", series.metric),
            labels: series.labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            resource: MonitoredResource { kind: WORKLOAD_RESOURCE, labels: series.resource },
            point: CloudPoint::Gauge { at, value: series.value },
        }
    }

    /// Whether the service can take it.
    pub fn is_sound(&self) -> bool {
        let fits = |value: &String| value.len() <= MOST_LABEL;
        let labels = self.labels.len() <= MOST_LABELS
            && self.labels.iter().all(|(name, value)| is_label_name(name) && fits(value))
            && self.resource.labels.iter().all(|(_, value)| fits(value));
        labels
            && match &self.point {
                CloudPoint::Gauge { value: PointValue::Double(value), .. } => value.is_finite(),
                CloudPoint::Gauge { value: PointValue::Int(_), .. } => true,
                CloudPoint::Cumulative { at, distribution, .. } => is_countable(&distribution.histogram, *at),
            }
    }

    /// Whether both are the same series.
    pub fn is_same_series(&self, other: &Self) -> bool {
        self.metric == other.metric && self.labels == other.labels && self.resource == other.resource
    }
}

fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether the interval has a length, and the buckets are those of a distribution.
fn is_countable(histogram: &Histogram, at: Timestamp) -> bool {
    let bounds = &histogram.bounds;
    histogram.since < at
        && histogram.sum.is_finite()
        && histogram.counts.len() == bounds.len() + 1
        && histogram.counts.len() <= MOST_BUCKETS
        && bounds.iter().all(|bound| bound.is_finite())
        && bounds.windows(2).all(|pair| pair[0] < pair[1])
}

/// The body of a request.
///
/// # Errors
/// Never for series that are [sound](CloudSeries::is_sound).
pub fn request_body(series: &[CloudSeries]) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Request<'a> {
        time_series: &'a [CloudSeries],
    }
    serde_json::to_vec(&Request { time_series: series })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SeriesBody<'a, N: AsRef<str>> {
    metric: TypeAndLabels<'a, String>,
    resource: TypeAndLabels<'a, N>,
    // The library sends neither kind nor type: a point without a start is a gauge.
    #[serde(skip_serializing_if = "Option::is_none")]
    metric_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'static str>,
    points: [PointBody<'a>; 1],
}

struct TypeAndLabels<'a, N> {
    kind: &'a str,
    labels: &'a [(N, String)],
}

impl<N: AsRef<str>> Serialize for TypeAndLabels<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut body = serializer.serialize_struct("TypeAndLabels", 2)?;
        body.serialize_field("type", self.kind)?;
        body.serialize_field("labels", &LabelMap(self.labels))?;
        body.end()
    }
}

struct LabelMap<'a, N>(&'a [(N, String)]);

impl<N: AsRef<str>> Serialize for LabelMap<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name.as_ref(), value)))
    }
}

#[derive(Serialize)]
struct PointBody<'a> {
    interval: IntervalBody,
    value: ValueBody<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IntervalBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Timestamp>,
    end_time: Timestamp,
}

#[derive(Serialize)]
enum ValueBody<'a> {
    #[serde(rename = "doubleValue")]
    Double(f64),
    // In JSON, 64-bit integers are text.
    #[serde(rename = "int64Value")]
    Int64(String),
    #[serde(rename = "distributionValue")]
    Distribution(DistributionBody<'a>),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DistributionBody<'a> {
    count: String,
    mean: f64,
    // A summary has no buckets.
    #[serde(skip_serializing_if = "Option::is_none")]
    bucket_options: Option<BucketOptions<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bucket_counts: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BucketOptions<'a> {
    explicit_buckets: ExplicitBuckets<'a>,
}

#[derive(Serialize)]
struct ExplicitBuckets<'a> {
    bounds: &'a [f64],
}

#[expect(clippy::cast_precision_loss, reason = "a mean of more than 2^53 values is rounded")]
fn distribution_body(histogram: &Histogram) -> DistributionBody<'_> {
    let (count, bounds) = (histogram.count(), &*histogram.bounds);
    let has_buckets = !bounds.is_empty();
    DistributionBody {
        count: count.to_string(),
        mean: if count > 0 { histogram.sum / count as f64 } else { 0.0 },
        bucket_options: has_buckets.then_some(BucketOptions { explicit_buckets: ExplicitBuckets { bounds } }),
        bucket_counts: histogram.counts.iter().filter(|_| has_buckets).map(ToString::to_string).collect(),
    }
}

impl Serialize for CloudSeries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (metric_kind, value_type, unit, point) = match &self.point {
            CloudPoint::Gauge { at, value } => {
                let value = match value {
                    PointValue::Double(value) => ValueBody::Double(*value),
                    PointValue::Int(value) => ValueBody::Int64(value.to_string()),
                };
                let interval = IntervalBody { start_time: None, end_time: *at };
                (None, None, None, PointBody { interval, value })
            }
            CloudPoint::Cumulative { at, distribution, unit } => {
                let value = ValueBody::Distribution(distribution_body(&distribution.histogram));
                let interval = IntervalBody { start_time: Some(distribution.histogram.since), end_time: *at };
                (Some("CUMULATIVE"), Some("DISTRIBUTION"), Some(*unit), PointBody { interval, value })
            }
        };
        let body = SeriesBody {
            metric: TypeAndLabels { kind: &self.metric, labels: &self.labels },
            resource: TypeAndLabels { kind: self.resource.kind, labels: &self.resource.labels },
            metric_kind,
            value_type,
            unit,
            points: [point],
        };
        body.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp(1_772_323_623_500_000_000);

    fn ledger(value: PointValue) -> CloudSeries {
        let series = TimeSeries {
            metric: "goodput_time",
            value,
            labels: vec![("goodput_source", "TOTAL".into())],
            resource: vec![("location", "us-east5-a".into())],
        };
        CloudSeries::of_ledger(series, AT)
    }

    fn counted(since: i64, bounds: &[f64], counts: &[u64]) -> CloudSeries {
        let histogram =
            Histogram { since: Timestamp(since), bounds: bounds.into(), counts: counts.to_vec(), sum: 12.0 };
        CloudSeries {
            metric: "custom.googleapis.com/tpuscope/x_seconds".into(),
            labels: vec![("core".into(), "3".into())],
            resource: MonitoredResource { kind: "generic_node", labels: vec![("node_id", "h".into())] },
            point: CloudPoint::Cumulative {
                at: AT,
                distribution: Arc::new(Distribution::first(histogram)),
                unit: "s",
            },
        }
    }

    #[test]
    fn a_request_has_the_form_of_the_service() {
        let series =
            [ledger(PointValue::Double(1.5)), ledger(PointValue::Int(7)), counted(AT.0 - 1, &[0.5], &[1, 3])];
        let body: serde_json::Value = serde_json::from_slice(&request_body(&series).unwrap()).unwrap();
        let at = "2026-03-01T00:07:03.5Z";
        let of_ledger = |value: serde_json::Value| {
            serde_json::json!({
                "metric": {"type": "compute.googleapis.com/workload/goodput_time", "labels": {"goodput_source": "TOTAL"}},
                "resource": {"type": "compute.googleapis.com/Workload", "labels": {"location": "us-east5-a"}},
                "points": [{"interval": {"endTime": at}, "value": value}],
            })
        };
        let want = serde_json::json!({"timeSeries": [
            of_ledger(serde_json::json!({"doubleValue": 1.5})),
            of_ledger(serde_json::json!({"int64Value": "7"})),
            {
                "metric": {"type": "custom.googleapis.com/tpuscope/x_seconds", "labels": {"core": "3"}},
                "resource": {"type": "generic_node", "labels": {"node_id": "h"}},
                "metricKind": "CUMULATIVE", "valueType": "DISTRIBUTION", "unit": "s",
                "points": [{
                    "interval": {"startTime": "2026-03-01T00:07:03.499999999Z", "endTime": at},
                    "value": {"distributionValue": {
                        "count": "4", "mean": 3.0,
                        "bucketOptions": {"explicitBuckets": {"bounds": [0.5]}},
                        "bucketCounts": ["1", "3"],
                    }},
                }],
            },
        ]});
        assert_eq!(body, want);
        let bare: serde_json::Value =
            serde_json::from_slice(&request_body(&[counted(0, &[], &[4])]).unwrap()).unwrap();
        let value = &bare["timeSeries"][0]["points"][0]["value"]["distributionValue"];
        assert_eq!(value, &serde_json::json!({"count": "4", "mean": 3.0}));
    }

    #[test]
    fn what_the_service_refuses_is_not_sound() {
        let labelled = |name: &str, length: usize| CloudSeries {
            labels: vec![(name.into(), "x".repeat(length))],
            ..ledger(PointValue::Int(1))
        };
        let many: Vec<f64> = (0..200).map(f64::from).collect();
        for good in [
            ledger(PointValue::Double(-1.0)),
            labelled("a_1", 1024),
            counted(0, &[1.0, 2.0], &[1, 2, 3]),
            counted(0, &many[..199], &[0; 200]),
        ] {
            assert!(good.is_sound(), "{good:?}");
        }
        for bad in [
            ledger(PointValue::Double(f64::NAN)),
            ledger(PointValue::Double(f64::INFINITY)),
            labelled("a", 1025),
            labelled("1a", 1),
            labelled("a-b", 1),
            counted(AT.0, &[1.0], &[1, 2]),
            counted(AT.0 + 1, &[1.0], &[1, 2]),
            counted(0, &[2.0, 1.0], &[1, 2, 3]),
            counted(0, &[1.0], &[1]),
            counted(0, &[f64::INFINITY], &[1, 2]),
            counted(0, &many, &[0; 201]),
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }
}
