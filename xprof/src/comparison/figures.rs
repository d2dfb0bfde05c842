//! One session as the figures that are compared. Its size grows with steps and distinct operations.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    analysis::{
        CoreReport, DurationSummary, HostReport, InputWait, ProgramSteps, Report, SessionStep, Straggler,
    },
    session::SessionContext,
};

/// What a session has figures of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// Of the cores of devices.
    Devices,
    /// Of the host alone.
    Host,
    /// Of nothing.
    Empty,
}

/// A program and an operation of it. Programs of one name are one: their ids change with each compilation.
pub(super) type OpName = (String, String);

/// How long an operation took, over all cores.
#[derive(Debug, Default, Clone)]
pub(super) struct OpSum {
    pub(super) category: String,
    pub(super) self_time_ps: i64,
    pub(super) occurrences: u64,
}

/// One session.
#[derive(Debug)]
pub struct SessionFigures {
    pub(super) kind: TraceKind,
    pub(super) steps: Vec<SessionStep>,
    pub(super) step_time: DurationSummary,
    pub(super) step_program: Option<String>,
    pub(super) programs: Vec<ProgramSteps>,
    pub(super) busy: Option<f64>,
    pub(super) input: Option<InputWait>,
    pub(super) straggler: Option<Straggler>,
    pub(super) losses: Vec<String>,
    pub(super) warnings: usize,
    pub(super) operations: BTreeMap<OpName, OpSum>,
    /// Self time by category, over all cores.
    pub(super) categories: BTreeMap<String, i64>,
    /// Time by opcode, over all cores.
    pub(super) collectives: BTreeMap<&'static str, i64>,
    /// How often each program ran, each core counted.
    pub(super) program_runs: BTreeMap<String, u64>,
    /// The steps of each core, or of each host without cores, counted together.
    pub(super) core_steps: u64,
    pub(super) hosts: BTreeSet<String>,
    pub(super) processes: usize,
    pub(super) chips: BTreeSet<String>,
    pub(super) cores: usize,
    pub(super) context: SessionContext,
}

impl SessionFigures {
    /// Of a session of one job, read by true rules and with all its operations.
    pub fn of(report: &Report, context: SessionContext) -> Self {
        let hosts = &report.hosts;
        let cores = || hosts.iter().flat_map(|host| &host.cores).filter(|core| !is_sparse(core));
        let kind = match (cores().next(), hosts.iter().all(is_empty)) {
            (Some(_), _) => TraceKind::Devices,
            (None, false) => TraceKind::Host,
            (None, true) => TraceKind::Empty,
        };
        let losses = hosts.iter().flat_map(|host| {
            let named = move |text: &String| match hosts.len() {
                1 => text.clone(),
                _ => format!("{}: {text}", host.host),
            };
            host.losses.iter().map(move |loss| named(&loss.message))
        });
        let mut figures = Self {
            kind,
            steps: report.steps.clone(),
            step_time: report.step_time,
            step_program: report.step_program.as_deref().map(|name| base(name).to_owned()),
            programs: report.programs.clone(),
            busy: busy(cores()),
            input: report.input,
            straggler: report.straggler.clone(),
            losses: losses.collect(),
            warnings: report.warnings.len() + hosts.iter().map(|host| host.warnings.len()).sum::<usize>(),
            operations: BTreeMap::new(),
            categories: BTreeMap::new(),
            collectives: BTreeMap::new(),
            program_runs: BTreeMap::new(),
            core_steps: core_steps(report),
            hosts: hosts.iter().map(|host| host.host.clone()).collect(),
            processes: hosts.len(),
            chips: hosts.iter().filter_map(|host| host.chip.clone()).collect(),
            cores: cores().count(),
            context,
        };
        for module in cores().flat_map(|core| &core.modules) {
            *figures.program_runs.entry(base(&module.name).to_owned()).or_default() += 1;
        }
        hosts.iter().for_each(|host| figures.add_operations(host));
        figures
    }

    /// How many threads of steps it has: cores, or without cores processes.
    pub(super) fn lanes(&self) -> u64 {
        if self.cores > 0 { self.cores as u64 } else { self.processes as u64 }
    }

    fn add_operations(&mut self, host: &HostReport) {
        for op in &host.top_ops {
            let program = op.program.as_deref().map(base).unwrap_or_default();
            let sum = self.operations.entry((program.to_owned(), op.name.clone())).or_default();
            if sum.category.is_empty() {
                sum.category.clone_from(&op.category);
            }
            sum.self_time_ps = sum.self_time_ps.saturating_add(op.self_time_ps);
            sum.occurrences = sum.occurrences.saturating_add(op.occurrences);
        }
        for category in &host.categories {
            let sum = self.categories.entry(category.category.clone()).or_default();
            *sum = sum.saturating_add(category.self_time_ps);
        }
        for kind in &host.collectives {
            let sum = self.collectives.entry(kind.opcode).or_default();
            *sum = sum.saturating_add(kind.self_time_ps);
        }
    }
}

/// A program's name without the id that tells it from others of its name: `jit_f` of `jit_f(1219…)`.
pub(super) fn base(name: &str) -> &str {
    name.split('(').next().unwrap_or(name)
}

fn is_sparse(core: &CoreReport) -> bool {
    core.plane.contains(" SparseCore ")
}

fn is_empty(host: &HostReport) -> bool {
    host.host_steps.is_empty() && host.top_ops.is_empty()
}

fn busy<'r>(cores: impl Iterator<Item = &'r CoreReport>) -> Option<f64> {
    let (busy, all) = cores.fold((0.0, 0.0), |(busy, all), core| {
        let core_busy = core.busy_ps as f64;
        (busy + core_busy, all + core_busy + core.idle_ps as f64)
    });
    (all > 0.0).then(|| busy / all)
}

/// The steps that `step_time` is about, each core of each host counted; without cores each marker.
fn core_steps(report: &Report) -> u64 {
    let program = report.step_program.as_deref();
    let is_headline = |of: Option<&str>| program.is_none_or(|program| of.unwrap_or_default() == program);
    let of_host = |host: &HostReport| match host.cores.is_empty() {
        true => host.host_steps.len(),
        false => {
            let cores = host.cores.iter().filter(|core| !is_sparse(core));
            let steps = cores.flat_map(|core| &core.steps);
            steps.filter(|step| is_headline(step.program.as_deref())).count()
        }
    };
    report.hosts.iter().map(of_host).sum::<usize>() as u64
}
