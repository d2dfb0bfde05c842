//! The steps of a real JAX job: what windows tell of them, and captures that begin at one.

use std::{fs, os::unix::fs::symlink};

use fakes::{
    command::{self, Ended},
    fake_host::FakeHost,
    harness::tpuscope,
    wait::{eventually, until},
};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{RecorderAgent, SHORT, jax, unique};
use crate::schema::Schema;

impl RecorderAgent {
    /// What `status` says of the steps of a job, which it has to know.
    fn steps(&self, job: &str) -> Option<Value> {
        let status = self.ask(&["status", "--json"]).json();
        Schema::open("status").admits(&status);
        status["steps"].as_array().unwrap().iter().find(|steps| steps["job"] == job).cloned()
    }

    /// The values of a metric of a job.
    fn values(&self, metric: &str, job: &str) -> Vec<f64> {
        let samples = self.ask(&["metrics", "--json"]).json();
        let samples = samples["samples"].as_array().unwrap().iter();
        let of_job =
            samples.filter(|sample| sample["labels"]["workload"] == job && sample["metric"] == metric);
        of_job.map(|sample| sample["value"]["gauge"].as_f64().unwrap()).collect()
    }

    fn capture_at(&self, step: i64, more: &[&str]) -> Ended {
        let step = step.to_string();
        self.ask(&[&["capture", "--at-step", &step, "--duration", "300ms"], more].concat())
    }
}

/// The number of a step that begins in so many seconds or later.
fn step_in(agent: &RecorderAgent, job: &str, seconds: f64) -> i64 {
    let steps = agent.steps(job).unwrap();
    let number = |field: &str| steps[field].as_f64().unwrap_or_else(|| panic!("{field}: {steps}"));
    let ahead = (seconds + number("last_step_age_seconds")) / number("pace_seconds");
    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    let ahead = ahead.ceil() as i64;
    steps["last_step"].as_i64().unwrap() + ahead
}

/// How far off a capture at a step was, in steps.
fn off_by(report: &Value, step: i64) -> i64 {
    let at_step = &report["at_step"];
    assert_eq!(at_step["step"], step, "{report}");
    let (first, off_by) = (at_step["first_step"].as_i64().unwrap(), at_step["off_by"].as_i64().unwrap());
    let parts = report["parts"].as_array().unwrap();
    assert_eq!((parts[0]["steps"]["first"].as_i64(), first - step), (Some(first), off_by), "{report}");
    off_by
}

/// A capture at a step through the coordinator, which keeps the session in a folder. A host that does not answer is missing.
fn over_hosts(agent: &RecorderAgent, id: &str) {
    let folder = tempfile::tempdir().unwrap();
    symlink(agent.home().socket(), folder.path().join("a")).unwrap();
    let via = format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), folder.path().display());
    let out = folder.path().display().to_string();
    let status = command::run(folder.path(), &["status", "--hosts", "a,b", "--via-command", &via]);
    assert_eq!(status.code, Some(18), "{status:?}");
    let row = status.stdout.lines().find(|line| line.starts_with(id)).map(str::split_whitespace);
    assert_eq!(row.and_then(|mut row| row.nth(1)), Some("a"), "{status:?}");
    let step = step_in(agent, id, 12.0);
    let at = step.to_string();
    let hosts = ["capture", "--hosts", "a,b", "--via-command", &via, "--session", "hosts", "-o", &out];
    let ended =
        command::run(folder.path(), &[&hosts[..], &["--at-step", &at, "--duration", "300ms"]].concat());
    assert_eq!(ended.code, Some(18), "{ended:?}");
    assert!(ended.stdout.contains(&format!("  at step {step}: ")), "{ended:?}");
    let manifest = fs::read(folder.path().join("plugins/profile/hosts/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    Schema::open("manifest").admits(&manifest);
    let first = manifest["hosts"][0]["parts"][0]["steps"]["first"].as_i64().unwrap();
    let at_step = serde_json::json!({ "step": step, "first_step": first, "off_by": first - step });
    assert_eq!(manifest["at_step"], at_step);
    let none = command::run(
        folder.path(),
        &[&hosts[..5], &["--at-step", &at, "--step-job", "no-such-job"]].concat(),
    );
    none.failed(14, "the number of a step is not known");
}

#[test]
fn windows_tell_the_steps_of_a_job_and_captures_begin_at_one() {
    let id = unique("steps");
    let job = jax(&id).start();
    // Captures of all workloads are this job's alone.
    let mut host = FakeHost::new();
    host.show_only(&[job.pid()]);
    let agent = RecorderAgent::on(host, SHORT);

    // Before a trace nothing is known, and that is said.
    let unknown = eventually("the job to be found", || agent.steps(&id));
    assert!(unknown["missing"].as_str().unwrap().starts_with("no trace of it was read"), "{unknown}");
    assert_eq!((&unknown["last_step"], &unknown["median_seconds"]), (&Value::Null, &Value::Null));
    assert!(agent.ask(&["status"]).stdout.contains(&format!("steps of {id}: no trace of it was read")));
    agent.capture_at(1_000_000, &["--step-job", &id]).failed(14, "no trace of it was read");
    agent.capture_at(1_000_000, &["--step-job", "no-such-job"]).failed(14, "no such workload");

    agent.record(&id);
    let known = eventually("the time between two windows", || {
        agent.steps(&id).filter(|steps| !steps["pace_seconds"].is_null())
    });
    let seconds = |field: &str| known[field].as_f64().unwrap();
    // The job sleeps for 10 ms in each step.
    assert!(seconds("median_seconds") > 0.009 && seconds("mean_seconds") > 0.009, "{known}");
    assert!(seconds("pace_seconds") > 0.009 && known["last_step"].as_i64().unwrap() > 10, "{known}");
    assert!(seconds("last_step_age_seconds") >= seconds("age_seconds") - 0.4, "{known}");
    assert_eq!((&known["pids"], &known["missing"]), (&serde_json::json!([job.pid()]), &"".into()));
    // No TensorCore: nothing is invented.
    assert_eq!((&known["busy_share"], &known["input_share"]), (&Value::Null, &Value::Null));
    let page = agent.ask(&["status"]).stdout;
    assert!(page.contains("WORKLOAD") && page.contains("PACE"), "{page}");
    for metric in ["tpu_step_median_seconds", "tpu_step_mean_seconds", "tpu_step_pace_seconds"] {
        until("the series", || agent.values(metric, &id).len() == 1);
        assert!(agent.values(metric, &id)[0] > 0.009, "{metric}");
    }
    assert!(agent.values("tpu_step_number", &id)[0] > 10.0);
    assert_eq!(agent.values("tpu_step_age_seconds", &id).len(), 1);
    assert_eq!(agent.values("tpu_step_busy_ratio", &id), [0.0_f64; 0]);
    let history = agent.ask(&["history", "tpu_step_number", "--json"]).json();
    Schema::open("history").admits(&history);
    let series = history["series"].as_array().unwrap().iter();
    let points = series.filter(|series| series["labels"]["workload"] == id.as_str());
    assert!(points.map(|series| series["points"].as_array().unwrap().len()).sum::<usize>() > 0, "{history}");

    let step = step_in(&agent, &id, 6.0);
    let ended = agent.capture_at(step, &["--session", "at", "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let distance = step - known["last_step"].as_i64().unwrap();
    assert!(off_by(&report, step).abs() < distance / 2, "{distance} steps ahead: {}", report["at_step"]);
    over_hosts(&agent, &id);

    // What cannot be waited for.
    agent.capture_at(1, &[]).failed(2, "step 1 has passed");
    agent.capture_at(-5, &[]).failed(2, "step -5 has passed");
    agent.capture_at(i64::MAX, &[]).failed(2, "more than the 24 h");
    agent.ask(&["capture", "--at-step", "9", "--start-in", "1s"]).failed(2, "--start-in");

    // A new agent, whose windows are still to come, knows what the one before read.
    agent.agent.signal(Signal::SIGKILL);
    let agent = agent.again("every = '10m'\n");
    until("the steps of before", || agent.steps(&id).is_some_and(|steps| steps["missing"] == ""));

    drop(job);
    until("the steps to go with the job", || agent.steps(&id).is_none());
    until("its series to go", || agent.values("tpu_step_number", &id).is_empty());
}
