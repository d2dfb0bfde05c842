//! The wall clock is set back while a real JAX job is recorded: the job and the agent have a clock of the test.

use std::{path::Path, process::Command, time::Duration};

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    harness::tpuscope,
    jax_job::RunningJaxJob,
    running_agent::{Home, RunningAgent},
    set_clock::SetClock,
    wait::until,
};
use serde_json::Value;
use xprof::session::{Session, sessions_folder};

use super::{LONG, RecorderAgent, SETTINGS, jax, seconds, snapshot::python, unique};

const HOUR: Duration = Duration::from_secs(3600);

/// A job that is recorded, and the clock of all.
struct RecordedJob {
    id: String,
    clock: SetClock,
    job: RunningJaxJob,
    agent: RecorderAgent,
}

impl RecordedJob {
    fn start() -> Self {
        let (id, clock) = (unique("clock"), SetClock::new());
        let job = jax(&id).step_ms(20).tell_traces();
        let environment = clock.environment();
        let job = environment.iter().fold(job, |job, (name, value)| job.variable(name, value)).start();
        let (host, home) = (FakeHost::new(), Home::new());
        let mut command = home.command(&host.config(&format!("{SETTINGS}{LONG}")));
        command.envs(clock.environment());
        let agent = RecorderAgent { agent: RunningAgent::ready(home, command), host };
        agent.record(&id);
        Self { id, clock, job, agent }
    }

    fn kept(&self) -> usize {
        self.agent.windows(&self.id, 1).len()
    }

    /// Waits until so many further segments are kept.
    fn goes_on(&self, further: usize) {
        self.agent.windows(&self.id, self.kept() + further);
    }

    /// A snapshot by the clock of the job, in a folder, which is right.
    fn snapshot(&self, last: &str, session: &str) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().display().to_string();
        let arguments =
            ["snapshot", "--last", last, "--job", &self.id, "--session", session, "-o", &out, "--json"];
        let mut command = Command::new(tpuscope());
        command.args(self.agent.arguments(&arguments)).envs(self.clock.environment());
        let ended: Ended = start_as(command).end();
        assert_eq!(ended.code, Some(0), "{ended:?}\n{}", self.agent.agent.log());
        let part = ended.json()["parts"][0].clone();
        is_right(&part, &sessions_folder(folder.path()).join(session));
        part
    }
}

/// Begin and end of what a list of a part holds.
fn stretches(part: &Value, list: &str) -> Vec<(f64, f64)> {
    let entries = part[list].as_array().unwrap().iter();
    entries.map(|entry| (seconds(&entry["start"]), seconds(&entry["stop"]))).collect()
}

/// What is in the session holds each time and each step once, and xprof opens it.
fn is_right(part: &Value, session: &Path) {
    let mut all = stretches(part, "recorded");
    all.extend(stretches(part, "gaps"));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(all.iter().all(|(start, stop)| start <= stop), "{all:?}");
    assert!(all.windows(2).all(|pair| (pair[0].1 - pair[1].0).abs() < 1e-6), "{all:?}");
    let session = Session::open(session).unwrap().unwrap();
    let path = &session.parts[0].path;
    let steps: Vec<i64> = serde_json::from_value(python("trace_steps.py", path)).unwrap();
    let mut once = steps.clone();
    once.dedup();
    assert!(!steps.is_empty() && steps == once, "each step is there once: {steps:?}");
    assert!(python("xprof_tools.py", path)["overview"].as_u64().unwrap() > 0);
}

fn says(part: &Value, list: &str, text: &str) -> bool {
    part[list].as_array().unwrap().iter().any(|entry| entry.to_string().contains(text))
}

#[test]
fn when_the_clock_is_set_back_recording_goes_on_and_snapshots_hold_each_time_once() {
    const SET_BACK: &str = "the clock was set back";
    let mut recorded = RecordedJob::start();
    // By two windows, between two of them: what is recorded next has the time of what was recorded last.
    recorded.agent.windows(&recorded.id, 3);
    until("no window to be open", || recorded.agent.status(&recorded.id)["open"] == false);
    recorded.clock.set_back(Duration::from_secs(16));
    recorded.goes_on(2);
    let part = recorded.snapshot("10m", "between");
    assert!(says(&part, "warnings", SET_BACK), "{part}");
    assert!(recorded.agent.timeline(&recorded.id)[0]["segments"].as_array().unwrap().len() >= 5);

    // By an hour, in a window, which does not wait for its end by the clock.
    while recorded.job.said_now().is_some() {}
    recorded.job.says("traced");
    let kept = recorded.kept();
    recorded.clock.set_back(HOUR);
    recorded.job.says("untraced");
    recorded.agent.windows(&recorded.id, kept + 3);
    let now = recorded.clock.now().as_nanosecond() as f64 / 1e9;
    let status = recorded.agent.status(&recorded.id);
    assert!((seconds(&status["next"]) - now).abs() < 16.0, "{status}");
    assert_eq!((&status["recorded"], &status["last_failure"]), (&true.into(), &"".into()), "{status}");
    recorded.snapshot("60s", "in-window");

    // In a session that is drained.
    recorded.agent.drain(&recorded.id);
    recorded.goes_on(2);
    recorded.clock.set_back(HOUR);
    recorded.goes_on(3);
    let status = recorded.agent.status(&recorded.id);
    assert_eq!((&status["recorded"], &status["last_failure"]), (&true.into(), &"".into()), "{status}");
    recorded.snapshot("60s", "drained");
    let timeline = recorded.agent.timeline(&recorded.id);
    let known = [&timeline[0]["segments"], &timeline[0]["gaps"]].map(|list| list.as_array().unwrap().clone());
    for stretch in known.concat() {
        assert!(seconds(&stretch["start"]) <= seconds(&stretch["stop"]), "{stretch}");
    }
    assert!(recorded.job.alive());
}
