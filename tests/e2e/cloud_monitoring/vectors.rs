//! Each payload has the series of the library's own uploader.

use std::{collections::BTreeMap, fs};

use fakes::harness::data;

use super::*;

/// What names a series, and its value: of the library's, and of those that arrived.
type Named = BTreeMap<String, (String, f64)>;

fn wanted(series: &[Value]) -> Named {
    let of = |one: &Value| {
        let key =
            serde_json::json!([one["type"], one["labels"], one["resource_type"], one["resource_labels"]]);
        let kind = match one["value_field"].as_str().unwrap() {
            "double_value" => "doubleValue",
            _ => "int64Value",
        };
        (key.to_string(), (kind.to_owned(), one["value"].as_f64().unwrap()))
    };
    series.iter().map(of).collect()
}

fn arrived(series: &[Value]) -> Named {
    let of = |one: &Value| {
        let (metric, resource) = (&one["metric"], &one["resource"]);
        let key = serde_json::json!([metric["type"], metric["labels"], resource["type"], resource["labels"]]);
        let value = one["points"][0]["value"].as_object().unwrap();
        let (kind, value) = value.iter().next().unwrap();
        let value = value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap());
        (key.to_string(), (kind.clone(), value))
    };
    series.iter().map(of).collect()
}

fn assert_same(what: &str, got: &Named, want: &Named) {
    let keys = |named: &Named| named.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(got), keys(want), "{what}");
    for (key, (kind, value)) in want {
        let (got_kind, got_value) = &got[key];
        // A query at the time of the last entry is a microsecond later here, so that it counts.
        assert!(got_kind == kind && (got_value - value).abs() <= 2e-5 * value.abs().max(1.0), "{what} {key}");
    }
}

fn at(seconds: &Value) -> Timestamp {
    #[expect(clippy::cast_possible_truncation, reason = "microseconds of this century")]
    let micros = (seconds.as_f64().unwrap() * 1e6).round() as i64;
    Timestamp(micros * 1000)
}

/// A query of a vector that an uploader makes: of the whole job, or of the window before the time of the query.
async fn check(file: &str, vector: &Value, case: &Value) -> bool {
    let (query, output) = (&case["query"], &case["output"]);
    let Some(want) = output["cloud_monitoring_series"].as_array() else { return false };
    let window = match query["kind"].as_str().unwrap() {
        "cumulative" => None,
        "interval" if query["now"] == query["end"] => Some(at(&query["end"]).0 - at(&query["start"]).0),
        _ => return false,
    };
    if query.get("ideal_step_time").is_some() || query.get("reuse_calculator").is_some() {
        return false;
    }
    let now = at(&query["now"]);
    let mut host = ExportingHost::at(now, |settings| {
        let size = |ns: i64| format!("{}us", ns / 1000).parse().unwrap();
        settings.rolling_windows = window.into_iter().map(size).collect();
    });
    let entries = vector["entries"].as_array().unwrap().iter();
    let entries = entries.map(|entry| (at(&entry["log_timestamp"]), entry["payload"].to_string()));
    host.mark(vector["job_name"].as_str().unwrap(), entries.filter(|(at, _)| *at <= now));
    let written = host.round().await.unwrap();
    let series = host.monitoring.series();
    assert_eq!(host.monitoring.violations(), [""; 0]);
    assert_eq!(series.len() as u64, written);
    let is_of_window = |one: &&Value| {
        let size = &one["metric"]["labels"]["rolling_window_size"];
        window.is_some() == (size.is_string() && size != "0")
    };
    let of_query: Vec<Value> = series.iter().filter(is_of_window).cloned().collect();
    assert_same(&format!("{file} {query}"), &arrived(&of_query), &wanted(want));
    true
}

#[tokio::test]
async fn every_payload_is_that_of_the_library() {
    let mut checked = 0;
    for entry in fs::read_dir(data().join("golden/goodput")).unwrap() {
        let path = entry.unwrap().path();
        let vector: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for case in vector["cases"].as_array().unwrap() {
            let name = path.file_name().unwrap().to_string_lossy();
            checked += usize::from(check(&name, &vector, case).await);
        }
    }
    assert!(checked >= 40, "{checked} queries");
}
