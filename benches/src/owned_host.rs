//! A host all of whose chips one Slurm job has open, as the discovery would describe it.

use std::sync::Arc;

use model::{
    device::{Chip, ChipIndex},
    job::{Job, JobKind},
    registry::WorkloadRegistry,
    snapshot::HostSnapshot,
    time::{Clock, SystemClock},
    workload::{Endpoint, EndpointKind, EndpointOrigin, Owner, ProcessKey, Workloads},
};

use crate::services::CHIPS;

/// The host of a job that is this process, with these endpoints.
pub fn snapshot(endpoints: &[(EndpointKind, &str)]) -> HostSnapshot {
    let chips: Vec<Chip> = (0..u32::try_from(CHIPS).unwrap())
        .map(|chip| Chip {
            index: ChipIndex(chip),
            pci: format!("0000:00:{:02x}", chip + 4),
            cores: Some(1),
            ..Chip::default()
        })
        .collect();
    let process = ProcessKey { pid: std::process::id(), start_ticks: 1 };
    let endpoint = |(kind, address): &(EndpointKind, &str)| Endpoint {
        kind: *kind,
        address: address.parse().unwrap(),
        origin: EndpointOrigin::Config,
        listeners: vec![process],
        unreachable: None,
    };
    let owner = Owner {
        process,
        chips: chips.iter().map(|chip| chip.index).collect(),
        job: Job { kind: JobKind::Slurm, id: "7".into(), ..Job::default() },
        shares_our_network: true,
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..Owner::default()
    };
    let mut registry = WorkloadRegistry::default();
    registry.observe(std::slice::from_ref(&owner), SystemClock.now());
    let running: Vec<_> = registry.running().cloned().collect();
    HostSnapshot {
        chips: chips.into(),
        workloads: Arc::new(Workloads { owners: vec![owner], ..Workloads::default() }),
        running: running.into(),
        ..HostSnapshot::default()
    }
}
