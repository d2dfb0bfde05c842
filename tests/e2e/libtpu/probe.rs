//! `tpuscope libtpu probe`.

use std::{
    path::Path,
    process::{Command, Output},
};

use crate::schema::Schema;
use fakes::{
    harness::{peer, tpuscope},
    libtpu::Staged,
};
use model::{catalog, sample::Origin};
use serde_json::{Value, json};

fn probe(path: &Path, more: &[&str]) -> Output {
    Command::new(tpuscope()).args(["libtpu", "probe"]).arg(path).args(more).output().unwrap()
}

fn probe_json(path: &Path) -> Value {
    let output = probe(path, &["--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = serde_json::from_slice(&output.stdout).unwrap();
    Schema::open("libtpu-probe").admits(&found);
    found
}

fn types(found: &Value) -> Vec<String> {
    let extensions = found["pjrt"]["extensions"].as_array().unwrap();
    extensions.iter().map(|one| format!("{}:{}", one["type"], one["size"])).collect()
}

/// Number of metrics of the catalog that libtpu 0.0.`patch` knows.
fn known(patch: u32) -> usize {
    catalog::of_origin(Origin::Libtpu).filter(|(_, named)| named.since <= patch).count()
}

#[test]
fn three_real_versions_are_what_they_are() {
    let expected = [
        ("0.0.52", 17, known(52), "0.117", 1144, 104, 18, "5:48"),
        ("0.0.30", 15, known(30), "0.81", 984, 80, 9, "14:40"),
        ("0.0.21", 12, known(21), "0.75", 960, 80, 4, "6:40"),
    ];
    for (version, slots, names, pjrt, api_size, profiler, extensions, first) in expected {
        let found = probe_json(&peer(&format!("libtpu/{version}")));
        assert_eq!(found["version"], version);
        assert_eq!(found["sdk"]["slots"], slots, "{version}");
        assert_eq!(found["sdk"]["metrics"].as_array().unwrap().len(), names, "{version}");
        assert_eq!(found["pjrt"]["version"], pjrt);
        assert_eq!(found["pjrt"]["api_size"], api_size, "{version}");
        assert_eq!(found["pjrt"]["profiler_api_size"], profiler, "{version}");
        let types = types(&found);
        assert_eq!((types.len(), types[0].as_str()), (extensions, first), "{version}");
        assert_eq!(types.last().unwrap(), "1:40", "{version}");
        assert_eq!(found["legacy_profiler"], true);
        assert_eq!(found["faults"], json!([]));
    }
}

#[test]
fn text_for_people_names_everything() {
    let output = probe(&peer("libtpu/0.0.52/libtpu/libtpu.so"), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["0.0.52", "17 functions", "0.117, table of 1144 bytes", "table of 104 bytes", "  hbm_util\n"]
    {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(output.status.success());
}

#[test]
fn what_is_no_libtpu_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.so");
    std::fs::write(&text, "this is no library\n").unwrap();
    for (path, code, word) in [
        (dir.path().join("missing.so"), 5, "missing.so is not loaded"),
        (dir.path().to_owned(), 5, "is not a file"),
        (text, 8, "the dynamic loader refuses"),
    ] {
        let output = probe(&path, &["--json"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(word) && error.lines().count() == 2, "{error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn tables_of_every_size_are_counted() {
    for (slots, stray, version, names) in [
        (9, 0, None, 0),
        (12, 0, Some("0.0.21"), known(21)),
        (15, 0, None, known(22)),
        (15, 1, Some("0.0.23"), known(23)),
        (17, 0, None, known(u32::MAX)),
    ] {
        let staged = Staged::new(version, &format!("slots = {slots}\nstray = {stray}"));
        let found = probe_json(&staged.library());
        assert_eq!(found["sdk"]["slots"], slots);
        assert_eq!(found["sdk"]["metrics"].as_array().unwrap().len(), names, "{slots} {stray}");
        assert_eq!(found["version"], json!(version));
    }
}

#[test]
fn odd_pjrt_tables_are_bounded() {
    let endless = probe_json(&Staged::new(None, "chain = endless").library());
    assert_eq!(types(&endless).len(), 64);
    let none = probe_json(&Staged::new(None, "pjrt = none").library());
    assert_eq!((&none["pjrt"], &none["faults"]), (&Value::Null, &json!([])));
    let tiny = probe_json(&Staged::new(None, "chain = tiny").library());
    assert_eq!(tiny["faults"], json!(["libtpu returned a PJRT extension of absurd size 3"]));
    for size in [80, 104] {
        let found = probe_json(&Staged::new(None, &format!("pjrt = {size}")).library());
        assert_eq!(found["pjrt"]["profiler_api_size"], size);
    }
}

#[test]
fn a_library_that_hangs_or_crashes_has_an_exit_code() {
    for (settings, code, word, printed) in [
        ("load = hang", 15, "did not answer within 1 s", false),
        ("sdk = hang", 15, "did not answer within 1 s", true),
        ("load = abort", 8, "SIGABRT", false),
        ("pjrt_call = segfault", 8, "SIGSEGV", false),
        ("sdk = segfault", 8, "SIGSEGV", true),
        ("load = exit 0", 8, "exit code 0", false),
    ] {
        let staged = Staged::new(None, settings);
        let output = probe(&staged.library(), &["--timeout", "1s"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{settings}: {error}");
        assert!(error.contains(word) && error.lines().count() == 2, "{settings}: {error}");
        // What was found before the fault is shown.
        assert_eq!(!output.stdout.is_empty(), printed, "{settings}");
    }
}
