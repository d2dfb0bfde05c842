//! What a trace says: steps, operations, busy and idle time, how cores and hosts lie to each other, and whom
//! the others wait for.
//!
//! ```text
//! trace    one part: file to figures          session (here)   all parts together
//!   host, groups   markers, launches, links      align           same steps, clock offsets
//!   core, nesting  operations, self time         straggler       who is waited for
//!   steps          steps as they were            input           waiting for input
//!   xprof_steps    steps as XProf tells them     report          the answer's shape
//! ```
//!
//! Memory is bounded by steps, programs and distinct operations, never by events. Two sets of rules: ours,
//! and XProf's with all its quirks for comparison. Must never print, and never open a file itself.

mod align;
mod busy;
mod by_collectives;
mod category;
mod core;
mod device_events;
mod groups;
mod host;
mod input;
mod losses;
mod nesting;
mod ops;
mod planes;
mod range_min;
mod report;
mod steps;
mod straggler;
mod summary;
mod trace;
mod union;
mod untaken;
mod warnings;
mod xprof_steps;

pub use self::{
    align::{AlignedBy, Offset, OffsetBy},
    category::{Class, Collective},
    core::{CollectiveRun, Module},
    host::HostStep,
    input::{Input, Verdict},
    ops::{OpKey, OpTable, Totals},
    report::{
        Alignment, CategoryReport, CollectiveReport, CoreReport, HostReport, HostStepReport, MissingPart,
        ModuleReport, OpReport, Report, StepReport,
    },
    steps::{Origin, Step},
    straggler::Straggler,
    summary::Summary,
    trace::{Core, HostTrace, read, read_any},
};

use align::Aligned;

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
    if rules == Rules::Xprof {
        report::pair_as_xprof(&mut hosts);
    }
    let aligned = align::align(&hosts);
    Report {
        session: name,
        step_time: step_time(&hosts, &aligned),
        alignment: Alignment {
            by: alignment_by(&hosts, &aligned),
            offsets: align::offsets(&hosts, &aligned),
        },
        straggler: straggler::find(&hosts, &aligned),
        input: input::judge(&hosts, &aligned, rules),
        hosts: hosts
            .into_iter()
            .enumerate()
            .map(|(at, trace)| HostReport::of(trace, at, rules, top))
            .collect(),
        missing,
        warnings: Vec::new(),
    }
}

/// Per step the longest core; without cores the host's markers.
fn step_time(hosts: &[HostTrace], aligned: &Aligned) -> Summary {
    let longest = |steps: &Vec<align::StepRef>| {
        steps
            .iter()
            .filter_map(|at| Some(hosts[at.host].cores[at.core].steps.get(at.step)?.duration_ps))
            .max()
    };
    let mut durations: Vec<i64> = aligned.steps.iter().filter_map(longest).collect();
    if durations.is_empty() {
        durations = marker_times(hosts);
    }
    Summary::of(durations)
}

/// The longest marker of each number, over the hosts that have no core.
fn marker_times(hosts: &[HostTrace]) -> Vec<i64> {
    let mut by_num = std::collections::BTreeMap::new();
    let mut alone = Vec::new();
    for step in hosts.iter().filter(|host| host.cores.is_empty()).flat_map(|host| &host.host_steps) {
        let duration = step.end_ps.saturating_sub(step.start_ps);
        match step.step_num {
            Some(num) => {
                let known = by_num.entry(num).or_insert(duration);
                *known = duration.max(*known);
            }
            None => alone.push(duration),
        }
    }
    by_num.into_values().chain(alone).collect()
}

fn alignment_by(hosts: &[HostTrace], aligned: &Aligned) -> AlignedBy {
    let numbered = |host: &HostTrace| host.host_steps.iter().any(|step| step.step_num.is_some());
    if aligned.steps.is_empty() && !hosts.is_empty() && hosts.iter().all(numbered) {
        return AlignedBy::StepNum;
    }
    aligned.by
}
