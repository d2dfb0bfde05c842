//! What a reader should know before trusting the figures, in words.

use super::{
    Rules,
    clock::ClockFacts,
    core::{CoreLines, OpsWalk},
    device_events::Interval,
    host::HostEvents,
    host_trace::{Core, HostTrace},
    missing_runs::{self, LostRuns},
    ops::Totals,
    planes,
    steps::StepOrigin,
    summary::median,
};
use crate::{
    loss::{Loss, LossKind},
    merge::MERGED,
    reader::{FarLines, Index, PlaneIndex},
    wording::counted,
};

/// How many of the profiler's own messages are passed on.
const MOST_MESSAGES: usize = 20;

/// What warnings need to know of a core.
#[derive(Debug)]
pub(super) struct CoreFacts {
    pub(super) plane: String,
    pub(super) sparse: bool,
    pub(super) origin: StepOrigin,
    pub(super) outside: usize,
    pub(super) hull: Option<Interval>,
    pub(super) nameless: Totals,
    pub(super) after_last_module: u64,
    pub(super) unsorted: bool,
    pub(super) over: bool,
    pub(super) run_ids: Vec<u64>,
    pub(super) clock: Option<ClockFacts>,
    pub(super) has_ops: bool,
}

impl CoreFacts {
    pub(super) fn of(
        plane: &PlaneIndex,
        lines: &CoreLines,
        clock: Option<ClockFacts>,
        out: &OpsWalk,
        hull: Option<Interval>,
        (origin, outside): (StepOrigin, usize),
        sparse: bool,
    ) -> Self {
        Self {
            plane: plane.name.clone(),
            sparse,
            origin,
            outside,
            hull,
            nameless: out.nameless,
            after_last_module: out.after_last_module,
            unsorted: out.unsorted,
            over: out.over || lines.over,
            run_ids: lines.modules.iter().filter_map(|module| module.run_id).collect(),
            clock: clock.filter(differs),
            has_ops: out.extent.is_some(),
        }
    }
}

/// Whether the clocks of a core differ by more than a microsecond.
fn differs(clock: &ClockFacts) -> bool {
    clock.by_device || clock.shift_ps.saturating_abs() > 1_000_000
}

/// What warnings need to know of a part.
#[derive(Debug, Default)]
pub(super) struct HostFacts {
    pub(super) cores: Vec<CoreFacts>,
    /// Whether the pieces of busy time of a shared chip were too many to be held.
    pub(super) busy_cut: bool,
    /// Device planes that are not read: name, lines and events.
    unread: Vec<(String, usize, u64)>,
    /// Planes with events far outside the session: name and events.
    outside: Vec<(String, u64)>,
    /// Lines that lie wholly outside the session, and are in no figure.
    pub(super) far: Vec<FarLines>,
    /// Cores whose programs last no time, and are in no figure.
    pub(super) timeless: Vec<String>,
    messages: Vec<String>,
    host_over: bool,
    host_unsorted: bool,
    no_host: bool,
    no_session: bool,
    no_cores: bool,
    names_dropped: u64,
    /// Whether the figures are XProf's.
    as_xprof: bool,
    window: Option<i64>,
    markers: usize,
}

impl HostFacts {
    pub(super) fn of(
        index: &Index,
        host: &HostEvents,
        trace: &HostTrace,
        no_cores: bool,
        rules: Rules,
    ) -> Self {
        let error = index.errors.iter().map(|text| format!("the profiler reports an error: {text}"));
        let warning = index.warnings.iter().map(|text| match text.starts_with(MERGED) {
            true => text.clone(),
            false => format!("the profiler warns: {text}"),
        });
        Self {
            messages: error.chain(warning).take(MOST_MESSAGES).collect(),
            outside: index.planes.iter().map(outside).filter(|(_, events)| *events > 0).collect(),
            host_over: host.over,
            host_unsorted: host.unsorted,
            no_host: !index.planes.iter().any(|plane| plane.name.starts_with("/host:CPU")),
            no_session: index.session.start_ns.is_none(),
            no_cores,
            as_xprof: rules == Rules::Xprof,
            unread: index.planes.iter().filter(|plane| planes::is_unread_device(plane)).map(size).collect(),
            names_dropped: index.planes.iter().map(|plane| plane.stat_names.dropped()).sum(),
            window: index.session.window_ps().or(Some(trace.window_ps)),
            markers: host.markers.len(),
            ..Self::default()
        }
    }
}

fn outside(plane: &PlaneIndex) -> (String, u64) {
    (plane.name.clone(), plane.lines.iter().map(|line| line.outside).sum())
}

fn size(plane: &PlaneIndex) -> (String, usize, u64) {
    (plane.name.clone(), plane.lines.len(), plane.lines.iter().map(|line| line.events).sum())
}

/// All warnings of a part; what it lost comes first.
pub(super) fn of(facts: &HostFacts, trace: &HostTrace) -> Vec<String> {
    let mut all: Vec<String> = trace.losses.iter().map(ToString::to_string).collect();
    all.extend(facts.messages.iter().cloned());
    of_file(facts, &mut all);
    if facts.no_cores {
        all.extend(outside_steps(trace.host_steps.iter().map(|step| (step.start_ps, step.end_ps))));
    }
    for (at, core) in facts.cores.iter().enumerate() {
        of_core(core, facts, trace, at, &mut all);
    }
    all
}

fn of_file(facts: &HostFacts, all: &mut Vec<String>) {
    let mut say = |when: bool, text: &str| {
        if when {
            all.push(text.to_owned());
        }
    };
    let nothing = facts.no_cores && facts.markers == 0;
    say(nothing, "no TPU core and no step marker: there are no steps to show");
    say(facts.no_host, "no host plane: device steps cannot be numbered");
    say(facts.no_session, "no session times (Task Environment): the wall clock of this host is not known");
    say(
        facts.host_over,
        "more linked host events than are held: late steps may lack their numbers; capture a shorter window",
    );
    say(
        facts.host_unsorted,
        "host events are out of order in a very long line: the self times of operations and annotations are approximate",
    );
    say(
        facts.busy_cut,
        "the busy time of a chip's cores is too scattered to be joined: busy and idle are approximate",
    );
    all.extend(left_out(facts));
    for (plane, lines, events) in facts.unread.iter().take(MOST_MESSAGES) {
        all.push(format!(
            "{plane} is not read ({}, {}): only TPU cores are; its events are in no figure here, XProf shows them",
            counted(*lines, "line"),
            counted(*events, "event")
        ));
    }
    if facts.names_dropped > 0 {
        all.push(format!("{} stat names over the limit are left out", facts.names_dropped));
    }
}

/// What is left out of the figures because its times cannot be true.
pub(super) fn left_out(facts: &HostFacts) -> Vec<String> {
    let outside = facts.outside.iter().map(|(plane, events)| {
        format!("{plane}: events far outside the session are left out ({events}): the file may be damaged")
    });
    let timeless = facts.timeless.iter().map(|plane| {
        format!(
            "{plane}: its program runs all last less than a clock cycle: it is left out of all figures; the file may be damaged"
        )
    });
    let far = facts.far.iter().map(ToString::to_string);
    outside.take(MOST_MESSAGES).chain(far.take(MOST_MESSAGES)).chain(timeless.take(MOST_MESSAGES)).collect()
}

fn of_core(core: &CoreFacts, facts: &HostFacts, trace: &HostTrace, at: usize, all: &mut Vec<String>) {
    let plane = &core.plane;
    if !core.has_ops && core.run_ids.is_empty() {
        all.push(format!(
            "{plane}: no operations and no programs: nothing ran, or the device was not traced"
        ));
        return;
    }
    if !core.sparse {
        of_steps(core, facts, trace, at, all);
    }
    if core.nameless.occurrences > 0 {
        all.push(format!(
            "{plane}: {} operation runs ({}) have no program or symbol id: XProf drops them and shows their time as idle",
            core.nameless.occurrences,
            ms(core.nameless.self_time_ps)
        ));
    }
    if let Some(clock) = core.clock {
        all.push(format!("{plane}: {}", clock_words(&clock, facts.as_xprof)));
    }
    if core.unsorted {
        all.push(format!(
            "{plane}: operations are out of order in a very long line: self times are approximate"
        ));
    }
    if core.over {
        all.push(format!("{plane}: more steps, programs or collectives than are held: the rest is left out"));
    }
}

fn clock_words(clock: &ClockFacts, as_xprof: bool) -> String {
    let mixed = "XProf takes operations by the device's clock, and programs and steps by the line's";
    if clock.by_device {
        let times = if clock.jumps == 1 { "once".to_owned() } else { format!("{} times", clock.jumps) };
        let used = if as_xprof { mixed } else { "durations are by the device's own clock" };
        let farthest = ms(clock.farthest_ps);
        return format!("the line's clock jumped {times} and was off by up to {farthest}: {used}");
    }
    // Rounded, a drift of nearly nothing may print as -0.
    let drift = clock.drift_ppm.round() + 0.0;
    let drifts = if drift == 0.0 { String::new() } else { format!(" and drifts by {drift:.0} ppm") };
    let used = if as_xprof { mixed } else { "figures use the line's, XProf mixes both" };
    format!("the device clock is {} off the line's clock{drifts}; {used}", ms(clock.shift_ps))
}

fn of_steps(core: &CoreFacts, facts: &HostFacts, trace: &HostTrace, at: usize, all: &mut Vec<String>) {
    let plane = &core.plane;
    match core.origin {
        StepOrigin::StepLine => {}
        StepOrigin::Launches => all.push(format!(
            "{plane}: no step line: steps are the programs that the host's step markers launched; XProf shows no steps here"
        )),
        StepOrigin::Modules => all.push(format!(
            "{plane}: no step line and no step markers: each program run counts as a step; XProf shows no steps here"
        )),
    }
    if core.outside > 0 && facts.markers > 0 {
        all.push(format!("{plane}: {} outside all steps", counted(core.outside, "program run")));
    }
    let steps = trace.cores.get(at).map_or(&[][..], |core| &core.steps);
    let inferred = steps.iter().filter(|step| step.inferred).count();
    if inferred > 0 {
        all.push(format!(
            "{plane}: inferred from run ids, because the launch lies outside the trace: {}",
            counted(inferred, "step number")
        ));
    }
    let unknown = steps.iter().filter(|step| step.step_num.is_none()).count();
    if unknown > 0 && facts.markers > 0 {
        all.push(format!(
            "{plane}: {} without a number: no step marker of the host launched them",
            counted(unknown, "step")
        ));
    }
    if core.origin != StepOrigin::Modules {
        let steps = steps.iter().map(|step| (step.start_ps, step.end_ps()));
        all.extend(outside_steps(steps).map(|outside| format!("{plane}: {outside}")));
    }
}

/// That much of the time lies in none of the steps, which come by start.
fn outside_steps(steps: impl Iterator<Item = (i64, i64)> + Clone) -> Option<String> {
    let within =
        steps.clone().fold(0, |sum: i64, (start, end)| sum.saturating_add(end.saturating_sub(start)));
    let all_time = steps.clone().last()?.1.saturating_sub(steps.clone().next()?.0);
    let between = all_time.saturating_sub(within);
    (between > all_time / 20).then(|| {
        format!(
            "{:.1} % of the time between the first and the last step lies in no step ({}): step times alone look better than the run was",
            100.0 * between as f64 / all_time as f64,
            ms(between)
        )
    })
}

/// Adds what the programs of the cores tell, and puts what is certain of early ends in the place of what may be.
pub(super) fn add_losses(facts: &HostFacts, trace: &mut HostTrace) {
    let missing = missing_runs::of(&trace.cores);
    let cores = || facts.cores.iter().zip(&trace.cores).zip(&missing);
    let known: Vec<&str> = early_planes(&trace.losses).collect();
    let certain: Vec<Loss> = cores()
        .filter_map(|((facts_of, core), missing)| {
            // What other cores show alone is no better than what is said already.
            let is_told = known.contains(&&*core.plane) && !missing.by_host;
            let evidence = if is_told { LostRuns::default() } else { *missing };
            ends_early(facts_of, core, facts, evidence)
        })
        .collect();
    let is_known = |loss: &Loss| {
        loss.kind == LossKind::EndsEarly && certain.iter().any(|early| early.plane == loss.plane)
    };
    trace.losses.retain(|loss| !is_known(loss));
    trace.losses.extend(certain);
    let ends_early = |core: &Core| early_planes(&trace.losses).any(|plane| plane == core.plane);
    let lacking: Vec<Loss> = cores()
        .flat_map(|((_, core), missing)| {
            [missing.loss(core, ends_early(core)), missing_runs::without_operations(core)]
        })
        .flatten()
        .collect();
    trace.losses.extend(lacking);
}

/// The planes that are known to end early.
fn early_planes(losses: &[Loss]) -> impl Iterator<Item = &str> {
    losses.iter().filter(|loss| loss.kind == LossKind::EndsEarly).filter_map(|loss| loss.plane.as_deref())
}

/// A core whose events end before the session does, with evidence that it worked on.
fn ends_early(core: &CoreFacts, shown: &Core, facts: &HostFacts, missing: LostRuns) -> Option<Loss> {
    let (hull, window) = (core.hull?, facts.window?);
    if core.sparse {
        return None;
    }
    let step = median(shown.steps.iter().map(|step| step.duration_ps).collect());
    let silent = window.saturating_sub(hull.end);
    let cut_program = core.after_last_module > 0;
    let long_silence = silent > step.saturating_mul(2).max(window / 20);
    (long_silence && (cut_program || missing.after > 2)).then(|| {
        let message = format!(
            "{}: ends early, {} before the end of the session{}{}: the device's trace buffer may have been full",
            core.plane,
            ms(silent),
            if cut_program { ", in the middle of a program" } else { "" },
            match missing.after {
                0 => String::new(),
                count => format!(", with {count} {} missing", missing.what()),
            }
        );
        Loss::of_plane(LossKind::EndsEarly, &core.plane, message)
    })
}

pub(super) fn ms(ps: i64) -> String {
    format!("{:.3} ms", ps as f64 / 1e9)
}
