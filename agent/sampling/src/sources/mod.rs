//! The sources of samples: each source returns typed samples with their times, and the reason if it has none.
//!
//! Must never report a value that was not measured (absent is absent), contact a port that [`model::workload`] does
//! not name, or let one bad metric hide the others.

mod blocking;
mod distribution;
mod grpc;
pub mod host;
pub mod host_service;
pub mod libtpu;
pub mod orbax_grain;
mod retry;
pub mod runtime;
pub mod sim;
pub mod trace_steps;
mod tray_chip;

use std::{future::Future, pin::Pin, sync::Arc};

use model::{
    sample::{Origin, Sample},
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Address, Endpoint, EndpointKind, Owner, Workload},
};
use serde::Serialize;

/// The input of a source at each tick.
#[derive(Debug, Clone)]
pub struct Tick {
    /// When the tick was due.
    pub at: Timestamp,
    /// The host's chips, their owners and the workloads.
    pub host: HostSnapshot,
}

impl Tick {
    /// The endpoints of one kind, with their owners where they have one.
    fn endpoints(&self, kind: EndpointKind) -> impl Iterator<Item = (Option<&Owner>, &Endpoint)> {
        let of_owners = self
            .host
            .workloads
            .owners
            .iter()
            .flat_map(|owner| owner.endpoints.iter().map(move |endpoint| (Some(owner), endpoint)));
        let shared = self.host.workloads.endpoints.iter().map(|endpoint| (None, endpoint));
        of_owners.chain(shared).filter(move |(_, endpoint)| endpoint.kind == kind)
    }

    /// The workload of an owner.
    fn workload(&self, owner: &Owner) -> Option<Arc<Workload>> {
        self.host.workload_of(owner.process).cloned()
    }
}

/// Something that a source could not read, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Absence {
    /// What is missing: an endpoint, or a metric's name.
    pub what: String,
    /// The reason, and what would change it. Untrusted text is already escaped and bounded.
    pub why: String,
    /// The endpoint that should have it, where there is one.
    #[serde(skip)]
    pub endpoint: Option<Address>,
    /// The metric, where only one of the endpoint is missing.
    #[serde(skip)]
    pub metric: Option<&'static str>,
    /// Whether the rest of it is there: one metric of an endpoint or library that answers.
    pub partial: bool,
}

impl Absence {
    /// Something that belongs to no endpoint.
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), why: why.into(), ..Self::default() }
    }

    /// A part of something that answers.
    pub fn partial(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { partial: true, ..Self::new(what, why) }
    }

    /// All of an endpoint.
    pub fn of_endpoint(address: &Address, why: impl Into<String>) -> Self {
        Self { endpoint: Some(address.clone()), ..Self::new(address.to_string(), why) }
    }
}

/// The result of one read of a source.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// The values.
    pub samples: Vec<Sample>,
    /// What is missing.
    pub absent: Vec<Absence>,
    /// Why there was nothing to read on this host. That is no fault.
    pub unused: Option<String>,
}

impl Reading {
    /// A reading of a source that has nothing to read on this host.
    fn unused(why: impl Into<String>) -> Self {
        Self { unused: Some(why.into()), ..Self::default() }
    }
}

/// A source of samples. The sampler never overlaps two reads of one source.
pub trait Source: Send {
    /// Its name in labels and in `status`.
    fn origin(&self) -> Origin;

    /// Reads once, within the deadlines and byte limits of the source; never fails as a whole.
    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>>;
}

/// The time of a peer whose clock differs by more is not used.
const CLOCK_TRUST: i64 = 60 * 1_000_000_000;

/// When a peer says that it measured, if that can be: not in the future, not long before it was `read`.
fn said_at(seconds: i64, nanos: i32, read: Timestamp) -> Timestamp {
    let said = seconds.saturating_mul(1_000_000_000).saturating_add(nanos.into());
    if said <= read.0 && read.0.saturating_sub(said) < CLOCK_TRUST { Timestamp(said) } else { read }
}
