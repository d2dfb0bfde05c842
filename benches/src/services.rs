//! Fake metric services of a host with 8 chips, and an agent that reads them.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
};

use fakes::{fake_host::FakeHost, harness::artifact};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, free_address},
    tpuscope,
};

/// The chips of the host.
pub const CHIPS: usize = 8;

/// Services that run until this is dropped.
#[derive(Debug)]
pub struct Services {
    _daemons: Vec<Daemon>,
    /// The addresses of the runtime metric services.
    pub runtime: Vec<SocketAddr>,
    /// The agent's `workload.endpoints`, without the brackets.
    pub endpoints: String,
}

impl Services {
    /// All services of 8 chips: runtime metrics behind so many ports, Orbax and Grain, the host's own service. The
    /// processes of the runtime services own the chips of `host`.
    pub fn start(host: &FakeHost, ports: usize) -> Self {
        let nodes: Vec<PathBuf> = host.chips().into_iter().flat_map(|chip| chip.nodes).collect();
        let share = CHIPS / ports;
        let (mut daemons, mut runtime, mut endpoints) = (Vec::new(), Vec::new(), String::new());
        for (number, nodes) in nodes.chunks(share).enumerate() {
            let mut command = Command::new(artifact("fake-tpu-host"));
            command.args(["--runtime", "127.0.0.1:0", "--chips", &share.to_string()]);
            command.args(["--first-device", &(number * share).to_string()]);
            if number == 0 {
                command.args(["--orbax", "127.0.0.1:0"]);
            }
            nodes.iter().for_each(|node| {
                command.arg("--hold").arg(node);
            });
            let (daemon, line) = fake_tpu_host(&mut command);
            let address: SocketAddr = line["runtime"][0].as_str().unwrap().parse().unwrap();
            endpoints += &format!("{{kind = \"runtime_metrics\", address = \"{address}\"}}, ");
            if let Some(orbax) = line["orbax"].as_str() {
                endpoints += &format!("{{kind = \"orbax_grain\", address = \"{orbax}\"}}, ");
            }
            runtime.push(address);
            daemons.push(daemon);
        }
        let mut command = Command::new(artifact("fake-tpu-host"));
        command.args(["--host-service", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
        let (daemon, line) = fake_tpu_host(&mut command);
        endpoints += &format!("{{kind = \"host_service\", address = {}}}", line["host_service"]);
        daemons.push(daemon);
        Self { _daemons: daemons, runtime, endpoints }
    }
}

/// Starts `fake-tpu-host`; it prints one JSON line with its addresses.
pub fn fake_tpu_host(command: &mut Command) -> (Daemon, serde_json::Value) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child.into(), serde_json::from_str(&line).unwrap())
}

/// The command that runs an agent on `host`, its HTTP address, and the folder that it keeps its state in.
pub fn agent(host: &FakeHost, endpoints: &str) -> (Command, SocketAddr, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let http = free_address();
    let rest = format!(
        "[workload]\nendpoints = [{endpoints}]\n[agent]\nstate_dir = {:?}\n[api]\nsocket = {:?}\n\
         http = \"{http}\"\ngrpc = \"off\"\n",
        folder.path().join("state"),
        folder.path().join("agent.sock"),
    );
    let mut command = Command::new(tpuscope());
    command.args(["agent", "--config"]).arg(host.config(&rest));
    (command, http, folder)
}

/// The command that runs node_exporter, and its address.
pub fn node_exporter() -> (Command, SocketAddr) {
    let address = free_address();
    let mut command = Command::new("prometheus-node-exporter");
    command.arg(format!("--web.listen-address={address}"));
    (command, address)
}
