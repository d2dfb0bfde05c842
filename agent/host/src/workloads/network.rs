//! The listeners that matter: of our network namespace and the owners', on ports that could become endpoints,
//! with the processes that hold them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    net::IpAddr,
};

use model::workload::{Address, ProcessKey};
use nix::ifaddrs::getifaddrs;

use super::{
    endpoints::{Holder, Listener, Subject},
    environment,
    listeners::{self, Socket},
    procfs::Procfs,
    profile::Profiler,
};
use crate::settings::workload::StaticEndpoint;

/// Generations that a child of an owner may be away from it.
const MOST_GENERATIONS: usize = 32;
/// Processes named for one listener.
const MOST_HOLDERS: usize = 64;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) listeners: Vec<Listener>,
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

/// Looks once. `sockets` are inode and process of every open socket of the host.
pub(super) fn look(
    proc: &Procfs,
    profiler: &mut Profiler,
    subjects: &[Subject<'_>],
    statics: &[StaticEndpoint],
    sockets: &[(u64, u32)],
) -> Network {
    let our_namespace = our_namespace(proc);
    let mut tables: BTreeMap<u64, Vec<Socket>> = BTreeMap::new();
    // The first process of each namespace can tell; our own comes first.
    let ours = our_namespace.map(|namespace| (namespace, "self".to_owned()));
    let theirs =
        subjects.iter().filter_map(|subject| Some((subject.namespace?, subject.process.pid.to_string())));
    for (namespace, process) in ours.into_iter().chain(theirs) {
        if tables.get(&namespace).is_none_or(Vec::is_empty)
            && let Ok(table) = listeners::of(proc, &process)
        {
            tables.insert(namespace, table);
        }
    }
    let inodes: HashSet<u64> = tables.values().flatten().map(|socket| socket.inode).collect();
    let mut holders: HashMap<u64, Vec<u32>> = HashMap::new();
    for (inode, pid) in sockets.iter().filter(|(inode, _)| inodes.contains(inode)) {
        let pids = holders.entry(*inode).or_default();
        // One process may hold it by several descriptors.
        if pids.last() != Some(pid) && pids.len() < MOST_HOLDERS {
            pids.push(*pid);
        }
    }
    let ports = ports_that_matter(subjects, statics, &tables, &holders);
    let mut people = People::new(subjects);
    let mut found = Vec::new();
    for (namespace, table) in tables {
        for socket in table.into_iter().filter(|socket| ports.contains(&socket.address.port())) {
            let pids = holders.get(&socket.inode).map_or(&[][..], Vec::as_slice);
            let mut held_by: Vec<Holder> =
                pids.iter().filter_map(|pid| people.holder(proc, profiler, *pid)).collect();
            held_by.sort_by_key(|holder| (holder.process.start_ticks, holder.process.pid));
            let Socket { address, inode, uid } = socket;
            found.push(Listener { namespace, address, inode, uid, held_by });
        }
    }
    Network { listeners: found, our_namespace, local_addresses: local_addresses() }
}

/// Ports that an owner listens on, or that a variable, the configuration or a default could make an endpoint.
fn ports_that_matter(
    subjects: &[Subject<'_>],
    statics: &[StaticEndpoint],
    tables: &BTreeMap<u64, Vec<Socket>>,
    holders: &HashMap<u64, Vec<u32>>,
) -> BTreeSet<u16> {
    let owners: HashSet<u32> = subjects.iter().map(|subject| subject.process.pid).collect();
    let owned = |socket: &&Socket| {
        holders.get(&socket.inode).is_some_and(|pids| pids.iter().any(|pid| owners.contains(pid)))
    };
    let mut ports: BTreeSet<u16> =
        tables.values().flatten().filter(owned).map(|socket| socket.address.port()).collect();
    for (name, value) in subjects.iter().flat_map(|subject| subject.environment) {
        if ["PORT", "ADDRESS", "URL"].iter().any(|part| name.contains(part)) {
            ports.extend(environment::ports_in(value));
        }
    }
    ports.extend(statics.iter().filter_map(|known| match &known.address {
        Address::Tcp(at) => Some(at.port()),
        Address::Unix(_) => None,
    }));
    ports.insert(super::endpoints::HOST_SERVICE);
    ports
}

/// Tells owners and their children from bystanders.
struct People {
    owners: HashMap<u32, ProcessKey>,
    seen: HashMap<u32, Option<Holder>>,
}

impl People {
    fn new(subjects: &[Subject<'_>]) -> Self {
        let owners = subjects.iter().map(|subject| (subject.process.pid, subject.process)).collect();
        Self { owners, seen: HashMap::new() }
    }

    fn holder(&mut self, proc: &Procfs, profiler: &mut Profiler, pid: u32) -> Option<Holder> {
        if let Some(seen) = self.seen.get(&pid) {
            return *seen;
        }
        let holder = self.find(proc, profiler, pid);
        self.seen.insert(pid, holder);
        holder
    }

    fn find(&self, proc: &Procfs, profiler: &mut Profiler, pid: u32) -> Option<Holder> {
        let stat = profiler.stat(proc, pid)?;
        let process = ProcessKey { pid, start_ticks: stat.start_ticks };
        let (mut ancestor, mut parent) = (pid, stat.parent);
        for _ in 0..MOST_GENERATIONS {
            if let Some(owner) = self.owners.get(&ancestor) {
                return Some(Holder { process, owner: Some(*owner) });
            }
            // Process 1 counts: in a container it is the workload.
            if parent == 0 {
                break;
            }
            ancestor = parent;
            parent = profiler.stat(proc, parent).map_or(0, |stat| stat.parent);
        }
        Some(Holder { process, owner: None })
    }
}

/// This host's addresses in our namespace; none when the kernel does not say.
fn local_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    });
    addresses.take(1024).collect()
}
