//! Sessions of other programs, and of the workload itself, beside ours.

use std::time::Duration;

use fakes::{jax_job::JaxJob, profiler_probe::is_free, wait::LIMIT};
use nix::sys::signal::Signal;
use proto::tensorflow::{ProfileOptions, ProfileRequest};
use tempfile::TempDir;
use xprof::client::Bounds;

use super::{Profiling, as_foreign_client, records, send};

const BOUNDS: Bounds = Bounds { within: LIMIT, max_bytes: 1 << 30 };

/// What another client starts.
fn request() -> ProfileRequest {
    let opts = ProfileOptions { version: 1, host_tracer_level: 1, ..ProfileOptions::default() };
    ProfileRequest { opts: Some(opts), emit_xspace: true, ..ProfileRequest::default() }
}

fn start_foreign(target: &str) {
    as_foreign_client(target, async |client| client.start_continuous(&request(), LIMIT).await.unwrap());
}

#[test]
fn a_foreign_session_is_neither_drained_nor_stopped() {
    let mut job = JaxJob::new().step_ms(5).start();
    let (target, port) = (job.target(), job.port());
    let state = TempDir::new().unwrap();

    // It was there first.
    start_foreign(&target);
    let profiling = Profiling::start(state.path(), &target, job.pid());
    assert!(profiling.said("refused").contains("another program uses the profiler"));
    profiling.said("ended");
    assert_eq!(records(state.path()), 0);
    let taken = as_foreign_client(&target, async |client| {
        let taken = client.snapshot(std::io::sink(), BOUNDS, |_| {}).await.unwrap();
        client.stop_continuous(LIMIT).await.unwrap();
        taken
    });
    assert!(taken.summary.events > 0, "its events are all there");

    // A record of a workload that is gone does not stop the session of its successor on the same port.
    let mut profiling = Profiling::start(state.path(), &target, job.pid());
    profiling.said("started");
    let guard = profiling.guard();
    profiling.signal(Signal::SIGSTOP);
    send(guard, Signal::SIGKILL);
    profiling.kill();
    job.kill();
    assert_eq!(records(state.path()), 1);
    let successor = JaxJob::new().port(port).start();
    start_foreign(&successor.target());
    Profiling::recover(state.path());
    assert_eq!(records(state.path()), 0);
    assert!(!is_free(&target), "the session of the successor is open");
    as_foreign_client(&target, async |client| client.stop_continuous(LIMIT).await.unwrap());

    // A foreign client stops ours, and then also starts its own: the next drain says so, and leaves that one alone.
    for (starts, says) in [(false, "no session any more"), (true, "a session of its own")] {
        let profiling = Profiling::start(state.path(), &target, successor.pid());
        profiling.said("drained");
        as_foreign_client(&target, async |client| {
            client.stop_continuous(LIMIT).await.unwrap();
            if starts {
                client.start_continuous(&request(), LIMIT).await.unwrap();
            }
        });
        let over = profiling.said("over");
        assert!(over.contains(says), "{over}");
        profiling.said("ended");
        assert_eq!((records(state.path()), is_free(&target)), (0, !starts));
    }
}

#[test]
fn a_program_that_traces_itself_fails_while_a_session_is_open() {
    let folder = TempDir::new().unwrap();
    let own = folder.path().join("own").display().to_string();
    let job = JaxJob::new().argument("--own-trace").argument(&own).start();
    let own_trace = || job.next_line(Duration::from_secs(60)).expect("the job traces itself");
    assert_eq!(own_trace(), "own trace: ok");
    let state = TempDir::new().unwrap();
    let mut profiling = Profiling::start(state.path(), &job.target(), job.pid());
    profiling.said("started");
    let failed = std::iter::repeat_with(own_trace).find(|line| line != "own trace: ok").unwrap();
    assert!(failed.contains("ALREADY_EXISTS") || failed.contains("Another profiling session"), "{failed}");
    profiling.stop();
    // And every later one: the reason why an owner has to ask for these strategies.
    let later = own_trace();
    let still = own_trace();
    assert!(still.contains("already been started"), "{later}\n{still}");
}
