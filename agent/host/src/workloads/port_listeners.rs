//! The listeners on ports that could become endpoints, in our network namespace and in those of the owners, with the
//! processes that have them open.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs, io,
    net::IpAddr,
};

use model::workload::{Address, ProcessKey};
use nix::ifaddrs::getifaddrs;

use super::{
    endpoints::{ListenerProcess, OwnerInputs, PortListener},
    environment,
    process_details::ProcessReader,
    procfs::Procfs,
};
use crate::{
    settings::workload::StaticEndpoint,
    tcp_table::{self, ListeningSocket},
};

/// Maximum number of generations between an owner and its descendant.
const MAX_GENERATIONS: usize = 32;
/// Maximum number of processes that are listed for one listener.
const MAX_PROCESSES: usize = 64;

/// The listeners, and where this agent is.
#[derive(Debug, Default)]
pub(super) struct PortListeners {
    pub(super) listeners: Vec<PortListener>,
    pub(super) our_namespace: Option<u64>,
    pub(super) local_addresses: Vec<IpAddr>,
}

/// Inode of this agent's network namespace.
pub(super) fn our_namespace(proc: &Procfs) -> Option<u64> {
    // The configured procfs may be of another pid namespace, in which this process does not exist.
    proc.namespace("self", "net").or_else(|| {
        let link = fs::read_link("/proc/self/ns/net").ok()?;
        link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
    })
}

/// Reads the tables once. `sockets` are inode and process of every open socket of the host.
pub(super) fn read(
    proc: &Procfs,
    reader: &mut ProcessReader,
    owners: &[OwnerInputs<'_>],
    configured: &[StaticEndpoint],
    sockets: &[(u64, u32)],
) -> PortListeners {
    let our_namespace = our_namespace(proc);
    let mut tables: BTreeMap<u64, Vec<ListeningSocket>> = BTreeMap::new();
    // The first process of each namespace is enough; our own comes first.
    let ours = our_namespace.map(|namespace| (namespace, "self".to_owned()));
    let theirs = owners.iter().filter_map(|owner| Some((owner.namespace?, owner.process.pid.to_string())));
    for (namespace, process) in ours.into_iter().chain(theirs) {
        if tables.get(&namespace).is_none_or(Vec::is_empty)
            && let Ok(table) = table(proc, &process)
        {
            tables.insert(namespace, table);
        }
    }
    let inodes: HashSet<u64> = tables.values().flatten().map(|socket| socket.inode).collect();
    let mut processes_of: HashMap<u64, Vec<u32>> = HashMap::new();
    for (inode, pid) in sockets.iter().filter(|(inode, _)| inodes.contains(inode)) {
        let pids = processes_of.entry(*inode).or_default();
        // One process may have several descriptors of it.
        if pids.last() != Some(pid) && pids.len() < MAX_PROCESSES {
            pids.push(*pid);
        }
    }
    let ports = possible_ports(owners, configured, &tables, &processes_of);
    let mut lookup = OwnerLookup::new(owners);
    let mut found = Vec::new();
    for (namespace, table) in tables {
        for socket in table.into_iter().filter(|socket| ports.contains(&socket.address.port())) {
            let pids = processes_of.get(&socket.inode).map_or(&[][..], Vec::as_slice);
            let mut processes: Vec<ListenerProcess> =
                pids.iter().filter_map(|pid| lookup.process(proc, reader, *pid)).collect();
            processes.sort_by_key(|one| (one.process.start_ticks, one.process.pid));
            let ListeningSocket { address, inode, uid } = socket;
            found.push(PortListener { namespace, address, inode, uid, processes });
        }
    }
    PortListeners { listeners: found, our_namespace, local_addresses: local_addresses() }
}

/// Ports that an owner listens on, or that a variable, the configuration or a default could make an endpoint.
fn possible_ports(
    owners: &[OwnerInputs<'_>],
    configured: &[StaticEndpoint],
    tables: &BTreeMap<u64, Vec<ListeningSocket>>,
    processes_of: &HashMap<u64, Vec<u32>>,
) -> BTreeSet<u16> {
    let pids: HashSet<u32> = owners.iter().map(|owner| owner.process.pid).collect();
    let owned = |socket: &&ListeningSocket| {
        processes_of.get(&socket.inode).is_some_and(|open_in| open_in.iter().any(|pid| pids.contains(pid)))
    };
    let mut ports: BTreeSet<u16> =
        tables.values().flatten().filter(owned).map(|socket| socket.address.port()).collect();
    for (name, value) in owners.iter().flat_map(|owner| owner.environment) {
        if ["PORT", "ADDRESS", "URL"].iter().any(|part| name.contains(part)) {
            ports.extend(environment::ports_in(value));
        }
    }
    ports.extend(configured.iter().filter_map(|known| match &known.address {
        Address::Tcp(at) => Some(at.port()),
        Address::Unix(_) => None,
    }));
    ports.insert(super::endpoints::HOST_SERVICE);
    ports
}

/// Finds the owner that a process is or descends from.
struct OwnerLookup {
    owners: HashMap<u32, ProcessKey>,
    seen: HashMap<u32, Option<ListenerProcess>>,
}

impl OwnerLookup {
    fn new(owners: &[OwnerInputs<'_>]) -> Self {
        let owners = owners.iter().map(|owner| (owner.process.pid, owner.process)).collect();
        Self { owners, seen: HashMap::new() }
    }

    fn process(&mut self, proc: &Procfs, reader: &mut ProcessReader, pid: u32) -> Option<ListenerProcess> {
        if let Some(seen) = self.seen.get(&pid) {
            return *seen;
        }
        let found = self.find(proc, reader, pid);
        self.seen.insert(pid, found);
        found
    }

    fn find(&self, proc: &Procfs, reader: &mut ProcessReader, pid: u32) -> Option<ListenerProcess> {
        let stat = reader.stat(proc, pid)?;
        let process = ProcessKey { pid, start_ticks: stat.start_ticks };
        let (mut ancestor, mut parent) = (pid, stat.parent);
        for _ in 0..MAX_GENERATIONS {
            if let Some(owner) = self.owners.get(&ancestor) {
                return Some(ListenerProcess { process, owner: Some(*owner) });
            }
            // Process 1 counts: in a container it is the workload.
            if parent == 0 {
                break;
            }
            ancestor = parent;
            parent = reader.stat(proc, parent).map_or(0, |stat| stat.parent);
        }
        Some(ListenerProcess { process, owner: None })
    }
}

/// Every listening TCP socket in the network namespace of `process`.
fn table(proc: &Procfs, process: &str) -> io::Result<Vec<ListeningSocket>> {
    // A kernel without IPv6 has no second table.
    let tables = [Some(proc.file(process, "net/tcp")?), proc.file(process, "net/tcp6").ok()];
    tcp_table::listening(tables.into_iter().flatten())
}

/// This host's addresses in our namespace; empty when the kernel does not list them.
fn local_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    });
    addresses.take(1024).collect()
}
