//! What no real job does, and disks that are full.

use std::{fs, path::Path};

use fakes::{
    command::{self, Ended, RunningCommand},
    fake_proc::FakeProcess,
    fake_profiler::{FakeProfiler, Mode, trace_of},
    small_disk::SmallDisk,
    wait::{LIMIT, eventually, until, wait_with},
};
use serde_json::Value;

use crate::profiler_agent::Agent;

const PID: u32 = 100;

/// An agent that records every process of a procfs of the test.
fn start(recorder: &str) -> Agent {
    let settings = format!(
        "[workload]\nprobe = 'listeners'\nscan_interval = '250ms'\n[sampler]\ninterval = '250ms'\n\
         [recorder]\nmode = 'on'\nevery = '5s'\nwindow = '100ms'\nmax_window = '100ms'\n{recorder}"
    );
    Agent::start_with(&[], &settings)
}

fn workload(agent: &Agent, profiler: &FakeProfiler, environment: &[(&str, &str)]) {
    let process = FakeProcess::new(PID, 10).environment(environment).descriptor(4, "/dev/accel0");
    let process = process.descriptor(6, "socket:[900]").listeners(&[(&profiler.target(), 0, 900)]);
    process.write(&agent.home.path().join("proc"));
}

fn process(agent: &Agent) -> Option<Value> {
    let status = agent.ask(&["recorder", "status", "--json"]).json();
    status["processes"].as_array().unwrap().first().cloned()
}

fn gaps(agent: &Agent) -> Vec<String> {
    let timeline = agent.ask(&["recorder", "timeline", "--json"]).json();
    let processes = timeline["processes"].as_array().unwrap();
    let gaps = processes.iter().flat_map(|process| process["gaps"].as_array().unwrap());
    gaps.map(|gap| gap["reason"].as_str().unwrap().to_owned()).collect()
}

fn snapshot(agent: &Agent, folder: &Path) -> Ended {
    command::run(folder, &agent.arguments(&["snapshot", "--from", "2020-01-01T00:00:00Z"]))
}

#[test]
fn a_process_that_opted_out_is_never_asked() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(10, 1)));
    let agent = start("");
    workload(&agent, &profiler, &[("TPUSCOPE_RECORD", "0")]);
    until("the process", || process(&agent).is_some_and(|process| process["reason_code"] == "opted_out"));
    let on = agent.ask(&["recorder", "on", "--json"]).json();
    assert_eq!(on["processes"][0]["reason_code"], "opted_out", "its environment goes before the switch");
    // Another job shows that windows came and went.
    assert!(profiler.seen().profiles.is_empty());
}

#[test]
fn windows_are_asked_for_as_the_settings_say() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(10, 1)));
    let agent = start("");
    workload(&agent, &profiler, &[]);
    until("two windows", || profiler.seen().profiles.len() >= 2);
    let profiles = profiler.seen().profiles;
    let options: Vec<_> = profiles.iter().map(|profile| profile.opts.clone().unwrap()).collect();
    for options in &options {
        let levels = [options.host_tracer_level, options.device_tracer_level, options.python_tracer_level];
        assert_eq!((levels, options.duration_ms), ([1, 1, 0], 100));
        assert_eq!(options.start_timestamp_ns % 1_000_000, 0, "whole milliseconds");
    }
    let apart = options[1].start_timestamp_ns - options[0].start_timestamp_ns;
    assert_eq!(apart % 5_000_000_000, 0, "all begin on one grid");
    assert_ne!(profiles[0].session_id, profiles[1].session_id);
}

#[test]
fn profilers_that_misbehave_cost_windows_and_nothing_else() {
    let modes = [
        (Mode::Empty, "nothing was traced"),
        (Mode::HalfThenGone, ""),
        (Mode::Garbage, ""),
        (Mode::Busy, "another program used the profiler"),
        (Mode::AlreadyExists, "another program used the profiler"),
        // More than 2 GB: as it announces, as its server cannot send it, and as no answer may be.
        (Mode::Endless, "bytes, the limit is"),
        (Mode::Unserializable, "the profiler could not send its trace"),
        (Mode::HugePrefix, "bytes, the limit is"),
        (Mode::BrokenNesting, "the trace is damaged"),
    ];
    // All at once: each waits for its window.
    let started = modes.map(|(mode, says)| {
        let (profiler, agent) = (FakeProfiler::start(mode.clone()), start(""));
        workload(&agent, &profiler, &[]);
        (mode, says, profiler, agent)
    });
    for (mode, says, profiler, agent) in started {
        // One that is no profiler is not found as one.
        if mode == Mode::Garbage {
            until("the process", || {
                process(&agent).is_some_and(|process| process["reason_code"] == "no_profiler")
            });
            continue;
        }
        wait_with(
            "a gap",
            LIMIT,
            || format!("{mode:?}: {:?}", gaps(&agent)),
            || gaps(&agent).iter().any(|reason| reason.contains(says)).then_some(()),
        );
        let is_foreign = matches!(mode, Mode::Busy | Mode::AlreadyExists);
        let process = process(&agent).unwrap();
        assert_eq!(process["recorded"], !is_foreign, "{mode:?}: {process}");
        assert!(profiler.seen().terminated.iter().all(|id| id.starts_with("tpuscope-")), "{mode:?}");
        snapshot(&agent, agent.home.path()).failed(14, "nothing was recorded");
    }
}

#[test]
fn the_write_rate_is_kept_by_leaving_windows_out() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(1 << 20, 3)));
    let agent = start("max_write_rate = '1KiB'\n");
    workload(&agent, &profiler, &[]);
    until("a window", || process(&agent).is_some_and(|process| process["segments"] == 1));
    until("a gap", || gaps(&agent).iter().any(|reason| reason.contains("max_write_rate")));
    assert_eq!(profiler.seen().profiles.len(), 1);
}

#[test]
fn the_second_of_two_snapshots_is_told_that_another_one_is_made() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(8 << 20, 7)));
    let agent = start("");
    workload(&agent, &profiler, &[]);
    until("a window", || process(&agent).is_some_and(|process| process["segments"].as_u64() > Some(0)));
    // When the fakes' traces were recorded, as they say.
    let past = ["--from", "2027-01-15T07:59:00Z", "--until", "2027-01-15T08:01:00Z"];
    let arguments = agent.arguments(&[&["snapshot"], &past[..]].concat());
    // One may be done before the other one is asked for: then again.
    let refused = eventually("two at once", || {
        let both = [(); 2].map(|()| command::start(agent.home.path(), &arguments)).map(RunningCommand::end);
        assert!(both.iter().any(|ended| ended.code == Some(0)), "one of them is made: {both:?}");
        both.into_iter().find(|ended| ended.code != Some(0))
    });
    refused.failed(7, "another snapshot is being made");
    assert!(refused.stderr.contains("wait until the other snapshot is done"), "{refused:?}");
}

#[test]
fn a_full_disk_is_said_and_breaks_nothing() {
    let disk = SmallDisk::new();
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(2 << 20, 5)));
    let state = disk.path().display().to_string();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("proc")).unwrap();
    let text = format!(
        "[agent]\nstate_dir = '{state}'\n[api]\nhttp = 'off'\ngrpc = 'off'\nsocket = '{0}/agent.sock'\n[paths]\n\
         procfs = '{0}/proc'\n[store]\nmin_free = '0B'\n[workload]\nprobe = 'listeners'\nscan_interval = '250ms'\n\
         [sampler]\ninterval = '250ms'\n[recorder]\nmode = 'on'\nevery = '5s'\nwindow = '100ms'\nmax_window = '100ms'\n",
        home.path().display()
    );
    fs::write(home.path().join("agent.toml"), text).unwrap();
    let agent = Agent::start_in(home);
    workload(&agent, &profiler, &[]);
    until("the full disk to be said", || {
        process(&agent).is_some_and(|process| {
            process["last_failure"].as_str().unwrap().contains("No space left")
                || process["last_failure"].as_str().unwrap().contains("disk is full")
        })
    });
    assert_eq!(agent.ask(&["status"]).code, Some(0), "the agent goes on");
    assert_eq!(
        fs::read_dir(disk.path().join("recorder")).unwrap().count(),
        0,
        "nothing is left of the window"
    );
    assert!(agent.log().contains("a window was not recorded"), "{}", agent.log());
}
