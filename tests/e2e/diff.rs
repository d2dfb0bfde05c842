//! `sessions diff`: two captures of a real JAX program, traces with and without devices, and every kind of bad input.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::schema::Schema;
use fakes::{
    command::{Ended, run},
    harness::{data, peer, workspace},
};
use serde_json::Value;
use tempfile::TempDir;

const USAGE: i32 = 2;
const BAD_INPUT: i32 = 8;

fn vector(case: &str) -> PathBuf {
    data().join("golden/xplane").join(case)
}

fn diff(a: &Path, b: &Path, more: &[&str]) -> Ended {
    let mut arguments = vec!["sessions".as_ref(), "diff".as_ref(), a.as_os_str(), b.as_os_str()];
    arguments.extend(more.iter().map(std::ffi::OsStr::new));
    run(&workspace(), &arguments)
}

fn json(a: &Path, b: &Path) -> Value {
    let ended = diff(a, b, &["--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    Schema::open("sessions-diff").admits(&ended.json());
    ended.json()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A trace of 12 steps of the program; from the step `slow` on they do more.
fn traced(slow: u32) -> TempDir {
    let folder = TempDir::new().unwrap();
    let script = workspace().join("tests/scripts/jax_steps.py");
    let output = Command::new(peer("xprof/bin/python"))
        .arg(script)
        .arg(folder.path())
        .args(["12", &slow.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

#[test]
fn a_program_that_became_slower_is_told_with_the_step_and_the_operations() {
    let (before, after) = (traced(12), traced(6));
    let found = json(before.path(), after.path());
    let first = &found["first_change"];
    assert_eq!(
        (&first["found"], &first["step_num"], &first["index"]),
        (&"at_step".into(), &506.into(), &6.into())
    );
    let time = &found["step_time"];
    assert_eq!((&time["a"]["count"], &time["b"]["count"]), (&12.into(), &12.into()));
    let mean = |side: &str| time[side]["mean_ps"].as_i64().unwrap();
    assert!(mean("b") - mean("a") > 15_000_000_000, "{time}");
    // The operations that only the slow steps have.
    let new: Vec<&str> = list(&found["operations"])
        .iter()
        .filter(|op| op["a"].is_null())
        .map(|op| op["name"].as_str().unwrap())
        .collect();
    assert!(new.iter().any(|name| name.contains("sort")), "{new:?} in {}", found["operations"]);
    assert!(list(&found["operations"]).iter().all(|op| op["per"] == "step"), "{found}");
    let text = diff(before.path(), after.path(), &[]).stdout;
    for words in [
        "\nstep time    median ",
        "\nfirst change from step 506 of B on steps take longer; the 6 before it take as long as those of A",
        ", new\n",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(text.lines().count() <= 40, "{text}");
    // The other way round the operations are gone.
    let back = json(after.path(), before.path());
    assert!(list(&back["operations"]).iter().any(|op| op["b"].is_null()), "{back}");
    // A trace of the host alone and one of devices have nothing in common.
    let devices = vector("steady_1core");
    let other = diff(before.path(), &devices, &[]);
    other.failed(BAD_INPUT, "A is a trace of the host alone, and B has devices");
    assert!(other.stderr.contains("--device-tracer-level"), "{other:?}");
    diff(&devices, before.path(), &[]).failed(BAD_INPUT, "B is a trace of the host alone, and A has devices");
}

#[test]
fn a_straggler_that_came_is_told_with_its_operations() {
    let found = json(&vector("steady_1core"), &vector("straggler_4core"));
    assert_eq!(found["straggler"]["a"], Value::Null);
    assert_eq!(found["straggler"]["b"]["plane"], "/device:TPU:2");
    assert_eq!(found["step_time"]["a"]["count"], 12);
    let setup = list(&found["setup"]).iter().find(|one| one["what"] == "cores").unwrap();
    assert_eq!((&setup["a"], &setup["b"]), (&"1".into(), &"4".into()));
    let op = &list(&found["operations"])[0];
    assert_eq!(op["per"], "program_run");
    let changes: Vec<i64> =
        list(&found["operations"]).iter().map(|op| op["change_ps"].as_i64().unwrap().abs()).collect();
    assert!(changes.is_sorted_by(|a, b| a >= b), "{changes:?}");
    let text = diff(&vector("steady_1core"), &vector("straggler_4core"), &["--top", "2"]).stdout;
    for words in
        ["straggler    none -> t1v-n-bbbb-w-0 /device:TPU:2, ", "recorded     hosts: ", "busy         "]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn a_trace_that_lost_events_is_compared_with_a_word_of_it() {
    let found = json(&vector("steady_1core"), &vector("truncated_end"));
    assert!(found["losses"]["b"].to_string().contains("ends early"), "{found}");
    let text = diff(&vector("steady_1core"), &vector("truncated_end"), &[]).stdout;
    let loss = text.find("\nloss in B").unwrap_or_else(|| panic!("{text}"));
    assert!(loss < text.find("\nstep time").unwrap_or(usize::MAX), "{text}");
}

#[test]
fn what_is_not_the_same_thing_is_not_compared() {
    let serving = data().join("golden/xplane_ids/inference_modules_only_ids");
    let found = json(&serving, &vector("steady_1core"));
    assert_eq!(found["step_time"], Value::Null);
    assert_eq!(found["first_change"]["found"], "unknown");
    let said = found["not_compared"].to_string();
    assert!(said.contains("the steps of A are runs of jit_decode, those of B have markers"), "{said}");
    assert!(said.contains("operations: no program is in both sessions"), "{said}");
    // Programs are known by their names where no marker tells steps.
    let jumps = data().join("golden/xplane_clock/clock_jumps");
    let slow = data().join("golden/xplane_clock/clock_jumps_slow");
    let found = json(&jumps, &slow);
    assert_eq!(found["step_time"]["program"], "jit_train_step");
    assert_eq!(found["programs"][0]["program"], "jit_train_step");
}

#[test]
fn bad_input_gives_one_line_and_its_code() {
    let folder = TempDir::new().unwrap();
    let steady = vector("steady_1core");
    diff(&steady, &steady, &[]).failed(USAGE, "is given twice");
    let file = steady.join("t1v-n-aaaa-w-0.xplane.pb");
    diff(&steady, &file, &[]).failed(USAGE, "is given twice");
    diff(&steady, &folder.path().join("nothing"), &[]).failed(5, "does not exist");
    diff(&steady, folder.path(), &[]).failed(5, "holds no session");
    let text = folder.path().join("text.xplane.pb");
    fs::write(&text, "# text\n").unwrap();
    diff(&text, &steady, &[]).failed(BAD_INPUT, "is a text file, not an XSpace");
    // A copy of a session has its id and its parts.
    let manifest = serde_json::json!({
        "version": 1, "session": "s", "tool": { "name": "t", "version": "1" },
        "id": "0123456789abcdef0123456789abcdef",
        "hosts": [{ "host": "h", "parts": [{
            "file": "h.xplane.pb", "size": fs::metadata(&file).unwrap().len(), "sha256": "ab",
            "planes": 1, "lines": 1, "events": 1
        }] }]
    });
    let copies = ["one", "two"].map(|name| folder.path().join(name));
    for copy in &copies {
        fs::create_dir(copy).unwrap();
        fs::copy(&file, copy.join("h.xplane.pb")).unwrap();
        fs::write(copy.join("manifest.json"), manifest.to_string()).unwrap();
    }
    diff(&copies[0], &copies[1], &[]).failed(USAGE, "are the same session");
    // Parts of two jobs.
    let jobs = folder.path().join("jobs");
    fs::create_dir(&jobs).unwrap();
    fs::copy(&file, jobs.join("a.xplane.pb")).unwrap();
    fs::copy(vector("multi_module").join("t1v-n-iiii-w-0.xplane.pb"), jobs.join("b.xplane.pb")).unwrap();
    diff(&steady, &jobs, &[]).failed(BAD_INPUT, "holds parts of 2 jobs");
    // What is missing is named, and the rest compared.
    fs::write(copies[0].join("cut.xplane.pb"), b"").unwrap();
    let partial = diff(&vector("straggler_4core"), &copies[0], &[]);
    assert_eq!(partial.code, Some(18), "{partial:?}");
    assert!(partial.stdout.contains("missing in B cut.xplane.pb is empty"), "{partial:?}");
}
