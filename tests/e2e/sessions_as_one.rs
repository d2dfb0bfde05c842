//! Several folders that are read as one session: hosts of one window that landed in two of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::schema::Schema;
use fakes::{
    command::{Ended, run},
    harness::{data, workspace},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const USAGE: i32 = 2;
const BAD_INPUT: i32 = 8;
const HOSTS: [&str; 2] = ["t1v-n-cccc-w-0", "t1v-n-cccc-w-1"];

fn vector(case: &str) -> PathBuf {
    data().join("golden/xplane").join(case)
}

/// The two hosts of a session, each in a folder of its own.
fn apart(case: &str) -> (TempDir, [PathBuf; 2]) {
    let place = TempDir::new().unwrap();
    let folders = ["2026_01_01_00_00_00", "2026_01_01_00_00_01"].map(|name| place.path().join(name));
    for (folder, host) in folders.iter().zip(HOSTS) {
        fs::create_dir(folder).unwrap();
        let file = format!("{host}.xplane.pb");
        fs::copy(vector(case).join(&file), folder.join(&file)).unwrap();
    }
    (place, folders)
}

fn ask(command: &str, folders: &[&Path], more: &[&str]) -> Ended {
    let mut arguments = vec!["sessions".as_ref(), command.as_ref()];
    arguments.extend(folders.iter().map(|folder| folder.as_os_str()));
    arguments.extend(more.iter().map(std::ffi::OsStr::new));
    run(&workspace(), &arguments)
}

fn show(folders: &[&Path], more: &[&str]) -> Ended {
    ask("show", folders, more)
}

/// A manifest of one host, with its clock and its process.
fn write_manifest(folder: &Path, host: &str, more: &Value) {
    let file = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap();
    let mut part = json!({
        "file": file.file_name().unwrap().to_str().unwrap(), "size": fs::metadata(&file).unwrap().len(),
        "sha256": "", "planes": 1, "lines": 1, "events": 1
    });
    let mut entry = json!({ "host": host, "parts": [] });
    let mut manifest = json!({ "version": 1, "session": "s", "tool": { "name": "t", "version": "1" } });
    for (into, from) in [(&mut part, "part"), (&mut entry, "host"), (&mut manifest, "manifest")] {
        for (key, value) in more[from].as_object().into_iter().flatten() {
            into[key] = value.clone();
        }
    }
    entry["parts"] = json!([part]);
    manifest["hosts"] = json!([entry]);
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

/// All that is said of the whole session but its name and where it lies.
fn figures(report: &Value) -> Value {
    let mut figures = report.clone();
    for key in ["session", "sources"] {
        figures.as_object_mut().unwrap().remove(key);
    }
    figures
}

#[test]
fn hosts_in_two_folders_are_read_as_those_of_one() {
    for case in ["two_hosts_late", "two_hosts_skew"] {
        let (_place, [first, second]) = apart(case);
        let ended = show(&[&first, &second], &["--json"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        let report = ended.json();
        Schema::open("sessions-show").admits(&report);
        let whole = show(&[&vector(case)], &["--json"]).json();
        assert_eq!(figures(&report), figures(&whole), "{case}");
        assert_eq!(report["session"], "2026_01_01_00_00_00 + 2026_01_01_00_00_01");
        assert_eq!(report["sources"][1]["place"], second.to_str().unwrap());
        assert_eq!(whole["sources"], Value::Null);
        let text = show(&[&first, &second], &[]).stdout;
        assert!(text.contains("\n           2026_01_01_00_00_01 in "), "{text}");
    }
    // So does an export.
    let (place, [first, second]) = apart("two_hosts_late");
    let export = |from: &[&Path], format: &str, name: &str| {
        let out = place.path().join(name);
        let ended = ask("export", from, &["--format", format, "-o", out.to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        out
    };
    for format in ["perfetto", "csv"] {
        let parts = export(&[&first, &second], format, &format!("parts-{format}.json"));
        let whole = export(&[&vector("two_hosts_late")], format, &format!("whole-{format}.json"));
        let files: &[&str] = if format == "csv" { &["steps.csv", "operations.csv"] } else { &[""] };
        for file in files {
            let read =
                |out: &Path| fs::read(if file.is_empty() { out.to_owned() } else { out.join(file) }).unwrap();
            assert_eq!(read(&parts), read(&whole), "{format} {file}");
        }
    }
}

#[test]
fn the_clock_of_each_host_and_its_bound_stand_beside_it() {
    let (_place, [first, second]) = apart("two_hosts_late");
    let id = "0123456789abcdef0123456789abcdef";
    let clock = |offset: i64, bound: u64| json!({ "host": { "clock": { "offset_ns": offset, "bound_ns": bound } }, "manifest": { "id": id } });
    let shown = |first_clock: &Value, second_clock: &Value| {
        write_manifest(&first, HOSTS[0], first_clock);
        write_manifest(&second, HOSTS[1], second_clock);
        let text = show(&[&first, &second], &[]).stdout;
        let report = show(&[&first, &second], &["--json"]).json();
        Schema::open("sessions-show").admits(&report);
        (text, report)
    };
    // By the collectives the second clock is 3 ms ahead; the measured clocks agree.
    let (text, report) = shown(&clock(100_000, 200_000), &clock(3_050_000, 300_000));
    assert!(text.contains(", clock 3.000 ms ahead (measured +2.950 ms ± 0.500 ms)"), "{text}");
    assert!(text.contains(", clock measured +0.100 ms ± 0.200 ms\n"), "{text}");
    let offset = &report["alignment"]["offsets"][1];
    assert_eq!(offset["measured_skew"], json!({ "offset_ns": 2_950_000, "bound_ns": 500_000 }));
    assert_eq!(offset["skew_within_bound"], false);
    assert_eq!(report["hosts"][0]["clock"], json!({ "offset_ns": 100_000, "bound_ns": 200_000 }));
    assert_eq!(report["clocks"][HOSTS[1]]["bound_ns"], 300_000);
    // A bound that is larger than the skew: the steps may be wrong, or right.
    let (text, report) = shown(&clock(0, 2_000_000), &clock(-500_000, 1_500_000));
    let said = ", clock 3.000 ms ahead, less than the error of the measured clocks (-0.500 ms ± 3.500 ms)";
    assert!(text.contains(said), "{text}");
    assert_eq!(report["alignment"]["offsets"][1]["skew_within_bound"], true);
    // Clocks that two programs measured cannot be compared.
    let mut other = clock(3_050_000, 300_000);
    other["manifest"]["id"] = json!("f123456789abcdef0123456789abcdef");
    let (text, report) = shown(&clock(100_000, 200_000), &other);
    assert!(text.contains(", clock 3.000 ms ahead, clock measured +3.050 ms ± 0.300 ms\n"), "{text}");
    assert_eq!(report["alignment"]["offsets"][1]["measured_skew"], Value::Null);
}

#[test]
fn the_same_session_or_process_twice_is_refused() {
    let (place, [first, second]) = apart("two_hosts_late");
    show(&[&first, &first], &[]).failed(USAGE, "is given twice");
    show(&[&first, &first.join(format!("{}.xplane.pb", HOSTS[0]))], &[]).failed(USAGE, "is given twice");
    // A copy has other files.
    let copy = place.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let file = format!("{}.xplane.pb", HOSTS[0]);
    fs::copy(first.join(&file), copy.join(&file)).unwrap();
    let twice = show(&[&first, &second, &copy], &[]);
    twice.failed(BAD_INPUT, &format!("(2026_01_01_00_00_00/{file}) and copy ("));
    assert!(twice.stderr.contains(&format!("are of the same process: host {}", HOSTS[0])), "{twice:?}");
    assert!(twice.stderr.contains("sessions diff"), "{twice:?}");
    ask("export", &[&first, &copy], &["--format", "csv", "-o", "never"])
        .failed(BAD_INPUT, "the same process");
    // Two processes of one host are two parts, whatever their files are called.
    write_manifest(&first, HOSTS[0], &json!({ "part": { "pid": 7 } }));
    write_manifest(&copy, HOSTS[0], &json!({ "part": { "pid": 8 } }));
    let both = show(&[&first, &copy], &["--json"]);
    assert_eq!(both.code, Some(0), "{both:?}");
    assert_eq!(both.json()["hosts"][1]["file"], format!("copy/{file}"));
    assert!(show(&[&first, &copy], &[]).stdout.contains(&format!("\n{} (copy/{file})", HOSTS[0])));
    show(&[&first, Path::new("./nothing")], &[]).failed(5, "does not exist");
    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    show(&[&first, &empty], &[]).failed(5, "holds no session");
    // A manifest of a later version is left aside, and its parts are read.
    fs::write(second.join("manifest.json"), r#"{"version": 99}"#).unwrap();
    let newer = show(&[&first, &second], &["--json"]);
    assert_eq!(newer.code, Some(0), "{newer:?}");
    let warnings = newer.json()["warnings"].to_string();
    assert!(warnings.contains("2026_01_01_00_00_01: manifest.json has version 99"), "{warnings}");
}

/// Moves the session time of a trace.
fn moved(from: &Path, to: &Path, by_ns: i64) {
    use prost::Message;
    use proto::tensorflow::profiler::{XSpace, x_stat::Value};
    let mut space = XSpace::decode(&fs::read(from).unwrap()[..]).unwrap();
    let moved = |at: u64| at.checked_add_signed(by_ns).unwrap();
    for plane in space.planes.iter_mut() {
        for stat in plane.stats.iter_mut().filter(|_| plane.name == "Task Environment") {
            match &mut stat.value {
                Some(Value::Uint64Value(at)) => *at = moved(*at),
                Some(Value::Int64Value(at)) => *at += by_ns,
                _ => {}
            }
        }
        for line in plane.lines.iter_mut().filter(|line| line.timestamp_ns > 1_000_000_000_000_000_000) {
            line.timestamp_ns += by_ns;
        }
    }
    fs::write(to, space.encode_to_vec()).unwrap();
}

#[test]
fn sessions_of_different_times_are_told() {
    let (_place, [first, second]) = apart("two_hosts_late");
    let file = format!("{}.xplane.pb", HOSTS[1]);
    let at = |seconds: i64| {
        moved(&vector("two_hosts_late").join(&file), &second.join(&file), seconds * 1_000_000_000);
        show(&[&first, &second], &["--json"])
    };
    let near = at(5);
    assert_eq!(near.code, Some(0), "{near:?}");
    let warnings = near.json()["warnings"].to_string();
    let said = "the sessions do not overlap in time: 2026_01_01_00_00_01 begins 4.8";
    assert!(warnings.contains(said), "{warnings}");
    let far = at(3600);
    far.failed(BAD_INPUT, "the sessions do not overlap in time: 2026_01_01_00_00_01 begins 3599.8");
    assert!(far.stderr.contains("only sessions of one window are read as one"), "{far:?}");
    assert_eq!(at(0).json()["warnings"], json!([]));
}

#[test]
fn a_host_that_another_session_has_is_not_missing() {
    let (_place, [first, second]) = apart("two_hosts_late");
    let missing = json!({ "manifest": { "missing": [{ "host": HOSTS[1], "why": "ssh: no route" }] } });
    write_manifest(&first, HOSTS[0], &missing);
    assert_eq!(show(&[&first], &["--json"]).code, Some(18));
    let both = show(&[&first, &second], &["--json"]);
    assert_eq!((both.code, &both.json()["missing"]), (Some(0), &json!([])), "{both:?}");
}
