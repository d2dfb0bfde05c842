//! One host of a capture over several hosts: a real agent, as its caller drives it.

mod caller;
mod parts;

use std::{path::PathBuf, time::Duration};

use fakes::{
    fake_profiler::{FakeProfiler, Mode, trace},
    jax_job::{JaxJob, free_port},
    profiler_probe::becomes_free,
    wait::{LIMIT, until, wait_with},
};
use model::time::{Clock, SystemClock, Timestamp};
use nix::sys::signal::Signal;
use proto::tpuscope::v1::{host_capture_request::Request, target_event};
use tonic::Code;

use self::caller::{AgentConnection, HostCaller, ID, reserve};
use crate::profiler_agent::Agent;

/// Enough time for a start to arrive on a loaded machine, and no time at all for a test.
const AHEAD: Duration = Duration::from_secs(1);
/// A window that is not over before its test is.
const LONG_MS: u64 = 60_000;

fn connect(agent: &Agent) -> AgentConnection {
    AgentConnection::to(agent.home.path())
}

/// A line of the agent's log.
fn logged(agent: &Agent, text: &str) -> String {
    wait_with(
        &format!("`{text}` in the log"),
        LIMIT,
        || agent.log(),
        || agent.log().lines().find(|line| line.contains(text)).map(str::to_owned),
    )
}

/// A call with a reserved host, whose window, if `started`, has begun.
fn reserved(agent: &Agent, fake: &FakeProfiler, lease: Duration, started: bool) -> HostCaller {
    let lease_ns = u64::try_from(lease.as_nanos()).unwrap();
    let mut caller =
        connect(agent).reserve(proto::tpuscope::v1::ReserveHost { lease_ns, ..reserve("s", LONG_MS) });
    caller.ready();
    if started {
        caller.start_in(AHEAD);
        caller.started();
        until("the window", || !fake.seen().profiles.is_empty());
    }
    caller
}

/// Nothing of a capture is left.
fn nothing_is_kept(agent: &Agent) {
    assert_eq!(agent.sessions(), [""; 0]);
    until("nothing to be staged", || agent.staged().is_empty());
}

#[test]
fn the_clock_is_that_of_the_host_and_an_agent_is_known_by_its_instance() {
    let mut agent = Agent::start(&[]);
    let (before, reply, after) = (SystemClock.now(), connect(&agent).clock(), SystemClock.now());
    let times = [before.0, reply.received_unix_ns, reply.replied_unix_ns, after.0];
    assert!(times.is_sorted(), "{times:?}");
    let peer = connect(&agent).peer();
    assert_eq!(connect(&agent).peer(), peer);
    for capability in ["clock", "host_capture"] {
        assert!(peer.capabilities.iter().any(|each| each == capability), "{peer:?}");
    }
    agent.signal(Signal::SIGTERM);
    agent.end();
    agent.restart();
    let restarted = connect(&agent).peer();
    assert_eq!((peer.instance.len(), restarted.instance.len()), (32, 32));
    assert_ne!(restarted.instance, peer.instance);
}

#[test]
fn a_host_records_from_the_start_that_its_caller_sends() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let agent = Agent::start(&[jobs[0].target(), jobs[1].target()]);
    let mut caller = connect(&agent).reserve(reserve("whole", 300));
    let ready = caller.ready();
    assert_eq!(
        ready.targets.iter().map(|target| target.address.clone()).collect::<Vec<_>>(),
        jobs.each_ref().map(|job| job.target())
    );
    assert!(ready.lead_ns > 0 && ready.destination_url.is_empty() && !ready.host.is_empty(), "{ready:?}");
    assert_eq!(ready.peer, Some(connect(&agent).peer()));
    caller.renew();
    let start = caller.start_in(AHEAD);
    assert_eq!(Timestamp(caller.started().start_unix_ns), start);
    let finished = caller.finished();
    assert_eq!((&finished.failure, finished.failures.len()), (&None, 0));
    let manifest = finished.manifest.unwrap();
    assert_eq!((manifest.id.as_deref(), manifest.session.as_str()), (Some(ID), "whole"));
    assert_eq!(manifest.window.unwrap().start_unix_ns, start.0);
    assert_eq!(manifest.hosts[0].host, ready.host);
    let parts = &manifest.hosts[0].parts;
    assert_eq!(parts.len(), 2);
    for part in parts {
        let begun = part.window.unwrap().start_unix_ns;
        assert!(begun >= start.0, "{part:?} begins before {start}");
    }
    assert_eq!(agent.sessions(), ["whole"]);
    let uid = nix::unistd::getuid();
    let audit = logged(&agent, "reserved for a capture over several hosts");
    for part in ["session=whole", &format!("id={ID}"), &format!("uid={uid} pid="), "targets=2", "300ms"] {
        assert!(audit.contains(part), "`{part}` in {audit}");
    }
    jobs.iter().for_each(|job| becomes_free(&job.target()));
}

#[test]
fn a_target_that_failed_is_told_once_and_the_hosts_own_minimum_counts() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target(), format!("127.0.0.1:{}", free_port())]);
    let mut caller = connect(&agent).reserve(reserve("s", 10));
    assert_eq!(caller.ready().targets.len(), 2);
    let failed = caller.target();
    let Some(target_event::Event::Failed(failure)) = failed.event else { panic!("{failed:?}") };
    assert_eq!((failed.index, failure.reason.as_str()), (1, "not_listening"));
    caller.start_in(AHEAD);
    // The next event is this one: the failure is not told again.
    caller.started();
    let finished = caller.finished();
    assert_eq!((finished.failures.len(), finished.manifest.unwrap().missing.len()), (1, 1));
    assert_eq!(agent.sessions(), ["s"]);

    let mut both = reserve("both", 10);
    both.capture.as_mut().unwrap().min_processes = 2;
    let mut caller = connect(&agent).reserve(both);
    assert_eq!(caller.failed().reason, "too_few_parts");
    assert_eq!(agent.sessions(), ["s"]);
}

#[test]
fn a_start_far_ahead_is_probed_for_again_and_asked_for_shortly_before() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    let mut caller = connect(&agent).reserve(reserve("s", 10));
    caller.ready();
    assert_eq!(fake.seen().terminated.len(), 1, "probed");
    let start = caller.start_in(Duration::from_secs(5));
    caller.started();
    assert_eq!(fake.seen().terminated.len(), 2, "probed again");
    // A profiler that waits for its start hears no cancel: it does so for half a second at most.
    until("the request", || !fake.seen().profiles.is_empty());
    assert!(SystemClock.now().plus(Duration::from_millis(500)) >= start);
    assert!(caller.finished().session.is_some());
}

#[test]
fn a_caller_that_is_silent_for_its_lease_loses_the_profilers() {
    for started in [false, true] {
        let fake = FakeProfiler::start(Mode::Silent);
        let agent = Agent::start(&[fake.target()]);
        let mut caller = reserved(&agent, &fake, AHEAD * 3, started);
        let failure = caller.failed();
        assert_eq!(
            (failure.reason.as_str(), failure.kind.as_str()),
            ("caller_silent", "timeout"),
            "{failure:?}"
        );
        // When it is told they are free: the next caller gets them at once.
        assert!(fake.seen().all_freed(), "{:?}", fake.seen());
        reserved(&agent, &fake, LIMIT, false);
        nothing_is_kept(&agent);
        let line = logged(&agent, "ends here early");
        assert!(line.contains("the caller sent nothing for 3 s") && line.contains(ID), "{line}");
    }
}

#[test]
fn a_caller_that_renews_keeps_the_profilers() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    let lease = Duration::from_secs(3);
    let mut caller = reserved(&agent, &fake, lease, false);
    let begin = SystemClock.now();
    until("more than the lease to go by", || {
        caller.renew();
        begin.age(SystemClock.now()) > lease + AHEAD
    });
    caller.start_in(AHEAD);
    caller.started();
    assert!(caller.finished().session.is_some());
}

#[test]
fn a_caller_that_is_gone_frees_the_profilers() {
    let job = JaxJob::new().start();
    let agent = Agent::start(&[job.target()]);
    // Gone while the host waits, and in mid-window, as its death closes the connection.
    for started in [false, true] {
        let mut caller = connect(&agent).reserve(reserve("s", LONG_MS));
        caller.ready();
        if started {
            caller.start_in(AHEAD);
            caller.started();
        }
        drop(caller);
        becomes_free(&job.target());
        nothing_is_kept(&agent);
    }
    assert!(logged(&agent, "ends here early").contains("the caller hung up"));
    // The agent goes on.
    assert_eq!(agent.ask(&["capture", "--duration", "100ms"]).code, Some(0));
}

#[test]
fn a_workload_that_is_killed_is_missing_and_the_others_are_kept() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let agent = Agent::start(&[jobs[0].target(), jobs[1].target()]);
    let [mut first, second] = jobs;
    // Killed while the host waits, and in mid-window.
    for (session, window_ms, started) in [("waiting", 300, false), ("recording", 2_000, true)] {
        let mut caller = connect(&agent).reserve(reserve(session, window_ms));
        assert_eq!(caller.ready().targets.len(), 2);
        if !started {
            first.kill();
        }
        caller.start_in(AHEAD);
        caller.started();
        if started {
            first.kill();
        }
        let finished = caller.finished();
        let manifest = finished.manifest.unwrap();
        assert_eq!((manifest.hosts[0].parts.len(), manifest.missing.len()), (1, 1), "{manifest:?}");
        assert_eq!(manifest.missing[0].process, Some(first.target()));
        first = JaxJob::new().port(first.port()).start();
    }
    assert_eq!(agent.sessions().len(), 2);
    becomes_free(&second.target());
}

#[test]
fn a_start_in_the_past_is_refused_with_how_late_it_was() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    let mut caller = reserved(&agent, &fake, LIMIT, false);
    caller.start_at(Timestamp(SystemClock.now().0 - 2_500_000_000));
    let failure = caller.failed();
    assert_eq!((failure.reason.as_str(), failure.kind.as_str()), ("late_start", "timeout"));
    assert!(failure.message.starts_with("the start was 2.5"), "{failure:?}");
    assert_eq!(fake.seen().profiles.len(), 0);
    nothing_is_kept(&agent);
}

#[test]
fn a_host_that_is_reserved_is_busy_and_says_for_which_session() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    let mut first = connect(&agent).reserve(reserve("first", 10));
    first.ready();
    let failure = connect(&agent).reserve(reserve("second", 10)).failed();
    assert_eq!(failure.reason, "in_use");
    assert!(failure.message.contains("session first"), "{failure:?}");
    let taken = connect(&agent).reserve(reserve("first", 10)).failed();
    assert_eq!(taken.reason, "session_exists");
    agent.ask(&["capture", "--duration", "10ms"]).failed(13, "session first");
    first.start_in(AHEAD);
    first.started();
    assert!(first.finished().session.is_some());
    assert_eq!(agent.sessions(), ["first"]);
}

#[test]
fn an_agent_that_is_killed_leaves_the_profiler_free_and_nothing_kept() {
    let job = JaxJob::new().start();
    let mut agent = Agent::start(&[job.target()]);
    for started in [false, true] {
        let mut caller = connect(&agent).reserve(reserve("s", LONG_MS));
        caller.ready();
        if started {
            caller.start_in(AHEAD);
            caller.started();
        }
        agent.signal(Signal::SIGKILL);
        agent.end();
        let ended = loop {
            match caller.next() {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        assert!(ended.is_err(), "{ended:?}");
        becomes_free(&job.target());
        agent.restart();
        assert_eq!(agent.sessions(), [""; 0]);
        assert_eq!(agent.staged(), [""; 0].map(PathBuf::from));
    }
    // An agent that is stopped ends the capture itself.
    let mut caller = connect(&agent).reserve(reserve("s", LONG_MS));
    caller.ready();
    agent.signal(Signal::SIGTERM);
    assert_eq!(caller.failed().reason, "cancelled");
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn a_caller_that_does_not_keep_to_the_order_is_refused() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    let mut again = reserved(&agent, &fake, LIMIT, false);
    again.send(Request::Reserve(reserve("other", 10)));
    let failure = again.failed();
    assert_eq!(
        (failure.kind.as_str(), failure.message.as_str()),
        ("invalid", "the caller sent a second reservation")
    );
    let mut twice = connect(&agent).reserve(reserve("s", LONG_MS));
    twice.ready();
    twice.start_in(LIMIT);
    twice.start_in(LIMIT);
    assert_eq!(twice.failed().message, "the caller sent a second start");
    let mut far = connect(&agent).reserve(reserve("s", LONG_MS));
    far.ready();
    far.start_in(Duration::from_secs(2 * 3600));
    assert_eq!(far.failed().message, "the start is more than an hour in the future");
    let mut long = reserve("s", 9 * 3_600_000);
    long.capture.as_mut().unwrap().min_processes = 1;
    let refused = connect(&agent).reserve(long).next().unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert_eq!(fake.seen().profiles.len(), 0);
    nothing_is_kept(&agent);
}
