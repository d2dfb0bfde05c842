//! What Cloud Monitoring refuses of a request to write points.
//!
//! The rules are those of the documentation of `projects.timeSeries.create` and of its quotas. Where the service would
//! refuse, so does the double.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

/// The most series of a request.
const MOST_SERIES: usize = 200;
/// The least time between two points of a series.
const PERIOD: SignedDuration = SignedDuration::from_secs(5);
/// How far a point may lie ahead and behind.
const AHEAD: SignedDuration = SignedDuration::from_mins(5);
const BEHIND: SignedDuration = SignedDuration::from_hours(25);
/// The prefixes of metrics that may be written.
const WRITABLE: [&str; 2] = ["custom.googleapis.com/", "compute.googleapis.com/workload/"];

/// The last point of each series.
#[derive(Debug, Default)]
pub(super) struct SeriesBook(BTreeMap<String, LastPoint>);

#[derive(Debug, Clone, PartialEq)]
struct LastPoint {
    start: Option<Timestamp>,
    end: Timestamp,
    /// Whether it counts since a start, and the kind of its value.
    kind: (bool, String),
}

impl SeriesBook {
    /// Takes the series of a request, or none of them and what is wrong.
    pub(super) fn write(&mut self, body: &[u8], now: Timestamp) -> Result<Vec<Value>, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let object = only(&body, &["timeSeries"])?;
        let series = member(object, "timeSeries")?.as_array().ok_or("timeSeries is no list")?;
        if series.is_empty() || series.len() > MOST_SERIES {
            return Err(format!("{} series in a request", series.len()));
        }
        let (mut seen, mut points) = (BTreeSet::new(), Vec::new());
        for one in series {
            let (key, point) = read(one, now).map_err(|why| format!("{why}: {one}"))?;
            if !seen.insert(key.clone()) {
                return Err(format!("two points of one series: {key}"));
            }
            if let Some(last) = self.0.get(&key) {
                last.check_next(&point).map_err(|why| format!("{why}: {one}"))?;
            }
            points.push((key, point));
        }
        self.0.extend(points);
        Ok(series.clone())
    }
}

impl LastPoint {
    fn check_next(&self, next: &Self) -> Result<(), String> {
        if next.kind != self.kind {
            return Err(format!("the kind of the metric changes from {:?}", self.kind));
        }
        if next.end <= self.end {
            return Err(format!("older than the last point, at {}", self.end));
        }
        if next.end.duration_since(self.end) < PERIOD {
            return Err(format!("more often than every 5 s: the last point was at {}", self.end));
        }
        match (self.start, next.start) {
            (Some(before), Some(start)) if start != before && start <= self.end => {
                Err(format!("a new start within the last interval, which ends at {}", self.end))
            }
            _ => Ok(()),
        }
    }
}

/// The object, if it has none but these members.
fn only<'a>(value: &'a Value, known: &[&str]) -> Result<&'a Map<String, Value>, String> {
    let object = value.as_object().ok_or_else(|| format!("no object: {value}"))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(format!("unknown member {unknown}")),
        None => Ok(object),
    }
}

fn member<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value, String> {
    object.get(name).ok_or_else(|| format!("no {name}"))
}

/// What names a series, and its point.
fn read(series: &Value, now: Timestamp) -> Result<(String, LastPoint), String> {
    let object = only(series, &["metric", "resource", "metricKind", "valueType", "unit", "points"])?;
    let (metric, resource) = (member(object, "metric")?, member(object, "resource")?);
    only(metric, &["type", "labels"])?;
    only(resource, &["type", "labels"])?;
    let kind = metric["type"].as_str().ok_or("no type of metric")?;
    if !WRITABLE.iter().any(|prefix| kind.starts_with(prefix)) {
        return Err("a metric that nobody may write".into());
    }
    check_labels(&metric["labels"])?;
    check_labels(&resource["labels"])?;
    check_resource(kind, resource)?;
    let [point] = member(object, "points")?.as_array().ok_or("no points")?.as_slice() else {
        return Err("not one point".into());
    };
    only(point, &["interval", "value"])?;
    let interval = only(&point["interval"], &["startTime", "endTime"])?;
    let time = |key: &str| -> Result<Option<Timestamp>, String> {
        let Some(text) = interval.get(key) else { return Ok(None) };
        let text = text.as_str().ok_or("a time is no text")?;
        text.parse().map(Some).map_err(|error| format!("{error}"))
    };
    let (start, end) = (time("startTime")?, time("endTime")?.ok_or("no end")?);
    if end > now + AHEAD {
        return Err(format!("Data points cannot be written more than 5m in the future (now {now})"));
    }
    if end < now - BEHIND {
        return Err(format!("Data points cannot be written more than 25h1m0s in the past (now {now})"));
    }
    let is_cumulative = series["metricKind"] == "CUMULATIVE";
    match start {
        None if is_cumulative => return Err("CUMULATIVE without a start".into()),
        Some(start) if is_cumulative && start >= end => return Err("the start is not before the end".into()),
        Some(start) if !is_cumulative && start != end => return Err("GAUGE with another start".into()),
        _ => {}
    }
    let value_kind = check_value(&point["value"])?;
    if let Some(said) = series.get("valueType").and_then(Value::as_str)
        && !value_kind.starts_with(&said.to_lowercase())
    {
        return Err(format!("{said} with a {value_kind}"));
    }
    let key = serde_json::json!([metric, resource]).to_string();
    Ok((key, LastPoint { start, end, kind: (is_cumulative, value_kind) }))
}

fn check_labels(labels: &Value) -> Result<(), String> {
    let labels = labels.as_object().ok_or("no labels")?;
    if labels.len() > 30 {
        return Err(format!("{} labels", labels.len()));
    }
    for (name, value) in labels {
        let sound = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let value = value.as_str().ok_or("a label is no text")?;
        if !sound || value.len() > 1024 {
            return Err(format!("a bad label {name}"));
        }
    }
    Ok(())
}

/// Each type of resource has its labels, no more and no fewer.
fn check_resource(metric: &str, resource: &Value) -> Result<(), String> {
    let (kind, labels): (_, &[&str]) = if metric.starts_with("compute.googleapis.com/") {
        ("compute.googleapis.com/Workload", &["location", "replica_id", "workload_id"])
    } else {
        ("generic_node", &["location", "namespace", "node_id", "project_id"])
    };
    let given: Vec<&String> = resource["labels"].as_object().into_iter().flat_map(Map::keys).collect();
    if resource["type"] != kind || given != labels {
        return Err(format!("the resource is not a {kind} with {labels:?}"));
    }
    Ok(())
}

/// The kind of a value.
fn check_value(value: &Value) -> Result<String, String> {
    let (kind, value) = match value.as_object().map(|object| object.iter().collect::<Vec<_>>()).as_deref() {
        Some([one]) => *one,
        _ => return Err("not one value".into()),
    };
    let sound = match kind.as_str() {
        "doubleValue" => value.as_f64().is_some_and(f64::is_finite),
        "int64Value" => value.as_str().is_some_and(|text| text.parse::<i64>().is_ok()),
        "distributionValue" => return check_distribution(value).map(|()| kind.clone()),
        _ => false,
    };
    if sound { Ok(kind.clone()) } else { Err(format!("a bad {kind}")) }
}

fn check_distribution(value: &Value) -> Result<(), String> {
    let object = only(value, &["count", "mean", "bucketOptions", "bucketCounts"])?;
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<u64>().ok());
    let count = number(member(object, "count")?).ok_or("no count")?;
    let mean = value["mean"].as_f64().ok_or("no mean")?;
    if count == 0 && mean != 0.0 {
        return Err("a mean of nothing".into());
    }
    let Some(options) = object.get("bucketOptions") else {
        let empty = object.get("bucketCounts").is_none();
        return if empty { Ok(()) } else { Err("counts without buckets".into()) };
    };
    let bounds = options["explicitBuckets"]["bounds"].as_array().ok_or("no bounds")?;
    let bounds: Option<Vec<f64>> = bounds.iter().map(Value::as_f64).collect();
    let bounds = bounds.filter(|bounds| !bounds.is_empty()).ok_or("a bound is no number")?;
    let counts = member(object, "bucketCounts")?.as_array().ok_or("no counts")?;
    let counts: Option<Vec<u64>> = counts.iter().map(number).collect();
    let counts = counts.ok_or("a bucket's count is no number")?;
    if counts.len() != bounds.len() + 1 || counts.len() > 200 {
        return Err(format!("{} counts for {} bounds", counts.len(), bounds.len()));
    }
    if bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err("bounds do not rise".into());
    }
    if counts.iter().sum::<u64>() == count { Ok(()) } else { Err("the counts are not the count".into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gauge(end: &str) -> Value {
        json!({
            "metric": {"type": "compute.googleapis.com/workload/goodput_time", "labels": {"a": "b"}},
            "resource": {"type": "compute.googleapis.com/Workload",
                         "labels": {"location": "l", "workload_id": "w", "replica_id": "0"}},
            "points": [{"interval": {"endTime": end}, "value": {"doubleValue": 1.0}}],
        })
    }

    fn counted(start: &str, end: &str) -> Value {
        json!({
            "metric": {"type": "custom.googleapis.com/x", "labels": {}},
            "resource": {"type": "generic_node",
                         "labels": {"location": "l", "namespace": "n", "node_id": "h", "project_id": "p"}},
            "metricKind": "CUMULATIVE", "valueType": "DISTRIBUTION",
            "points": [{"interval": {"startTime": start, "endTime": end}, "value": {"distributionValue": {
                "count": "3", "mean": 1.0, "bucketOptions": {"explicitBuckets": {"bounds": [1.0]}},
                "bucketCounts": ["1", "2"]}}}],
        })
    }

    fn write(book: &mut SeriesBook, series: &[Value]) -> Result<usize, String> {
        let now = "2026-03-01T00:10:00Z".parse().unwrap();
        book.write(json!({"timeSeries": series}).to_string().as_bytes(), now).map(|series| series.len())
    }

    #[test]
    fn points_are_taken_in_their_order() {
        let (mut book, at) = (SeriesBook::default(), |second: u32| format!("2026-03-01T00:09:{second:02}Z"));
        assert_eq!(write(&mut book, &[gauge(&at(0)), counted(&at(0), &at(1))]), Ok(2));
        assert_eq!(write(&mut book, &[gauge(&at(5)), counted(&at(0), &at(6))]), Ok(2));
        assert_eq!(write(&mut book, &[counted(&at(7), &at(11))]), Ok(1), "a new start after the last end");
        for (bad, why) in [
            (gauge(&at(5)), "older than the last point"),
            (gauge(&at(9)), "more often than every 5 s"),
            (gauge("2026-03-01T01:10:00Z"), "in the future"),
            (gauge("2026-02-27T22:10:00Z"), "in the past"),
            (counted(&at(30), &at(30)), "the start is not before the end"),
            (counted(&at(8), &at(30)), "a new start within the last interval"),
        ] {
            let error = write(&mut book, &[bad]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_request_that_the_service_refuses_is_refused() {
        let mut book = SeriesBook::default();
        let at = "2026-03-01T00:09:00Z";
        let mut foreign = gauge(at);
        foreign["metric"]["type"] = "compute.googleapis.com/instance/uptime".into();
        let mut unequal = counted("2026-03-01T00:08:00Z", at);
        unequal["points"][0]["value"]["distributionValue"]["count"] = "4".into();
        let mut label = gauge(at);
        label["metric"]["labels"]["a-b"] = "x".into();
        let mut resource = gauge(at);
        resource["resource"]["type"] = "global".into();
        for (bad, why) in [
            (vec![], "0 series in a request"),
            (vec![gauge(at); 201], "201 series in a request"),
            (vec![gauge(at), gauge(at)], "two points of one series"),
            (vec![foreign], "nobody may write"),
            (vec![unequal], "the counts are not the count"),
            (vec![label], "a bad label"),
            (vec![resource], "the resource is not a"),
        ] {
            let error = write(&mut book, &bad).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(book.write(b"garbage", Timestamp::UNIX_EPOCH).is_err());
    }
}
