//! `tpuscope capture` of real JAX jobs, opened with the real xprof.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use fakes::{
    command::{self, Ended, RunningCommand, run},
    harness::{peer, workspace},
    jax_job::{JaxJob, RunningJaxJob},
    profiler_probe::{becomes_free, capture_in_window},
};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xprof::session::{Session, sessions_folder};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn capture(folder: &Path, jobs: &[&RunningJaxJob], more: &[&str]) -> Ended {
    let targets: Vec<_> = jobs.iter().flat_map(|job| ["--target".to_owned(), job.target()]).collect();
    let arguments =
        ["capture".to_owned()].into_iter().chain(targets).chain(more.iter().map(ToString::to_string));
    run(folder, &arguments.collect::<Vec<_>>())
}

/// What the real xprof makes of these parts.
fn opened(parts: &[PathBuf]) -> serde_json::Value {
    let output = Command::new(peer("xprof/bin/python"))
        .arg(workspace().join("tests/scripts/xprof_tools.py"))
        .args(parts)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("xprof: {error}\n{text}"))
}

/// A capture that is in its window.
fn in_mid_window(folder: &Path, job: &RunningJaxJob) -> RunningCommand {
    let arguments = ["capture", "--target", &job.target(), "--duration", "60s"];
    capture_in_window(&[job.target()], || command::start(folder, &arguments))
}

fn no_session(folder: &Path) {
    let sessions = sessions_folder(folder);
    assert!(!sessions.exists() || std::fs::read_dir(sessions).unwrap().next().is_none());
}

#[test]
fn xprof_opens_what_was_captured() {
    let job = JaxJob::new().step_ms(20).start();
    let folder = folder();
    let ended = capture(folder.path(), &[&job], &["--session", "one", "--duration", "600ms", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    let part = &report["parts"][0];
    assert!(part["events"].as_u64().unwrap() > 50, "{part}");
    let session = Session::open(&sessions_folder(folder.path()).join("one")).unwrap().unwrap();
    assert_eq!(session.faults.len(), 0);
    let xprof = opened(&[session.parts[0].path.clone()]);
    let host = part["host"].as_str().unwrap();
    assert_eq!(xprof["processes"], serde_json::json!([format!("{host} /host:CPU")]));
    assert!(
        xprof["overview"].as_u64().unwrap() > 0 && xprof["trace_events"].as_u64().unwrap() > 50,
        "{xprof}"
    );
    for tool in ["overview_page", "trace_viewer@"] {
        assert!(xprof["tools"].as_array().unwrap().contains(&tool.into()), "{xprof}");
    }
    let seconds = |report: &serde_json::Value, end: &str| -> f64 {
        report["window"][end].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_nanosecond() as f64
            / 1e9
    };
    let window = seconds(part, "stop") - seconds(part, "start");
    assert!(window >= 0.6, "the trace covers the window: {window}");
}

#[test]
fn two_processes_give_two_parts_of_one_window() {
    let (a, b) = (JaxJob::new().start(), JaxJob::new().start());
    let folder = folder();
    let more = ["--session", "two", "--duration", "500ms", "--python-tracer-level", "1"];
    let ended = capture(folder.path(), &[&a, &b], &more);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let session = Session::open(&sessions_folder(folder.path()).join("two")).unwrap().unwrap();
    let manifest = session.manifest.as_ref().unwrap();
    let parts = &manifest.hosts[0].parts;
    assert_eq!((manifest.hosts.len(), parts.len(), session.faults.len()), (1, 2, 0));
    let host = &manifest.hosts[0].host;
    let mut names: Vec<_> = [&a, &b].iter().map(|job| format!("{host}_{}.xplane.pb", job.port())).collect();
    names.sort();
    assert_eq!(parts.iter().map(|part| part.file.clone()).collect::<Vec<_>>(), names);
    let windows: Vec<_> = parts.iter().map(|part| part.window.unwrap()).collect();
    let apart = windows[0].start.duration_since(windows[1].start).abs();
    let length = windows[0].stop.duration_since(windows[0].start);
    assert!(apart < length / 4, "both begin together: {apart:?} apart");
    let xprof = opened(&session.parts.iter().map(|part| part.path.clone()).collect::<Vec<_>>());
    assert_eq!(xprof["processes"].as_array().unwrap().len(), 2, "{xprof}");
}

#[test]
fn an_interrupted_capture_leaves_nothing_and_frees_the_profiler() {
    let job = JaxJob::new().start();
    let folder = folder();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let capture = in_mid_window(folder.path(), &job);
        capture.signal(signal);
        capture.end().failed(130, "cancelled");
        no_session(folder.path());
        let free = self::capture(self::folder().path(), &[&job], &["--duration", "200ms"]);
        assert_eq!(free.code, Some(0), "free at once: {free:?}");
    }
}

#[test]
fn a_killed_capture_frees_the_profiler_and_shows_no_session() {
    let job = JaxJob::new().start();
    let folder = folder();
    let capture = in_mid_window(folder.path(), &job);
    capture.signal(Signal::SIGKILL);
    capture.end();
    becomes_free(&job.target());
    no_session(folder.path());
}

#[test]
fn a_busy_profiler_is_said_to_be_busy() {
    let job = JaxJob::new().start();
    let (first, second) = (folder(), folder());
    let running = in_mid_window(first.path(), &job);
    capture(second.path(), &[&job], &["--duration", "100ms"]).failed(13, "in use");
    let by = capture(second.path(), &[&job], &["--duration", "100ms"]);
    assert!(by.stderr.contains(&format!("connected to it: pid {} (tpuscope)", running.pid())), "{by:?}");
    no_session(second.path());
    assert!(running.signal_and_end(Signal::SIGINT).code == Some(130), "the first was not disturbed");
}

#[test]
fn a_job_that_dies_in_mid_window_gives_no_part() {
    let mut job = JaxJob::new().start();
    let folder = folder();
    let capture = in_mid_window(folder.path(), &job);
    job.kill();
    capture.end().failed(10, &job.target());
    no_session(folder.path());
}

#[test]
fn a_window_begins_when_it_should() {
    let job = JaxJob::new().step_ms(5).log_steps().start();
    let folder = folder();
    let start = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(2500);
    let more = ["--session", "s", "--start-at", &start.to_string(), "--duration", "500ms"];
    let ended = capture(folder.path(), &[&job], &more);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let output = Command::new(peer("xprof/bin/python"))
        .arg(workspace().join("tests/scripts/trace_steps.py"))
        .arg(Session::open(&sessions_folder(folder.path()).join("s")).unwrap().unwrap().parts[0].path.clone())
        .output()
        .unwrap();
    let recorded: Vec<u64> = serde_json::from_slice(&output.stdout).unwrap();
    let begin = u64::try_from(start.as_nanosecond()).unwrap();
    let mut checked = 0;
    while let Some(line) = job.next_line(Duration::from_secs(5)) {
        let step: Vec<u64> = line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
        let (number, begun, ended) = (step[0], step[1], step[2]);
        if begun > begin + 1_000_000_000 {
            break;
        }
        if ended < begin {
            assert!(!recorded.contains(&number), "step {number} was over before the start");
            checked += 1;
        } else if begun > begin + 200_000_000 && ended < begin + 400_000_000 {
            assert!(recorded.contains(&number), "step {number} lies in the window");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}
