//! Every golden vector of the exact ledger, field by field.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "test code fails loudly")]

use std::{fs, path::PathBuf};

use goodput::{
    answer::{LedgerAnswer, ask},
    entry::{EntryParser, ParsedLine},
    exact::{Calculator, CalculatorOptions},
    export::SeriesLabels,
    log::EventLog,
    query::LedgerQuery,
    strict::{self, StrictAnswer},
    time::Micros,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

#[derive(Deserialize)]
struct Vector {
    job_name: String,
    #[serde(default)]
    elastic: bool,
    entries: Vec<RawEntry>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct RawEntry {
    log_timestamp: f64,
    insert_id: String,
    payload: Box<RawValue>,
}

#[derive(Deserialize)]
struct Case {
    query: Value,
    output: Value,
}

fn golden(folder: &str) -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/golden").join(folder);
    let mut files: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn log_of(vector: &Vector) -> EventLog {
    let reader = EntryParser::new(&*vector.job_name);
    let mut log = EventLog::new();
    for raw in &vector.entries {
        let instant = Micros::from_seconds(raw.log_timestamp).unwrap().to_string().replace(' ', "T");
        let line = format!(
            r#"{{"timestamp":"{instant}","insertId":"{}","jsonPayload":{}}}"#,
            raw.insert_id, raw.payload
        );
        match reader.parse(line.as_bytes()).unwrap() {
            ParsedLine::Entry(entry) => log.push(*entry).unwrap(),
            ParsedLine::Skipped(reason) => panic!("{reason:?}: {line}"),
        }
    }
    log
}

/// Every field of `want` must be in `got`: numbers within 1e-6, all else equal.
fn differences(path: &str, want: &Value, got: &Value, out: &mut Vec<String>) {
    match (want, got) {
        (Value::Number(w), Value::Number(g)) => {
            let (w, g) = (w.as_f64().unwrap(), g.as_f64().unwrap());
            if (w - g).abs() > 1e-6 {
                out.push(format!("{path}: want {w}, got {g}"));
            }
        }
        (Value::Object(w), Value::Object(g)) => {
            for (key, value) in w {
                differences(&format!("{path}.{key}"), value, g.get(key).unwrap_or(&Value::Null), out);
            }
            for key in g.keys().filter(|key| !w.contains_key(*key)) {
                out.push(format!("{path}.{key}: not wanted"));
            }
        }
        (Value::Array(w), Value::Array(g)) => {
            if w.len() != g.len() {
                out.push(format!("{path}: want {} items, got {}", w.len(), g.len()));
            }
            for (at, (w, g)) in w.iter().zip(g).enumerate() {
                differences(&format!("{path}[{at}]"), w, g, out);
            }
        }
        (w, g) if w == g => {}
        (w, g) => out.push(format!("{path}: want {w}, got {g}")),
    }
}

/// What is read back is what was written, without the values of uploaders.
fn assert_read_back<T: serde::Serialize + serde::de::DeserializeOwned>(written: &T) {
    let json = |value: &T| {
        let mut json = serde_json::to_value(value).unwrap();
        for upload in ["cloud_monitoring_series", "tensorboard_scalars"] {
            json.as_object_mut().unwrap().remove(upload);
        }
        json
    };
    let read: T = serde_json::from_str(&serde_json::to_string(written).unwrap()).unwrap();
    assert_eq!(json(&read), json(written));
}

#[test]
fn every_exact_vector_in_every_field() {
    let files = golden("goodput");
    assert!(files.len() >= 28, "the vectors are there");
    let mut out = Vec::new();
    for file in files {
        let vector: Vector = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let log = log_of(&vector);
        let labels = SeriesLabels {
            location: "us-central1-a".into(),
            workload_id: vector.job_name.clone(),
            replica_id: "0".into(),
            accelerator_type: "TPU-v6e".into(),
            cluster_name: None,
        };
        let fresh =
            || Calculator::new(CalculatorOptions { elastic: vector.elastic, ..CalculatorOptions::default() });
        let mut calculator = fresh();
        for (at, case) in vector.cases.iter().enumerate() {
            let query: LedgerQuery = serde_json::from_value(case.query.clone()).unwrap();
            if query.reuse_calculator() != Some(true) {
                calculator = fresh();
            }
            let given = ask(&mut calculator, &log, &query, &labels);
            assert_read_back::<LedgerAnswer>(&given);
            assert_read_back::<StrictAnswer>(&strict::ask(&log, &query, &labels));
            let mut answer = serde_json::to_value(given).unwrap();
            // The library does not say until when it counts.
            for ours in ["job_end_logged", "counted_until", "last_entry", "until_last_entry"] {
                answer.as_object_mut().unwrap().remove(ours);
            }
            let name = file.file_stem().unwrap().to_string_lossy();
            differences(&format!("{name} case {at}"), &case.output, &answer, &mut out);
        }
    }
    assert!(out.is_empty(), "{} differences, such as\n{}", out.len(), out[..out.len().min(40)].join("\n"));
}

#[derive(Deserialize)]
struct ProxyVector {
    trace: goodput::proxy::HostObservations,
    expected: Value,
}

#[test]
fn every_proxy_vector_in_every_field() {
    let files = golden("proxy");
    assert!(files.len() >= 8, "the vectors are there");
    let mut out = Vec::new();
    for file in files {
        let vector: ProxyVector = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let got = serde_json::to_value(goodput::proxy::proxy(&vector.trace).unwrap()).unwrap();
        let name = file.file_stem().unwrap().to_string_lossy();
        differences(&name, &vector.expected, &got, &mut out);
    }
    assert!(out.is_empty(), "{}", out.join("\n"));
}
