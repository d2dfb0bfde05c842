//! The answer, in the shape that `sessions show --json` prints: see `docs/schemas/sessions-show.schema.json`.

use serde::Serialize;

use super::{
    Rules,
    align::{AlignedBy, Offset},
    host::HostStep,
    input::Input,
    steps::Step,
    straggler::Straggler,
    summary::Summary,
    trace::{Core, HostTrace},
    xprof_steps,
};
use crate::loss::Loss;

/// What a session tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The session's name.
    pub session: String,
    /// One entry per part that could be read.
    pub hosts: Vec<HostReport>,
    /// The steps of all cores: per step the longest core.
    pub step_time: Summary,
    /// How cores and hosts were brought together.
    pub alignment: Alignment,
    /// Whom the others wait for.
    pub straggler: Option<Straggler>,
    /// How much waited for input, where there are device steps.
    pub input: Option<Input>,
    /// The parts that are missing or cannot be read.
    pub missing: Vec<MissingPart>,
    /// What to know of the session beside its parts.
    pub warnings: Vec<String>,
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
    /// Why.
    pub why: String,
}

/// One part.
#[derive(Debug, Serialize)]
pub struct HostReport {
    /// The host.
    pub host: String,
    /// The part's file name.
    pub file: String,
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
    /// What the trace lost.
    pub losses: Vec<Loss>,
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
    /// Its programs' executions.
    pub modules: Vec<ModuleReport>,
}

/// One step of a core.
#[derive(Debug, Serialize)]
pub struct StepReport {
    /// Its number, where it is known.
    pub step_num: Option<i64>,
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
    /// The execution's id.
    pub run_id: Option<u64>,
    /// Its start.
    pub start_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
}

/// One operation.
#[derive(Debug, Serialize)]
pub struct OpReport {
    /// Its short name.
    pub name: String,
    /// Its HLO category.
    pub category: String,
    /// How often it ran.
    pub occurrences: u64,
    /// How long.
    pub time_ps: i64,
    /// How long without its children.
    pub self_time_ps: i64,
    /// Its program, where rows are told apart by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_id: Option<String>,
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
        let top_ops = rows[..shown]
            .iter()
            .map(|(key, totals)| OpReport {
                name: key.name.clone(),
                category: key.category.clone(),
                occurrences: totals.occurrences,
                time_ps: totals.time_ps,
                self_time_ps: totals.self_time_ps,
                program_id: key.symbol.map(|(program, _)| program.to_string()),
            })
            .collect();
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
            profile_start_ns: trace.profile_start_ns,
            window_ps: trace.window_ps,
            losses: trace.losses,
            warnings: trace.warnings,
        }
    }
}

fn categories(trace: &HostTrace) -> Vec<CategoryReport> {
    let mut sums = std::collections::BTreeMap::new();
    for (key, totals) in &trace.ops.rows {
        let sum: &mut i64 = sums.entry(key.category.as_str()).or_default();
        *sum = sum.saturating_add(totals.self_time_ps);
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
            start_ps: module.start_ps,
            duration_ps: module.duration_ps,
        });
        Self {
            plane: core.plane,
            id,
            steps: core.steps.iter().map(StepReport::of).collect(),
            span_ps: core.span_ps,
            busy_ps: core.busy_ps,
            idle_ps: core.idle_ps,
            duty_cycle,
            modules: modules.collect(),
        }
    }
}

impl StepReport {
    fn of(step: &Step) -> Self {
        Self { step_num: step.step_num, start_ps: step.start_ps, duration_ps: step.duration_ps }
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
