//! Every way in which what has a session can die, on real JAX.

use std::env;

use fakes::{
    command::run,
    jax_job::{JaxJob, RunningJaxJob},
    profiler_probe::{becomes_free, is_free},
    wait::until,
};
use host::process_memory::resident_bytes;
use nix::sys::signal::Signal;
use store::lock::Lock;
use tempfile::TempDir;

use super::{Profiling, is_guard, records, send};

const MIB: u64 = 1 << 20;

#[test]
fn whoever_is_killed_or_stopped_no_session_is_left() {
    let mut job = JaxJob::new().step_ms(5).start();
    let target = job.target();
    let state = TempDir::new().unwrap();
    let start = || Profiling::start(state.path(), &target, job.pid());

    // The orderly life: every drain follows the one before, and the end leaves nothing.
    let mut profiling = start();
    profiling.said("started");
    assert!(!is_free(&target), "a session is open");
    let first = profiling.said("drained");
    assert!(!first.contains("events=0 ") && first.contains("gap=None"), "{first}");
    let second = profiling.said("drained");
    let gap =
        second.split("gap=Some(").nth(1).and_then(|text| text.trim_end_matches(')').parse::<i64>().ok());
    assert!(gap.is_some_and(|ns| (0..1_000_000_000).contains(&ns)), "{second}");
    let guard = profiling.guard();
    assert_eq!(profiling.stop(), "stopped Stopped");
    assert!(is_free(&target) && records(state.path()) == 0);
    until("the guard to end with the last session", || !is_guard(guard));

    killed_in_every_phase(&start, &target, &state);

    // One that is stopped is silent: the guard stops its session, and it knows that when it goes on.
    let profiling = start();
    profiling.said("drained");
    profiling.signal(Signal::SIGSTOP);
    becomes_free(&target);
    profiling.signal(Signal::SIGCONT);
    let over = profiling.said("over");
    assert!(over.contains("guard process stopped it"), "{over}");
    profiling.said("ended");
    assert_eq!(records(state.path()), 0);

    guard_killed_in_every_phase(&start, &job, &state);

    // One that is stopped does not answer: it is killed, and another one is started.
    let mut profiling = start();
    profiling.said("drained");
    let guard = profiling.guard();
    send(guard, Signal::SIGSTOP);
    until("another guard", || profiling.try_guard().is_some_and(|other| other != guard));
    assert!(!is_guard(guard), "the stopped one is killed");
    profiling.said("drained");
    profiling.kill();
    becomes_free(&target);

    // Both at once: the next agent stops it, or the command of the unit, which leaves a living agent's alone.
    let setting = format!("agent.state_dir={}", state.path().display());
    let command = || run(state.path(), &["stop-profilers", "--set", &setting]);
    let stops: [&dyn Fn(); 2] =
        [&|| Profiling::recover(state.path()), &|| assert_eq!(command().code, Some(0))];
    for stop in stops {
        let mut profiling = start();
        profiling.said("started");
        let guard = profiling.guard();
        profiling.signal(Signal::SIGSTOP);
        send(guard, Signal::SIGKILL);
        profiling.kill();
        assert!(!is_free(&target) && records(state.path()) == 1, "nobody is left who could stop it");
        let agent = Lock::in_dir(state.path(), "agent.lock").unwrap();
        assert_eq!(command().code, Some(0));
        assert!(!is_free(&target), "a living agent stops its sessions itself");
        drop(agent);
        stop();
        assert!(is_free(&target) && records(state.path()) == 0);
    }
    assert!(job.alive());
}

/// Kills at once, with the record on the disk, with the session open, and while drains run.
fn killed_in_every_phase(start: &dyn Fn() -> Profiling, target: &str, state: &TempDir) {
    let mut profiling = start();
    until("the record", || records(state.path()) > 0);
    profiling.kill();
    becomes_free(target);
    Profiling::recover(state.path());
    for drains in 0..3 {
        let mut profiling = start();
        profiling.said("started");
        (0..drains).for_each(|_| drop(profiling.said("drained")));
        let guard = profiling.guard();
        profiling.kill();
        becomes_free(target);
        until("the guard to end", || !is_guard(guard));
        assert_eq!(records(state.path()), 0, "the guard removes the record");
    }
}

/// A guard that dies is started again: before the session is open, when it is, between drains; and one that dies while it stops a
/// session leaves the record to the next agent.
fn guard_killed_in_every_phase(start: &dyn Fn() -> Profiling, job: &RunningJaxJob, state: &TempDir) {
    let target = job.target();
    for lines in [&[][..], &["started"], &["started", "drained"], &["started", "drained", "drained"]] {
        let mut profiling = start();
        lines.iter().for_each(|line| drop(profiling.said(line)));
        let guard = profiling.guard();
        send(guard, Signal::SIGKILL);
        until("another guard", || profiling.try_guard().is_some_and(|other| other != guard));
        profiling.said("drained");
        assert!(!is_guard(guard) && !is_free(&target), "{lines:?}: it goes on, and is guarded");
        profiling.kill();
        becomes_free(&target);
    }
    let mut profiling = start();
    profiling.said("drained");
    let guard = profiling.guard();
    // A process that is stopped cannot answer: its guard goes on trying.
    send(job.pid(), Signal::SIGSTOP);
    profiling.kill();
    until("the guard to try", || is_connected(guard));
    send(guard, Signal::SIGKILL);
    until("the end of the guard", || !is_guard(guard));
    send(job.pid(), Signal::SIGCONT);
    // The workload may still find what the guard sent.
    assert_eq!(records(state.path()), 1, "it has stopped nothing for certain");
    Profiling::recover(state.path());
    assert!(is_free(&target) && records(state.path()) == 0);
}

/// Whether a process has a socket, as a guard that stops a session.
fn is_connected(pid: u32) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.any(|link| link.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
}

/// How many drains its memory is watched for, one each second; `TPUSCOPE_FLAT_SECONDS` takes more (`make soak`).
const FLAT_DRAINS: u32 = 60;

#[test]
fn memory_of_a_workload_stays_flat_and_a_dead_one_is_forgotten() {
    // About 20,000 events a second: 8 MB of memory a second, if nobody drains.
    let mut job = JaxJob::new().step_ms(1).argument("--annotations").argument("20").start();
    let state = TempDir::new().unwrap();
    let profiling = Profiling::start(state.path(), &job.target(), job.pid());
    // The first drains find the memory that the profiler needs itself.
    (0..3).for_each(|_| drop(profiling.said("drained")));
    let before = resident_bytes(Some(job.pid())).unwrap();
    let drains = env::var("TPUSCOPE_FLAT_SECONDS").map_or(FLAT_DRAINS, |seconds| seconds.parse().unwrap());
    let mut most = before;
    for _ in 0..drains {
        profiling.said("drained");
        most = most.max(resident_bytes(Some(job.pid())).unwrap());
    }
    let grown = (most - before) / MIB;
    println!("{drains} drains: {} MiB before, at most {grown} MiB more", before / MIB);
    assert!(grown < 40, "{grown} MiB in {drains} drains");
    job.kill();
    assert!(profiling.said("over").contains("the process or its profiler has ended"));
    profiling.said("ended");
    assert_eq!(records(state.path()), 0);
}
