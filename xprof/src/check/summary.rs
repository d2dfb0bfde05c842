//! What a checked trace holds, in figures that stay small.

use std::collections::BTreeMap;

use crate::loss::{self, CoreCounts, Loss};

/// What passed by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceSummary {
    /// Bytes of the XSpace.
    pub bytes: u64,
    /// Its planes in order of appearance, at most 1024.
    pub planes: Vec<PlaneSummary>,
    /// All planes, listed or not.
    pub plane_count: u64,
    /// All lines.
    pub lines: u64,
    /// All events.
    pub events: u64,
    /// Begin and end of the profile, nanoseconds since the epoch by the host's clock.
    pub window: Option<(u64, u64)>,
    /// Hosts that it names.
    pub hostnames: Vec<String>,
    /// The versions of the process's libraries by name, such as `jaxlib`, where it says them.
    pub versions: BTreeMap<String, String>,
    /// What the producer says went wrong.
    pub errors: Vec<String>,
    /// What the producer warns of.
    pub warnings: Vec<String>,
}

/// One plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaneSummary {
    /// Its name, at most 256 bytes of it.
    pub name: String,
    /// Its lines.
    pub lines: u64,
    /// Their events.
    pub events: u64,
    /// End of its last event in picoseconds since the session's start; `None` without events.
    pub end_ps: Option<i128>,
    /// Its programs, where it is a core.
    pub modules: u64,
    /// Its operations, where it is a core.
    pub ops: u64,
    /// End of the last program or operation; `None` without any.
    pub core_end_ps: Option<i128>,
    /// The longest time without a program, from the session's start on.
    pub longest_pause_ps: i128,
    /// Whether it names the event of dropped buffers.
    pub drop_event: bool,
    /// How many dropped traces it counts.
    pub dropped_traces: u64,
    /// Whether it names the event of a program's launch on a device.
    pub launches: bool,
}

impl PlaneSummary {
    /// Whether it is a TensorCore or another core of an accelerator.
    pub fn is_device(&self) -> bool {
        self.name.starts_with("/device:")
    }

    /// Whether it is a TPU's TensorCore: one per device that JAX shows.
    pub fn is_tensor_core(&self) -> bool {
        let ordinal = self.name.strip_prefix("/device:TPU:").unwrap_or_default();
        !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit())
    }
}

impl TraceSummary {
    /// What was lost, as far as the trace tells.
    pub fn losses(&self) -> Vec<Loss> {
        let dropped = self.planes.iter().flat_map(|plane| {
            let buffers = plane.drop_event.then(|| Loss::dropped_buffers(&plane.name));
            buffers.into_iter().chain(Loss::dropped_traces(&plane.name, plane.dropped_traces))
        });
        let clamp = |ps: i128| i64::try_from(ps).unwrap_or(i64::MAX);
        let cores: Vec<CoreCounts> = self
            .planes
            .iter()
            .filter(|plane| plane.is_tensor_core())
            .map(|plane| CoreCounts {
                plane: plane.name.clone(),
                modules: plane.modules,
                ops: plane.ops,
                end_ps: plane.core_end_ps.map(clamp),
                longest_pause_ps: clamp(plane.longest_pause_ps),
            })
            .collect();
        let window = self.window.map(|(start, stop)| clamp(i128::from(stop.saturating_sub(start)) * 1000));
        let launched = self.planes.iter().any(|plane| plane.launches);
        let devices = self.planes.iter().filter(|plane| plane.is_device()).map(|plane| plane.events);
        dropped
            .chain(loss::of_cores(&cores, window))
            .chain(Loss::size(self.bytes))
            .chain(Loss::no_device(launched, devices))
            .collect()
    }
}
