//! Section `[workload]`: which processes to look for, and which of their ports may be contacted.

use documented::{Documented, DocumentedFields};
use model::{
    unit::Duration,
    workload::{Address, EndpointKind},
};
use serde::{Deserialize, Serialize};

/// How workloads are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `chips`: processes that hold a chip. `any`: also those that have jaxlib, torch_xla or libtpu mapped, for
    /// hosts without chips.
    pub discover: Discover,
    /// `named`: only ports that the owner's variables, a known default that it listens on, or this file name.
    /// `listeners`: also ask every other listener of an owner, once, whether it is a profiler.
    pub probe: Probe,
    /// How often every process is looked at; known owners are checked at each tick, and a change brings the
    /// next full look forward. On a host without chips and named endpoints, six times as seldom.
    pub scan_interval: Duration,
    /// Addresses that may be asked whatever the owners say.
    pub endpoints: Vec<StaticEndpoint>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            discover: Discover::Chips,
            probe: Probe::Named,
            scan_interval: Duration::from_secs(10),
            endpoints: Vec::new(),
        }
    }
}

/// Which processes count as owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discover {
    /// Those that hold a chip.
    Chips,
    /// Those, and the ones that have jaxlib, torch_xla or libtpu mapped.
    Any,
}

/// Which listeners of an owner may be contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Probe {
    /// Only those that something names.
    Named,
    /// All, once each, with one harmless call.
    Listeners,
}

/// An endpoint that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticEndpoint {
    /// What it serves.
    pub kind: EndpointKind,
    /// `127.0.0.1:9012`, `localhost:9012` or `unix:///path`.
    pub address: Address,
}
