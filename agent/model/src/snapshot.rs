//! The host at one moment, as the sources need to know it.

use std::sync::Arc;

use crate::{
    device::Chip,
    workload::{ProcessKey, Workload, Workloads},
};

/// The chips of the host and the processes that hold them.
#[derive(Debug, Clone)]
pub struct HostSnapshot {
    /// The chips.
    pub chips: Arc<[Chip]>,
    /// Why it is not known which chips there are, in words; `chips` are then those of before. `None` when they were listed.
    pub chips_unknown: Option<Arc<str>>,
    /// How many chips this host should have; `None` when nothing says.
    pub chips_expected: Option<u32>,
    /// The owners of the chips.
    pub workloads: Arc<Workloads>,
    /// The workloads that these owners make up.
    pub running: Arc<[Arc<Workload>]>,
}

impl HostSnapshot {
    /// Whether the host has no chip, no workload and no endpoint.
    pub fn is_idle(&self) -> bool {
        self.chips.is_empty() && self.workloads.owners.is_empty() && self.workloads.endpoints.is_empty()
    }

    /// The workload of a process.
    pub fn workload_of(&self, process: ProcessKey) -> Option<&Arc<Workload>> {
        self.running.iter().find(|workload| workload.owners.contains(&process))
    }
}

impl Default for HostSnapshot {
    fn default() -> Self {
        Self {
            chips: Arc::from([]),
            chips_unknown: None,
            chips_expected: None,
            workloads: Arc::default(),
            running: Arc::from([]),
        }
    }
}
