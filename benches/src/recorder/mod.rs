//! The recorder beside its peers: what a window costs a job, what draining costs it, what recording costs the agent, and how fast
//! a snapshot is made.

pub mod drain;
pub mod recording;
pub mod snapshot;
pub mod windows;
mod xprof_client;

use std::{env, fs, path::PathBuf, time::Duration};

use fakes::{
    command::{self, Ended},
    fake_host::FakeHost,
    jax_job::{JaxJob, RunningJaxJob, free_port},
    running_agent::RunningAgent,
    wait::eventually,
};
use serde_json::Value;

/// How much of its full length each part has, from the variable `RECORDER_BENCH_SCALE`.
pub fn scale() -> f64 {
    env::var("RECORDER_BENCH_SCALE").map_or(1.0, |text| text.parse().unwrap())
}

/// So many, scaled, and at least `least`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn scaled(full: u32, least: u32) -> u32 {
    ((f64::from(full) * scale()).round() as u32).max(least)
}

/// An agent that records the jobs which ask for it.
struct BenchAgent {
    agent: RunningAgent,
    _host: FakeHost,
}

impl BenchAgent {
    /// One that finds jobs as agents do: a scan of all processes costs more than what it records.
    fn start(recorder: &str) -> Self {
        let host = FakeHost::new();
        let settings =
            format!("[workload]\ndiscover = 'any'\n[store]\nmin_free = '0B'\n[recorder]\n{recorder}");
        Self { agent: RunningAgent::start(&host, &settings), _host: host }
    }

    fn ask(&self, arguments: &[&str]) -> Ended {
        let socket = self.agent.home().socket().display().to_string();
        let arguments: Vec<String> =
            arguments.iter().map(ToString::to_string).chain(["--socket".to_owned(), socket]).collect();
        command::run(self.agent.home().path(), &arguments)
    }

    /// Records a job from now on.
    fn on(&self, job: &str, strategy: &str) {
        eventually("the job to be found", || {
            let ended = self.ask(&["recorder", "on", "--job", job, "--strategy", strategy]);
            (ended.code == Some(0)).then_some(())
        });
    }

    fn off(&self, job: &str) {
        let ended = self.ask(&["recorder", "off", "--job", job]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// What `recorder status` says of the processes of a job.
    fn processes(&self, job: &str) -> Vec<Value> {
        let status = self.ask(&["recorder", "status", "--job", job, "--json"]).json();
        status["processes"].as_array().unwrap().clone()
    }

    /// The segments of a job.
    fn segments(&self, job: &str) -> Vec<Value> {
        let timeline = self.ask(&["recorder", "timeline", "--job", job, "--json"]).json();
        let processes = timeline["processes"].as_array().unwrap();
        processes.iter().flat_map(|process| process["segments"].as_array().unwrap().clone()).collect()
    }

    /// The files of all segments.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.agent.home().path().join("state/recorder")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect()
    }
}

/// A job with this id, whose profiler agents find. Its steps do a fixed work that takes this long undisturbed.
fn job(id: &str, step: Duration) -> JaxJob {
    let port = free_port();
    let step_ms = u64::try_from(step.as_millis()).unwrap();
    let job = JaxJob::new().port(port).variable("TPUSCOPE_PROFILER_PORT", &port.to_string());
    // Few calls a step: XLA divides each into tasks, and a job of small ones grows by hundreds of megabytes in a window.
    let size = if step < Duration::from_millis(100) { "512" } else { "1024" };
    job.variable("TPUSCOPE_JOB_ID", id).step_ms(step_ms).argument("--size").argument(size).fixed_work()
}

/// One step as its job says.
#[derive(Debug, Clone, Copy)]
struct LoggedStep {
    begin_ns: i64,
    end_ns: i64,
    /// Whether a trace was on when it began.
    traced: bool,
}

impl LoggedStep {
    fn seconds(self) -> f64 {
        (self.end_ns - self.begin_ns) as f64 / 1e9
    }
}

/// The steps that a job logs in so long, with [`JaxJob::log_steps`] and [`JaxJob::tell_traces`].
fn steps_for(job: &RunningJaxJob, time: Duration, traced: &mut bool) -> Vec<LoggedStep> {
    let mut steps: Vec<LoggedStep> = Vec::new();
    let most = i64::try_from(time.as_nanos()).unwrap();
    while steps.first().is_none_or(|first| steps[steps.len() - 1].end_ns - first.begin_ns < most) {
        let line = job.next_line(Duration::from_secs(60)).expect("the job goes on");
        steps.extend(logged(&line, traced));
    }
    steps
}

/// The steps that a job has logged so far and nobody has read.
fn logged_now(job: &RunningJaxJob, traced: &mut bool) -> Vec<LoggedStep> {
    let mut steps = Vec::new();
    while let Some(line) = job.said_now() {
        steps.extend(logged(&line, traced));
    }
    steps
}

/// The step of a line, if it is of one. `traced`: whether a trace is on, as the lines say.
fn logged(line: &str, traced: &mut bool) -> Option<LoggedStep> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["traced"] => *traced = true,
        ["untraced"] => *traced = false,
        ["step", _, begin, end] => {
            let (begin_ns, end_ns) = (begin.parse().unwrap(), end.parse().unwrap());
            return Some(LoggedStep { begin_ns, end_ns, traced: *traced });
        }
        _ => panic!("the job says {line}"),
    }
    None
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The value below which this share of the others lies.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// The largest memory that a process has had since its start.
fn peak_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
