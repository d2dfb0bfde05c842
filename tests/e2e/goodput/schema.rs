//! Real output against the schemas in `docs/schemas`.
//!
//! Checked are the words the schemas use: `type`, `required`, `properties`, `additionalProperties`, `items`,
//! `prefixItems`, `enum`, `const`, `anyOf` and `$ref` within the file.

use std::fs;

use fakes::harness::workspace;
use serde_json::{Value, json};

use super::{file, golden, run, vector};

fn load(name: &str) -> Value {
    let path = workspace().join("docs/schemas").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        other => panic!("the schema uses type {other}"),
    }
}

/// What is wrong with `value`; empty if nothing is.
fn faults(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        match word.as_str() {
            "$schema" | "title" | "description" | "$defs" => {}
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                out.extend(faults(root, root.pointer(pointer).expect("a definition"), value, path));
            }
            "type" => {
                let names: Vec<&str> = match rule {
                    Value::String(name) => vec![name],
                    names => names.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect(),
                };
                if !names.iter().any(|name| is_of(value, name)) {
                    out.push(format!("{path}: {value} is no {names:?}"));
                }
            }
            "const" if value != rule => out.push(format!("{path}: {value} is not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => out.push(format!("{path}: {value}")),
            "const" | "enum" => {}
            "required" => {
                let missing = |key: &&Value| value.is_object() && value.get(key.as_str().unwrap()).is_none();
                out.extend(
                    rule.as_array().unwrap().iter().filter(missing).map(|key| format!("{path}: no {key}")),
                );
            }
            "properties" => {
                for (key, inner) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = rule.get(key) {
                        out.extend(faults(root, schema, inner, &format!("{path}.{key}")));
                    }
                }
            }
            "additionalProperties" => {
                let known = schema.get("properties");
                for (key, inner) in value.as_object().into_iter().flatten() {
                    if known.and_then(|known| known.get(key)).is_some() {
                        continue;
                    }
                    match rule {
                        Value::Bool(false) => out.push(format!("{path}: {key} is not described")),
                        rule => out.extend(faults(root, rule, inner, &format!("{path}.{key}"))),
                    }
                }
            }
            "items" => {
                let first = schema.get("prefixItems").map_or(0, |prefix| prefix.as_array().unwrap().len());
                for (at, item) in value.as_array().into_iter().flatten().enumerate().skip(first) {
                    out.extend(faults(root, rule, item, &format!("{path}[{at}]")));
                }
            }
            "prefixItems" => {
                for (at, rule) in rule.as_array().unwrap().iter().enumerate() {
                    out.extend(faults(root, rule, &value[at], &format!("{path}[{at}]")));
                }
            }
            "anyOf" => {
                let all: Vec<_> =
                    rule.as_array().unwrap().iter().map(|rule| faults(root, rule, value, path)).collect();
                if all.iter().all(|faults| !faults.is_empty()) {
                    out.extend(all.into_iter().flatten());
                }
            }
            other => panic!("the schema uses {other}, which this check does not know"),
        }
    }
    out
}

fn assert_valid(schema: &Value, value: &Value, name: &str) {
    let faults = faults(schema, schema, value, "$");
    assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
}

#[test]
fn answers_are_as_the_schema_says() {
    let schema = load("goodput.schema.json");
    let folder = tempfile::tempdir().unwrap();
    for path in golden("goodput") {
        let vector = vector(&path);
        let log = file(folder.path(), "log", vector.lines.join("\n"));
        let queries: Vec<&Value> = vector.cases.iter().map(|case| &case["query"]).collect();
        let queries = file(folder.path(), "queries.json", serde_json::to_string(&queries).unwrap());
        for strict in [&[][..], &["--strict"]] {
            let args = [&["--from-log", &log, "--job", &vector.job, "--queries", &queries], strict].concat();
            for answer in run(&args).json().as_array().unwrap() {
                assert_valid(&schema, answer, &vector.name);
            }
        }
        for case in &vector.cases {
            assert_valid(&schema, &case["output"], &vector.name);
        }
    }
    assert!(!faults(&schema, &schema, &json!({ "goodput_percent": "high" }), "$").is_empty());
}

#[test]
fn proxies_are_as_the_schema_says() {
    let schema = load("goodput-proxy.schema.json");
    let folder = tempfile::tempdir().unwrap();
    for path in golden("proxy") {
        let vector: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let trace = file(folder.path(), "trace.json", vector["trace"].to_string());
        assert_valid(&schema, &run(&["--from-slots", &trace, "--json"]).json(), "answer");
        assert_valid(&schema, &vector["expected"], "vector");
    }
    assert!(!faults(&schema, &schema, &json!({}), "$").is_empty());
}
