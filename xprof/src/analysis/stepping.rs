//! The cores whose steps are compared, and what their steps are known by.

use super::host_trace::{Core, HostTrace};

/// A core with steps: its host, its place there, and itself.
pub(super) type Stepping<'a> = (usize, usize, &'a Core);

/// Per step of a core what it is known by; steps of one key are the same.
pub(super) type Keys = Vec<Option<i64>>;

/// The TensorCores that have steps, with their host's index and their own.
pub(super) fn stepping_cores(hosts: &[HostTrace]) -> impl Iterator<Item = Stepping<'_>> {
    hosts.iter().enumerate().flat_map(|(host, trace)| {
        let cores = trace.cores.iter().enumerate();
        cores
            .filter(|(_, core)| !core.sparse && !core.steps.is_empty())
            .map(move |(at, core)| (host, at, core))
    })
}
