//! Others who use a profiler: the program itself, and foreign clients.

use fakes::command::run;

use super::{LONG, SHORT, next_window, recorded, wait_for_time};

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
    fakes::wait::until("the job to be found", || {
        !agent.ask(&["recorder", "status", "--job", &id, "--json"]).json()["processes"]
            .as_array()
            .unwrap()
            .is_empty()
    });
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
