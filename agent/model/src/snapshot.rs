//! The host at one moment, as the sources need to know it.

use std::sync::Arc;

use crate::{device::Chip, workload::Workloads};

/// The chips of the host and the processes that hold them.
#[derive(Debug, Clone)]
pub struct HostSnapshot {
    /// The chips.
    pub chips: Arc<[Chip]>,
    /// The owners of the chips.
    pub workloads: Arc<Workloads>,
}

impl HostSnapshot {
    /// Whether the host has no chip, no workload and no endpoint.
    pub fn is_idle(&self) -> bool {
        self.chips.is_empty() && self.workloads.owners.is_empty() && self.workloads.endpoints.is_empty()
    }
}

impl Default for HostSnapshot {
    fn default() -> Self {
        Self { chips: Arc::from([]), workloads: Arc::default() }
    }
}
