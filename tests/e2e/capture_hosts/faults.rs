//! Captures in which a host fails: the session of the others is complete, and the host is named.

use std::os::unix::net::UnixListener;

use fakes::{
    command::{run, start},
    fake_profiler::{FakeProfiler, Mode, trace},
    jax_job::JaxJob,
    profiler_probe::{becomes_free, capture_in_window},
    wait::until,
};
use nix::sys::signal::Signal;

use super::{Cluster, hosts, list, text, why};
use crate::{profiler_agent::Agent, schema::Schema};

fn sound() -> FakeProfiler {
    FakeProfiler::start(Mode::Trace(trace()))
}

#[test]
fn hosts_that_fail_before_the_window_are_missing_with_their_reasons() {
    let fakes = [sound(), FakeProfiler::start(Mode::Busy)];
    let mut cluster =
        Cluster::of(&[("a", &[fakes[0].target()]), ("busy", &[fakes[1].target()]), ("idle", &[])]);
    let mut dead = Agent::start_as("vm-dead", &[], "");
    dead.signal(Signal::SIGKILL);
    dead.end();
    cluster.add("dead", dead);
    // Takes connections and says nothing.
    let _hung = UnixListener::bind(cluster.folder.path().join("sockets/hung")).unwrap();
    let arguments = ["--duration", "10ms", "--session", "most", "--host-timeout", "3s", "--json"];
    let ended = cluster.capture("dead,a,busy,idle,hung,none", &arguments);
    ended.failed(18, "the session lacks 5 hosts");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let kind = |host: usize| report["hosts"][host]["missing"]["kind"].as_str();
    let kinds: Vec<_> = (0..6).map(kind).collect();
    let wanted =
        [Some("no_agent"), None, Some("busy"), Some("no_target"), Some("no_answer"), Some("no_agent")];
    assert_eq!(kinds, wanted, "{report}");
    let manifest = cluster.manifest("most");
    let (captured, mut missing) = hosts(&manifest);
    missing.sort();
    assert_eq!(captured, ["vm-a"]);
    assert_eq!(missing, ["busy", "dead", "hung", "idle", "none"]);
    assert!(why(&manifest, "dead").contains("no process listens on"), "{manifest}");
    assert!(why(&manifest, "hung").starts_with("no answer within 3s"), "{manifest}");
    assert!(why(&manifest, "idle").contains("no workload process"), "{manifest}");
    assert!(why(&manifest, "busy").contains("in use"), "{manifest}");
}

#[test]
fn with_too_few_hosts_nothing_is_kept_anywhere() {
    let fakes = [sound(), FakeProfiler::start(Mode::Busy), FakeProfiler::start(Mode::Busy)];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1]), ("c", &profilers[2])]);
    let ended = cluster.capture("a,b,c", &["--duration", "10ms", "--min-hosts", "2", "--json"]);
    ended.failed(13, "1 of 3 hosts left, and 2 must have a trace: nothing was kept: b: ");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let kinds = list(&report, "hosts").iter().map(|host| text(&host["missing"], "kind"));
    assert_eq!(kinds.collect::<Vec<_>>(), ["not_kept", "busy", "busy"], "{report}");
    cluster.kept_nothing();
    until("the session to be removed", || cluster.agent("a").sessions().is_empty());
    cluster.capture("a,b", &["--min-hosts", "3"]).failed(2, "--min-hosts 3 is more than the 2 hosts");
}

#[test]
fn an_agent_that_hangs_in_the_window_is_given_up() {
    let fakes = [sound(), FakeProfiler::start(Mode::Silent)];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    let capture = cluster.start("a,b", &["--duration", "10ms", "--session", "half"]);
    until("the window", || !fakes[1].seen().profiles.is_empty());
    cluster.agent("b").signal(Signal::SIGSTOP);
    let ended = capture.end();
    cluster.agent("b").signal(Signal::SIGCONT);
    ended.failed(18, "the session lacks 1 host");
    let manifest = cluster.manifest("half");
    assert_eq!(hosts(&manifest), (vec!["vm-a".into()], vec!["b".into()]));
    assert_eq!(why(&manifest, "b"), "the connection was lost: the other end stopped answering");
}

#[test]
fn hosts_are_released_while_another_one_stays_busy() {
    let fakes = [sound(), sound()];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    // It is reserved until then.
    let long = cluster.start("b", &["--session", "long", "--duration", "10ms", "--start-in", "9s"]);
    until("the reservation", || cluster.agent("b").log().contains("reserved for a capture"));
    let both = cluster.start("a,b", &["--session", "both", "--duration", "10ms", "--wait", "100s"]);
    until("the reservation", || cluster.agent("a").log().contains("reserved for a capture"));
    // The capture of both waits for b, and leaves a to this one meanwhile.
    let one = cluster.capture("a", &["--session", "one", "--duration", "10ms", "--wait", "100s"]);
    for ended in [one, both.end(), long.end()] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let begin =
        |session: &str| text(&cluster.manifest(session)["window"], "start").parse::<jiff::Timestamp>();
    assert!(begin("one").unwrap() < begin("both").unwrap());
    assert_eq!(hosts(&cluster.manifest("both")).0, ["vm-a", "vm-b"]);
}

#[test]
fn an_agent_that_is_stopped_before_it_is_reserved_is_named_as_that() {
    let fakes = [sound(), sound()];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let mut cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    // Nobody is reserved while this one does not answer.
    let silent = UnixListener::bind(cluster.folder.path().join("sockets/silent")).unwrap();
    let arguments = ["--duration", "10ms", "--session", "half", "--host-timeout", "4s", "--json"];
    let before = cluster.agent("b").sockets();
    let capture = cluster.start("a,b,silent", &arguments);
    let _asked = silent.accept().unwrap();
    until("the connection", || cluster.agent("b").sockets() > before);
    // It has answered that one when it answers this.
    cluster.agent("b").ask(&["status"]);
    cluster.agent_mut("b").signal(Signal::SIGTERM);
    let ended = capture.end();
    ended.failed(18, "the session lacks 2 hosts");
    let missing = &ended.json()["hosts"][1]["missing"];
    assert_eq!(text(missing, "kind"), "agent_stopped", "{missing}");
    assert!(text(missing, "reason").contains("its agent was stopped"), "{missing}");
    assert!(text(missing, "remedy").contains("start the agent there"), "{missing}");
}

#[test]
fn hosts_with_one_reason_are_one_line() {
    let fake = sound();
    let cluster = Cluster::of(&[("a", &[fake.target()])]);
    let command =
        format!("sh -c 'test {{host}} = a || {{ echo down >&2; exit 1; }}; exec {}'", cluster.command());
    let capture = |arguments: &[&str]| {
        let arguments = [
            &["capture", "--hosts", "a,tpu-[01-28]", "--via-command", &command, "--duration", "10ms"],
            arguments,
        ];
        run(&cluster.out(), &arguments.concat())
    };
    let ended = capture(&["--session", "few"]);
    ended.failed(18, "the session lacks 28 hosts");
    assert!(ended.stdout.contains("  missing: the whole of 28 hosts, tpu-[01-28]: sh: down\n"), "{ended:?}");
    assert_eq!(hosts(&cluster.manifest("few")).1.len(), 28);
    capture(&["--min-hosts", "2"]).failed(10, "nothing was kept: tpu-[01-28]: sh: down");
}

#[test]
fn a_window_beyond_the_time_for_all_is_refused_before_any_host_is_asked() {
    let cluster = Cluster::new();
    let listener = UnixListener::bind(cluster.folder.path().join("sockets/a")).unwrap();
    listener.set_nonblocking(true).unwrap();
    for (window, says) in [
        (&["--duration", "20s"][..], "--duration 20s is longer than --overall-timeout 10s"),
        (&["--duration", "1s", "--start-in", "30s"][..], "it ends after --overall-timeout 10s"),
    ] {
        cluster.capture("a", &[window, &["--overall-timeout", "10s"]].concat()).failed(2, says);
    }
    assert!(listener.accept().is_err(), "nobody was asked");
}

#[test]
fn a_command_that_is_stopped_for_long_is_given_up_and_says_so() {
    let fake = FakeProfiler::start(Mode::Silent);
    let cluster = Cluster::of(&[("a", &[fake.target()])]);
    let capture = cluster.start("a", &["--duration", "10ms", "--session", "stopped"]);
    until("the window", || !fake.seen().profiles.is_empty());
    capture.signal(Signal::SIGSTOP);
    until("the agent to give it up", || cluster.agent("a").log().contains("ends here early"));
    capture.signal(Signal::SIGCONT);
    let ended = capture.end();
    assert!(matches!(ended.code, Some(10 | 15)), "{ended:?}");
    assert!(ended.stderr.contains("this command did not run for"), "{ended:?}");
    assert!(!ended.stderr.contains("max_connections"), "{ended:?}");
    until("the profiler to be free", || fake.seen().all_freed());
}

#[test]
fn a_busy_host_is_waited_for_or_missing() {
    let fakes = [sound(), FakeProfiler::start(Mode::Silent)];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    let agent = cluster.agent("b");
    let other = start(agent.home.path(), &agent.arguments(&["capture", "--duration", "60s"]));
    until("the other capture", || !fakes[1].seen().profiles.is_empty());
    let ended = cluster.capture("a,b", &["--session", "half", "--duration", "10ms"]);
    ended.failed(18, "the session lacks 1 host");
    assert!(why(&cluster.manifest("half"), "b").contains("another capture of this agent"), "{ended:?}");
    // The second time the other one ends meanwhile: then the profiler is asked, which never answers.
    let waiting = cluster
        .start("a,b", &["--session", "late", "--wait", "60s", "--duration", "10ms", "--timeout", "1s"]);
    until("a host that is asked again", || agent.log().matches("reserved for a capture").count() > 2);
    other.signal_and_end(Signal::SIGINT);
    waiting.end().failed(18, "the session lacks 1 host");
    assert!(fakes[1].seen().profiles.len() == 2, "the profiler of b was asked when it was free");
    assert!(!why(&cluster.manifest("late"), "b").contains("another capture"));
}

#[test]
fn a_capture_ends_with_its_time_limit() {
    let fakes = [sound(), FakeProfiler::start(Mode::Silent)];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    let ended =
        cluster.capture("a,b", &["--session", "half", "--duration", "10ms", "--overall-timeout", "4s"]);
    ended.failed(18, "the session lacks 1 host");
    assert_eq!(why(&cluster.manifest("half"), "b"), "the time limit of the whole capture was exceeded");
    until("the session of b to be over", || fakes[1].seen().all_freed());
}

#[test]
fn options_that_are_for_one_host_are_refused() {
    let cluster = Cluster::of(&[]);
    for (arguments, says) in [
        (&["--target", "a:1"][..], "cannot be used with"),
        (&["--pid", "1"], "cannot be used with"),
        (&["--socket", "/x"], "--socket is the agent of this host"),
        (&["--wait-upload"], "--wait-upload without --to is not for several hosts"),
        (&["--to", "x", "--output", "."], "--output together with --to is not for several hosts"),
        (&["--start-in", "1s", "--start-at", "2027-01-01T00:00:00Z"], "cannot be used with"),
        (&["--start-at", "2020-01-01T00:00:00Z"], "the start is in the past"),
        (&["--start-in", "2h"], "the start is more than an hour in the future"),
    ] {
        cluster.capture("a", arguments).failed(2, says);
    }
    run(cluster.folder.path(), &["capture", "--min-hosts", "2"]).failed(2, "--hosts");
}

#[test]
fn a_coordinator_that_ends_in_the_window_frees_all_hosts() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let targets = [jobs[0].target(), jobs[1].target()];
    let cluster = Cluster::of(&[("a", &targets[..1]), ("b", &targets[1..])]);
    for (signal, code) in [(Signal::SIGINT, Some(130)), (Signal::SIGTERM, Some(130)), (Signal::SIGKILL, None)]
    {
        let arguments = ["--duration", "60s", "--session", "long", "--json", "--min-hosts", "2"];
        let capture = capture_in_window(&targets, || cluster.start("a,b", &arguments));
        let ended = capture.signal_and_end(signal);
        assert_eq!(ended.code, code, "{ended:?}");
        if code.is_some() {
            ended.failed(130, "the capture was cancelled; nothing was kept");
            let report = ended.json();
            Schema::open("capture").admits(&report);
            assert_eq!(report["hosts"].as_array().map(Vec::len), Some(2), "{report}");
            cluster.kept_nothing();
        }
        targets.iter().for_each(|target| becomes_free(target));
        for host in ["a", "b"] {
            until("the capture to be over", || cluster.agent(host).staged().is_empty());
            assert!(cluster.agent(host).sessions().is_empty());
        }
    }
    // The dead one holds nothing: not the hosts, and not the name.
    let ended = cluster.capture("a,b", &["--duration", "100ms", "--session", "long"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
