//! Hosts with networks of their own, over mutual TLS, with real jobs: captured from a further network.

use std::{process::Command, thread};

use fakes::{
    bridged_networks::BridgedNetworks,
    command::{RunningCommand, run, start_as},
    harness::tpuscope,
    jax_job::{JaxJob, RunningJaxJob},
    net_ns::NetNs,
    wait::until,
};

use super::{Cluster, hosts, list, why};
use crate::{hosts::remote_agent::Authority, profiler_agent::Agent};

const HOSTS: u8 = 4;
/// Each host has its own.
const PROFILER: &str = "127.0.0.1:9012";

/// Four hosts with a job and an agent each.
struct SeparateHosts {
    cluster: Cluster,
    authority: Authority,
    jobs: Vec<RunningJaxJob>,
    networks: BridgedNetworks,
}

impl SeparateHosts {
    fn start() -> Self {
        let networks = BridgedNetworks::new(HOSTS);
        let jobs = thread::scope(|scope| {
            let start = |number| {
                let job = JaxJob::new().step_ms(50).tell_traces().port(9012);
                let enter = networks.host(number).enter();
                scope.spawn(move || job.below(&enter).start())
            };
            let starting: Vec<_> = (0..HOSTS).map(start).collect();
            starting.into_iter().map(|job| job.join().unwrap()).collect()
        });
        let authority = Authority::new();
        authority.certs(&["issue", "ca", "--operator", "alice", "--out", "."]);
        let mut cluster = Cluster::new();
        for number in 0..HOSTS {
            let address = BridgedNetworks::address(number).to_string();
            authority.certs(&["issue", "ca", "--agent", &address, "--out", "."]);
            let program = within(networks.host(number));
            let settings = authority.listener("0.0.0.0:4393", &address);
            cluster
                .add(&address, Agent::start_by(&program, &name(number), &[PROFILER.to_owned()], &settings));
        }
        Self { cluster, authority, jobs, networks }
    }

    /// A capture of hosts of `10.77.0.[1-4]`, from outside.
    fn capture(&self, hosts: &str, session: &str, duration: &str) -> RunningCommand {
        let program = within(self.networks.outside());
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).args(["capture", "--hosts", hosts, "--session", session]);
        command.args(["--duration", duration, "--tls-dir"]).arg(self.authority.of("alice"));
        command.current_dir(self.cluster.out());
        start_as(command)
    }

    /// Whether the profiler of a host is in use, asked on that host.
    fn is_busy(&self, number: u8) -> bool {
        let program = within(self.networks.host(number));
        let mut command = Command::new(&program[0]);
        let folder = tempfile::tempdir().unwrap();
        command.args(&program[1..]).args(["capture", "--target", PROFILER, "--duration", "10ms"]);
        command.current_dir(folder.path());
        start_as(command).end().code == Some(13)
    }
}

/// What the agent of a host calls it.
fn name(number: u8) -> String {
    format!("vm-{number}")
}

/// The words that start tpuscope in a network.
fn within(network: &NetNs) -> Vec<String> {
    let [nsenter, net] = network.enter();
    [nsenter, net, "env", "--default-signal", &tpuscope().display().to_string()].map(str::to_owned).to_vec()
}

#[test]
fn jobs_in_networks_of_their_own_are_captured_over_mutual_tls_and_a_lost_network_is_named() {
    let mut separate = SeparateHosts::start();
    two_and_four_hosts_are_one_session(&separate);
    a_lost_network_is_named_and_holds_no_profiler(&separate);
    assert!(separate.jobs.iter_mut().all(RunningJaxJob::alive), "no job notices");
}

fn two_and_four_hosts_are_one_session(separate: &SeparateHosts) {
    for (given, session, count) in [("10.77.0.[1-2]", "two", 2), ("10.77.0.[1-4]", "four", HOSTS)] {
        let ended = separate.capture(given, session, "500ms").end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        let manifest = separate.cluster.manifest(session);
        let names: Vec<_> = (0..count).map(name).collect();
        assert_eq!(hosts(&manifest), (names, vec![]));
        for host in list(&manifest, "hosts") {
            let clock = &host["clock"];
            // One machine: the clocks are one.
            let (offset, bound) = (clock["offset_ns"].as_i64().unwrap(), clock["bound_ns"].as_u64().unwrap());
            assert!(offset.unsigned_abs() <= bound && bound < 1_000_000_000, "{clock}");
            assert!(list(host, "parts")[0]["events"].as_u64().unwrap() > 0, "{host}");
        }
    }
    let shown = run(&separate.cluster.out(), &["sessions", "show", "plugins/profile/four"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
}

fn a_lost_network_is_named_and_holds_no_profiler(separate: &SeparateHosts) {
    while separate.jobs[1].said_now().is_some() {}
    // Longer than the time after which a host is free whose caller is gone without a word.
    let mut capture = separate.capture("10.77.0.[1-2]", "lost", "20s");
    separate.jobs[1].says("traced");
    separate.networks.cut(1);
    until("the profiler to be free", || !separate.is_busy(1));
    assert!(capture.alive(), "the profiler was free before the window was over");
    let ended = capture.end();
    ended.failed(18, "the session lacks 1 host");
    let manifest = separate.cluster.manifest("lost");
    assert_eq!(hosts(&manifest), (vec![name(0)], vec!["10.77.0.2".into()]));
    assert!(why(&manifest, "10.77.0.2").starts_with("the connection was lost"), "{manifest}");
    separate.networks.mend(1);
    let ended = separate.capture("10.77.0.[1-2]", "mended", "100ms").end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
