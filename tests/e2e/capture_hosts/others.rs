//! Agents that are old, have another clock, or lie; and hosts that are reached by a real sshd.

use std::{process::Command, time::Duration};

use bytes::Bytes;
use fakes::{
    command::{run, start_as},
    fake_agent::{FakeAgent, RunningFakeAgent},
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::tpuscope,
    loopback_sshd::{LoopbackSshd, configured_ssh},
};

use super::{Cluster, hosts, list, text, why};
use crate::profiler_agent::Agent;

/// A cluster with a good host, and these fakes.
fn with(fakes: Vec<(&str, FakeAgent)>) -> (Cluster, FakeProfiler, Vec<RunningFakeAgent>) {
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let cluster = Cluster::of(&[("a", &[profiler.target()])]);
    let sockets = cluster.folder.path().join("sockets");
    let running = fakes.into_iter().map(|(host, fake)| fake.start(&sockets.join(host))).collect();
    (cluster, profiler, running)
}

#[test]
fn an_older_agent_is_missing_and_a_fast_clock_is_measured() {
    let ahead_ns = 10_000_000_000;
    let fast = FakeAgent { ahead_ns, ..FakeAgent::default() };
    let old = FakeAgent { capabilities: Vec::new(), ..FakeAgent::default() };
    let (cluster, _profiler, fakes) = with(vec![("fast", fast), ("old", old)]);
    let ended = cluster.capture("a,fast,old", &["--duration", "10ms", "--session", "mixed"]);
    ended.failed(18, "the session lacks 1 host");
    let manifest = cluster.manifest("mixed");
    assert_eq!(hosts(&manifest), (vec!["fake".into(), "vm-a".into()], vec!["old".into()]));
    let reason = "its tpuscope 0.1.0 does not know captures over several hosts (capability clock)";
    assert_eq!(why(&manifest, "old"), reason);
    let clock = &list(&manifest, "hosts")[0]["clock"];
    let (offset, bound) = (clock["offset_ns"].as_i64().unwrap(), clock["bound_ns"].as_u64().unwrap());
    assert!(offset.abs_diff(ahead_ns) <= bound, "{clock}");
    // The start was given in its clock.
    let start: jiff::Timestamp = text(&manifest["window"], "start").parse().unwrap();
    let given = i128::from(fakes[0].start_given()) - i128::from(ahead_ns);
    assert!(given.abs_diff(start.as_nanosecond()) <= u128::from(bound), "{given} {start}");
}

#[test]
fn agents_that_lie_are_missing_and_take_no_name_of_others() {
    let good = FakeAgent::default;
    let fakes = vec![
        ("foreign", FakeAgent { part: "vm-a.xplane.pb".into(), ..good() }),
        ("outside", FakeAgent { part: "../fake.xplane.pb".into(), ..good() }),
        ("damaged", FakeAgent { content: Bytes::from_static(b"abd"), ..good() }),
        ("short", FakeAgent { content: Bytes::from_static(b"ab"), ..good() }),
        ("endless", FakeAgent { content: vec![b'a'; 1 << 20].into(), piece: 1 << 10, ..good() }),
        ("slow", FakeAgent { pause: Duration::from_secs(2), ..good() }),
        ("nameless", FakeAgent { host: "no name/".into(), ..good() }),
    ];
    let (cluster, _profiler, _fakes) = with(fakes);
    let all = "a,foreign,outside,damaged,short,endless,slow,nameless";
    let ended = cluster.capture(all, &["--duration", "10ms", "--session", "one", "--host-timeout", "3s"]);
    ended.failed(18, "the session lacks 7 hosts");
    let manifest = cluster.manifest("one");
    assert_eq!(hosts(&manifest).0, ["vm-a"]);
    for (host, says) in [
        ("foreign", "its agent sent a part with the name of another host"),
        ("outside", "its agent sent a part with a name that is none"),
        ("damaged", "fake.xplane.pb arrived damaged: it does not match its manifest"),
        ("short", "fake.xplane.pb arrived damaged: it does not match its manifest"),
        ("endless", "the agent sent more bytes than its manifest names"),
        ("slow", "the agent sent less than 128 KiB within 3s"),
        ("nameless", "its agent sent a host name that is none"),
    ] {
        assert!(why(&manifest, host).contains(says), "{host}: {manifest}");
    }
}

#[test]
fn hosts_are_captured_over_ssh() {
    let profilers = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let cluster = Cluster::of(&[("a", &[profilers[0].target()]), ("b", &[profilers[1].target()])]);
    let sshd = LoopbackSshd::start(true);
    let config = ["a", "b"].map(|host| sshd.host(host, &cluster.agent(host).home.path().join("agent.sock")));
    let bin = tempfile::tempdir().unwrap();
    configured_ssh(bin.path(), &config.concat());
    let mut command = Command::new(tpuscope());
    command.args(["capture", "--hosts", "a,b", "--via", "ssh", "--duration", "10ms", "--session", "ssh"]);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.path().display())).env_remove("TPUSCOPE_SOCKET");
    command.env_remove("SSH_AUTH_SOCK").current_dir(cluster.out());
    let ended = start_as(command).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}\n{}", sshd.log());
    assert_eq!(hosts(&cluster.manifest("ssh")), (vec!["vm-a".into(), "vm-b".into()], vec![]));
}

#[test]
fn hosts_are_captured_over_mutual_tls_by_operators_alone() {
    let folder = tempfile::tempdir().unwrap();
    let certs = |words: &[&str]| {
        let ended = run(folder.path(), &[&["certs"], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
    };
    certs(&["init", "ca"]);
    certs(&["issue", "ca", "--agent", "127.0.0.1", "--out", "."]);
    certs(&["issue", "ca", "--operator", "alice", "--out", "."]);
    certs(&["issue", "ca", "--viewer", "bob", "--out", "."]);
    let own = folder.path().join("127.0.0.1").display().to_string();
    let settings = format!(
        "[api.remote]\nlisten = '127.0.0.1:0'\ncert = '{own}/cert.pem'\nkey = '{own}/key.pem'\nclient_ca = '{own}/ca.pem'\n"
    );
    let profilers = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let mut cluster = Cluster::new();
    let mut given = Vec::new();
    for (host, profiler) in ["a", "b"].iter().zip(&profilers) {
        let agent = Agent::start_as(&format!("vm-{host}"), &[profiler.target()], &settings);
        given.push(text(&agent.ask(&["status", "--json"]).json(), "remote_address"));
        cluster.add(host, agent);
    }
    let capture = |who: &str| {
        let mut command = Command::new(tpuscope());
        command.args([
            "capture",
            "--hosts",
            &given.join(","),
            "--duration",
            "10ms",
            "--session",
            "tls",
            "--tls-dir",
        ]);
        command.arg(folder.path().join(who)).current_dir(cluster.out()).env_remove("TPUSCOPE_SOCKET");
        start_as(command).end()
    };
    capture("bob").failed(4, "0 of 2 hosts left, and 1 must have a trace");
    cluster.kept_nothing();
    let ended = capture("alice");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(hosts(&cluster.manifest("tls")), (vec!["vm-a".into(), "vm-b".into()], vec![]));
    for host in ["a", "b"] {
        let log = cluster.agent(host).log();
        let line = log.lines().find(|line| line.contains("reserved for a capture over several hosts"));
        let line = line.unwrap_or_else(|| panic!("no reservation in {log}"));
        assert!(line.contains("alice") && line.contains("session=tls"), "{line}");
    }
}
