//! Others who use a profiler: the program itself, and foreign clients.

use fakes::{
    command::run,
    profiler_probe::is_free,
    wait::{LIMIT, eventually, until},
};
use proto::tensorflow::{ProfileOptions, ProfileRequest};
use xprof::client;

use super::{LONG, RecorderAgent, SHORT, next_window, recorded, wait_for_time};
use crate::continuous::as_foreign_client;

#[test]
fn a_program_that_traces_itself_between_windows_is_not_disturbed() {
    let (agent, mut job, id) = recorded("between", LONG);
    agent.windows(&id, 1);
    let folder = tempfile::tempdir().unwrap();
    wait_for_time(next_window(&agent, &id) + 2.9);
    assert_eq!(job.start_trace(folder.path()), "start ok");
    assert_eq!(job.stop_trace(), "stop ok");
    agent.windows(&id, 3);
    assert_eq!(agent.status(&id)["recorded"], true);
}

#[test]
fn a_program_that_traces_itself_when_a_window_is_due_is_left_alone_until_its_owner_asks() {
    let (agent, mut job, id) = recorded("before", SHORT);
    agent.windows(&id, 1);
    let folder = tempfile::tempdir().unwrap();
    let due = next_window(&agent, &id);
    assert_eq!(job.start_trace(folder.path()), "start ok");
    wait_for_time(due + 0.5);
    let status = fakes::wait::eventually("the recorder to leave it alone", || {
        let status = agent.status(&id);
        (status["recorded"] == false).then_some(status)
    });
    assert_eq!(status["reason_code"], "foreign_use", "{status}");
    assert!(status["reason"].as_str().unwrap().contains("recorded again when its owner asks"), "{status}");
    assert_eq!(job.stop_trace(), "stop ok", "its trace was not disturbed");
    // Also the next agent leaves it alone.
    let agent = {
        agent.agent.signal(nix::sys::signal::Signal::SIGKILL);
        agent.again(SHORT)
    };
    agent.finds(&id);
    assert_eq!(agent.status(&id)["reason_code"], "foreign_use");
    let gaps = agent.gaps(&id);
    assert!(gaps.iter().any(|reason| reason.contains("another program used the profiler")), "{gaps:?}");
    let held = agent.windows(&id, 1).len();
    agent.record(&id);
    agent.windows(&id, held + 1);
}

/// The danger that docs/recorder.md begins with, on real JAX.
#[test]
fn a_program_that_starts_a_trace_during_a_window_fails_as_the_docs_say() {
    let (agent, mut job, id) = recorded("during", LONG);
    agent.windows(&id, 1);
    let folder = tempfile::tempdir().unwrap();
    wait_for_time(next_window(&agent, &id) + 0.5);
    assert_eq!(job.start_trace(folder.path()), "start ok", "it appears to work");
    let stop = job.stop_trace();
    assert!(stop.contains("ALREADY_EXISTS"), "{stop}");
    let later = job.start_trace(folder.path());
    assert!(later.contains("already been started"), "{later}");
    assert!(job.alive());
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
}

#[test]
fn a_foreign_client_is_never_ended_and_the_process_is_left_alone() {
    let (agent, job, id) = recorded("foreign", SHORT);
    agent.windows(&id, 1);
    let folder = tempfile::tempdir().unwrap();
    // It waits for the window's turn, and then has the profiler over the next window.
    wait_for_time(next_window(&agent, &id) + 0.9);
    let foreign = run(
        folder.path(),
        &["capture", "--target", &job.target(), "--duration", "6s", "--session", "theirs"],
    );
    assert_eq!(foreign.code, Some(0), "it has its whole window: {foreign:?}");
    let status = agent.status(&id);
    assert_eq!(status["reason_code"], "foreign_use", "{status}");
    let gaps = agent.gaps(&id);
    assert!(gaps.iter().any(|reason| reason.contains("tpuscope")), "it says who has it: {gaps:?}");
}

/// Another client that starts and stops continuous profiling, and another agent that records the same job.
#[test]
fn a_foreign_session_and_another_agent_are_left_alone() {
    let (agent, mut job, id) = recorded("others", SHORT);
    agent.windows(&id, 1);
    let target = job.target();
    // A stop in a window stops nothing of ours.
    wait_for_time(next_window(&agent, &id) + 0.2);
    let nothing = as_foreign_client(&target, async |client| client.stop_continuous(LIMIT).await);
    assert!(matches!(nothing, Err(client::Error::NoSession(_))), "{nothing:?}");
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
    assert_eq!(agent.status(&id)["last_failure"], "");
    // A session that runs when a window is due.
    wait_for_time(next_window(&agent, &id) + 1.2);
    let request = ProfileRequest {
        opts: Some(ProfileOptions { version: 1, host_tracer_level: 1, ..ProfileOptions::default() }),
        ..ProfileRequest::default()
    };
    as_foreign_client(&target, async |client| client.start_continuous(&request, LIMIT).await.unwrap());
    until("the recorder to leave it alone", || agent.status(&id)["reason_code"] == "foreign_use");
    agent.ask(&["recorder", "on", "--job", &id, "--strategy", "drain"]);
    until("the drain to be refused too", || agent.status(&id)["reason_code"] == "foreign_use");
    assert!(!is_free(&target), "the foreign session is open");
    as_foreign_client(&target, async |client| client.stop_continuous(LIMIT).await.unwrap());

    // Two agents have the windows of a job at the same instants: one of them is first, and the other one leaves the job alone.
    let other = RecorderAgent::start(SHORT);
    let agents = [&agent, &other];
    agents.iter().for_each(|agent| {
        eventually("the job to be found", || {
            let on = ["recorder", "on", "--job", &id, "--strategy", "periodic"];
            (agent.ask(&on).code == Some(0)).then_some(())
        });
    });
    let is_foreign = |agent: &RecorderAgent| agent.status(&id)["reason_code"] == "foreign_use";
    until("one of them to leave it alone", || agents.iter().any(|agent| is_foreign(agent)));
    let [first, second] = if is_foreign(&agent) { [&other, &agent] } else { [&agent, &other] };
    assert!(second.status(&id)["reason"].as_str().unwrap().contains("tpuscope"), "{}", second.status(&id));
    let held = first.timeline(&id).iter().map(|process| process["segments"].as_array().unwrap().len()).sum();
    first.windows(&id, usize::max(held, 1) + 1);
    assert_eq!(first.status(&id)["recorded"], true);
    // The session of the one is never that of the other.
    first.drain(&id);
    let drains = first.windows(&id, 1).len();
    eventually("a drain", || first.status(&id)["drain_seconds"].as_f64());
    second.ask(&["recorder", "on", "--job", &id, "--strategy", "drain"]);
    until("the second to leave it alone again", || is_foreign(second));
    first.windows(&id, drains + 2);
    assert!(job.alive());
}
