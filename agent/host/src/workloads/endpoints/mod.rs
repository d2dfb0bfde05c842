//! Which addresses may be contacted, and what each is for. Pure: owners' variables, a table of listeners and
//! the configuration in, endpoints out.
//!
//! Ports are not guessed at. An address becomes an endpoint when a variable of the owner names it, when it is
//! the known default of a service and that very owner listens there, or when the configuration says so; and it
//! is reachable only when nobody else's listener would be the one to answer. Ports of the workload's own
//! traffic (rendezvous, slice building, coordinator) are never contacted, whatever else names them.

mod host;
mod named;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use model::workload::{Address, Endpoint, EndpointKind, EndpointOrigin, ProcessKey};

use super::environment::{self, Environment};
use crate::settings::workload::StaticEndpoint;

pub(super) use host::HOST_SERVICE;

/// Ports on which workloads talk to each other by default, besides what their variables say: slice builder
/// and JAX coordinator on Cloud TPU, torch rendezvous. Opt-in probing leaves them alone.
const NEVER_PROBED: &[u16] = &[8470, 8471, 8476, 8477, 8478, 8479, 8480, 8481, 8482, 8483, 29500];

/// An owner, as far as its endpoints go.
#[derive(Debug, Clone)]
pub(super) struct Subject<'a> {
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
    /// Who made it; `None` when it is absent, no socket, or cannot be looked at.
    pub(super) owner: Option<u32>,
}

/// A listening TCP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) namespace: u64,
    pub(super) address: SocketAddr,
    pub(super) inode: u64,
    pub(super) uid: u32,
    /// Who has it open, the first to start first; several after a fork.
    pub(super) held_by: Vec<Holder>,
}

/// A process that has a listener open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) process: ProcessKey,
    /// The owner that it is or descends from; `None` for a bystander.
    pub(super) owner: Option<ProcessKey>,
}

/// All that matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndpointInputs<'a> {
    pub(super) subjects: &'a [Subject<'a>],
    /// Of every namespace that is ours or a subject's.
    pub(super) listeners: &'a [Listener],
    pub(super) our_namespace: Option<u64>,
    /// This host's own addresses, loopback apart.
    pub(super) local_addresses: &'a [IpAddr],
    pub(super) statics: &'a [StaticEndpoint],
    /// Opt-in: every listener of an owner may be asked once.
    pub(super) probe: bool,
    /// Listeners that answered as a profiler when they were asked.
    pub(super) profilers: &'a BTreeSet<u64>,
    /// The host has chips.
    pub(super) chips: bool,
}

/// What follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Endpoints and notes of each subject, in the order of the scene.
    pub(super) subjects: Vec<(Vec<Endpoint>, Vec<String>)>,
    /// Endpoints of nobody in particular.
    pub(super) shared: Vec<Endpoint>,
    /// What to say about the host.
    pub(super) notes: Vec<String>,
    /// Listeners that may be asked whether they are profilers.
    pub(super) candidates: Vec<Candidate>,
}

/// A listener to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) inode: u64,
    pub(super) address: SocketAddr,
}

/// Decides.
pub(super) fn plan(scene: &EndpointInputs<'_>) -> Plan {
    let forbidden = Forbidden::of(scene.subjects);
    let planner = Planner { scene, forbidden: &forbidden };
    let mut plan = Plan::default();
    for subject in scene.subjects {
        plan.subjects.push(named::endpoints(&planner, subject));
    }
    host::add(&planner, &mut plan);
    for (subject, (endpoints, _)) in scene.subjects.iter().zip(&mut plan.subjects) {
        if scene.probe {
            planner.probed(subject, endpoints, &mut plan.candidates);
        }
        endpoints.sort_by(|a, b| (a.kind, &a.address).cmp(&(b.kind, &b.address)));
    }
    plan
}

/// Ports that some owner's variables keep for its own traffic, by namespace, with the variable and its owner.
#[derive(Debug)]
struct Forbidden(BTreeMap<(Option<u64>, u16), (String, u32)>);

impl Forbidden {
    fn of(subjects: &[Subject<'_>]) -> Self {
        let ports = subjects.iter().flat_map(|subject| {
            environment::private_ports(subject.environment)
                .into_iter()
                .map(|(port, name)| ((subject.namespace, port), (name, subject.process.pid)))
        });
        Self(ports.collect())
    }

    /// Why this port is not for us.
    fn why(&self, namespace: Option<u64>, port: u16) -> Option<String> {
        let (name, pid) = self.0.get(&(namespace, port))?;
        Some(format!(
            "port {port} carries the workload's own traffic ({name} of process {pid}): it is never contacted"
        ))
    }
}

struct Planner<'a> {
    scene: &'a EndpointInputs<'a>,
    forbidden: &'a Forbidden,
}

impl<'a> Planner<'a> {
    /// The listeners on a port of a namespace.
    fn on_port(&self, namespace: Option<u64>, port: u16) -> impl Iterator<Item = &'a Listener> {
        let of_namespace = move |listener: &&Listener| Some(listener.namespace) == namespace;
        self.scene
            .listeners
            .iter()
            .filter(of_namespace)
            .filter(move |listener| listener.address.port() == port)
    }

    /// An endpoint at a listener of the subject, and whether it can be reached.
    fn at_listener(
        &self,
        kind: EndpointKind,
        origin: EndpointOrigin,
        subject: &Subject<'_>,
        at: &Listener,
    ) -> Endpoint {
        let address = contact(at.address);
        let answering: Vec<&Listener> = self
            .on_port(subject.namespace, address.port())
            .filter(|other| covers(other.address, address))
            .collect();
        let mut listeners: Vec<ProcessKey> = answering
            .iter()
            .filter_map(|listener| principal(listener))
            .map(|holder| holder.process)
            .collect();
        listeners.sort_unstable();
        listeners.dedup();
        let unreachable = self
            .elsewhere(subject.namespace)
            .or_else(|| answering.iter().find_map(|other| intruder(other, address)));
        Endpoint { kind, address: Address::Tcp(address), origin, listeners, unreachable }
    }

    /// Why nothing in this namespace is reached from here.
    fn elsewhere(&self, namespace: Option<u64>) -> Option<String> {
        match (namespace, self.scene.our_namespace) {
            (Some(theirs), Some(ours)) if theirs == ours => None,
            (Some(_), Some(_)) => Some(
                "it listens in another network namespace: run the agent inside that one (a sidecar in its pod), \
                 give the workload the host's network (hostNetwork: true), or name an address of it in \
                 workload.endpoints"
                    .to_owned(),
            ),
            _ => Some(
                "its network namespace cannot be told from ours: the agent needs CAP_SYS_PTRACE to read it".to_owned(),
            ),
        }
    }

    /// Adds what probing has found, and what may still be asked.
    fn probed(&self, subject: &Subject<'_>, endpoints: &mut Vec<Endpoint>, candidates: &mut Vec<Candidate>) {
        if self.elsewhere(subject.namespace).is_some() {
            return;
        }
        // A socket stays in the namespace that it was opened in, wherever its process is now.
        let here =
            |at: &&Listener| Some(at.namespace) == subject.namespace && belongs_to(at, subject.process);
        for listener in self.scene.listeners.iter().filter(here) {
            let port = listener.address.port();
            let endpoint = self.at_listener(EndpointKind::Profiler, EndpointOrigin::Probe, subject, listener);
            let known = endpoints.iter().any(|known| known.address == endpoint.address);
            let private =
                self.forbidden.why(subject.namespace, port).is_some() || NEVER_PROBED.contains(&port);
            if known || private || endpoint.unreachable.is_some() || slurm_coordinator(subject) == Some(port)
            {
                continue;
            }
            if self.scene.profilers.contains(&listener.inode) {
                endpoints.push(endpoint);
            } else if let Address::Tcp(address) = endpoint.address {
                candidates.push(Candidate { inode: listener.inode, address });
            }
        }
    }
}

/// The port that JAX derives from the job id for its coordinator under Slurm.
fn slurm_coordinator(subject: &Subject<'_>) -> Option<u16> {
    const RANGE: u64 = 1 << 12;
    let id: u64 = subject.environment.get("SLURM_JOB_ID")?.parse().ok()?;
    u16::try_from(id % RANGE + (65_535 - RANGE + 1)).ok()
}

/// Who answers first: the process that opened the listener.
fn principal(listener: &Listener) -> Option<&Holder> {
    listener.held_by.first()
}

/// Whether the process itself opened the listener.
fn belongs_to(listener: &Listener, process: ProcessKey) -> bool {
    principal(listener).is_some_and(|holder| holder.process == process)
}

/// Why a call to `address` could end at somebody who has no part in the workload.
fn intruder(listener: &Listener, address: SocketAddr) -> Option<String> {
    match principal(listener) {
        Some(holder) if holder.owner.is_some() => None,
        Some(holder) => Some(format!(
            "{address} is also listened on by process {}, which holds no chip and is no child of an owner: a call \
             could reach it",
            holder.process.pid
        )),
        None => Some(format!(
            "{address} is also listened on by a process of user {} that cannot be seen",
            listener.uid
        )),
    }
}

/// Where to call a listener: loopback where it listens everywhere.
fn contact(listener: SocketAddr) -> SocketAddr {
    let ip = if listener.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { listener.ip() };
    SocketAddr::new(ip, listener.port())
}

/// Whether a call to `address` could be answered by this listener.
fn covers(listener: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = match listener.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() && address.is_ipv4(),
        // Nothing says whether an IPv6 listener also takes IPv4: assume that it does.
        IpAddr::V6(ip) => ip == Ipv6Addr::UNSPECIFIED,
    };
    listener.port() == address.port() && (everywhere || listener.ip() == address.ip())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
