//! Ends and restarts of the agent and of workloads.

use fakes::profiler_probe::{becomes_free, is_free};
use nix::sys::signal::Signal;

use super::{LONG, jax, next_window, recorded, wait_for_time};

#[test]
fn what_was_recorded_outlives_a_killed_agent_and_the_choice_holds() {
    let (mut agent, mut job, id) = recorded("killed", LONG);
    agent.windows(&id, 1);
    // Before a window, in it, and when its trace arrives.
    for after in [-0.2, 0.5, 2.5] {
        wait_for_time(next_window(&agent, &id) + after);
        agent.agent.signal(Signal::SIGKILL);
        agent = agent.again(LONG);
        agent.finds(&id);
        assert!(!agent.windows(&id, 1).is_empty() && job.alive());
    }
    let kept = agent.windows(&id, 1);
    // The window that was open ended with its agent: the profiler is free for the next one.
    agent.windows(&id, kept.len() + 1);
    let status = agent.status(&id);
    assert_eq!((&status["recorded"], &status["last_failure"]), (&true.into(), &"".into()), "{status}");
    let left = agent.segment_files();
    assert!(
        left.iter().filter(|path| path.extension().is_some_and(|end| end == "raw")).count() <= 1,
        "{left:?}"
    );
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// A workload that is killed in a window, and one that is killed while it is drained.
#[test]
fn a_workload_that_starts_again_is_recorded_again_and_the_past_of_all_is_kept() {
    let (agent, mut job, id) = recorded("restart", LONG);
    agent.windows(&id, 1);
    wait_for_time(next_window(&agent, &id) + 0.5);
    job.kill();
    let mut second = jax(&id).start();
    agent.windows_of(&id, second.pid(), 1);
    agent.drain(&id);
    let held = agent.windows_of(&id, second.pid(), 1);
    agent.windows_of(&id, second.pid(), held + 1);
    second.kill();
    let records = agent.home().path().join("state/continuous");
    fakes::wait::until("its session to be forgotten", || std::fs::read_dir(&records).unwrap().count() == 0);
    // Its owner asked for drains of this job.
    let mut third = jax(&id).start();
    agent.windows_of(&id, third.pid(), 1);
    assert!(!is_free(&third.target()), "a session is open");
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut pids: Vec<u64> =
        ended.json()["parts"].as_array().unwrap().iter().map(|part| part["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    let mut all = [&job, &second, &third].map(|job| u64::from(job.pid()));
    all.sort_unstable();
    assert_eq!(pids, all);
    assert!(third.alive());
}

#[test]
fn an_agent_that_is_stopped_in_mid_window_frees_the_profiler() {
    let (agent, job, id) = recorded("stopped", LONG);
    agent.windows(&id, 1);
    wait_for_time(next_window(&agent, &id) + 0.3);
    agent.agent.signal(Signal::SIGTERM);
    let (code, _home) = agent.agent.end();
    assert_eq!(code, Some(0));
    becomes_free(&job.target());
}
