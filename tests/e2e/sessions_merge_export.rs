//! `sessions merge` and `sessions export` on good input and on bad.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::schema::Schema;
use fakes::{command, harness, wait::until};
use flate2::read::GzDecoder;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

fn vector(case: &str) -> PathBuf {
    harness::data().join("golden/xplane").join(case)
}

fn real() -> PathBuf {
    vector("real_jax_cpu/vm.xplane.pb")
}

/// `tpuscope sessions …` in `folder`.
fn sessions(folder: &Path, arguments: &[&str]) -> command::Ended {
    let mut all = vec!["sessions"];
    all.extend(arguments);
    command::run(folder, &all)
}

/// Every file in `folder`, hidden ones too.
fn files(folder: &Path) -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    files
}

fn unzipped(file: &Path) -> Value {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What every trace-event viewer relies on.
fn check_trace_events(trace: &Value) -> usize {
    let mut slices = 0;
    for event in trace["traceEvents"].as_array().unwrap() {
        assert!(event["pid"].is_u64() && event["name"].is_string(), "{event}");
        match event["ph"].as_str().unwrap() {
            "M" => assert!(event["args"].is_object(), "{event}"),
            "X" => {
                assert!(event["tid"].is_u64() && event["ts"].as_f64() >= Some(0.0), "{event}");
                assert!(event["dur"].as_f64() >= Some(0.0), "{event}");
                slices += 1;
            }
            other => panic!("phase {other} in {event}"),
        }
    }
    slices
}

#[test]
fn a_trace_is_exported_zipped_and_plain() {
    let folder = TempDir::new().unwrap();
    let file = real().display().to_string();
    let arguments = ["export", &file, "--format", "perfetto", "-o"];
    let ended = sessions(folder.path(), &[&arguments[..], &["trace.json.gz", "--json"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let slices = check_trace_events(&unzipped(&folder.path().join("trace.json.gz")));
    assert_eq!(ended.json()["events"]["events"], slices as u64);
    Schema::open("sessions-export").admits(&ended.json());
    let ended = sessions(folder.path(), &[&arguments[..], &["trace.json"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let plain = serde_json::from_slice(&fs::read(folder.path().join("trace.json")).unwrap()).unwrap();
    assert_eq!(check_trace_events(&plain), slices);
    assert_eq!(files(folder.path()), ["trace.json", "trace.json.gz"]);
    let mode = fs::metadata(folder.path().join("trace.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn hosts_of_a_session_come_onto_one_time_line() {
    let folder = TempDir::new().unwrap();
    let session = vector("two_hosts_late").display().to_string();
    let ended =
        sessions(folder.path(), &["export", &session, "--format", "perfetto", "-o", "t.json.gz", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_eq!(report["hosts"].as_array().unwrap().len(), 2);
    assert_eq!(report["hosts"][0]["offset_ps"], 0);
    assert_ne!(report["hosts"][1]["offset_ps"], 0, "the second host began later");
    check_trace_events(&unzipped(&folder.path().join("t.json.gz")));

    let ended = sessions(folder.path(), &["export", &session, "--format", "csv", "-o", "tables"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(files(&folder.path().join("tables")), ["operations.csv", "steps.csv"]);
    let steps = fs::read_to_string(folder.path().join("tables/steps.csv")).unwrap();
    assert!(
        steps.starts_with(
            "host,file,kind,plane,step_num,start_ps,duration_ps,aligned_start_ps,program,program_id\n"
        ),
        "{steps}"
    );
    assert!(steps.lines().count() > 10 && steps.contains("t1v-n-cccc-w-1"), "{steps}");
}

#[test]
fn what_is_readable_is_exported_and_the_rest_named() {
    let folder = TempDir::new().unwrap();
    let session = folder.path().join("session");
    fs::create_dir(&session).unwrap();
    let whole = fs::read(vector("two_hosts_skew/t1v-n-cccc-w-0.xplane.pb")).unwrap();
    fs::write(session.join("a.xplane.pb"), &whole).unwrap();
    fs::write(session.join("b.xplane.pb"), &whole[..whole.len() / 2]).unwrap();
    fs::write(session.join("c.xplane.pb"), b"").unwrap();
    let ended = sessions(
        folder.path(),
        &["export", "./session", "--format", "perfetto", "-o", "t.json.gz", "--json"],
    );
    assert_eq!(ended.code, Some(18), "{ended:?}");
    let report = ended.json();
    let missing: Vec<_> =
        report["missing"].as_array().unwrap().iter().map(|part| part["file"].as_str().unwrap()).collect();
    assert_eq!(missing, ["c.xplane.pb", "b.xplane.pb"]);
    check_trace_events(&unzipped(&folder.path().join("t.json.gz")));
}

#[test]
fn bad_input_is_one_line_and_no_file() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let whole = fs::read(real()).unwrap();
    fs::write(at("whole.xplane.pb"), &whole).unwrap();
    fs::write(at("cut.xplane.pb"), &whole[..whole.len() / 3]).unwrap();
    fs::write(at("empty.xplane.pb"), b"").unwrap();
    fs::write(at("other.xplane.pb"), b"{\"not\": \"a trace\"}").unwrap();
    // The way a public trace was damaged: every byte above 127 became a replacement character.
    fs::write(at("utf8.xplane.pb"), String::from_utf8_lossy(&whole).as_bytes()).unwrap();
    fs::write(at("zeros.xplane.pb"), vec![0; 1 << 20]).unwrap();
    fs::write(at("bad\u{1b}[31m\nname.xplane.pb"), b"\xff").unwrap();
    fs::create_dir(at("folder")).unwrap();
    let before = files(folder.path());
    let bad = ["cut.xplane.pb", "empty.xplane.pb", "other.xplane.pb", "utf8.xplane.pb", "zeros.xplane.pb"];
    for file in bad.into_iter().chain(["bad\u{1b}[31m\nname.xplane.pb"]) {
        let shown = file.split('\u{1b}').next().unwrap();
        sessions(folder.path(), &["merge", "whole.xplane.pb", file, "-o", "out.xplane.pb"]).failed(8, shown);
        sessions(folder.path(), &["export", file, "--format", "perfetto", "-o", "out.json.gz"])
            .failed(8, shown);
        sessions(folder.path(), &["export", file, "--format", "csv", "-o", "out"]).failed(8, shown);
        assert_eq!(files(folder.path()), before, "{file:?} leaves something");
    }
    sessions(folder.path(), &["merge", "none.xplane.pb", "-o", "out"]).failed(5, "none.xplane.pb");
    sessions(folder.path(), &["merge", "./folder", "-o", "out"]).failed(5, "folder is a folder");
    let named = sessions(folder.path(), &["merge", "folder", "-o", "out"]);
    named.failed(6, "session folder: ");
    assert!(named.stderr.contains("write `./folder`"), "{named:?}");
    sessions(folder.path(), &["merge", "whole.xplane.pb", "./whole.xplane.pb", "-o", "out"])
        .failed(2, "given twice");
    sessions(folder.path(), &["export", "./none", "--format", "csv", "-o", "out"])
        .failed(5, "none does not exist");
    sessions(folder.path(), &["export", "./folder", "--format", "csv", "-o", "out"])
        .failed(5, "folder holds no session");
    assert_eq!(sessions(folder.path(), &["merge", "-o", "out"]).code, Some(2));
    assert_eq!(files(folder.path()), before);
}

#[test]
fn outputs_go_where_they_harm_nothing() {
    let folder = TempDir::new().unwrap();
    let whole = fs::read(real()).unwrap();
    fs::write(folder.path().join("in.xplane.pb"), &whole).unwrap();
    std::os::unix::fs::symlink("in.xplane.pb", folder.path().join("link")).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    fs::write(folder.path().join("file"), b"x").unwrap();
    let before = files(folder.path());
    for out in ["in.xplane.pb", "link"] {
        sessions(folder.path(), &["merge", "in.xplane.pb", "-o", out]).failed(7, "one of the inputs");
        sessions(folder.path(), &["export", "in.xplane.pb", "--format", "perfetto", "-o", out])
            .failed(7, "one of the inputs");
    }
    sessions(folder.path(), &["merge", "in.xplane.pb", "-o", "folder"]).failed(7, "is a folder");
    sessions(folder.path(), &["merge", "in.xplane.pb", "-o", "none/out"]).failed(5, "none/out");
    sessions(folder.path(), &["export", "in.xplane.pb", "--format", "csv", "-o", "file"])
        .failed(7, "file is not a folder");
    for format in ["perfetto", "csv"] {
        sessions(folder.path(), &["export", "in.xplane.pb", "--format", format, "-o", "-"])
            .failed(2, "not standard output");
    }
    sessions(folder.path(), &["merge", "in.xplane.pb", "-o", "-"]).failed(2, "not standard output");
    assert_eq!(files(folder.path()), before);
    assert_eq!(fs::read(folder.path().join("in.xplane.pb")).unwrap(), whole);
}

/// A named pipe in `folder`.
fn pipe(folder: &Path, name: &str) -> PathBuf {
    let place = folder.join(name);
    nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
    place
}

#[test]
fn what_is_no_regular_file_is_never_replaced() {
    let folder = TempDir::new().unwrap();
    let input = real().display().to_string();
    pipe(folder.path(), "pipe");
    let link = |name: &str, target: &str| {
        std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
    };
    link("null", "/dev/null");
    link("nowhere", "none");
    link("to-pipe", "pipe");
    fs::create_dir_all(folder.path().join("tables")).unwrap();
    pipe(&folder.path().join("tables"), "steps.csv");
    let before = files(folder.path());
    for (out, says) in [("pipe", "not a regular"), ("null", "not a regular"), ("nowhere", "does not exist")] {
        sessions(folder.path(), &["merge", &input, "-o", out]).failed(7, says);
        let ended = sessions(folder.path(), &["export", &input, "--format", "perfetto", "-o", out]);
        assert!(ended.failed(7, says).stderr.contains("name a regular file"), "{ended:?}");
    }
    sessions(folder.path(), &["merge", &input, "-o", "to-pipe"]).failed(7, "not a regular file");
    sessions(folder.path(), &["export", &input, "--format", "csv", "-o", "tables"]).failed(7, "steps.csv");
    sessions(folder.path(), &["export", &input, "--format", "csv", "-o", "pipe"]).failed(7, "not a folder");
    assert_eq!(files(folder.path()), before);
    assert_eq!(files(&folder.path().join("tables")), ["steps.csv"]);
    for name in ["null", "nowhere", "to-pipe"] {
        assert!(fs::symlink_metadata(folder.path().join(name)).unwrap().is_symlink(), "{name}");
    }
    // A link to a file stays one, and the file is new.
    fs::write(folder.path().join("old"), b"old").unwrap();
    link("to-old", "old");
    assert_eq!(sessions(folder.path(), &["merge", &input, "-o", "to-old"]).code, Some(0));
    assert!(fs::symlink_metadata(folder.path().join("to-old")).unwrap().is_symlink());
    assert_ne!(fs::read(folder.path().join("old")).unwrap(), b"old");
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let folder = TempDir::new().unwrap();
    let pipe = pipe(folder.path(), "pipe.xplane.pb").display().to_string();
    for input in [pipe.as_str(), "/dev/zero", "/dev/null", "/proc/self/mem"] {
        sessions(folder.path(), &["show", input]).failed(8, "not a regular file");
        sessions(folder.path(), &["merge", input, "-o", "out"]).failed(8, "not a regular file");
        for format in ["perfetto", "csv"] {
            sessions(folder.path(), &["export", input, "--format", format, "-o", "out"])
                .failed(8, "not a regular file");
        }
    }
    assert_eq!(files(folder.path()), ["pipe.xplane.pb"]);
}

#[test]
fn what_is_no_trace_is_called_the_same_everywhere() {
    let folder = TempDir::new().unwrap();
    let cases: [(&str, &[u8], i32, &str); 5] = [
        ("empty", b"", 8, "empty is empty (0 bytes)"),
        ("png", b"\x89PNG\r\n\x1a\n\0\0\0\r", 8, "png"),
        // By chance well formed: one field that no trace has.
        ("short", b"\x89PNG\r\n\x1a\n\0\0", 8, "short is no trace"),
        ("nothing-ran", b"\x22\x03abc", 14, "nothing-ran is a trace without any plane"),
        ("text", b"# a Markdown file\n", 8, "is a text file, not an XSpace"),
    ];
    for (name, bytes, code, says) in cases {
        fs::write(folder.path().join(name), bytes).unwrap();
        let name = &*format!("./{name}");
        let commands: [&[&str]; 4] = [
            &["show", name],
            &["merge", name, "-o", "out"],
            &["export", name, "--format", "perfetto", "-o", "out"],
            &["export", name, "--format", "csv", "-o", "out"],
        ];
        let said: Vec<_> = commands
            .iter()
            .map(|command| {
                let ended = sessions(folder.path(), command);
                assert_eq!(ended.failed(code, says).stderr.lines().count(), 2, "no remedy: {ended:?}");
                ended.stderr.lines().next().unwrap().to_owned()
            })
            .collect();
        assert!(said.iter().all(|line| *line == said[0]), "{said:#?}");
    }
    let ended = sessions(folder.path(), &["merge", "./none", "-o", "out"]);
    assert_eq!(ended.failed(5, "none").stderr.lines().count(), 2, "{ended:?}");
}

#[test]
fn a_manifest_of_no_use_is_a_warning() {
    let folder = TempDir::new().unwrap();
    for (name, manifest) in [("damaged", "{"), ("newer", r#"{"version": 99}"#)] {
        let session = folder.path().join(name);
        fs::create_dir(&session).unwrap();
        fs::copy(real(), session.join("vm.xplane.pb")).unwrap();
        fs::write(session.join("manifest.json"), manifest).unwrap();
        let place = &*format!("./{name}");
        let shown = sessions(folder.path(), &["show", place]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(shown.stdout.contains("warning  manifest.json"), "{shown:?}");
        for format in ["perfetto", "csv"] {
            let out = format!("{name}-{format}");
            let ended = sessions(folder.path(), &["export", place, "--format", format, "-o", &out, "--json"]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(ended.json()["warnings"][0].as_str().unwrap().starts_with("manifest.json"), "{ended:?}");
        }
        fs::write(session.join("cut.xplane.pb"), &fs::read(real()).unwrap()[..1000]).unwrap();
        let ended = sessions(folder.path(), &["show", place, "--json"]);
        assert_eq!(ended.code, Some(18), "{ended:?}");
        let why = ended.json()["missing"][0]["why"].to_string();
        assert!(why.contains("damaged at byte") && !why.contains("cut.xplane.pb"), "{why}");
    }
}

#[test]
fn an_interrupted_command_says_so_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    // A trace behind a trace is a trace: long enough to be interrupted.
    fs::write(folder.path().join("long.xplane.pb"), fs::read(real()).unwrap().repeat(500)).unwrap();
    let commands: [&[&str]; 4] = [
        &["sessions", "show", "long.xplane.pb", "--json"],
        &["sessions", "export", "long.xplane.pb", "--format", "csv", "-o", "tables"],
        &["sessions", "export", "long.xplane.pb", "--format", "perfetto", "-o", "e.json.gz"],
        &["sessions", "merge", "long.xplane.pb", "-o", "m.xplane.pb"],
    ];
    for (at, command) in commands.into_iter().enumerate() {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let mut running = command::start(folder.path(), command);
            // Those that write at once have begun to; the others are ready for the signal.
            until("a handler of the signal, and what is written", || {
                let writes = || at <= 1 || files(folder.path()).len() > 1;
                !running.alive() || heeds(running.pid(), signal) && writes()
            });
            let ended = running.signal_and_end(signal);
            assert_eq!(ended.code, Some(130), "{command:?} {signal}: {ended:?}");
            assert_eq!(files(folder.path()), ["long.xplane.pb"], "{command:?} {signal}");
        }
    }
}

/// Whether the process has a handler for the signal.
fn heeds(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught >> (signal as i32 - 1) & 1 == 1
}
