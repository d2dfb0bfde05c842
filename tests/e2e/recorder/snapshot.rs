//! Sessions made of the past, opened by the real xprof.

use std::{path::Path, process::Command};

use fakes::harness::{peer, workspace};
use serde_json::Value;
use xprof::session::{Session, sessions_folder};

use super::{RecorderAgent, SHORT, recorded, seconds};
use crate::schema::Schema;

fn python(script: &str, part: &Path) -> Value {
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

#[test]
fn an_empty_past_says_what_would_have_had_to_be_on() {
    let id = super::unique("empty");
    let _job = super::jax(&id).start();
    let agent = RecorderAgent::start(SHORT);
    fakes::wait::until("the job to be found", || {
        let status = agent.ask(&["recorder", "status", "--job", &id, "--json"]).json();
        status["processes"].as_array().unwrap().len() == 1
    });
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
