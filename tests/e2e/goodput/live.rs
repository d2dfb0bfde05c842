//! The ledger of a job that runs: a real agent, a process that holds chips, and services that a test sets.

use std::process::Command;

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    harness::{copy_program, tpuscope},
    running_agent::{Home, RunningAgent},
    scripted_job::{ScriptedJob, ScriptedPorts},
    wait::eventually,
};
use model::device::Generation;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::schema::Schema;

const SETTINGS: &str = "[workload]\nscan_interval = '250ms'\n[sampler]\norbax_grain_interval = '1s'\n[libtpu]\nenabled = 'off'\n";

/// A host of two chips for the Slurm job 77.
pub(crate) struct JobHost {
    pub(crate) host: FakeHost,
    ports: ScriptedPorts,
}

impl JobHost {
    pub(crate) fn new() -> Self {
        Self { host: FakeHost::with(Generation::V6e, 2), ports: ScriptedPorts::free() }
    }

    /// A process of the job that holds both chips.
    pub(crate) fn job(&self) -> ScriptedJob {
        let mut job = ScriptedJob::start("77", &self.host.chips(), self.ports);
        shows(&mut job, 95.0, 0, 0.0);
        job
    }

    fn agent(&self, home: Home) -> RunningAgent {
        self.agent_with(home, "")
    }

    /// An agent with these further settings.
    pub(crate) fn agent_with(&self, home: Home, settings: &str) -> RunningAgent {
        let command = home.command(&self.host.config(&format!("{SETTINGS}{settings}")));
        RunningAgent::ready(home, command)
    }
}

/// The duty cycle of both chips in percent, how many checkpoint writes have started, and for how long the last blocked.
fn shows(job: &mut ScriptedJob, duty: f64, started: u32, blocked: f64) {
    let page = format!(
        "# TYPE jax_orbax_write_async_start gauge\njax_orbax_write_async_start {started}\n\
         # TYPE jax_checkpoint_write_async_blocking_duration_secs gauge\n\
         jax_checkpoint_write_async_blocking_duration_secs {blocked}\n"
    );
    job.show(&serde_json::json!({ "duty": duty, "orbax": page }));
}

fn ask(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    let mut command = Command::new(tpuscope());
    command.args(arguments).arg("--socket").arg(agent.home().socket());
    start_as(command).end()
}

fn goodput(agent: &RunningAgent, arguments: &[&str]) -> Ended {
    ask(agent, &[&["goodput"][..], arguments].concat())
}

fn seconds(job: &Value, state: &str) -> u64 {
    job["seconds"][state].as_u64().unwrap()
}

/// The job, once it is as `check` wants it.
fn job_with(agent: &RunningAgent, what: &str, check: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || {
        let ended = goodput(agent, &["--job", "slurm:77", "--json"]);
        let job = (ended.code == Some(0)).then(|| ended.json()["jobs"][0].clone())?;
        check(&job).then_some(job)
    })
}

#[test]
fn a_job_has_a_ledger_that_outlives_the_agent_and_its_own_restart() {
    let host = JobHost::new();
    let agent = host.agent(Home::new());
    let ended = goodput(&agent, &["--job", "77"]);
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no ledger of a job 77"), "{}", ended.stderr);
    assert_eq!(goodput(&agent, &["--exact"]).code, Some(2));
    assert_eq!(goodput(&agent, &["--exact", "--job", "77"]).code, Some(5));

    let mut job = host.job();
    let worked = job_with(&agent, "work", |job| seconds(job, "productive") >= 4);
    assert_eq!((&worked["chips"], &worked["name"]), (&serde_json::json!([0, 1]), &"train".into()));

    // A checkpoint of more than ten seconds, which would be part of a step.
    shows(&mut job, 0.0, 1, 0.0);
    let idle = job_with(&agent, "a checkpoint", |job| seconds(job, "checkpoint") >= 12);
    shows(&mut job, 95.0, 1, 13.0);
    let productive = seconds(&idle, "productive");
    let before = job_with(&agent, "more work", |job| seconds(job, "productive") >= productive + 2);
    assert!(seconds(&before, "stall") <= 2, "{before}");
    assert_eq!(before["losses"][0]["reason"], "checkpoint");
    assert_eq!(before["losses"][0]["longest"][0]["chips"], serde_json::json!([0, 1]));

    agent.signal(Signal::SIGKILL);
    let (_, home) = agent.end();
    let agent = host.agent(home);
    // What was written ten seconds after the start is there, and what was not is unobserved.
    let is_on = |job: &Value| seconds(job, "unobserved") >= 1 && job["running"] == true;
    let after = job_with(&agent, "the ledger after a kill", is_on);
    assert_eq!((&after["from"], &after["disruptions"]), (&before["from"], &0.into()));
    assert!(seconds(&after, "productive") >= 1 && seconds(&after, "recovery") == 0, "{after}");

    drop(job);
    job_with(&agent, "its end", |job| job["running"] == false);
    let next = host.job();
    let again =
        job_with(&agent, "its restart", |job| job["disruptions"] == 1 && seconds(job, "recovery") >= 1);
    let sum: u64 = again["seconds"].as_object().unwrap().values().map(|value| value.as_u64().unwrap()).sum();
    assert_eq!(again["elapsed_seconds"], sum);

    let reply = goodput(&agent, &["--json"]).json();
    Schema::open("goodput-live").admits(&reply);
    let text = goodput(&agent, &["--job", "train", "--explain"]).stdout;
    for words in [
        "train (slurm:77), chips open: proxy goodput ",
        "(coverage ",
        "confidence ",
        "\n1. ",
        "source: ",
        "what to do: ",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let page = agent.get("/metrics", "").body;
    for series in [
        "tpu_job_goodput_seconds{ledger=\"proxy\",workload=\"77\",workload_kind=\"slurm\"} ",
        "tpu_job_badput_seconds{ledger=\"proxy\",reason=\"checkpoint\",workload=\"77\",workload_kind=\"slurm\"} ",
        "tpu_job_disruptions_total{ledger=\"proxy\",workload=\"77\",workload_kind=\"slurm\"} 1.0",
    ] {
        assert!(page.contains(series), "{series} in\n{page}");
    }
    several_hosts(&agent, &host);
    marks_of_another_user_are_of_another_job(&agent);
    the_log_has_the_summary_when_the_epilog_tells_the_end(&agent);
    drop(next);
}

/// Another user marks for a job of the same name: neither user's ledger answers for the other.
fn marks_of_another_user_are_of_another_job(agent: &RunningAgent) {
    const SOMEBODY: &str = "54321";
    let (folder, own) = (Home::new(), nix::unistd::getuid().to_string());
    let binary = folder.path().join("tpuscope");
    copy_program(&tpuscope(), &binary);
    for step in ["0", "1"] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", SOMEBODY, "--regid", SOMEBODY, "--clear-groups"]).arg(&binary);
        command.args(["mark", "STEP", "--strict", "--job", "train", "--step", step]);
        let ended = start_as({
            command.arg("--socket").arg(agent.home().socket());
            command
        })
        .end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let both = format!("`train` of uid {SOMEBODY}; `train` of uid {own}, without marks");
    goodput(agent, &["--job", "train"]).failed(2, &both);
    goodput(agent, &["--job", "train", "--exact"]).failed(2, &both);
    let mine = goodput(agent, &["--job", "train", "--user", &own]);
    assert!(mine.stdout.starts_with("train (slurm:77), chips open: proxy goodput "), "{mine:?}");
    let theirs = goodput(agent, &["--job", "train", "--user", SOMEBODY, "--strict"]);
    assert!(theirs.stdout.starts_with("train of uid 54321 (strict, from marks): "), "{theirs:?}");
    let explained = goodput(agent, &["--job", "train", "--user", SOMEBODY, "--explain"]);
    assert!(explained.failed(5, "there is no ledger").stderr.contains("the job has marks"), "{explained:?}");
    // The proxy as of another time.
    let then = goodput(agent, &["--job", "slurm:77", "--now", "1"]);
    then.failed(5, "has no second");
}

/// The hook of the end: the log says where the time of the job went.
fn the_log_has_the_summary_when_the_epilog_tells_the_end(agent: &RunningAgent) {
    let uid = nix::unistd::getuid().to_string();
    let mut epilog = Command::new(tpuscope());
    epilog.env_clear().args(["slurm", "epilog", "--strict", "--socket"]).arg(agent.home().socket());
    epilog.envs([("SLURM_JOB_ID", "77"), ("SLURM_JOB_UID", &uid), ("SLURM_JOB_RESTART_COUNT", "0")]);
    let ended = start_as(epilog).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let line = eventually("the goodput in the log", || {
        let log = agent.log();
        log.lines().find(|line| line.contains("goodput of a job that ended")).map(str::to_owned)
    });
    for words in [" job=slurm:77 ", "goodput=", "coverage=", " seconds=", " disruptions=1"] {
        assert!(line.contains(words), "{words}: {line}");
    }
    // An attempt is a window of the ledger.
    let attempt = goodput(agent, &["--job", "slurm:77#0"]);
    assert!(attempt.stdout.starts_with("attempt 0 of train (slurm:77), "), "{attempt:?}");
    let shown = ask(agent, &["jobs", "show", "slurm:77", "--json"]).json();
    let ran = &shown["job"]["attempts"][0];
    let second = |time: &Value| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second();
    // A second is settled some seconds after its end.
    eventually("the ledger of the whole attempt", || {
        let answer = goodput(agent, &["--job", "slurm:77#0", "--json"]).json();
        let job = &answer["jobs"][0];
        let ends = [(&ran["start"], &job["from"]), (&ran["end"], &job["until"])];
        ends.iter().all(|(wanted, got)| (second(wanted) - second(got)).abs() <= 1).then_some(())
    });
    goodput(agent, &["--job", "slurm:77#5"]).failed(5, "has no attempt 5; known: 0");
    let early = ["--job", "slurm:77#0", "--start", "1", "--end", "2"];
    goodput(agent, &early).failed(5, "slurm:77#0 did not run in the window");
}

/// Two hosts, of which one does not answer: its seconds are unknown.
fn several_hosts(agent: &RunningAgent, host: &JobHost) {
    let folder = host.host.root();
    std::os::unix::fs::symlink(agent.home().socket(), folder.join("host-1")).unwrap();
    let via = format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), folder.display());
    let ask = |job: &str, hosts: &str| {
        let mut command = Command::new(tpuscope());
        command.args(["goodput", "--job", job, "--json", "--hosts", hosts, "--via-command", &via]);
        start_as(command).end()
    };
    for job in ["77", "slurm:77#0"] {
        let one = ask(job, "host-1");
        assert_eq!(one.code, Some(0), "{}", one.stderr);
        let one = one.json();
        Schema::open("goodput-hosts").admits(&one);
        assert!(one["combined"]["productive_s"].as_u64().unwrap() >= 1, "{one}");
    }
    let two = ask("77", "host-[1-2]");
    assert_eq!(two.code, Some(18), "{}", two.stderr);
    let two = two.json();
    Schema::open("goodput-hosts").admits(&two);
    assert_eq!(two["combined"]["productive_s"], 0);
    assert!(two["combined"]["unknown_s"].as_u64().unwrap() >= 1, "{two}");
    assert!(two["hosts"][1]["missing"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{two}");
}
