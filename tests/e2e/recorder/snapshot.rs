//! Sessions made of the past, opened by the real xprof.

use std::{env, path::Path, process::Command, time::Duration};

use fakes::{
    harness::{peer, workspace},
    jax_job::RunningJaxJob,
    wait::{LIMIT, wait_with},
};
use serde_json::Value;
use xprof::session::{Session, sessions_folder};

use super::{RecorderAgent, SHORT, jax, recorded, seconds, unique};
use crate::schema::Schema;

pub(super) fn python(script: &str, part: &Path) -> Value {
    let output = Command::new(peer("xprof/bin/python"))
        .arg(workspace().join("tests/scripts").join(script))
        .arg(part)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{script}: {error}\n{text}"))
}

#[test]
fn a_snapshot_is_a_session_that_xprof_opens_with_every_step_once() {
    let (agent, job, id) = recorded("snapshot", SHORT);
    let windows = agent.windows(&id, 3);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let arguments = ["snapshot", "--last", "10m", "--job", &id, "--session", "past", "-o", &out, "--json"];
    let ended = agent.ask(&arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let part = &report["parts"][0];
    assert_eq!((&part["pid"], &part["job"]["id"]), (&job.pid().into(), &id.clone().into()));
    let recorded = part["recorded"].as_array().unwrap();
    assert!(recorded.len() >= windows.len(), "{part}");
    let gaps = part["gaps"].as_array().unwrap();
    assert!(gaps.len() >= recorded.len() && gaps.iter().all(|gap| !gap["why"].as_str().unwrap().is_empty()));
    // Windows and gaps are the whole time that was asked for, without an overlap.
    let mut stretches: Vec<(f64, f64)> = recorded
        .iter()
        .chain(gaps)
        .map(|stretch| (seconds(&stretch["start"]), seconds(&stretch["stop"])))
        .collect();
    stretches.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(stretches.windows(2).all(|pair| (pair[0].1 - pair[1].0).abs() < 1e-6), "{stretches:?}");
    let manifest = folder.path().join("plugins/profile/past/manifest.json");
    Schema::open("manifest").admits(&serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap());

    let session = Session::open(&sessions_folder(folder.path()).join("past")).unwrap().unwrap();
    assert_eq!(session.faults.len(), 0);
    let path = &session.parts[0].path;
    let xprof = python("xprof_tools.py", path);
    assert!(
        xprof["overview"].as_u64().unwrap() > 0 && xprof["trace_events"].as_u64().unwrap() > 50,
        "{xprof}"
    );
    // Every step that a window had is there once.
    let steps: Vec<i64> = serde_json::from_value(python("trace_steps.py", path)).unwrap();
    let mut once = steps.clone();
    once.dedup();
    assert_eq!(steps, once, "no step is there twice");
    for window in &windows {
        let range = window["first_step"].as_i64().unwrap()..=window["last_step"].as_i64().unwrap();
        assert!(range.clone().all(|step| steps.contains(&step)), "{range:?} in {steps:?}");
    }
    // It is a session like any other.
    let listed = agent.ask(&["sessions", "list", "--json"]).json();
    assert_eq!(listed["sessions"][0]["session"], "past");
    let shown = agent.ask(&["sessions", "show", "past"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("steps"), "{shown:?}");
    let again = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--session", "past"]);
    again.failed(7, "the session name past is taken");
    // Nothing is left of what was unpacked.
    let left = agent.segment_files();
    assert!(
        left.iter().all(|path| path.extension().is_some_and(|end| end == "gz")) || left.len() > 3,
        "{left:?}"
    );
}

/// One step as its job says: its number, and when it began and ended, in seconds since the epoch.
struct LoggedStep {
    number: i64,
    begin: f64,
    end: f64,
}

fn logged_steps(job: &RunningJaxJob) -> Vec<LoggedStep> {
    let step = |line: String| {
        let words: Vec<i64> = line.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        LoggedStep { number: words[0], begin: words[1] as f64 / 1e9, end: words[2] as f64 / 1e9 }
    };
    std::iter::from_fn(|| job.said_now()).map(step).collect()
}

/// The seconds of a snapshot of drains; `TPUSCOPE_SNAPSHOT_SECONDS` takes more (`make soak`).
const SECONDS: f64 = 20.0;

/// Each step of the job is in the snapshot once if it was recorded from its begin to its end, and is in a gap with a reason if it
/// is not there.
#[test]
fn every_step_of_a_drained_job_is_there_once_or_in_a_gap_with_a_reason() {
    let wanted = env::var("TPUSCOPE_SNAPSHOT_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let id = unique("every-step");
    let job = jax(&id).step_ms(20).log_steps().start();
    let agent = RecorderAgent::start(SHORT);
    agent.drain(&id);
    let first = seconds(&agent.windows(&id, 1)[0]["start"]);
    let pid = job.pid().to_string();
    let captured = agent.ask(&["capture", "--pid", &pid, "--duration", "500ms"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let limit = LIMIT + Duration::from_secs_f64(wanted);
    wait_with(
        "a past of this length",
        limit,
        || agent.agent.log(),
        || {
            let last = seconds(&agent.windows(&id, 1).last()?["stop"]);
            (last - first > wanted).then_some(())
        },
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let last = format!("{wanted}s");
    let ended =
        agent.ask(&["snapshot", "--last", &last, "--job", &id, "-o", &out, "--session", "all", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    let part = &report["parts"][0];
    let stretches = |field: &str| {
        let stretches = part[field].as_array().unwrap().iter();
        stretches
            .map(|stretch| (seconds(&stretch["start"]), seconds(&stretch["stop"])))
            .collect::<Vec<(f64, f64)>>()
    };
    let (recorded, gaps) = (stretches("recorded"), stretches("gaps"));
    let whys: Vec<&str> =
        part["gaps"].as_array().unwrap().iter().map(|gap| gap["why"].as_str().unwrap()).collect();
    assert!(
        whys.iter().all(|why| !why.is_empty()) && whys.iter().any(|why| why.contains("capture")),
        "{whys:?}"
    );

    let session = Session::open(&sessions_folder(folder.path()).join("all")).unwrap().unwrap();
    let path = &session.parts[0].path;
    let xprof = python("xprof_tools.py", path);
    assert!(xprof["trace_events"].as_u64().unwrap() > 100, "{xprof}");
    let shown: Vec<i64> = serde_json::from_value(python("trace_steps.py", path)).unwrap();
    let (from, to) = (recorded[0].0, recorded[recorded.len() - 1].1);
    let (mut whole, mut cut) = (0, 0);
    for step in logged_steps(&job).iter().filter(|step| step.begin >= from && step.end <= to) {
        let times = shown.iter().filter(|number| **number == step.number).count();
        let is_whole = recorded.iter().any(|(start, stop)| step.begin >= *start && step.end <= *stop);
        let (number, begin, end) = (step.number, step.begin, step.end);
        if is_whole {
            whole += 1;
            assert_eq!(times, 1, "step {number} from {begin} to {end} was recorded whole: {part}");
        } else if times == 0 {
            cut += 1;
            let in_gap = gaps.iter().any(|(start, stop)| begin < *stop && end > *start);
            assert!(in_gap, "step {number} from {begin} to {end} is nowhere: {part}");
        } else {
            assert_eq!(times, 1, "step {number} at an edge: {part}");
        }
    }
    println!("{whole} steps recorded whole, {cut} in {} gaps, {} segments", gaps.len(), recorded.len());
    assert!(f64::from(whole) > wanted * 25.0 && cut > 0, "{whole} steps in {wanted} s, {cut} in gaps");
}

#[test]
fn an_empty_past_says_what_would_have_had_to_be_on() {
    let id = super::unique("empty");
    let _job = super::jax(&id).start();
    let agent = RecorderAgent::start(SHORT);
    agent.finds(&id);
    let none = agent.ask(&["snapshot", "--job", &id]);
    none.failed(14, "recorder.mode is off");
    assert!(none.stderr.contains("tpuscope recorder on"), "{none:?}");
    agent.ask(&["snapshot", "--job", "no-such-job"]).failed(5, "has the job `no-such-job`");
    agent.ask(&["recorder", "on", "--job", "no-such-job"]).failed(5, "no-such-job");
    agent
        .ask(&["recorder", "on", "--job", &id, "--strategy", "ring"])
        .failed(19, "the process holds no TPU chip");
    agent.ask(&["recorder", "on", "--strategy", "always"]).failed(2, "always");
    agent.record(&id);
    let windows = agent.windows(&id, 1);
    let first: jiff::Timestamp = windows[0]["start"].as_str().unwrap().parse().unwrap();
    let earlier = |seconds: i64| (first - jiff::SignedDuration::from_secs(seconds)).to_string();
    let (before, long_before) = (earlier(100), earlier(200));
    let other = agent.ask(&["snapshot", "--job", &id, "--from", &long_before, "--until", &before]);
    other.failed(14, "the recorder has windows from");
    agent.ask(&["snapshot", "--from", &before, "--until", &long_before]).failed(2, "ends before it begins");
}
