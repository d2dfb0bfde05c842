//! Which addresses may be contacted, and the service at each. Pure: owners' variables, a table of listeners and the
//! settings in, endpoints out.
//!
//! Ports are not guessed at. An address becomes an endpoint when a variable of the owner names it, when it is
//! the known default of a service and that owner itself listens there, or when the settings name it. It is reachable
//! only when no listener of another process could answer. Ports of the workload's own traffic (rendezvous, slice
//! building, coordinator) are never contacted, whatever else names them.

mod host_service;
mod owner_endpoints;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin, ProcessKey};

use super::environment::{self, Environment};
use crate::settings::workload::StaticEndpoint;

pub(super) use host_service::HOST_SERVICE;
pub use owner_endpoints::{PROFILER_DEFAULTS, PROFILER_VARIABLES};

/// Ports on which workloads talk to each other by default, besides what their variables say: slice builder
/// and JAX coordinator on Cloud TPU, torch rendezvous. Opt-in probing leaves them alone.
const NEVER_PROBED: &[u16] = &[8470, 8471, 8476, 8477, 8478, 8479, 8480, 8481, 8482, 8483, 29500];

/// What decides the endpoints of one owner.
#[derive(Debug, Clone)]
pub(super) struct OwnerInputs<'a> {
    pub(super) process: ProcessKey,
    pub(super) uid: u32,
    /// It holds a chip: libtpu should serve metrics.
    pub(super) holds_chips: bool,
    pub(super) environment: &'a Environment,
    /// Inode of its network namespace.
    pub(super) namespace: Option<u64>,
    /// The Unix socket that its variables name for metrics.
    pub(super) metrics_socket: Option<UnixSocket>,
}

/// A Unix socket that a variable names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnixSocket {
    /// Where this agent finds it.
    pub(super) path: PathBuf,
    /// Its user; `None` when it is absent, not a socket, or cannot be read.
    pub(super) owner: Option<u32>,
}

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortListener {
    pub(super) namespace: u64,
    pub(super) address: SocketAddr,
    pub(super) inode: u64,
    pub(super) uid: u32,
    /// The processes that have it open, the first to start first; several after a fork.
    pub(super) processes: Vec<ListenerProcess>,
}

/// A process that has a listener open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenerProcess {
    pub(super) process: ProcessKey,
    /// The owner that it is or descends from; `None` for an unrelated process.
    pub(super) owner: Option<ProcessKey>,
}

/// Everything that decides which endpoints there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndpointInputs<'a> {
    pub(super) owners: &'a [OwnerInputs<'a>],
    /// Of our network namespace and of those of the owners.
    pub(super) listeners: &'a [PortListener],
    pub(super) our_namespace: Option<u64>,
    /// This host's own addresses, without loopback.
    pub(super) local_addresses: &'a [IpAddr],
    pub(super) configured: &'a [StaticEndpoint],
    /// Opt-in: every listener of an owner may be probed once.
    pub(super) probe: bool,
    /// Inodes of the listeners that answered a probe as a profiler does.
    pub(super) profilers: &'a BTreeSet<u64>,
    /// The host has chips.
    pub(super) chips: bool,
}

/// The decision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct EndpointPlan {
    /// What was decided on each owner, in the order of the inputs.
    pub(super) owners: Vec<OwnerPlan>,
    /// Endpoints that belong to no owner.
    pub(super) shared: Vec<Endpoint>,
    /// Notes about the host.
    pub(super) notes: Vec<String>,
    /// Listeners that may be probed.
    pub(super) candidates: Vec<ProbeCandidate>,
}

/// The decision on one owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnerPlan {
    pub(super) endpoints: Vec<Endpoint>,
    /// Why it has no metric service; `None` when it has one, or none is expected.
    pub(super) no_metrics: Option<String>,
    pub(super) notes: Vec<String>,
}

/// A listener that may be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProbeCandidate {
    pub(super) inode: u64,
    pub(super) address: SocketAddr,
}

/// Decides which addresses may be contacted.
pub(super) fn plan(inputs: &EndpointInputs<'_>) -> EndpointPlan {
    let private_ports = PrivatePorts::of(inputs.owners);
    let planner = EndpointPlanner { inputs, private_ports: &private_ports };
    let mut plan = EndpointPlan::default();
    for owner in inputs.owners {
        plan.owners.push(owner_endpoints::endpoints(&planner, owner));
    }
    host_service::add(&planner, &mut plan);
    for (owner, OwnerPlan { endpoints, .. }) in inputs.owners.iter().zip(&mut plan.owners) {
        if inputs.probe {
            planner.add_probed(owner, endpoints, &mut plan.candidates);
        }
        endpoints.sort_by(|a, b| (a.kind, &a.address).cmp(&(b.kind, &b.address)));
    }
    plan
}

/// Ports that an owner's variables reserve for its own traffic, by namespace, with the variable and the owner's pid.
#[derive(Debug)]
struct PrivatePorts(BTreeMap<(Option<u64>, u16), (String, u32)>);

impl PrivatePorts {
    fn of(owners: &[OwnerInputs<'_>]) -> Self {
        let ports = owners.iter().flat_map(|owner| {
            environment::private_ports(owner.environment)
                .into_iter()
                .map(|(port, name)| ((owner.namespace, port), (name, owner.process.pid)))
        });
        Self(ports.collect())
    }

    /// Why this port is not contacted; `None` when it may be.
    fn reason(&self, namespace: Option<u64>, port: u16) -> Option<String> {
        let (name, pid) = self.0.get(&(namespace, port))?;
        Some(format!(
            "port {port} carries the workload's own traffic ({name} of process {pid}): it is never contacted"
        ))
    }
}

struct EndpointPlanner<'a> {
    inputs: &'a EndpointInputs<'a>,
    private_ports: &'a PrivatePorts,
}

impl<'a> EndpointPlanner<'a> {
    /// The listeners on a port of a namespace.
    fn on_port(&self, namespace: Option<u64>, port: u16) -> impl Iterator<Item = &'a PortListener> {
        let of_namespace = move |listener: &&PortListener| Some(listener.namespace) == namespace;
        self.inputs
            .listeners
            .iter()
            .filter(of_namespace)
            .filter(move |listener| listener.address.port() == port)
    }

    /// An endpoint at a listener of the owner, and whether it can be reached.
    fn at_listener(
        &self,
        kind: EndpointKind,
        origin: EndpointOrigin,
        owner: &OwnerInputs<'_>,
        at: &PortListener,
    ) -> Endpoint {
        let address = contact(at.address);
        let answering: Vec<&PortListener> = self
            .on_port(owner.namespace, address.port())
            .filter(|other| covers(other.address, address))
            .collect();
        let mut listeners: Vec<ProcessKey> =
            answering.iter().filter_map(|listener| opener(listener)).map(|opener| opener.process).collect();
        listeners.sort_unstable();
        listeners.dedup();
        let unreachable = self
            .other_namespace(owner.namespace)
            .or_else(|| answering.iter().find_map(|other| foreign_listener(other, address)));
        Endpoint { kind, address: Address::Tcp(address), origin, listeners, unreachable }
    }

    /// Why no listener in this network namespace can be reached; `None` when it is ours.
    fn other_namespace(&self, namespace: Option<u64>) -> Option<String> {
        match (namespace, self.inputs.our_namespace) {
            (Some(theirs), Some(ours)) if theirs == ours => None,
            (Some(_), Some(_)) => Some(
                "it listens in another network namespace: run the agent inside that namespace (a sidecar in its pod), \
                 give the workload the host's network (hostNetwork: true), or add its address to \
                 workload.endpoints"
                    .to_owned(),
            ),
            _ => Some(
                "its network namespace cannot be read: the agent needs CAP_SYS_PTRACE".to_owned(),
            ),
        }
    }

    /// Adds the profilers that a probe has found, and the listeners that may still be probed.
    fn add_probed(
        &self,
        owner: &OwnerInputs<'_>,
        endpoints: &mut Vec<Endpoint>,
        candidates: &mut Vec<ProbeCandidate>,
    ) {
        if self.other_namespace(owner.namespace).is_some() {
            return;
        }
        // A socket stays in the namespace that it was opened in, wherever its process is now.
        let here =
            |at: &&PortListener| Some(at.namespace) == owner.namespace && belongs_to(at, owner.process);
        for listener in self.inputs.listeners.iter().filter(here) {
            let port = listener.address.port();
            let endpoint = self.at_listener(EndpointKind::Profiler, EndpointOrigin::Probe, owner, listener);
            let known = endpoints.iter().any(|known| known.address == endpoint.address);
            let private =
                self.private_ports.reason(owner.namespace, port).is_some() || NEVER_PROBED.contains(&port);
            if known || private || endpoint.unreachable.is_some() || slurm_coordinator(owner) == Some(port) {
                continue;
            }
            if self.inputs.profilers.contains(&listener.inode) {
                endpoints.push(endpoint);
            } else if let Address::Tcp(address) = endpoint.address {
                candidates.push(ProbeCandidate { inode: listener.inode, address });
            }
        }
    }
}

/// The port that JAX derives from the job id for its coordinator under Slurm.
fn slurm_coordinator(owner: &OwnerInputs<'_>) -> Option<u16> {
    const RANGE: u64 = 1 << 12;
    let id: u64 = owner.environment.get("SLURM_JOB_ID")?.parse().ok()?;
    u16::try_from(id % RANGE + (65_535 - RANGE + 1)).ok()
}

/// The process that opened the listener.
fn opener(listener: &PortListener) -> Option<&ListenerProcess> {
    listener.processes.first()
}

/// Whether the process itself opened the listener.
fn belongs_to(listener: &PortListener, process: ProcessKey) -> bool {
    opener(listener).is_some_and(|opener| opener.process == process)
}

/// Why a call to `address` could reach a process that is no part of a workload.
fn foreign_listener(listener: &PortListener, address: SocketAddr) -> Option<String> {
    match opener(listener) {
        Some(opener) if opener.owner.is_some() => None,
        Some(opener) => Some(format!(
            "process {} also listens on {address}, holds no chip and is not a child of an owner: a call could reach it",
            opener.process.pid
        )),
        None => {
            Some(format!("a process of user {} that cannot be read also listens on {address}", listener.uid))
        }
    }
}

/// The address to call for a listener: loopback where it listens on all addresses.
fn contact(listener: SocketAddr) -> SocketAddr {
    let ip = if listener.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { listener.ip() };
    SocketAddr::new(ip, listener.port())
}

/// Whether a call to `address` could be answered by this listener.
fn covers(listener: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = match listener.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() && address.is_ipv4(),
        // The table does not say whether an IPv6 listener also takes IPv4: assume that it does.
        IpAddr::V6(ip) => ip == Ipv6Addr::UNSPECIFIED,
    };
    listener.port() == address.port() && (everywhere || listener.ip() == address.ip())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
