//! The processes that hold chips, and where they can be asked.

use std::{collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf};

use serde::Serialize;

use super::{device::ChipIndex, job::Job};

/// A process that cannot be mistaken for a later one with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ProcessKey {
    /// Its pid as this host's root namespace sees it.
    pub pid: u32,
    /// Its start time, clock ticks since boot (`/proc/<pid>/stat` field 22).
    pub start_ticks: u64,
}

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointKind {
    /// libtpu's RuntimeMetricService.
    RuntimeMetrics,
    /// `tensorflow.ProfilerService`.
    Profiler,
    /// Prometheus text of Orbax and Grain.
    OrbaxGrain,
    /// The host's `libtpu.tpunetd.VBARControl`.
    HostService,
}

/// Where an endpoint listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => write!(f, "{at}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Why this address may be contacted: ports are never guessed at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointOrigin {
    /// A variable of the owner names it.
    Variable(String),
    /// The documented default port of this service, and the owner listens on it.
    KnownDefault,
    /// The configuration names it.
    Config,
    /// Found by opt-in probing of the owner's listeners.
    Probe,
}

/// Something of a workload (or of the host) that answers questions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Endpoint {
    /// What for.
    pub kind: EndpointKind,
    /// Where.
    pub address: Address,
    /// Why we may.
    pub origin: EndpointOrigin,
    /// The processes that listen there; several when they share a port (SO_REUSEPORT), empty when unknown.
    pub listeners: Vec<ProcessKey>,
    /// Why it cannot be reached from here, in words and with what would fix it; `None` when it can.
    pub unreachable: Option<String>,
}

/// A process holding a chip, or (with `discover = "any"`) one that has jaxlib, torch_xla or libtpu mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Which process.
    pub process: ProcessKey,
    /// Its pid inside its own pid namespace, where that differs.
    pub container_pid: Option<u32>,
    /// Real user id.
    pub uid: u32,
    /// Real group id.
    pub gid: u32,
    /// `/proc/<pid>/comm`, untrusted text.
    pub command: String,
    /// The chips that it has open.
    pub chips: Vec<ChipIndex>,
    /// The allowed variables of its environment (see `workload`), and no others.
    pub environment: BTreeMap<String, String>,
    /// The libtpu.so that it has mapped, as this host sees the path.
    pub libtpu: Option<PathBuf>,
    /// Version of its jaxlib or torch_xla from dist-info, where found.
    pub framework: Option<String>,
    /// Inode of its network namespace.
    pub network_namespace: Option<u64>,
    /// Whether that is ours.
    pub shares_our_network: bool,
    /// Its job.
    pub job: Job,
    /// Where it can be asked.
    pub endpoints: Vec<Endpoint>,
    /// What could not be found out, in words.
    pub notes: Vec<String>,
}

/// Everybody who holds a chip on this host, as one scan found them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Workloads {
    /// The owners, by pid.
    pub owners: Vec<Owner>,
    /// What could not be seen and what would change that, once each.
    pub notes: Vec<String>,
}
