//! Nobody is contacted who should not be: listeners that count what reaches them, in a network namespace where the
//! well-known ports are free.

use std::{
    fs::{self, File},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
};

use fakes::{
    fake_host::FakeHost,
    fake_workload::{Counts, FakeWorkload, RunningWorkload},
    harness::tpuscope,
    net_ns::NetNs,
    wait::eventually,
};
use model::device::Generation;

use super::{discover, tool};

const NOTHING: Counts = Counts { connections: 0, bytes: 0 };
const TICKS: u32 = 20;

/// A namespace with two owners, their private listeners and a bystander on every well-known port that is left.
struct Neighbourhood {
    host: FakeHost,
    netns: NetNs,
    trainer: RunningWorkload,
    plain: RunningWorkload,
    bystander: RunningWorkload,
}

impl Neighbourhood {
    fn new() -> Self {
        let host = FakeHost::with(Generation::V5e, 2);
        let netns = NetNs::new();
        let chips = host.chips();
        let workload = |chip: usize| FakeWorkload::below(&netns.enter()).hold(&chips[chip].nodes[0]);
        // All that this one listens on is its own traffic, though some of it is on ports of other services.
        let trainer = workload(0)
            .listen("0.0.0.0:9999")
            .listen("0.0.0.0:9012")
            .listen("[::]:8476")
            .listen("127.0.0.1:8477")
            .listen("127.0.0.1:8431")
            .listen("127.0.0.1:6009")
            .variable("MASTER_PORT", "9999")
            .variable("JAX_COORDINATOR_ADDRESS", "localhost:9012")
            .variable("TPU_PROCESS_PORT", "8476")
            .variable("TPU_PROCESS_ADDRESSES", "localhost:8476,localhost:8477")
            .variable("MEGASCALE_COORDINATOR_ADDRESS", "localhost:8431")
            .variable("COORDINATOR_ADDRESS", "127.0.0.1:6009")
            .variable("TPU_RUNTIME_METRICS_PORTS", "8431,8432")
            .variable("TPUSCOPE_PROFILER_PORT", "9012")
            .variable("VBAR_CONTROL_SERVICE_URL", "localhost:9999")
            .start();
        let plain = workload(1).listen("127.0.0.1:7001").variable("JAX_PROFILER_PORT", "7002").start();
        let bystander = FakeWorkload::below(&netns.enter())
            .listen("127.0.0.1:8432")
            .listen("[::]:9431")
            .listen("127.0.0.1:7000")
            .listen("127.0.0.1:7002")
            .start();
        Self { host, netns, trainer, plain, bystander }
    }

    /// Looks often.
    fn look(&self, config: &Path) -> serde_json::Value {
        let seen = discover(self.netns.command(tool()), config, TICKS);
        let workloads = &seen["workloads"];
        let owners = workloads["owners"].as_array().expect("owners");
        assert_eq!(owners.len(), 2, "{seen:#}");
        assert!(owners.iter().all(|owner| owner["shares_our_network"] == true), "{seen:#}");
        seen
    }
}

/// Addresses that may be contacted.
fn reachable(seen: &serde_json::Value) -> Vec<String> {
    let workloads = &seen["workloads"];
    let of_owners = workloads["owners"]
        .as_array()
        .expect("owners")
        .iter()
        .flat_map(|owner| endpoints(&owner["endpoints"]));
    let all = of_owners.chain(endpoints(&workloads["endpoints"]));
    all.filter(|endpoint| endpoint["unreachable"].is_null())
        .map(|endpoint| endpoint["address"]["tcp"].as_str().expect("an address").to_owned())
        .collect()
}

fn endpoints(list: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    list.as_array().expect("endpoints").iter()
}

#[test]
fn private_ports_and_bystanders_get_no_byte() {
    let mut here = Neighbourhood::new();
    let seen = here.look(&here.host.config(""));
    assert_eq!(reachable(&seen), [""; 0], "{seen:#}");
    assert_eq!(here.trainer.counts(), NOTHING);
    assert_eq!(here.plain.counts(), NOTHING);
    assert_eq!(here.bystander.counts(), NOTHING);
}

#[test]
fn probing_asks_an_owners_other_listeners_once_and_nobody_else() {
    let mut here = Neighbourhood::new();
    let seen = here.look(&here.host.config("[workload]\nprobe = \"listeners\""));
    assert_eq!(reachable(&seen), [""; 0], "{seen:#}");
    assert_eq!(here.trainer.counts(), NOTHING);
    assert_eq!(here.bystander.counts(), NOTHING);
    let asked = here.plain.counts();
    assert_eq!(asked.connections, 1, "once in {TICKS} looks");
    assert!(asked.bytes > 0);
}

/// The agent itself, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // Already dead is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_agent_itself_sends_them_no_byte_either() {
    let mut here = Neighbourhood::new();
    // The proof that it asks at all: an owner whose metric port is its own.
    let mut open = FakeWorkload::below(&here.netns.enter())
        .hold(&here.host.chips()[1].nodes[0])
        .listen("127.0.0.1:7100")
        .variable("TPU_RUNTIME_METRICS_PORTS", "7100")
        .start();
    let folder = here.host.root();
    let config = here.host.config(&format!(
        "[agent]\nstate_dir = {:?}\n[api]\nsocket = {:?}\n[workload]\nscan_interval = \"250ms\"\n\
         [sampler]\ninterval = \"250ms\"\n",
        folder.join("state"),
        folder.join("agent.sock"),
    ));
    let log = File::create(folder.join("log")).unwrap();
    let mut command = here.netns.command(tpuscope());
    let command = command.arg("agent").arg("--config").arg(config).stdin(Stdio::null());
    let mut agent = Agent(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    eventually("the agent to ask the owner that may be asked", || {
        let ended = agent.0.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(folder.join("log")).unwrap());
        (open.counts().connections >= 5).then_some(())
    });
    assert_eq!(here.trainer.counts(), NOTHING);
    assert_eq!(here.plain.counts(), NOTHING);
    assert_eq!(here.bystander.counts(), NOTHING);
}

#[test]
fn the_count_counts() {
    let mut listening = FakeWorkload::new().listen("127.0.0.1:0").start();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], listening.ports()[0]));
    std::io::Write::write_all(&mut TcpStream::connect(address).unwrap(), b"seven b").unwrap();
    eventually("the bytes to be counted", || {
        (listening.counts() == Counts { connections: 1, bytes: 7 }).then_some(())
    });
}
