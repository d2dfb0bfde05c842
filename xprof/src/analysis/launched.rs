//! What the host launched on a core, against the runs that the core shows.
//!
//! A launch whose run is not there was lost if the core ran later ones, or if it was traced already and its next run
//! is another; after the last run it may only wait for its turn. Must never take a launch on another kind of core for
//! one on this.

use super::{
    device_events::DeviceEvent,
    host::{Launch, RUN_ID_BITS},
    steps::HostSide,
};

/// What the host launched on one core.
#[derive(Debug, Default)]
pub(super) struct Launched {
    /// The least and the greatest run id.
    pub(super) ids: Option<(u64, u64)>,
    /// The launches without a run: run id, and when the host enqueued it; by id.
    pub(super) missing: Vec<(u64, i64)>,
}

impl Launched {
    /// On the core `ordinal`, which shows `modules`.
    pub(super) fn of(ordinal: i64, modules: &[DeviceEvent], host: &HostSide<'_>) -> Self {
        let core_type = modules.first().map_or(0, |module| module.core_type);
        let of_core = |launch: &Launch| launch.ordinal == ordinal && launch.core_type == core_type;
        let mut all: Vec<(u64, u64, i64)> = host
            .groups
            .enqueued
            .iter()
            .filter(|(launch, _)| of_core(launch))
            .map(|(launch, &at)| (launch.queue_id, launch.run_id, at))
            .collect();
        all.sort_unstable();
        let key = |module: &DeviceEvent| Some((module.queue_id?, module.run_id? & RUN_ID_BITS));
        let mut seen: Vec<(u64, u64)> = modules.iter().filter_map(key).collect();
        seen.sort_unstable();
        let is_missing = |launch: &&(u64, u64, i64)| seen.binary_search(&(launch.0, launch.1)).is_err();
        let mut missing: Vec<(u64, i64)> = all.iter().filter(is_missing).map(|of| (of.1, of.2)).collect();
        missing.sort_unstable();
        let ids = || all.iter().map(|of| of.1);
        Self { ids: ids().min().zip(ids().max()), missing }
    }
}
