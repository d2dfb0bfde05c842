//! The recorder on real JAX jobs and on fake ones.

mod clock;
mod drain;
mod drain_faults;
mod fakes_only;
mod foreign;
mod gaps;
mod lives;
mod snapshot;
mod steps;
mod versions;
mod windows;

use std::path::PathBuf;

use fakes::{
    command::{self, Ended},
    fake_host::FakeHost,
    jax_job::{JaxJob, RunningJaxJob, free_port},
    running_agent::{Home, RunningAgent},
    wait::{LIMIT, eventually, until, wait_with},
};
use serde_json::Value;

/// An agent on a host without chips that records only the jobs that ask for it: other jobs of the machine are not the
/// test's.
struct RecorderAgent {
    host: FakeHost,
    agent: RunningAgent,
}

/// The shortest interval, and windows that fit into it.
const SETTINGS: &str = "[workload]\ndiscover = 'any'\nscan_interval = '250ms'\n[sampler]\ninterval = '250ms'\n\
                        [store]\nmin_free = '0B'\n[recorder]\n";
const SHORT: &str = "every = '5s'\nwindow = '400ms'\nmax_window = '400ms'\n";
/// Room for what happens inside a window, and between two.
const LONG: &str = "every = '8s'\nwindow = '2400ms'\nmax_window = '2400ms'\n";

impl RecorderAgent {
    fn start(recorder: &str) -> Self {
        Self::on(FakeHost::new(), recorder)
    }

    fn on(host: FakeHost, recorder: &str) -> Self {
        let agent = RunningAgent::start(&host, &format!("{SETTINGS}{recorder}"));
        Self { host, agent }
    }

    /// The same state directory and settings, a new agent: after a kill.
    fn again(self, recorder: &str) -> Self {
        let Self { host, agent } = self;
        let (_, home) = agent.end();
        let command = home.command(&host.config(&format!("{SETTINGS}{recorder}")));
        Self { agent: RunningAgent::ready(home, command), host }
    }

    fn home(&self) -> &Home {
        self.agent.home()
    }

    fn arguments(&self, arguments: &[&str]) -> Vec<String> {
        let socket = self.home().socket().display().to_string();
        arguments.iter().map(ToString::to_string).chain(["--socket".to_owned(), socket]).collect()
    }

    fn ask(&self, arguments: &[&str]) -> Ended {
        command::run(self.home().path(), &self.arguments(arguments))
    }

    /// Switches the recorder on for a job, once the agent has found it.
    fn record(&self, job: &str) {
        eventually("the job to be found", || {
            let ended = self.ask(&["recorder", "on", "--job", job]);
            (ended.code == Some(0)).then_some(())
        });
    }

    /// Waits until the agent has found the job.
    fn finds(&self, job: &str) {
        until("the job to be found", || {
            let status = self.ask(&["recorder", "status", "--job", job, "--json"]).json();
            !status["processes"].as_array().unwrap().is_empty()
        });
    }

    /// Drains a job, once the agent has found it.
    fn drain(&self, job: &str) {
        eventually("the job to be found", || {
            let on = self.ask(&["recorder", "on", "--job", job, "--strategy", "drain"]);
            (on.code == Some(0)).then_some(())
        });
    }

    /// What `recorder status` says of the only process of a job.
    fn status(&self, job: &str) -> Value {
        let status = self.ask(&["recorder", "status", "--job", job, "--json"]).json();
        let [process] = &status["processes"].as_array().unwrap()[..] else { panic!("{status}") };
        process.clone()
    }

    /// The processes of a job in `recorder timeline`.
    fn timeline(&self, job: &str) -> Vec<Value> {
        let timeline = self.ask(&["recorder", "timeline", "--job", job, "--json"]).json();
        timeline["processes"].as_array().unwrap().clone()
    }

    /// Waits until so many windows of a job are kept, and gives them.
    fn windows(&self, job: &str, count: usize) -> Vec<Value> {
        let evidence =
            || format!("{}\n{}", self.ask(&["recorder", "status", "--job", job]).stdout, self.agent.log());
        wait_with("windows", LIMIT, evidence, || {
            let processes = self.timeline(job);
            let segments = processes.iter().flat_map(|process| process["segments"].as_array().unwrap());
            let segments: Vec<Value> = segments.cloned().collect();
            (segments.len() >= count).then_some(segments)
        })
    }

    /// Waits until so many windows of a process of a job are kept, and gives how many there are.
    fn windows_of(&self, job: &str, pid: u32, count: usize) -> usize {
        wait_with(
            "windows of a process",
            LIMIT,
            || self.agent.log(),
            || {
                let processes = self.timeline(job);
                let process = processes.iter().find(|process| process["pid"] == pid)?;
                process["segments"].as_array().map(Vec::len).filter(|kept| *kept >= count)
            },
        )
    }

    /// The reasons of the gaps of a job.
    fn gaps(&self, job: &str) -> Vec<String> {
        let processes = self.timeline(job);
        let gaps = processes.iter().flat_map(|process| process["gaps"].as_array().unwrap());
        gaps.map(|gap| gap["reason"].as_str().unwrap().to_owned()).collect()
    }

    fn segment_files(&self) -> Vec<PathBuf> {
        let folder = self.home().path().join("state/recorder");
        std::fs::read_dir(folder)
            .map_or(Vec::new(), |entries| entries.map(|entry| entry.unwrap().path()).collect())
    }
}

/// A real JAX job with this id, whose profiler the agent finds.
fn jax(id: &str) -> JaxJob {
    let port = free_port();
    let job = JaxJob::new().port(port).variable("TPUSCOPE_PROFILER_PORT", &port.to_string());
    job.variable("TPUSCOPE_JOB_ID", id)
}

/// An id that no other test's job has, although all agents of the machine see each other's jobs.
fn unique(name: &str) -> String {
    format!("{name}-{}-{:08x}", std::process::id(), random())
}

fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    u32::try_from(hasher.finish() & 0xffff_ffff).unwrap()
}

/// An instant of JSON, in seconds since the epoch.
fn seconds(time: &Value) -> f64 {
    let at: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    at.as_nanosecond() as f64 / 1e9
}

/// Waits until the wall clock says so.
fn wait_for_time(unix_seconds: f64) {
    until("the time", || jiff::Timestamp::now().as_nanosecond() as f64 / 1e9 >= unix_seconds);
}

/// When the next window of the only process of a job begins.
fn next_window(agent: &RecorderAgent, job: &str) -> f64 {
    seconds(&agent.status(job)["next"])
}

/// The job with its agent, recorded since now.
fn recorded(name: &str, recorder: &str) -> (RecorderAgent, RunningJaxJob, String) {
    let id = unique(name);
    let job = jax(&id).start();
    let agent = RecorderAgent::start(recorder);
    agent.record(&id);
    (agent, job, id)
}
