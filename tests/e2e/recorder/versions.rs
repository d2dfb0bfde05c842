//! Other versions of jaxlib: windows where a profile does no harm, continuous profiling only where it can be stopped.

use fakes::{
    command,
    fake_host::FakeHost,
    harness::tpuscope,
    jax_job::RunningJaxJob,
    wait::{LIMIT, until},
};
use serde_json::Value;

use super::{RecorderAgent, SHORT, jax, unique};

fn job(version: &str) -> (String, RunningJaxJob) {
    let id = unique(&format!("jaxlib-{version}"));
    let job = jax(&id).jaxlib(version).log_steps().start();
    (id, job)
}

#[test]
fn an_older_jaxlib_is_recorded_in_windows_and_never_continuously() {
    let (id, mut job) = job("0.9.2");
    let agent = RecorderAgent::start(SHORT);
    agent.record(&id);
    let windows = agent.windows(&id, 2);
    assert!(windows.iter().all(|window| window["steps"].as_u64() > Some(5)), "{windows:?}");
    let refused = agent.ask(&["recorder", "on", "--job", &id, "--strategy", "drain"]);
    refused.failed(19, "cannot stop");
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.json()["parts"][0]["events"].as_u64() > Some(0), "{ended:?}");
    assert!(job.alive());
}

/// The first profile of such a job would be its end: it never goes on.
#[test]
fn a_jaxlib_that_hangs_when_it_is_profiled_is_left_alone() {
    let (id, job) = job("0.7.2");
    // Captures of all workloads are this job's alone.
    let mut host = FakeHost::new();
    host.show_only(&[job.pid()]);
    let agent = RecorderAgent::on(host, SHORT);
    agent.record(&id);
    let status: Value = agent.status(&id);
    assert_eq!(
        (&status["recorded"], &status["reason_code"]),
        (&false.into(), &"old_jaxlib".into()),
        "{status}"
    );
    assert!(status["reason"].as_str().unwrap().contains("its jaxlib 0.7.2 stops for ever"), "{status}");
    agent.ask(&["snapshot", "--job", &id]).failed(14, "stops for ever");
    // Over many hosts no profiler can be named: the reason has the command for its own host.
    let folder = tempfile::tempdir().unwrap();
    let via =
        format!("{} dial-stdio --socket {}/{{host}}", tpuscope().display(), agent.home().path().display());
    let directly =
        command::run(folder.path(), &["capture", "--target", &job.target(), "--duration", "100ms"]);
    directly.failed(19, "stops for ever").failed(19, "--allow-old-jaxlib");
    let hosts = ["capture", "--hosts", "agent.sock", "--via-command", &via, "--duration", "100ms"];
    let ended = command::run(folder.path(), &hosts);
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains(&format!("tpuscope capture --target {}", job.target())), "{ended:?}");
    while job.said_now().is_some() {}
    until("the job to go on", || job.next_line(LIMIT).is_some_and(|line| line.starts_with("step ")));
}
