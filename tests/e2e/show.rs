//! `sessions show`: a real JAX trace beside the real xprof, and every kind of bad input.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::schema::Schema;
use fakes::{
    command::run,
    harness::{data, peer, workspace},
};
use serde_json::Value;
use tempfile::TempDir;

const PARTIAL: i32 = 18;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 5;
const BAD_INPUT: i32 = 8;
const EMPTY: i32 = 14;

fn vector(case: &str) -> PathBuf {
    data().join("golden/xplane").join(case)
}

fn show(path: &Path, more: &[&str]) -> fakes::command::Ended {
    let mut arguments = vec!["sessions".as_ref(), "show".as_ref(), path.as_os_str()];
    arguments.extend(more.iter().map(std::ffi::OsStr::new));
    run(&workspace(), &arguments)
}

fn json(path: &Path, more: &[&str]) -> Value {
    let ended = show(path, &[more, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.json()
}

fn python(script: &str, arguments: &[&Path]) -> Vec<u8> {
    let script = workspace().join("tests/scripts").join(script);
    let output = Command::new(peer("xprof/bin/python")).arg(&script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn a_real_trace_is_read_as_xprof_reads_it() {
    let folder = TempDir::new().unwrap();
    python("jax_steps.py", &[folder.path(), Path::new("9")]);
    let ours = json(folder.path(), &[]);
    let as_xprof = json(folder.path(), &["--as-xprof"]);
    let file = fakes_trace(folder.path());
    let theirs: Value = serde_json::from_slice(&python("xprof_figures.py", &[&file])).unwrap();

    let host = &ours["hosts"][0];
    assert_eq!(list(&host["host_steps"]).len(), 9);
    assert_eq!(ours["step_time"]["count"], 9);
    // The trace viewer gives microseconds with three digits after the point.
    let near = |ps: &Value, us: &Value| (ps.as_f64().unwrap() / 1e6 - us.as_f64().unwrap()).abs() < 0.002;
    for (step, marker) in list(&host["host_steps"]).iter().zip(list(&theirs["markers"])) {
        assert_eq!(step["step_num"], marker[0]);
        assert!(near(&step["start_ps"], &marker[1]), "{step} {marker}");
        let duration = step["end_ps"].as_i64().unwrap() - step["start_ps"].as_i64().unwrap();
        assert!(near(&duration.into(), &marker[2]), "{step} {marker}");
    }
    assert_eq!(list(&theirs["markers"]).len(), 9);

    let runs = |name: &Value, runs: &Value| (name.as_str().unwrap().to_owned(), runs.as_u64().unwrap());
    let ours: BTreeMap<_, _> =
        list(&host["top_ops"]).iter().map(|op| runs(&op["name"], &op["occurrences"])).collect();
    let theirs_ops: BTreeMap<_, _> =
        theirs["ops"].as_object().unwrap().iter().map(|(op, n)| runs(&op.as_str().into(), n)).collect();
    assert_eq!(ours, theirs_ops);
    assert!(!ours.is_empty());

    // XProf drops the first and the last of more than five steps.
    let steps = list(&as_xprof["hosts"][0]["cores"][0]["steps"]);
    assert_eq!(steps.len(), 7);
    assert_eq!(list(&theirs["steps"]).len(), 7);
    for (step, theirs) in steps.iter().zip(list(&theirs["steps"])) {
        assert_eq!(theirs[0], format!("train {}", 500 + step["step_num"].as_i64().unwrap()));
        let ms = step["duration_ps"].as_f64().unwrap() / 1e9;
        assert!((ms - theirs[1].as_f64().unwrap()).abs() < 0.0051, "{step} {theirs}");
    }
}

/// With the Python tracer on, as by default: its frames are no annotations.
#[test]
fn a_real_job_that_waits_for_its_input_says_so() {
    let folder = TempDir::new().unwrap();
    python("jax_load_batch.py", &[folder.path(), Path::new("6")]);
    let report = json(folder.path(), &[]);
    Schema::open("sessions-show").admits(&report);
    // It has no manifest, and says its versions itself.
    let jax = report["hosts"][0]["versions"]["jax"].as_str().unwrap();
    assert_eq!(report["context"]["versions"]["jax"], serde_json::json!([jax]));
    assert!(show(folder.path(), &[]).stdout.contains(&format!("versions   jax {jax}, jaxlib ")));
    assert_eq!((&report["created"], &report["context"]["tracer_levels"]), (&Value::Null, &Value::Null));
    let all = &report["hosts"][0]["annotations"];
    assert_eq!(all["steps"], 6);
    let row = |name: &str| {
        let found = list(&all["rows"]).iter().find(|row| row["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {all}")).clone()
    };
    let (load, decode, train) = (row("load_batch"), row("decode"), row("train"));
    assert_eq!((&load["occurrences"], &decode["occurrences"]), (&6.into(), &6.into()));
    let ps = |row: &Value, key: &str| row[key].as_i64().unwrap();
    assert_eq!(ps(&load, "in_steps_time_ps"), ps(&load, "time_ps"));
    assert!(ps(&load, "self_time_ps") <= ps(&load, "time_ps") - ps(&decode, "time_ps"));
    assert!(ps(&load, "in_steps_self_time_ps") >= 6 * 40_000_000_000, "{load}");
    assert_eq!((&train["step_marker"], ps(&train, "time_ps")), (&true.into(), ps(all, "steps_time_ps")));
    let frame = list(&all["rows"]).iter().find(|row| row["name"].as_str().unwrap().starts_with('$'));
    assert_eq!(frame, None);
    let text = show(folder.path(), &["--top", "1"]).stdout;
    assert!(text.contains("host       load_batch takes "), "{text}");
    assert!(text.contains(" without the annotations in it) of the mean "), "{text}");
    assert!(text.contains("more names with "), "{text}");
}

/// The usual loop: the batch is loaded before the step, outside its marker.
#[test]
fn a_real_job_that_loads_between_its_steps_says_so() {
    let folder = TempDir::new().unwrap();
    python("jax_load_batch.py", &[folder.path(), Path::new("6"), Path::new("between")]);
    let report = json(folder.path(), &[]);
    let all = &report["hosts"][0]["annotations"];
    assert_eq!((&all["steps"], &all["steps_with_next"]), (&6.into(), &5.into()));
    let ps = |of: &Value, key: &str| of[key].as_i64().unwrap();
    let load = list(&all["rows"]).iter().find(|row| row["name"] == "load_batch").unwrap();
    assert_eq!(ps(load, "in_steps_time_ps"), 0, "{all}");
    let own: Vec<_> = list(&all["rows"]).iter().map(|row| ps(row, "self_time_ps")).collect();
    assert!(own.is_sorted_by(|a, b| a >= b), "the most self time first: {own:?}");
    // The first one lies before the first step.
    assert!(ps(load, "between_steps_time_ps") >= 5 * 40_000_000_000, "{load}");
    assert!(ps(load, "between_steps_time_ps") <= ps(all, "between_steps_ps"), "{all}");
    let text = show(folder.path(), &["--top", "1"]).stdout;
    for words in ["           one begins every ", " of the time from the first to the last lies in no step\n"]
    {
        assert!(text.contains(words), "{text}");
    }
    assert!(
        text.contains("host       load_batch takes ") && text.contains(" from one step to the next ("),
        "{text}"
    );
    assert!(text.contains("between the first and the last step lies in no step ("), "{text}");
}

/// An input pipeline of one's own has names that are not known.
#[test]
fn what_tells_nothing_of_input_is_unknown_and_the_host_says_what_it_does() {
    let folder = TempDir::new().unwrap();
    let file = "t1v-n-eeee-w-0.xplane.pb";
    let mut bytes = fs::read(vector("host_input_bound").join(file)).unwrap();
    let (from, to) = (b"IteratorGetNext", b"load_next_batch");
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    fs::write(folder.path().join(file), bytes).unwrap();
    let report = json(folder.path(), &[]);
    Schema::open("sessions-show").admits(&report);
    assert_eq!(report["input"], Value::Null);
    let text = show(folder.path(), &[]).stdout;
    assert!(text.contains("\ninput      unknown: ") && !text.contains("input-bound"), "{text}");
    assert!(text.contains("\nhost       load_next_batch:load_next_batch takes 45.279 ms, "), "{text}");
    // Here the host runs ahead of the device: its launches wait for nothing that holds the device up.
    let text = show(&vector("multi_module"), &[]).stdout;
    assert!(!text.contains("\nhost  "), "{text}");
    assert!(text.contains("DoEnqueueProgram"), "{text}");
    // XProf calls it not input-bound, and has no such line.
    let text = show(&vector("multi_module"), &["--as-xprof"]).stdout;
    assert!(text.contains("input      not input-bound: 0.0 %"), "{text}");
    for ours in ["DoEnqueueProgram", "peak HBM", "train.py", "jit_backward"] {
        assert!(!text.contains(ours), "{ours} in {text}");
    }
    let shown = |rules: &[&str]| {
        let ended = show(&vector("multi_module"), &[&["--json"], rules].concat());
        Schema::open("sessions-show").admits(&ended.json());
        ended.json()["hosts"][0].clone()
    };
    let (ours, xprofs) = (shown(&[]), shown(&["--as-xprof"]));
    assert!(ours["annotations"].is_object() && xprofs["annotations"].is_null(), "{xprofs}");
    let fields = |host: &Value| -> BTreeSet<String> {
        host["top_ops"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|op| op.as_object().unwrap().keys().cloned())
            .collect()
    };
    let expected = ["category", "name", "occurrences", "program_id", "self_time_ps", "time_ps"];
    assert_eq!(fields(&xprofs), expected.map(str::to_owned).into());
    for more in ["program", "source", "hbm_of_peak"] {
        assert!(fields(&ours).contains(more), "{more}");
    }
}

fn fakes_trace(logdir: &Path) -> PathBuf {
    let session = fs::read_dir(logdir.join("plugins/profile")).unwrap().next().unwrap().unwrap().path();
    let mut files = fs::read_dir(session).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_string_lossy().ends_with(".xplane.pb")).unwrap()
}

#[test]
fn people_get_the_steps_the_straggler_and_the_warnings() {
    let text = show(&vector("two_hosts_late"), &[]).stdout;
    assert!(text.contains("steps      9: mean 11.374 ms"), "{text}");
    assert!(text.contains("straggler  t1v-n-cccc-w-1 (all its cores)"), "{text}");
    assert!(text.contains("began 8.200 ms after the first host (by collectives)"), "{text}");
    let text = show(&vector("truncated_end"), &["--top", "2"]).stdout;
    assert!(text.contains("ends early"), "{text}");
    assert!(text.contains("fusion.3") && !text.contains("fusion.2 "), "{text}");
}

#[test]
fn the_answer_has_the_documented_shape() {
    let schema = Schema::open("sessions-show");
    for case in ["straggler_4core", "real_jax_cpu", "sparse_core"] {
        for rules in [&[][..], &["--as-xprof"]] {
            schema.admits(&json(&vector(case), rules));
        }
    }
}

#[test]
fn bad_input_gives_one_line_and_its_code() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let whole = fs::read(vector("steady_1core").join("t1v-n-aaaa-w-0.xplane.pb")).unwrap();
    show(&folder.path().join("nothing"), &[]).failed(NOT_FOUND, "does not exist");
    show(folder.path(), &[]).failed(NOT_FOUND, "holds no session");
    show(&at("empty.xplane.pb", b""), &[]).failed(BAD_INPUT, "is empty");
    show(&at("cut.xplane.pb", &whole[..whole.len() / 2]), &[]).failed(BAD_INPUT, "damaged at byte");
    show(&at("text.xplane.pb", b"# a Markdown file\n"), &[])
        .failed(BAD_INPUT, "is a text file, not an XSpace");
    show(&at("error.xplane.pb", b"<?xml version='1.0'?><Error/>"), &[]).failed(BAD_INPUT, "an XML document");
    show(&at("zeros.xplane.pb", &[0; 4096]), &[]).failed(BAD_INPUT, "damaged at byte 0");
    // A valid message of another kind: one text field.
    show(&at("other.xplane.pb", b"\x22\x03abc"), &[]).failed(EMPTY, "without any plane");
}

#[test]
fn a_file_of_another_format_is_named_with_what_to_do() {
    let out = TempDir::new().unwrap();
    let folder = data().join("golden/field/not_an_xplane");
    for (file, what, remedy) in [
        (
            "host-a.trace.json.gz",
            "is a gzip file with a Chrome trace (JSON) in it",
            "name the .xplane.pb file beside it",
        ),
        ("host-a.xplane.pb.gz", "is a gzip file, not an XSpace", "gunzip"),
        ("profile.zip", "is a zip archive, not an XSpace", "unzip"),
        ("lfs.xplane.pb", "is a Git LFS pointer, not an XSpace", "git lfs pull"),
    ] {
        let ended = show(&folder.join(file), &[]);
        ended.failed(BAD_INPUT, what);
        assert!(ended.stderr.contains(remedy), "{ended:?}");
        let out = out.path().join("merged.xplane.pb");
        let path = folder.join(file);
        let merge = ["sessions".as_ref(), "merge".as_ref(), path.as_os_str(), "-o".as_ref(), out.as_os_str()];
        run(&workspace(), &merge).failed(BAD_INPUT, what);
    }
    let named = run(&folder, &["sessions", "show", "profile.zip"]);
    named.failed(USAGE, "is taken for the name of a session of the agent, and is a file here");
    assert!(named.stderr.contains("for the file: ./profile.zip"), "{named:?}");
    let other = show(Path::new("s3://bucket/run"), &[]);
    assert_eq!(other.code, Some(USAGE), "{other:?}");
    assert!(other.stderr.contains("only URLs that begin with `gs://` or `file:///` are read"), "{other:?}");
}

#[test]
fn what_is_missing_is_named_and_the_rest_is_shown() {
    let folder = TempDir::new().unwrap();
    let session = folder.path().join("plugins/profile/2026_01_01_00_00_00");
    fs::create_dir_all(&session).unwrap();
    let whole = fs::read(vector("steady_1core").join("t1v-n-aaaa-w-0.xplane.pb")).unwrap();
    fs::write(session.join("good.xplane.pb"), &whole).unwrap();
    fs::write(session.join("cut.xplane.pb"), &whole[..5000]).unwrap();
    fs::write(session.join("empty.xplane.pb"), b"").unwrap();
    let ended = show(folder.path(), &["--json"]);
    assert_eq!(ended.code, Some(PARTIAL), "{ended:?}");
    let report = ended.json();
    assert_eq!(list(&report["hosts"]).len(), 1);
    assert_eq!(report["step_time"]["count"], 12);
    let missing: Vec<&str> =
        list(&report["missing"]).iter().filter_map(|part| part["file"].as_str()).collect();
    assert_eq!(missing, ["empty.xplane.pb", "cut.xplane.pb"]);
    let text = show(folder.path(), &[]).stdout;
    assert!(text.contains("missing  cut.xplane.pb") && text.contains("damaged at byte"), "{text}");
}

#[test]
fn two_files_of_one_host_are_both_shown_and_it_is_said() {
    let folder = TempDir::new().unwrap();
    let whole = vector("steady_1core").join("t1v-n-aaaa-w-0.xplane.pb");
    fs::copy(&whole, folder.path().join("a.xplane.pb")).unwrap();
    fs::copy(&whole, folder.path().join("b.xplane.pb")).unwrap();
    let report = json(folder.path(), &[]);
    assert_eq!(list(&report["hosts"]).len(), 2);
    let warnings = report["hosts"][1]["warnings"].to_string();
    assert!(warnings.contains("a.xplane.pb is of the same host and has the same cores"), "{warnings}");
    // One host by the manifest: its parts are told apart by their files.
    let part = |file: &str| {
        serde_json::json!({
            "file": file, "size": fs::metadata(&whole).unwrap().len(), "sha256": "",
            "planes": 1, "lines": 1, "events": 1
        })
    };
    let manifest = serde_json::json!({
        "version": 1, "session": "s", "tool": { "name": "t", "version": "1" },
        "hosts": [{ "host": "one", "parts": [part("a.xplane.pb"), part("b.xplane.pb")] }]
    });
    fs::write(folder.path().join("manifest.json"), manifest.to_string()).unwrap();
    let ended = show(folder.path(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let second = ended.stdout.split_once("\none (b.xplane.pb)").unwrap_or_else(|| panic!("{ended:?}")).1;
    assert!(second.contains("a.xplane.pb is of the same host"), "{ended:?}");
    assert!(ended.stdout.contains("\none (a.xplane.pb)"), "{ended:?}");
}

#[test]
fn parts_of_several_jobs_get_a_block_each() {
    let folder = TempDir::new().unwrap();
    let copy = |case: &str, file: &str| {
        let from = vector(case).join(file);
        fs::copy(&from, folder.path().join(file)).unwrap();
        fs::metadata(from).unwrap().len()
    };
    copy("steady_1core", "t1v-n-aaaa-w-0.xplane.pb");
    copy("multi_module", "t1v-n-iiii-w-0.xplane.pb");
    let report = json(folder.path(), &[]);
    Schema::open("sessions-show").admits(&report);
    assert_eq!((list(&report["jobs"]).len(), list(&report["hosts"]).len()), (2, 0));
    assert_eq!(report["jobs"][0]["report"]["step_time"]["count"], 12);
    let ended = show(folder.path(), &[]);
    for words in
        ["jobs       2: nothing is averaged", "job 1 of 2  program jit_train_step", "job 2 of 2  program "]
    {
        assert!(ended.stdout.contains(words), "{words} in {ended:?}");
    }
}

#[test]
fn what_was_warned_of_at_capture_is_shown_once() {
    let folder = TempDir::new().unwrap();
    let file = "t1v-n-jjjj-w-0.xplane.pb";
    fs::copy(vector("truncated_end").join(file), folder.path().join(file)).unwrap();
    let today = json(folder.path(), &[])["hosts"][0]["warnings"].clone();
    assert!(!list(&today).is_empty(), "{today}");
    let mut part = serde_json::json!({
        "file": file, "size": fs::metadata(folder.path().join(file)).unwrap().len(), "sha256": "",
        "planes": 1, "lines": 1, "events": 1
    });
    part["warnings"] = serde_json::json!([list(&today)[0], "a window of 40 s"]);
    let manifest = serde_json::json!({
        "version": 1, "session": "s", "tool": { "name": "t", "version": "1" }, "warnings": ["chips changed"],
        "hosts": [{ "host": "one", "parts": [part] }]
    });
    fs::write(folder.path().join("manifest.json"), manifest.to_string()).unwrap();
    let report = json(folder.path(), &[]);
    let mut expected = list(&today).to_vec();
    expected.push("at capture: a window of 40 s".into());
    assert_eq!(list(&report["hosts"][0]["warnings"]), expected);
    assert_eq!(list(&report["warnings"]), ["at capture: chips changed"]);
    let text = show(folder.path(), &[]).stdout;
    let loss = text.find("loss       ").unwrap_or_else(|| panic!("{text}"));
    assert!(loss < text.find("steps      ").unwrap(), "what makes figures doubtful comes first: {text}");
    assert_eq!(text.matches("ends early").count(), 1, "{text}");
}

#[test]
fn control_bytes_in_names_never_reach_the_terminal() {
    let folder = TempDir::new().unwrap();
    let bytes = fs::read(vector("steady_1core").join("t1v-n-aaaa-w-0.xplane.pb")).unwrap();
    // The host's name and the operations' names, of equal length, with an escape sequence in them.
    let replace = |bytes: Vec<u8>, from: &[u8], to: &[u8]| -> Vec<u8> {
        let mut bytes = bytes;
        let places: Vec<usize> =
            bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        bytes
    };
    let bytes = replace(bytes, b"t1v-n-aaaa-w-0", b"t1v\x1b[31m\x07-w-0");
    let bytes = replace(bytes, b"fusion.1", b"fus\x1b[2Jn");
    let name = std::ffi::OsStr::from_bytes(b"odd\x1b[1m.xplane.pb");
    fs::write(folder.path().join(name), bytes).unwrap();
    let ended = show(folder.path(), &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains('\x1b') && !ended.stdout.contains('\x07'), "{:?}", ended.stdout);
    assert!(ended.stdout.contains("\\u{1b}"), "{:?}", ended.stdout);
}

#[test]
fn runs_of_one_program_stand_for_steps_where_no_marker_tells_them() {
    let case = |case: &str| data().join("golden").join(case);
    let text = show(&case("xplane_clock/clock_jumps"), &[]).stdout;
    assert!(
        text.contains("steps      20 runs of jit_train_step: mean 100.041 ms, median 100.048 ms"),
        "{text}"
    );
    assert!(text.contains("the line's clock jumped"), "{text}");
    let text = show(&case("xplane_ids/inference_modules_only_ids"), &[]).stdout;
    assert!(text.contains("steps      15 runs of jit_decode: "), "{text}");
    let text = show(&case("xplane/idle_gaps"), &["--as-xprof"]).stdout;
    for name in ["device_duty_cycle_percent 60.2", "device_duty_cycle_high_confidence_percent 60.2"] {
        assert!(text.contains(name), "{text}");
    }
    let schema = Schema::open("sessions-show");
    for made in ["xplane_clock/clock_jumps_steps", "xplane_ids/two_hosts_skew_ids"] {
        for rules in [&[][..], &["--as-xprof"]] {
            schema.admits(&json(&case(made), rules));
        }
    }
}
