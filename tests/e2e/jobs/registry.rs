//! Attempts of real processes: from their start to their end, over a killed agent, and what changed between two.

use std::fs;

use fakes::{
    command::run,
    harness::tpuscope,
    wait::{eventually, until},
};
use proto::tpuscope::v1::{
    AttemptEnding, EndAttemptRequest, JobKey, Peer, RegisterAttemptRequest, jobs_client::JobsClient,
};
use tonic::transport::Endpoint;

use super::JobHost;
use crate::schema::Schema;

const SECRET: &str = "hunter2AKIAIOSFODNN7EXAMPLE";

#[test]
fn two_attempts_of_a_named_run_and_what_changed_between_them() {
    let host = JobHost::start();
    let first = host.run(&["--name", "train"], 0).variable("XLA_FLAGS", "--xla_a=1 --xla_b=2").start();
    let job = host.job("train", |job| job["chips"] == serde_json::json!([0]));
    assert_eq!(
        (&job["kind"], &job["state"], &job["name"]),
        (&"run".into(), &"running".into(), &"train".into())
    );
    assert_eq!(job["attempts"][0]["pids"], serde_json::json!([first.pid()]), "it became the command: {job}");
    drop(first);
    let ended = host.job("train", |job| job["state"] == "ended");
    let how = ended["attempts"][0]["ending"]["how"].as_str().unwrap();
    assert!(["signal", "unknown"].contains(&how), "it was killed: {ended}");

    let flags = format!("--xla_b=2 --xla_api_key={SECRET} --xla_a=7");
    let second = host.run(&["--name", "train"], 1).variable("XLA_FLAGS", &flags);
    let _second = second.variable("JAX_API_TOKEN", SECRET).start();
    let job = host.job("train", |job| job["state"] == "running" && job["chips"] == serde_json::json!([1]));
    assert_eq!(job["attempts"][0]["attempt"], 1);
    Schema::open("jobs-list").admits(&host.ask(&["jobs", "list", "--json"]).json());

    let shown = host.ask(&["jobs", "show", "train#1", "--json"]);
    Schema::open("jobs-show").admits(&shown.json());
    let configuration = &shown.json()["job"]["attempts"][1]["configuration"];
    assert_eq!(configuration["system.chips"], "1 x v5e");
    assert!(configuration["system.kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{shown:?}");
    assert!(
        configuration["variable.XLA_FLAGS"].as_str().unwrap().contains("--xla_api_key=(removed"),
        "{shown:?}"
    );
    let diff = host.ask(&["jobs", "diff", "train#0", "train#1", "--json"]);
    Schema::open("jobs-diff").admits(&diff.json());
    let changes = diff.json()["changes"].clone();
    let changed: Vec<&str> =
        changes.as_array().unwrap().iter().map(|change| change["what"].as_str().unwrap()).collect();
    assert_eq!(
        changed,
        ["chips", "variable.XLA_FLAGS --xla_a", "variable.XLA_FLAGS --xla_api_key"],
        "{changes}"
    );
    assert_eq!((&changes[1]["before"], &changes[1]["after"]), (&"1".into(), &"7".into()));

    for page in
        [&["jobs", "list"][..], &["jobs", "show", "run:train"], &["jobs", "diff", "train#0", "train#1"]]
    {
        let page = host.ask(page);
        assert!(page.code == Some(0) && page.stdout.contains("run:train"), "{page:?}");
        assert!(!page.stdout.contains(SECRET), "{page:?}");
    }
    assert!(!shown.stdout.contains(SECRET) && !diff.stdout.contains(SECRET));
    for entry in fs::read_dir(host.agent.home().path().join("state")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "the secret is in {}", path.display());
    }
    of_two_hosts(&host);
    host.ask(&["jobs", "show", "train#9"]).failed(5, "has no attempt 9; known: 0, 1");
    host.ask(&["jobs", "show", "slurm:train"]).failed(5, "no job is named slurm:train");
    host.ask(&["jobs", "show", "#3"]).failed(2, "is empty");
}

/// The list of two hosts, of which one does not answer.
fn of_two_hosts(host: &JobHost) {
    let folder = host.host.root();
    std::os::unix::fs::symlink(host.agent.home().socket(), folder.join("host-1")).unwrap();
    let via = format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), folder.display());
    let list = |more: &[&str]| {
        let words = ["jobs", "list", "--hosts", "host-[1-2]", "--via-command", &via];
        run(folder, &[&words[..], more].concat())
    };
    let text = list(&[]);
    assert!(text.stdout.starts_with("2 hosts, 1 without an answer; 1 job\n"), "{text:?}");
    let json = list(&["--json", "--running"]);
    assert_eq!(json.code, Some(18), "{json:?}");
    let json = json.json();
    Schema::open("jobs-list-hosts").admits(&json);
    assert_eq!(
        (&json["hosts"][0]["jobs"][0]["id"], &json["missing"]),
        (&"train".into(), &1.into()),
        "{json}"
    );
}

#[test]
fn what_ran_and_ended_is_known_to_the_next_agent() {
    let host = JobHost::start();
    let (long, short) = (host.run(&["--name", "long"], 0).start(), host.run(&["--name", "short"], 1).start());
    for id in ["long", "short"] {
        host.job(id, |job| job["chips"].as_array().is_some_and(|chips| !chips.is_empty()));
    }
    host.agent.signal(nix::sys::signal::Signal::SIGSTOP);
    drop(short);
    let host = host.killed_and_started();
    host.job("short", |job| job["state"] == "ended");
    let job = host.job("long", |job| job["state"] == "running");
    assert_eq!(job["attempts"][0]["attempt"], 0);
    drop(long);
    let job = host.job("long", |job| job["state"] == "ended");
    let of = |name: &str| job["attempts"][0][name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(of("end") > of("start"), "{job}");
    assert_eq!(host.jobs().len(), 2);
}

#[test]
fn a_run_without_a_chip_begins_and_ends_with_its_process() {
    let host = JobHost::start();
    let socket = host.agent.home().socket();
    let words = ["run", "--name", "cpu", "--socket", socket.to_str().unwrap(), "--", "cat"];
    let mut command = std::process::Command::new(fakes::harness::tpuscope());
    let mut child = command.args(words).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let job = host.job("cpu", |job| job["state"] == "running");
    assert_eq!(
        (&job["chips"], &job["attempts"][0]["pids"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let ended = host.job("cpu", |job| job["state"] == "ended");
    // Linux 6.15 and later say how a process ended that is nobody's child.
    let ending = &ended["attempts"][0]["ending"];
    let known = serde_json::json!({"how": "exit", "code": 0});
    assert!(*ending == known || ending["how"] == "unknown", "{ended}");
    // Beside each other: two attempts, each with its own end.
    let start = || {
        let mut command = std::process::Command::new(fakes::harness::tpuscope());
        command.args(words).stdin(std::process::Stdio::piped()).spawn().unwrap()
    };
    let (mut one, mut other) = (start(), start());
    let attempts = |state: &str| {
        let shown = host.ask(&["jobs", "show", "cpu", "--json"]).json();
        let attempts = shown["job"]["attempts"].as_array().unwrap().clone();
        attempts.iter().filter(|attempt| attempt["state"] == state).count()
    };
    until("both to run", || attempts("running") == 2);
    drop(one.stdin.take());
    one.wait().unwrap();
    until("one to end", || (attempts("running"), attempts("ended")) == (1, 2));
    drop(other.stdin.take());
    other.wait().unwrap();
    until("the other to end", || attempts("ended") == 3);
}

#[tokio::test]
async fn hooks_register_and_end_a_job_of_slurm_and_its_requeue() {
    let host = JobHost::start();
    let socket = format!("unix:{}", host.agent.home().socket().display());
    let channel = Endpoint::try_from(socket).unwrap().connect().await.unwrap();
    let mut jobs = JobsClient::new(channel);
    let peer = || Some(Peer { protocol: 1, ..Peer::default() });
    let key = || Some(JobKey { kind: "slurm".into(), cluster: "a".into(), uid: 1000, id: "77".into() });
    let register = |attempt: u32| RegisterAttemptRequest {
        peer: peer(),
        key: key(),
        attempt: Some(attempt),
        name: "llm".into(),
        other_id: "70_7".into(),
        hosts: vec!["t0".into(), "t1".into()],
        rank: Some(0),
        ..RegisterAttemptRequest::default()
    };
    let end = |attempt: u32, how: &str, code: Option<u32>| EndAttemptRequest {
        peer: peer(),
        key: key(),
        attempt: Some(attempt),
        ending: Some(AttemptEnding { how: how.into(), code }),
        ..EndAttemptRequest::default()
    };
    for _ in 0..2 {
        let told = jobs.register_attempt(register(0)).await.unwrap().into_inner();
        assert_eq!((told.key, told.attempt), (key(), 0));
    }
    // Slurm tells the end of a job that is requeued with the number of its next attempt.
    let told = jobs.end_attempt(end(1, "signal", Some(15))).await.unwrap().into_inner();
    assert_eq!(told.attempt, 0);
    jobs.register_attempt(register(1)).await.unwrap();
    jobs.end_attempt(end(1, "exit", Some(3))).await.unwrap();
    let shown = eventually("the job", || {
        let shown = host.ask(&["jobs", "show", "70_7", "--json"]);
        (shown.code == Some(0)).then(|| shown.json())
    });
    let attempts = shown["job"]["attempts"].as_array().unwrap();
    let endings: Vec<_> = attempts.iter().map(|attempt| attempt["ending"].clone()).collect();
    assert_eq!(
        endings,
        [serde_json::json!({"how": "requeued", "code": null}), serde_json::json!({"how": "exit", "code": 3})]
    );
    assert_eq!(attempts[1]["hosts"], serde_json::json!(["t0", "t1"]));
    assert!(host.ask(&["jobs", "show", "llm"]).stdout.contains("attempt 1: exit 3, from "));
    for (wrong, says) in [
        (RegisterAttemptRequest { key: None, ..register(0) }, "no key"),
        (
            RegisterAttemptRequest {
                key: key().map(|key| JobKey { kind: "pod".into(), ..key }),
                ..register(0)
            },
            "key.kind",
        ),
        (
            RegisterAttemptRequest {
                key: key().map(|key| JobKey { id: "\u{1b}[31m".into(), ..key }),
                ..register(0)
            },
            "key.id",
        ),
        (RegisterAttemptRequest { ends_with_caller: true, ..register(0) }, "kind run"),
    ] {
        let refused = jobs.register_attempt(wrong).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(says), "{refused}");
    }
    let refused = jobs.end_attempt(end(1, "exit", None)).await.unwrap_err();
    assert!(refused.message().contains("ending"), "{refused}");
}
