//! What a trace says: steps, operations, busy and idle time, the offsets between the clocks of hosts, and
//! which core the others wait for.
//!
//! ```text
//! trace    one part: file to figures          session (here)   all parts together
//!   host, groups   markers, launches, links      runs            executions that are one run
//!   clock          the two clocks of a core      align           same steps, clock offsets
//!   core, nesting  operations, self time         programs        steps by program
//!   core_runs      the same run on each core
//!   steps          steps as they were            straggler       the core that the others wait for
//!   xprof_steps,   steps and busy time as        input           waiting for input
//!   xprof_host       XProf computes them         report          the shape of the answer
//! ```
//!
//! Memory is bounded by steps, programs and distinct operations, never by events. Two sets of rules: ours,
//! and XProf's with all its quirks for comparison. Must never print, and never open a file itself.

mod align;
mod annotations;
mod async_ops;
mod busy;
mod by_collectives;
mod category;
mod clock;
mod core;
mod core_runs;
mod device_events;
mod device_idle;
mod duty;
mod groups;
mod host;
mod host_trace;
mod in_order;
mod input;
mod jobs;
mod launched;
mod losses;
mod missing_runs;
mod module_extents;
mod nesting;
mod op_detail;
mod ops;
mod placing;
mod planes;
mod programs;
mod range_min;
mod report;
mod runs;
mod stepping;
mod steps;
mod straggler;
mod straight_fit;
mod summary;
mod time_line;
mod trace;
mod union;
mod untaken;
mod warnings;
mod xprof_host;
mod xprof_steps;

pub use self::{
    align::{AlignedBy, Offset, OffsetBy},
    annotations::{Annotation, HostAnnotations},
    category::{Class, Collective},
    core::{CollectiveRun, Module},
    host::HostStep,
    host_trace::{Core, HostClock, HostTrace},
    input::{InputWait, Verdict},
    jobs::{JobPart, JobReport, by_job},
    op_detail::Peaks,
    ops::{OpKey, OpRow, OpTable, Totals},
    programs::ProgramSteps,
    report::{
        Alignment, CategoryReport, CollectiveReport, CoreReport, HostReport, HostStepReport, MeasuredBy,
        MissingPart, ModuleReport, OpReport, Report, SessionStep, StepReport, XprofDutyCycle,
    },
    steps::{Step, StepOrigin},
    straggler::Straggler,
    summary::DurationSummary,
    time_line::PlacedPart,
    trace::{read, read_any},
};

pub(crate) use placing::Placing;
pub(crate) use summary::median;

use align::{Aligned, StepRef};

/// Whose rules the figures follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// What really happened, as far as the trace tells.
    True,
    /// What XProf 2.24 computes, for comparison with it.
    Xprof,
}

/// Brings the parts of a session together. `top` bounds the operations of each host.
pub fn session(
    name: String,
    mut hosts: Vec<HostTrace>,
    missing: Vec<MissingPart>,
    rules: Rules,
    top: Option<usize>,
) -> Report {
    let runs_are_paired = runs::pair(&mut hosts);
    if rules == Rules::Xprof {
        report::pair_as_xprof(&mut hosts);
    }
    let mut aligned = align::align(&hosts, runs_are_paired);
    let alignment =
        Alignment { by: alignment_by(&hosts, &aligned), offsets: align::offsets(&hosts, &aligned) };
    // Programs of different kinds make no common step: the one with most time stands for the session.
    let mut programs = programs::keep_longest(&hosts, &mut aligned);
    if rules == Rules::True {
        programs::distinguish(&mut hosts, &mut programs);
    }
    let steps = session_steps(&hosts, &aligned);
    Report {
        session: name,
        step_time: DurationSummary::of(steps.iter().map(|step| step.duration_ps).collect()),
        steps,
        step_program: programs.first().map(|program| program.name.clone()),
        programs,
        xprof_duty_cycle: (rules == Rules::Xprof).then(|| XprofDutyCycle::of(&hosts)),
        alignment,
        straggler: straggler::find(&hosts, &aligned),
        input: input::judge(&hosts, &aligned, rules),
        hosts: hosts
            .into_iter()
            .enumerate()
            .map(|(at, trace)| HostReport::of(trace, at, rules, top))
            .collect(),
        missing,
        warnings: Vec::new(),
        jobs: Vec::new(),
    }
}

/// Per step the longest core, in the order of their numbers or runs; without cores the host's markers.
fn session_steps(hosts: &[HostTrace], aligned: &Aligned) -> Vec<SessionStep> {
    let number = |at: &StepRef| hosts.get(at.host)?.cores.get(at.core)?.steps.get(at.step)?.step_num;
    let step = |steps: &Vec<StepRef>| {
        let duration_ps = programs::longest(hosts, steps)?;
        Some(SessionStep { step_num: steps.iter().find_map(number), duration_ps })
    };
    let steps: Vec<SessionStep> = aligned.steps.iter().filter_map(step).collect();
    if steps.is_empty() { marker_steps(hosts) } else { steps }
}

/// The longest marker of each number, over the hosts that have no core.
fn marker_steps(hosts: &[HostTrace]) -> Vec<SessionStep> {
    let mut by_num = std::collections::BTreeMap::new();
    let mut alone = Vec::new();
    for step in hosts.iter().filter(|host| host.cores.is_empty()).flat_map(|host| &host.host_steps) {
        let duration = step.end_ps.saturating_sub(step.start_ps);
        match step.step_num {
            Some(num) => {
                let known = by_num.entry(num).or_insert(duration);
                *known = duration.max(*known);
            }
            None => alone.push(SessionStep { step_num: None, duration_ps: duration }),
        }
    }
    let numbered =
        by_num.into_iter().map(|(num, duration_ps)| SessionStep { step_num: Some(num), duration_ps });
    numbered.chain(alone).collect()
}

fn alignment_by(hosts: &[HostTrace], aligned: &Aligned) -> AlignedBy {
    let numbered = |host: &HostTrace| host.host_steps.iter().any(|step| step.step_num.is_some());
    if aligned.steps.is_empty() && !hosts.is_empty() && hosts.iter().all(numbered) {
        return AlignedBy::StepNum;
    }
    aligned.by
}
