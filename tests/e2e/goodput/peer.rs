//! The exact ledger beside the real library, on random logs.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use fakes::harness::{peer, workspace};
use goodput::{
    answer,
    entry::{EntryParser, LogEntry, ParsedLine},
    exact::{Calculator, CalculatorOptions},
    export::SeriesLabels,
    log::EventLog,
    query::LedgerQuery,
};
use serde_json::{Value, value::RawValue};

use super::{assert_same, differences, line};

/// Random jobs asked about in `make test`; TPUSCOPE_GOODPUT_SEEDS=FIRST..END asks about others.
const SEEDS: (u64, u64) = (0, 150);

/// Ends with the test, however that ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn seeds() -> (u64, u64) {
    let Ok(text) = env::var("TPUSCOPE_GOODPUT_SEEDS") else { return SEEDS };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    (first.parse().unwrap(), end.parse().unwrap())
}

#[test]
fn random_jobs_get_the_library_s_answers() {
    let (first, end) = seeds();
    let mut child = Guard(
        Command::new(peer("goodput/bin/python"))
            .arg(workspace().join("tests/peers/goodput_peer.py"))
            .args(["random", &first.to_string(), &(end - first).to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let (mut out, mut scenarios, mut answers, mut errors) = (Vec::new(), 0, 0, 0);
    for text in BufReader::new(child.0.stdout.take().unwrap()).lines() {
        let (asked, failed) = scenario(&text.unwrap(), &mut out);
        (scenarios, answers, errors) = (scenarios + 1, answers + asked, errors + failed);
    }
    assert!(child.0.wait().unwrap().success());
    assert_eq!(scenarios, end - first);
    println!("{scenarios} jobs, {answers} queries, {errors} of them errors");
    assert!(answers > 3 * scenarios && errors > 0 && errors < answers / 2);
    assert_same(&out);
}

/// Compares one job's answers; returns how many there were, and how many of them are errors.
fn scenario(text: &str, out: &mut Vec<String>) -> (u64, u64) {
    type PayloadFields = std::collections::BTreeMap<String, Box<RawValue>>;
    let raw: PayloadFields = serde_json::from_str(text).unwrap();
    let job: String = serde_json::from_str(raw["job_name"].get()).unwrap();
    let entries: Vec<PayloadFields> = serde_json::from_str(raw["entries"].get()).unwrap();
    let log = EventLog::from_entries(entries.iter().map(|fields| entry(&job, fields)).collect()).unwrap();
    let queries: Vec<Value> = serde_json::from_str(raw["queries"].get()).unwrap();
    let outputs: Vec<Value> = serde_json::from_str(raw["outputs"].get()).unwrap();
    let labels = SeriesLabels {
        location: "us-central1-a".into(),
        workload_id: job.clone(),
        replica_id: "0".into(),
        accelerator_type: "TPU-v6e".into(),
        cluster_name: None,
    };
    let options =
        CalculatorOptions { elastic: raw["elastic"].get() == "true", ..CalculatorOptions::default() };
    let mut calculator = Calculator::new(options);
    let mut failed = 0;
    for (at, (query, mut want)) in queries.iter().zip(outputs).enumerate() {
        let parsed: LedgerQuery = serde_json::from_value(query.clone()).unwrap();
        if parsed.reuse_calculator() != Some(true) {
            calculator = Calculator::new(options);
        }
        let got = answer::ask(&mut calculator, &log, &parsed, &labels);
        let got = serde_json::to_value(got).unwrap();
        let fields = want.as_object_mut().unwrap();
        fields.remove("details_failed");
        if got.get("step_deviations").is_none() {
            fields.remove("step_deviations");
        }
        failed += u64::from(fields.contains_key("error"));
        differences(&format!("{job} query {at} {query}"), &want, &got, out);
    }
    (queries.len() as u64, failed)
}

fn entry(job: &str, fields: &std::collections::BTreeMap<String, Box<RawValue>>) -> LogEntry {
    let time = fields["log_timestamp"].get().parse().unwrap();
    let line = line(time, fields["insert_id"].get(), fields["payload"].get());
    match EntryParser::new(job).parse(line.as_bytes()).unwrap() {
        ParsedLine::Entry(entry) => *entry,
        ParsedLine::Skipped(reason) => panic!("{reason:?}: {line}"),
    }
}
