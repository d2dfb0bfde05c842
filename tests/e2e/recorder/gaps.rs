//! Why windows are missing: the reason that was observed, for every window.

use std::time::Duration;

use fakes::wait::until;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{RecorderAgent, SHORT, recorded, seconds, wait_for_time};

fn now() -> f64 {
    jiff::Timestamp::now().as_nanosecond() as f64 / 1e9
}

/// Waits until a gap of a job has this reason.
fn has_gap(agent: &RecorderAgent, job: &str, reason: &str) {
    fakes::wait::wait_with(
        reason,
        fakes::wait::LIMIT,
        || format!("{:?}", agent.gaps(job)),
        || agent.gaps(job).iter().any(|gap| gap.contains(reason)).then_some(()),
    );
}

/// Windows and the windows of gaps, and how many there must be from the first to the last.
fn accounted(agent: &RecorderAgent, job: &str) -> (f64, f64) {
    let processes = agent.timeline(job);
    let of = |field: &'static str| {
        processes.iter().flat_map(move |process| process[field].as_array().unwrap().clone())
    };
    let windows: Vec<Value> = of("segments").collect();
    let gaps: Vec<Value> = of("gaps").collect();
    let missing: u64 = gaps.iter().map(|gap| gap["windows"].as_u64().unwrap()).sum();
    let starts = windows.iter().chain(&gaps).map(|stretch| seconds(&stretch["start"]));
    let stops = windows.iter().chain(&gaps).map(|stretch| seconds(&stretch["stop"]));
    let (first, last) = (starts.fold(f64::MAX, f64::min), stops.fold(0.0, f64::max));
    let known = windows.len() as u64 + missing;
    (f64::from(u32::try_from(known).unwrap()), ((last - first) / 5.0).ceil())
}

#[test]
fn every_missed_window_is_in_the_timeline_with_the_reason_that_was_observed() {
    let (agent, job, id) = recorded("gaps", SHORT);
    agent.windows(&id, 1);
    // The workload is stopped: its profiler answers nothing.
    let workload = Pid::from_raw(i32::try_from(job.pid()).unwrap());
    kill(workload, Signal::SIGSTOP).unwrap();
    has_gap(&agent, &id, "the process was stopped (SIGSTOP or a debugger)");
    kill(workload, Signal::SIGCONT).unwrap();
    // It is switched off.
    assert_eq!(agent.ask(&["recorder", "off", "--job", &id]).code, Some(0));
    has_gap(&agent, &id, "it was switched off, with `tpuscope recorder off` or StopContinuousProfiling");
    // The agent is stopped, for longer than it ever waits.
    agent.record(&id);
    agent.agent.signal(Signal::SIGSTOP);
    wait_for_time(now() + 13.0);
    agent.agent.signal(Signal::SIGCONT);
    has_gap(&agent, &id, "the agent did not run for ");
    // The agent does not run.
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
    agent.agent.signal(Signal::SIGKILL);
    wait_for_time(now() + 6.0);
    let agent = agent.again(SHORT);
    has_gap(&agent, &id, "the agent was not running");
    let held = agent.windows(&id, 1).len();
    agent.windows(&id, held + 1);
    let (known, due) = accounted(&agent, &id);
    assert!((known - due).abs() <= 1.0, "{known} of {due} windows: {:?}", agent.timeline(&id));
    // In a snapshot too.
    let ended = agent.ask(&["snapshot", "--last", "10m", "--job", &id, "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let snapshot = ended.json();
    let gaps = snapshot["parts"][0]["gaps"].as_array().unwrap().clone();
    let whys: Vec<&str> = gaps.iter().map(|gap| gap["why"].as_str().unwrap()).collect();
    for reason in ["was stopped (SIGSTOP", "switched off", "did not run", "was not running"] {
        assert!(whys.iter().any(|why| why.contains(reason)), "{reason} in {whys:?}");
    }
    until("the workload goes on", || job.next_line(Duration::ZERO).is_none());
}
