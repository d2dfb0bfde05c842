//! What one part of a session tells: the trace of one process as figures.

use std::collections::{BTreeMap, HashMap};

use super::{
    annotations::HostAnnotations,
    category::Collective,
    core::{ClassTimes, CollectiveRun, Module},
    host::HostStep,
    launched::Launched,
    op_detail::Peaks,
    ops::{OpTable, Totals},
    steps::Step,
};
use crate::{loss::Loss, session::ClockOffset};

/// How the clock of a host stood to that of whoever coordinated its capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostClock {
    /// The offset, and the bound of its error.
    pub offset: ClockOffset,
    /// Which coordinator it was: offsets to different ones cannot be compared.
    pub coordinator: usize,
}

impl HostClock {
    /// How far this clock was ahead of another one, if both were measured by one coordinator.
    pub fn ahead_of(&self, other: &Self) -> Option<ClockOffset> {
        (self.coordinator == other.coordinator).then(|| ClockOffset {
            offset_ns: self.offset.offset_ns.saturating_sub(other.offset.offset_ns),
            bound_ns: self.offset.bound_ns.saturating_add(other.offset.bound_ns),
        })
    }
}

/// What one part of a session tells.
#[derive(Debug)]
pub struct HostTrace {
    /// The host.
    pub host: String,
    /// The part's file name.
    pub file: String,
    /// The id of the process, where the file says it.
    pub process_id: Option<i64>,
    /// The clock of the host, where it was measured at capture.
    pub clock: Option<HostClock>,
    /// The kind of the chips, such as `TPU v6 Lite`, where the file says it.
    pub chip: Option<String>,
    /// The versions of the process's libraries by name, where the trace says them.
    pub versions: BTreeMap<String, String>,
    /// When the session began, by the host's clock.
    pub profile_start_ns: Option<i64>,
    /// How long the session was; where the file does not say, how far its events reach.
    pub window_ps: i64,
    /// The host's step markers, by start.
    pub host_steps: Vec<HostStep>,
    /// The cores, in the file's order.
    pub cores: Vec<Core>,
    /// The operations of all cores; of the host where there is no core.
    pub ops: OpTable,
    /// The names of the programs by id.
    pub programs: BTreeMap<u64, String>,
    /// What each core can do at most, where all planes say the same.
    pub peaks: Peaks,
    /// Collectives by kind, over all cores.
    pub collectives: Vec<(Collective, Totals)>,
    /// Per step number of the host's markers, how long its events waited for input.
    pub input_ps: HashMap<i64, i64>,
    /// The host's annotations.
    pub annotations: HostAnnotations,
    /// What the trace lost.
    pub losses: Vec<Loss>,
    /// What is left out of the figures because its times cannot be true, in words.
    pub left_out: Vec<String>,
    /// What to know before trusting the figures; what was lost comes first.
    pub warnings: Vec<String>,
}

impl HostTrace {
    /// Takes out the losses that say that no device was traced: the capture did not ask for it.
    pub fn forget_losses_of_all_devices(&mut self) {
        let (gone, kept): (Vec<Loss>, Vec<Loss>) =
            self.losses.drain(..).partition(|loss| loss.kind.is_of_all_devices());
        self.losses = kept;
        self.warnings.retain(|warning| gone.iter().all(|loss| loss.message != *warning));
    }
}

/// What one core did.
#[derive(Debug, Default)]
pub struct Core {
    /// The plane's name.
    pub plane: String,
    /// The plane's id.
    pub id: i64,
    /// Whether it is a SparseCore.
    pub sparse: bool,
    /// Its steps, by start.
    pub steps: Vec<Step>,
    /// Per step, where its time went.
    pub step_times: Vec<ClassTimes>,
    /// From the first start to the last end of its programs and operations.
    pub span_ps: i64,
    /// How long it was busy.
    pub busy_ps: i64,
    /// How long it was not.
    pub idle_ps: i64,
    /// How long it was busy if kernels of unknown work count, as in XProf's headline. By our rules the same as
    /// `busy_ps`.
    pub headline_busy_ps: i64,
    /// Whether its times come from the device's clock because the line's jumped.
    pub by_device_clock: bool,
    /// Its programs' executions.
    pub modules: Vec<Module>,
    /// The collectives that it takes part in together with other cores.
    pub collectives: Vec<CollectiveRun>,
    /// What the host launched on it.
    pub(super) launched: Launched,
}

impl Core {
    /// The first and the last run id on the core, shown or launched; none where the host's launches are not known.
    pub(super) fn launched_ids(&self) -> Option<(i64, i64)> {
        let (first, last) = self.launched.ids?;
        let ids = || self.modules.iter().filter_map(|module| module.run_id).chain([first, last]);
        let id = |id: Option<u64>| i64::try_from(id?).ok();
        id(ids().min()).zip(id(ids().max()))
    }

    /// The run that the first program of a step is part of.
    pub(super) fn run(&self, step: usize) -> Option<u64> {
        self.first_module(step)?.run
    }

    /// The first program of a step.
    pub(super) fn first_module(&self, step: usize) -> Option<&Module> {
        self.modules.get(self.steps.get(step)?.module? as usize)
    }

    /// Busy time in parts of busy and idle time.
    pub fn duty_cycle(&self) -> f64 {
        match self.busy_ps.saturating_add(self.idle_ps) {
            0 => 0.0,
            all => self.busy_ps as f64 / all as f64,
        }
    }
}
