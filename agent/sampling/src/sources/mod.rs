//! Where samples come from: each source yields typed samples with an age, and gives the reason when it has none.
//!
//! Must never give a value that nobody measured (absent is absent), contact a port that [`model::workload`] does not name,
//! or let one bad metric hide the others.

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

use std::{future::Future, pin::Pin, sync::Arc};

use model::{
    sample::{Origin, Sample},
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Endpoint, EndpointKind, Owner, Workload},
};
use serde::Serialize;

/// What a source is told at each tick.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Absence {
    /// What is missing: an endpoint, or a metric's name.
    pub what: String,
    /// The reason, and what would change it. Untrusted text is already escaped and bounded.
    pub why: String,
}

/// What one read of a source gave.
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
    /// As it stands in labels and in `status`.
    fn origin(&self) -> Origin;

    /// Reads once, within deadlines and byte limits of its own; never fails as a whole.
    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>>;
}

/// A clock of a peer that is further off than this is not believed.
const CLOCK_TRUST: i64 = 60 * 1_000_000_000;

/// When a peer says that it measured, if that can be: not in the future, not long before it was `read`.
fn said_at(seconds: i64, nanos: i32, read: Timestamp) -> Timestamp {
    let said = seconds.saturating_mul(1_000_000_000).saturating_add(nanos.into());
    if said <= read.0 && read.0.saturating_sub(said) < CLOCK_TRUST { Timestamp(said) } else { read }
}
