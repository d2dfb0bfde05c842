//! Real output against the schemas in `docs/schemas`.

use std::fs;

use crate::schema::Schema;
use serde_json::{Value, json};

use super::{file, golden, run, vector};

#[test]
fn answers_are_as_the_schema_says() {
    let schema = Schema::open("goodput");
    let folder = tempfile::tempdir().unwrap();
    for path in golden("goodput") {
        let vector = vector(&path);
        let log = file(folder.path(), "log", vector.lines.join("\n"));
        let queries: Vec<&Value> = vector.cases.iter().map(|case| &case["query"]).collect();
        let queries = file(folder.path(), "queries.json", serde_json::to_string(&queries).unwrap());
        for strict in [&[][..], &["--strict"]] {
            let args = [&["--from-log", &log, "--job", &vector.job, "--queries", &queries], strict].concat();
            for answer in run(&args).json().as_array().unwrap() {
                schema.admits(answer);
            }
        }
        for case in &vector.cases {
            schema.admits(&case["output"]);
        }
    }
    assert!(!schema.faults(&json!({ "goodput_percent": "high" })).is_empty());
}

#[test]
fn proxies_are_as_the_schema_says() {
    let schema = Schema::open("goodput-proxy");
    let folder = tempfile::tempdir().unwrap();
    for path in golden("proxy") {
        let vector: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let trace = file(folder.path(), "trace.json", vector["trace"].to_string());
        schema.admits(&run(&["--from-slots", &trace, "--json"]).json());
        schema.admits(&vector["expected"]);
    }
    assert!(!schema.faults(&json!({})).is_empty());
}
