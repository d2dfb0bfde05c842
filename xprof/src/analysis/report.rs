//! The answer, in the shape that `sessions show --json` prints: see `docs/schemas/sessions-show.schema.json`.

use serde::Serialize;

use super::{
    Rules,
    align::{AlignedBy, Offset},
    annotations::HostAnnotations,
    host::HostStep,
    host_trace::{Core, HostTrace},
    input::InputWait,
    jobs::JobReport,
    ops::{OpKey, OpRow},
    programs::ProgramSteps,
    steps::Step,
    straggler::Straggler,
    summary::DurationSummary,
    xprof_steps,
};
use crate::{loss::Loss, session::ClockOffset};

/// What a session tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The session's name.
    pub session: String,
    /// One entry per part that could be read.
    pub hosts: Vec<HostReport>,
    /// The steps of all cores: per step the longest core. Without step markers, the runs of `step_program`.
    pub step_time: DurationSummary,
    /// These steps one by one, in their order; see `step_time`.
    #[serde(skip)]
    pub steps: Vec<SessionStep>,
    /// The program with the most time, where no marker numbers the steps.
    pub step_program: Option<String>,
    /// The programs, the one with the most time first, where no marker numbers the steps.
    pub programs: Vec<ProgramSteps>,
    /// XProf's two duty cycles, with its rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xprof_duty_cycle: Option<XprofDutyCycle>,
    /// How cores and hosts were brought together.
    pub alignment: Alignment,
    /// The core or host that the others wait for.
    pub straggler: Option<Straggler>,
    /// How much waited for input, where there are device steps.
    pub input: Option<InputWait>,
    /// The parts that are missing or cannot be read.
    pub missing: Vec<MissingPart>,
    /// What to know of the session beside its parts.
    pub warnings: Vec<String>,
    /// The jobs of a session that holds several: their parts are here and not among [`Self::hosts`].
    pub jobs: Vec<JobReport>,
}

impl Report {
    /// Every part that could be read, also of a session that holds several jobs.
    pub fn parts(&self) -> impl Iterator<Item = &HostReport> {
        self.hosts.iter().chain(self.jobs.iter().flat_map(|job| &job.report.hosts))
    }

    /// See [`Self::parts`].
    pub fn parts_mut(&mut self) -> impl Iterator<Item = &mut HostReport> {
        self.hosts.iter_mut().chain(self.jobs.iter_mut().flat_map(|job| &mut job.report.hosts))
    }
}

/// A step of a session: all cores that took part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionStep {
    /// Its number, where a marker of the host tells it.
    pub step_num: Option<i64>,
    /// How long its longest core took, or without cores its longest marker.
    pub duration_ps: i64,
}

/// XProf's two duty cycles, under its names. They differ where custom calls have no known floating-point work: the
/// high-confidence one does not take them for busy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct XprofDutyCycle {
    /// The one in XProf's headline.
    pub device_duty_cycle_percent: f64,
    /// The other one.
    pub device_duty_cycle_high_confidence_percent: f64,
}

impl XprofDutyCycle {
    /// Over all chips.
    pub(super) fn of(hosts: &[HostTrace]) -> Self {
        let sum = |of: fn(&Core) -> i64| -> f64 {
            hosts.iter().flat_map(|host| &host.cores).map(|core| of(core) as f64).sum()
        };
        let all = sum(|core| core.busy_ps.saturating_add(core.idle_ps));
        let percent = |busy: f64| if all > 0.0 { 100.0 * busy / all } else { 0.0 };
        Self {
            device_duty_cycle_percent: percent(sum(|core| core.headline_busy_ps)),
            device_duty_cycle_high_confidence_percent: percent(sum(|core| core.busy_ps)),
        }
    }
}

/// How cores and hosts were brought together.
#[derive(Debug, Serialize)]
pub struct Alignment {
    /// What tells that steps are the same.
    pub by: AlignedBy,
    /// How the hosts' time lines lie to the first one's.
    pub offsets: Vec<Offset>,
}

/// A part that is not among the hosts.
#[derive(Debug, Clone, Serialize)]
pub struct MissingPart {
    /// Its file, or what it should have been.
    pub file: String,
    /// Why it is missing.
    pub why: String,
}

/// One part.
#[derive(Debug, Serialize)]
pub struct HostReport {
    /// The host.
    pub host: String,
    /// The part's file name.
    pub file: String,
    /// The kind of its chips, where the trace says it.
    pub chip: Option<String>,
    /// How the host's clock stood to that of the coordinator of its capture, where that was measured.
    pub clock: Option<ClockOffset>,
    /// The versions of the process's libraries by name, where the trace says them.
    pub versions: std::collections::BTreeMap<String, String>,
    /// When the session began, in nanoseconds since the epoch by the host's clock.
    pub profile_start_ns: Option<i64>,
    /// How long it was.
    pub window_ps: i64,
    /// The host's step markers.
    pub host_steps: Vec<HostStepReport>,
    /// The cores.
    pub cores: Vec<CoreReport>,
    /// The operations that took most time.
    pub top_ops: Vec<OpReport>,
    /// How the operations' self time splits by category.
    pub categories: Vec<CategoryReport>,
    /// The collectives, by opcode.
    pub collectives: Vec<CollectiveReport>,
    /// The host's annotations, all of them; none with XProf's rules, whose pages have none.
    pub annotations: Option<HostAnnotations>,
    /// What the trace lost.
    pub losses: Vec<Loss>,
    /// What is left out of the figures because its times cannot be true; it is among the warnings.
    #[serde(skip)]
    pub left_out: Vec<String>,
    /// What to know before trusting the figures; what was lost comes first.
    pub warnings: Vec<String>,
}

/// A step marker.
#[derive(Debug, Serialize)]
pub struct HostStepReport {
    /// Its number.
    pub step_num: Option<i64>,
    /// Its start.
    pub start_ps: i64,
    /// Its end.
    pub end_ps: i64,
}

/// One core.
#[derive(Debug, Serialize)]
pub struct CoreReport {
    /// Its plane.
    pub plane: String,
    /// The plane's id; XProf's core key with `--as-xprof`.
    pub id: i64,
    /// Its steps.
    pub steps: Vec<StepReport>,
    /// From the first start to the last end.
    pub span_ps: i64,
    /// Busy time.
    pub busy_ps: i64,
    /// Idle time.
    pub idle_ps: i64,
    /// Busy in parts of busy and idle.
    pub duty_cycle: f64,
    /// The clock that measured it.
    pub clock: MeasuredBy,
    /// Its programs' executions.
    pub modules: Vec<ModuleReport>,
}

/// The clock that measured a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredBy {
    /// That of the trace's lines.
    Line,
    /// The device's own: the line's jumped.
    Device,
}

/// One step of a core.
#[derive(Debug, Serialize)]
pub struct StepReport {
    /// Its number, where it is known.
    pub step_num: Option<i64>,
    /// The name of its first program, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Its id, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_id: Option<String>,
    /// Its start.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
}

/// One program's execution.
#[derive(Debug, Serialize)]
pub struct ModuleReport {
    /// The program.
    pub name: String,
    /// Its id, in decimal.
    pub program_id: Option<String>,
    /// The execution's id; each core counts its own.
    pub run_id: Option<u64>,
    /// The run that it is part of: executions of one run on several cores have the same number.
    pub run: Option<u64>,
    /// Its start.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
}

/// One operation of a program.
#[derive(Debug, Default, Serialize)]
pub struct OpReport {
    /// Its short name.
    pub name: String,
    /// Its HLO category.
    pub category: String,
    /// The name of its program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The id of its program, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_id: Option<String>,
    /// How often it ran.
    pub occurrences: u64,
    /// Total time, ps.
    pub time_ps: i64,
    /// How long without its children.
    pub self_time_ps: i64,
    /// The source line that it comes from, as file:line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The framework's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework_op: Option<String>,
    /// Floating-point operations of one execution, as the compiler counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    /// Bytes that one execution reads and writes in all memories, as the compiler counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Floating-point operations in a second of its self time, on one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops_per_second: Option<f64>,
    /// That in parts of the core's peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops_of_peak: Option<f64>,
    /// Bytes to and from HBM in a second of its self time, on one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_bytes_per_second: Option<f64>,
    /// That in parts of the core's peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hbm_of_peak: Option<f64>,
}

impl OpReport {
    fn of(trace: &HostTrace, key: &OpKey, row: &OpRow, rules: Rules) -> Self {
        let common = Self {
            name: key.name.clone(),
            category: key.category.clone(),
            program_id: key.program.map(|id| id.to_string()),
            occurrences: row.totals.occurrences,
            time_ps: row.totals.time_ps,
            self_time_ps: row.totals.self_time_ps,
            ..Self::default()
        };
        match rules {
            Rules::Xprof => common,
            Rules::True => common.with_details(trace, key, row),
        }
    }

    /// Adds what XProf's table of operations does not have.
    fn with_details(self, trace: &HostTrace, key: &OpKey, row: &OpRow) -> Self {
        let rate = |work: f64| {
            let seconds = row.totals.self_time_ps as f64 / 1e12;
            (work > 0.0 && seconds > 0.0).then(|| work / seconds)
        };
        let (flops_per_second, hbm_bytes_per_second) = (rate(row.work.flops), rate(row.work.hbm_bytes));
        let of_peak = |rate: Option<f64>, peak: Option<f64>| Some(rate? / peak?);
        let text = |number| trace.ops.texts.get(number).map(str::to_owned);
        Self {
            program: key.program.and_then(|id| trace.programs.get(&id).cloned()),
            source: text(row.detail.source),
            framework_op: text(row.detail.framework_op),
            flops: row.detail.flops,
            bytes: row.detail.bytes,
            flops_per_second,
            flops_of_peak: of_peak(flops_per_second, trace.peaks.flops),
            hbm_bytes_per_second,
            hbm_of_peak: of_peak(hbm_bytes_per_second, trace.peaks.hbm),
            ..self
        }
    }
}

/// One category of operations.
#[derive(Debug, Serialize)]
pub struct CategoryReport {
    /// Its name.
    pub category: String,
    /// The self time of its operations.
    pub self_time_ps: i64,
    /// In parts of all self time.
    pub share: f64,
}

/// One kind of collective.
#[derive(Debug, Serialize)]
pub struct CollectiveReport {
    /// Its opcode.
    pub opcode: &'static str,
    /// How often it ran, starts and ends of asynchronous ones counted each.
    pub occurrences: u64,
    /// How long, waiting included.
    pub self_time_ps: i64,
}

impl HostReport {
    pub(super) fn of(trace: HostTrace, host: usize, rules: Rules, top: Option<usize>) -> Self {
        let rows = trace.ops.sorted();
        let shown = top.unwrap_or(rows.len()).min(rows.len());
        let top_ops = rows[..shown].iter().map(|(key, row)| OpReport::of(&trace, key, row, rules)).collect();
        let categories = categories(&trace);
        let collectives = trace.collectives.iter().map(|(kind, totals)| CollectiveReport {
            opcode: kind.opcode(),
            occurrences: totals.occurrences,
            self_time_ps: totals.self_time_ps,
        });
        Self {
            top_ops,
            categories,
            collectives: collectives.collect(),
            host_steps: trace.host_steps.iter().map(HostStepReport::of).collect(),
            cores: trace.cores.into_iter().map(|core| CoreReport::of(core, host, rules)).collect(),
            host: trace.host,
            file: trace.file,
            chip: trace.chip,
            clock: trace.clock.map(|clock| clock.offset),
            versions: trace.versions,
            profile_start_ns: trace.profile_start_ns,
            window_ps: trace.window_ps,
            annotations: (rules == Rules::True).then_some(trace.annotations),
            losses: trace.losses,
            left_out: trace.left_out,
            warnings: trace.warnings,
        }
    }
}

fn categories(trace: &HostTrace) -> Vec<CategoryReport> {
    let mut sums = std::collections::BTreeMap::new();
    for (key, row) in &trace.ops.rows {
        let sum: &mut i64 = sums.entry(key.category.as_str()).or_default();
        *sum = sum.saturating_add(row.totals.self_time_ps);
    }
    let all: i64 = sums.values().fold(0, |all, &sum| all.saturating_add(sum));
    let report = |(category, self_time_ps): (&str, i64)| CategoryReport {
        category: category.to_owned(),
        self_time_ps,
        share: if all > 0 { self_time_ps as f64 / all as f64 } else { 0.0 },
    };
    let mut reports: Vec<_> = sums.into_iter().map(report).collect();
    reports.sort_by_key(|report| std::cmp::Reverse(report.self_time_ps));
    reports
}

impl HostStepReport {
    fn of(step: &HostStep) -> Self {
        Self { step_num: step.step_num, start_ps: step.start_ps, end_ps: step.end_ps }
    }
}

impl CoreReport {
    fn of(core: Core, host: usize, rules: Rules) -> Self {
        let duty_cycle = core.duty_cycle();
        let steps = (0..core.steps.len()).map(|at| StepReport::of(&core, at)).collect();
        let id = match rules {
            Rules::True => core.id,
            Rules::Xprof => {
                let sparse = if core.sparse { 1_000_000 } else { 0 };
                core.id.saturating_add(1000 * host as i64).saturating_add(sparse)
            }
        };
        let modules = core.modules.into_iter().map(|module| ModuleReport {
            name: module.name,
            program_id: module.program_id.map(|id| id.to_string()),
            run_id: module.run_id,
            run: module.run,
            start_ps: module.start_ps,
            duration_ps: module.duration_ps,
        });
        Self {
            plane: core.plane,
            id,
            steps,
            span_ps: core.span_ps,
            busy_ps: core.busy_ps,
            idle_ps: core.idle_ps,
            duty_cycle,
            clock: if core.by_device_clock { MeasuredBy::Device } else { MeasuredBy::Line },
            modules: modules.collect(),
        }
    }
}

impl StepReport {
    fn of(core: &Core, at: usize) -> Self {
        let step = &core.steps[at];
        Self {
            step_num: step.step_num,
            program: core.first_module(at).map(|module| module.name.clone()),
            program_id: core.first_module(at).and_then(|module| module.program_id).map(|id| id.to_string()),
            start_ps: step.start_ps,
            duration_ps: step.duration_ps,
        }
    }
}

/// With several hosts XProf pairs their steps by overlap and numbers what is left from 0.
pub(super) fn pair_as_xprof(hosts: &mut [HostTrace]) {
    if hosts.len() < 2 {
        return;
    }
    let steps: Vec<_> = hosts
        .iter()
        .map(|host| {
            let core = host.cores.iter().find(|core| !core.sparse);
            core.map_or_else(Vec::new, |core| core.steps.iter().map(Step::interval).collect())
        })
        .collect();
    let Some((from, count)) = xprof_steps::pair_hosts(&steps) else {
        hosts.iter_mut().flat_map(|host| &mut host.cores).for_each(|core| core.keep_steps(0, 0));
        return;
    };
    for (host, from) in hosts.iter_mut().zip(from) {
        host.cores.iter_mut().for_each(|core| core.keep_steps(from, count));
    }
}

impl Core {
    /// Keeps `count` steps from `from` on, numbered from 0.
    fn keep_steps(&mut self, from: usize, count: usize) {
        let end = from.saturating_add(count).min(self.steps.len());
        let range = from.min(end)..end;
        self.step_times = self.step_times.get(range.clone()).unwrap_or_default().to_vec();
        self.steps = self.steps[range].to_vec();
        for (num, step) in self.steps.iter_mut().enumerate() {
            step.step_num = Some(num as i64);
        }
    }
}
