//! Logs of faults that users reported: repeated entries, a missing job end, entries that are not read.

use std::path::PathBuf;

use crate::schema::Schema;
use fakes::harness::data;
use serde_json::{Value, json};

use super::{assert_same, differences, file, golden, line, run, vector};

const NOT_FOUND: i32 = 5;
const NOW: &str = "1772323311";

fn field(folder: &str, name: &str) -> String {
    let path: PathBuf = data().join("golden/field").join(folder).join(name);
    path.to_str().unwrap().to_owned()
}

fn repeated(answer: &Value) -> u64 {
    answer["repeated_entries"].as_u64().unwrap()
}

#[test]
fn an_export_with_overlapping_hours_counts_each_entry_once() {
    let folder = "goodput_same_insertid_twice";
    let (once, twice) = (field(folder, "once.jsonl"), field(folder, "hour1_and_hour2_overlap.jsonl"));
    for strict in [&[][..], &["--strict"]] {
        let ask = |log: &str| {
            run(&[&["--from-log", log, "--job", "demo", "--now", NOW, "--json"], strict].concat())
        };
        let (once, ended) = (ask(&once).json(), ask(&twice));
        assert!(ended.stderr.contains("warning: 10 entries repeat the timestamp"), "{}", ended.stderr);
        let mut twice = ended.json();
        assert_eq!((repeated(&once), repeated(&twice), &once["disruptions"]), (0, 10, &json!(0)));
        twice["repeated_entries"] = json!(0);
        assert_eq!(once, twice);
    }
}

#[test]
fn a_job_with_every_entry_twice_has_the_library_s_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut out = Vec::new();
    for path in golden("goodput") {
        let vector = vector(&path);
        let twice: Vec<&str> = vector.lines.iter().flat_map(|line| [line.as_str(), line]).collect();
        let (once, twice) = (vector.lines.join("\n"), twice.join("\n"));
        let (once, twice) = (file(folder.path(), "once", once), file(folder.path(), "twice", twice));
        let query = &vector.cases[0]["query"];
        let queries = file(folder.path(), "queries.json", json!([query]).to_string());
        let args = ["--from-log", &twice, "--job", &vector.job, "--queries", &queries];
        let answer = run(&args).json()[0].clone();
        assert_eq!(repeated(&answer), vector.lines.len() as u64);
        differences(&vector.name, &vector.cases[0]["output"], &answer, &mut out);
        let mut strict = run(&[&args[..], &["--strict"]].concat()).json();
        strict[0]["repeated_entries"] = json!(0);
        assert_eq!(
            run(&["--from-log", &once, args[2], args[3], args[4], args[5], "--strict"]).json(),
            strict
        );
    }
    assert_same(&out);
}

#[test]
fn entries_of_another_severity_or_in_text_are_the_reason() {
    let schema = Schema::open("goodput");
    for (name, reason, conversion) in [
        ("severity_default.jsonl", "its 36 entries have severity DEFAULT", ".severity = \"INFO\""),
        ("text_payload.jsonl", "its 36 entries have a textPayload and no jsonPayload", "fromjson"),
    ] {
        let log = field("goodput_text_or_severity", name);
        let args = ["--from-log", &log, "--job", "demo", "--now", NOW];
        let ended = run(&args);
        assert!(ended.complaint(NOT_FOUND).contains(reason), "{}", ended.stderr);
        assert!(ended.stderr.contains(conversion) && ended.stdout.is_empty(), "{}", ended.stderr);
        let ended = run(&[&args[..], &["--json"]].concat());
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
        schema.admits(&answer);
        assert_eq!((ended.code, &answer["error"]), (Some(NOT_FOUND), &json!("NoEntries")));
        assert!(answer["message"].as_str().unwrap().contains(reason), "{answer}");
        let ended = run(&["--from-log", &log, "--job", "dmeo", "--now", NOW]);
        assert!(ended.complaint(NOT_FOUND).contains("no entry of job \"dmeo\" among 36 entries"));
        assert!(ended.stderr.contains("did you mean --job \"demo\"?"), "{}", ended.stderr);
    }
}

/// As a program that prints its dict logs it; the suggested conversion is run.
#[test]
fn a_text_that_is_a_python_dict_is_named_and_can_be_converted() {
    let folder = tempfile::tempdir().unwrap();
    let json_text = std::fs::read_to_string(field("goodput_text_or_severity", "text_payload.jsonl")).unwrap();
    let mut dicts = String::new();
    for line in json_text.lines() {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        entry["textPayload"] = entry["textPayload"].as_str().unwrap().replace('"', "'").into();
        dicts += &format!("{entry}\n");
    }
    let log = file(folder.path(), "dicts", dicts);
    let args = ["--from-log", &log, "--job", "demo", "--now", NOW];
    let ended = run(&[&args[..], &["--json"]].concat());
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    Schema::open("goodput").admits(&answer);
    assert_eq!((ended.code, &answer["text_payloads"]), (Some(NOT_FOUND), &json!(36)));
    assert!(
        ended.stderr.contains("its 36 entries have a textPayload that is a Python dict"),
        "{}",
        ended.stderr
    );
    let remedy = answer["remedy"].as_str().unwrap();
    let command = remedy.strip_prefix("convert the entries: ").unwrap().split(" | tpuscope ").next().unwrap();
    let converted = std::process::Command::new("sh").args(["-c", command]).output().unwrap();
    let log = file(folder.path(), "converted", String::from_utf8(converted.stdout).unwrap());
    let ended = run(&["--from-log", &log, "--job", "demo", "--now", NOW, "--json"]);
    assert!(
        ended.json()["goodput_percent"].as_f64().unwrap() > 80.0 && ended.stderr.is_empty(),
        "{}",
        ended.stderr
    );
    let ended = run(&["--from-log", &log, "--job", "DEMO", "--now", NOW]);
    assert!(ended.stderr.contains("did you mean --job \"demo\"?"), "{}", ended.stderr);
    let ended = run(&["--from-log", "gs://bucket/log.jsonl", "--job", "demo"]);
    assert!(ended.stderr.contains("is the address of remote storage"), "{}", ended.stderr);
}

/// The same log with INFO: what is suggested helps, and a part that is not read is told.
#[test]
fn entries_that_are_skipped_beside_others_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(field("goodput_text_or_severity", "severity_default.jsonl")).unwrap();
    let all = file(folder.path(), "all", text.replace("DEFAULT", "INFO"));
    let whole = run(&["--from-log", &all, "--job", "demo", "--now", NOW, "--json"]);
    assert!(whole.json()["goodput_percent"].as_f64().unwrap() > 80.0 && whole.stderr.is_empty());
    let some = file(folder.path(), "some", text.replacen("DEFAULT", "INFO", 30));
    let ended = run(&["--from-log", &some, "--job", "demo", "--now", NOW]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("warning: 6 entries of the job have severity DEFAULT"), "{}", ended.stderr);
    let answer = run(&["--from-log", &some, "--job", "demo", "--now", NOW, "--json"]).json();
    Schema::open("goodput").admits(&answer);
    assert_eq!(answer["skipped_entries"], json!({"severities": {"DEFAULT": 6}, "text_payloads": 0}));
}

#[test]
fn without_a_job_end_the_headline_gives_both_answers() {
    const START: f64 = 1_772_323_200.0;
    let folder = tempfile::tempdir().unwrap();
    let mut lines = vec![line(START, "\"a\"", &format!(r#"{{"job_name":"j","job_start_time":{START:?}}}"#))];
    for step in 0..11 {
        let at = START + f64::from(step) * 2.0;
        let payload = format!(r#"{{"job_name":"j","step_count":{step},"step_start_time":{at:?}}}"#);
        lines.push(line(at, &format!("\"s{step}\""), &payload));
    }
    let log = file(folder.path(), "log", lines.join("\n"));
    let args = ["--from-log", &log, "--job", "j", "--now", "1772323240"];
    let both = "goodput 50.0 % of 40.0 s until now, 2026-03-01 00:00:40 UTC; the log has no job end\n  \
                until the last entry, 2026-03-01 00:00:20 UTC: goodput 100.0 % of 20.0 s\n";
    let text = run(&args).stdout;
    assert!(text.starts_with(&format!("j (as ml-goodput-measurement 0.2.3): {both}")), "{text}");
    // The library gives the second answer, too, when it is asked at the last entry.
    let answer = run(&[&args[..], &["--json"]].concat()).json();
    let earlier = run(&["--from-log", &log, "--job", "j", "--now", "1772323220", "--json"]).json();
    assert_eq!(answer["job_end_logged"], false);
    assert_eq!(
        (&answer["counted_until"], &answer["last_entry"]),
        (&json!(1772323240.0), &json!(1772323220.0))
    );
    let until = &answer["until_last_entry"];
    let mut out = Vec::new();
    for field in ["goodput_percent", "badput_percent", "total_elapsed_seconds", "unproductive_seconds"] {
        differences(field, &earlier[field], &until[field], &mut out);
    }
    assert_same(&out);
    let strict = run(&[&args[..], &["--strict"]].concat()).stdout;
    assert!(
        strict.contains("goodput 55.0 % of 40.0 s until now") && strict.contains("100.0 % of 20.0 s"),
        "{strict}"
    );
    let end = START + 22.0;
    lines.push(line(end, "\"e\"", &format!(r#"{{"job_name":"j","job_end_time":{end:?}}}"#)));
    let log = file(folder.path(), "log", lines.join("\n"));
    let text = run(&args).stdout;
    assert!(
        text.starts_with("j (as ml-goodput-measurement 0.2.3): goodput 100.0 % of 22.0 s\n  prod"),
        "{text}"
    );
    let answer = run(&["--from-log", &log, "--job", "j", "--now", "1772323240", "--json"]).json();
    assert_eq!((&answer["job_end_logged"], &answer["counted_until"]), (&json!(true), &json!(1772323222.0)));
    assert!(answer.get("until_last_entry").is_none());
}
