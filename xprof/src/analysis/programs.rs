//! Steps by program: a step that no marker of the host numbers is one run of a program, and runs of different
//! programs are not averaged.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    align::{Aligned, StepRef},
    core::Module,
    host_trace::HostTrace,
    summary::DurationSummary,
};

/// A program's name and id, where a step has one.
type Program = Option<(String, Option<u64>)>;

/// The runs of one program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramSteps {
    /// The program; empty for steps without one.
    pub name: String,
    /// Its id, in decimal.
    pub program_id: Option<String>,
    /// Over its runs: a run on several cores counts with its longest core.
    pub run_time: DurationSummary,
    /// The sum over its runs.
    pub total_ps: i64,
}

/// How long the longest core took for a step. A program without operations on a core that is read by the device's
/// clock has no duration by that: only the line tells one, whose clock jumped.
pub(super) fn longest(hosts: &[HostTrace], steps: &[StepRef]) -> Option<i64> {
    let duration = |at: &StepRef| {
        let core = hosts.get(at.host)?.cores.get(at.core)?;
        let is_unknown = core.by_device_clock && core.first_module(at.step).is_some_and(|of| of.lacks_ops);
        (!is_unknown).then_some(core.steps.get(at.step)?.duration_ps)
    };
    steps.iter().filter_map(duration).max()
}

fn module<'a>(hosts: &'a [HostTrace], at: &StepRef) -> Option<&'a Module> {
    hosts.get(at.host)?.cores.get(at.core)?.first_module(at.step)
}

/// The programs whose runs are the steps, the one with the most time first; of the steps only its runs are kept.
/// None, and all steps are kept, where a marker numbers any of them or where no step has a program.
pub(super) fn keep_longest(hosts: &[HostTrace], aligned: &mut Aligned) -> Vec<ProgramSteps> {
    let step = |at: &StepRef| hosts.get(at.host)?.cores.get(at.core)?.steps.get(at.step);
    let is_numbered = |at: &StepRef| step(at).is_some_and(|step| step.step_num.is_some());
    if aligned.steps.iter().flatten().any(is_numbered) {
        return Vec::new();
    }
    let program = |steps: &[StepRef]| -> Program {
        let module = steps.iter().find_map(|at| module(hosts, at))?;
        Some((module.name.clone(), module.program_id))
    };
    let mut durations: BTreeMap<_, Vec<i64>> = BTreeMap::new();
    for steps in &aligned.steps {
        durations.entry(program(steps)).or_default().extend(longest(hosts, steps));
    }
    if durations.keys().all(Option::is_none) {
        return Vec::new();
    }
    let total = |durations: &[i64]| durations.iter().fold(0i64, |sum, &one| sum.saturating_add(one));
    let mut programs: Vec<_> = durations.into_iter().map(|(key, all)| (total(&all), key, all)).collect();
    programs
        .sort_by(|(one, name, _), (other, other_name, _)| other.cmp(one).then_with(|| name.cmp(other_name)));
    if let Some((_, first, _)) = programs.first() {
        aligned.steps.retain(|steps| program(steps) == *first);
    }
    let report = |(total_ps, key, all): (i64, Program, Vec<i64>)| {
        let (name, id) = key.unwrap_or_default();
        let program_id = id.map(|id| id.to_string());
        ProgramSteps { name, program_id, run_time: DurationSummary::of(all), total_ps }
    };
    programs.into_iter().map(report).collect()
}

/// The fewest digits of an id that tell programs of one name apart.
const FEWEST_DIGITS: usize = 4;

/// Gives programs of one name and several ids, as after a retrace, names that tell them apart: `jit_f(1219…)`.
pub(super) fn distinguish(hosts: &mut [HostTrace], programs: &mut [ProgramSteps]) {
    let mut ids: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    let modules = hosts.iter().flat_map(|host| &host.cores).flat_map(|core| &core.modules);
    for (name, id) in modules.filter_map(|module| Some((module.name.as_str(), module.program_id?))) {
        ids.entry(name).or_default().insert(id);
    }
    let several = ids.into_iter().filter(|(_, ids)| ids.len() > 1);
    let renamed = several.flat_map(|(name, ids)| {
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        let short = |id: &String| {
            let unique = |digits: &usize| {
                ids.iter().filter(|other| other.get(..*digits) == id.get(..*digits)).count() == 1
            };
            let digits = (FEWEST_DIGITS..id.len()).find(unique).unwrap_or(id.len());
            let more = if digits < id.len() { "…" } else { "" };
            ((name.to_owned(), id.clone()), format!("{name}({}{more})", &id[..digits]))
        };
        ids.iter().map(short).collect::<Vec<_>>()
    });
    let renamed: BTreeMap<(String, String), String> = renamed.collect();
    if renamed.is_empty() {
        return;
    }
    let rename = |name: &mut String, id: Option<String>| {
        let new = id.and_then(|id| renamed.get(&(name.clone(), id)));
        new.into_iter().for_each(|new| name.clone_from(new));
    };
    for host in hosts {
        for module in host.cores.iter_mut().flat_map(|core| &mut core.modules) {
            rename(&mut module.name, module.program_id.map(|id| id.to_string()));
        }
        host.programs.iter_mut().for_each(|(id, name)| rename(name, Some(id.to_string())));
    }
    programs.iter_mut().for_each(|program| rename(&mut program.name, program.program_id.clone()));
}
