//! Section `[workload]`: which processes to look for, and which of their ports may be contacted.

use documented::{Documented, DocumentedFields};
use model::{
    unit::Duration,
    workload::{Address, EndpointKind},
};
use serde::{Deserialize, Serialize};

/// The search for workloads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Processes to report: `chips` for processes that have a chip open; `any` also for processes that have jaxlib,
    /// torch_xla or libtpu mapped, for hosts without chips.
    pub discover: Discover,
    /// Ports to contact. `named`: ports in the variables of an owner, known default ports on which an owner listens, and
    /// `endpoints`. `listeners`: also every other port on which an owner listens, once for each port, to find profilers.
    pub probe: Probe,
    /// Interval between scans of all processes; at least 250ms. Known owners are checked at every `sampler.interval`; a change starts
    /// the next scan early. A host without chips and `endpoints` is scanned at thirty times this interval, and a host whose
    /// last owner came more than a minute ago at six times.
    pub scan_interval: Duration,
    /// Additional addresses to contact, as tables with `kind` and `address`.
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
