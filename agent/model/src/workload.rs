//! The processes that hold chips, and where they can be asked.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    device::{Chip, ChipIndex},
    job::{Job, JobKind},
    workload_label::WorkloadLabel,
};

/// A process that cannot be mistaken for a later one with its number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ProcessKey {
    /// Its pid as this host's root namespace sees it.
    pub pid: u32,
    /// Its start time, clock ticks since boot (`/proc/<pid>/stat` field 22).
    pub start_ticks: u64,
}

/// What names a workload: the job, whose id is the same on all its hosts, and its user. Two users may choose one id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct WorkloadId {
    /// What names the job.
    pub kind: JobKind,
    /// The job's id.
    pub job: String,
    /// The user of its processes.
    pub uid: u32,
}

impl WorkloadId {
    /// The workload of this job and user.
    pub fn of(job: &Job, uid: u32) -> Self {
        Self { kind: job.kind, job: job.id.clone(), uid }
    }
}

/// The processes of one job on this host, during one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Its id.
    pub id: WorkloadId,
    /// Its label in series: the job's id, or what a bare process is called, with a number if that is taken. Unique on the
    /// host for its kind, and the same when a bare process is started again.
    pub label: String,
    /// Its job, as its first process shows it.
    pub job: Job,
    /// Its processes, by pid.
    pub owners: Vec<ProcessKey>,
}

impl Workload {
    /// Its labels in series.
    pub fn labels(&self) -> WorkloadLabel<'_> {
        WorkloadLabel { kind: self.id.kind, workload: &self.label }
    }
}

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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

/// Why a text is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address: write `127.0.0.1:9012`, `localhost:9012`, `[::1]:9012` or `unix:///path`")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    /// Reads an address without asking a name service: `localhost` is 127.0.0.1, other names are refused.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.chars().take(200).collect());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            let sound = path.starts_with('/') && path.len() < 4096 && !path.contains('\0');
            return if sound { Ok(Self::Unix(PathBuf::from(path))) } else { Err(bad()) };
        }
        let at = match text.strip_prefix("localhost:") {
            Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse().map_err(|_| bad())?)),
            None => text.parse().map_err(|_| bad())?,
        };
        if at.port() == 0 { Err(bad()) } else { Ok(Self::Tcp(at)) }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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
    /// What it serves.
    pub kind: EndpointKind,
    /// The address to contact.
    pub address: Address,
    /// What named the address.
    pub origin: EndpointOrigin,
    /// The processes that listen there; several when they share a port (SO_REUSEPORT), empty when unknown.
    pub listeners: Vec<ProcessKey>,
    /// Why it cannot be reached from here, in words and with what would fix it; `None` when it can.
    pub unreachable: Option<String>,
}

/// A process holding a chip, or (with `discover = "any"`) one that has jaxlib, torch_xla or libtpu mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Its pid and start time.
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
    /// The versions of its packages from dist-info, where found: of libtpu, jaxlib, jax and torch_xla; and of `python` from
    /// its files.
    pub versions: BTreeMap<String, String>,
    /// Inode of its pid namespace; `None` when it may not be read.
    pub pid_namespace: Option<u64>,
    /// Inode of its network namespace.
    pub network_namespace: Option<u64>,
    /// Whether that is ours.
    pub shares_our_network: bool,
    /// Its job.
    pub job: Job,
    /// Where it can be asked.
    pub endpoints: Vec<Endpoint>,
    /// Why it has no metric service, from its variables and listeners; `None` when it has one, or none is expected.
    pub no_metrics: Option<String>,
    /// What could not be found out, in words.
    pub notes: Vec<String>,
}

impl Owner {
    /// Its jaxlib or torch_xla with the version, where found: `jaxlib 0.10.2`.
    pub fn framework(&self) -> Option<String> {
        let version = |package: &str| Some(format!("{package} {}", self.versions.get(package)?));
        version("torch_xla").or_else(|| version("jaxlib"))
    }
}

/// Everybody who holds a chip on this host, as one scan found them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Workloads {
    /// The owners, by pid.
    pub owners: Vec<Owner>,
    /// Endpoints that belong to no owner: the host service, and static ones without a known process.
    pub endpoints: Vec<Endpoint>,
    /// Why a chip may be held by a process that this scan could not see, in words; `None` when it saw all of them.
    pub hidden: Option<String>,
    /// Chips of processes that asked to be left out.
    pub ignored: Vec<ChipIndex>,
    /// What could not be seen and what would change that, once each.
    pub notes: Vec<String>,
}

impl Workloads {
    /// Why a process that is not listed holds this chip or may hold it, in words; `None` when it would have been seen.
    pub fn owners_unknown(&self, chip: &Chip) -> Option<&str> {
        if chip.nodes.is_empty() {
            return Some("its device node is not known");
        }
        if self.ignored.contains(&chip.index) {
            return Some("a process that sets TPUSCOPE_IGNORE=1 holds it, and is left out");
        }
        self.hidden.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_known_only_of_a_known_node_and_where_all_processes_are_seen() {
        let known = Chip { nodes: vec!["/dev/vfio/0".into()], ..Chip::default() };
        let (all, some) =
            (Workloads::default(), Workloads { hidden: Some("why".into()), ..Workloads::default() });
        assert_eq!((all.owners_unknown(&known), some.owners_unknown(&known)), (None, Some("why")));
        let ignored = Workloads { ignored: vec![known.index], ..some.clone() };
        let left_out = Some("a process that sets TPUSCOPE_IGNORE=1 holds it, and is left out");
        assert_eq!(ignored.owners_unknown(&known), left_out);
        let other = Chip { index: ChipIndex(1), ..known.clone() };
        assert_eq!(ignored.owners_unknown(&other), Some("why"));
        let unknown = Some("its device node is not known");
        assert_eq!(
            (all.owners_unknown(&Chip::default()), some.owners_unknown(&Chip::default())),
            (unknown, unknown)
        );
    }

    #[test]
    fn addresses_are_read_without_a_name_service() {
        assert_eq!("localhost:8353".parse(), Ok(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 8353)))));
        assert_eq!("[::1]:80".parse::<Address>().map(|at| at.to_string()), Ok("[::1]:80".to_owned()));
        assert_eq!("unix:/run/x".parse(), "unix:///run/x".parse::<Address>());
        for bad in ["", "9012", "example.org:9012", "127.0.0.1:0", "127.0.0.1:70000", "unix:run/x", "unix:"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
