//! The program runs that a core lacks although the host launched them or other cores show them.
//!
//! The host's enqueue records are certain. Where there are none, cores are compared with each other: a run is missing
//! on a core that was idle while at least half of the cores that run the program ran it. Must never count what a core
//! did not come to before the session ended.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{core::Module, device_events::Interval, host_trace::Core, warnings::ms};
use crate::loss::{Loss, LossKind};

/// Without the host's word, fewer missing runs than this may be chance.
const FEWEST: usize = 3;
/// A core begins late where it shows nothing for so long after the first launch.
const LATE_PS: i64 = 200_000_000_000;

/// What one core lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LostRuns {
    /// Runs before its last one: how many, and when the first should have been.
    pub(super) before: usize,
    first_ps: Option<i64>,
    /// Runs after its last one, by the host or by other cores.
    pub(super) after: usize,
    /// Runs after its last one that other cores show.
    after_elsewhere: usize,
    pub(super) by_host: bool,
}

/// What each core lacks; their runs are paired.
pub(super) fn of(cores: &[Core]) -> Vec<LostRuns> {
    let elsewhere = elsewhere(cores);
    let missing = |(at, core): (usize, &Core)| {
        if core.sparse {
            return LostRuns::default();
        }
        let of_others = elsewhere.get(&at).map_or(&[][..], Vec::as_slice);
        let last = core.modules.last().map(|module| module.start_ps);
        let is_after = |start: &i64| last.is_some_and(|last| *start > last);
        let after_elsewhere = of_others.iter().filter(|start| is_after(start)).count();
        match core.launched.ids {
            Some(_) => of_launches(core, first_of_others(cores, at), after_elsewhere),
            None => LostRuns {
                before: of_others.len() - after_elsewhere,
                first_ps: of_others.iter().copied().min(),
                after: after_elsewhere,
                after_elsewhere,
                by_host: false,
            },
        }
    };
    cores.iter().enumerate().map(missing).collect()
}

/// When another core started its first program.
fn first_of_others(cores: &[Core], at: usize) -> Option<i64> {
    let others = cores.iter().enumerate().filter(|(other, _)| *other != at);
    others.filter_map(|(_, core)| Some(core.modules.first()?.start_ps)).min()
}

fn of_launches(core: &Core, others_first: Option<i64>, after_elsewhere: usize) -> LostRuns {
    let id = |module: Option<&Module>| module.and_then(|module| module.run_id);
    let (first, last) = (id(core.modules.first()), id(core.modules.last()));
    let starts = core.modules.first().map(|module| module.start_ps);
    // Before the first run: other cores were traced already, or it is long ago.
    let is_early = |enqueued: i64| {
        others_first.is_some_and(|other| other <= enqueued)
            || starts.is_some_and(|start| start.saturating_sub(enqueued) > LATE_PS)
    };
    let mut missing = LostRuns { by_host: true, after_elsewhere, ..LostRuns::default() };
    for &(id, enqueued) in &core.launched.missing {
        if last.is_some_and(|last| id > last) {
            missing.after += 1;
        } else if first.is_some_and(|first| id > first) || is_early(enqueued) {
            missing.before += 1;
            missing.first_ps = Some(missing.first_ps.map_or(enqueued, |known| known.min(enqueued)));
        }
    }
    missing
}

/// For each core the starts of the runs that other cores ran while it was idle.
fn elsewhere(cores: &[Core]) -> HashMap<usize, Vec<i64>> {
    type Program<'a> = (&'a str, Option<u64>);
    let mut runs: BTreeMap<u64, (Program<'_>, Interval, Vec<usize>)> = BTreeMap::new();
    let mut of_program: HashMap<Program<'_>, HashSet<usize>> = HashMap::new();
    for (at, core) in cores.iter().enumerate().filter(|(_, core)| !core.sparse) {
        for module in &core.modules {
            let program = (module.name.as_str(), module.program_id);
            of_program.entry(program).or_default().insert(at);
            let Some(number) = module.run else { continue };
            let interval = Interval::new(module.start_ps, module.duration_ps);
            runs.entry(number).or_insert_with(|| (program, interval, Vec::new())).2.push(at);
        }
    }
    let mut found: HashMap<usize, Vec<i64>> = HashMap::new();
    for (program, interval, there) in runs.values() {
        let Some(all) = of_program.get(program) else { continue };
        if 2 * there.len() < all.len() {
            continue;
        }
        for &at in all.iter().filter(|at| !there.contains(at)) {
            if is_idle(&cores[at], interval.start.saturating_add(interval.len() / 2)) {
                found.entry(at).or_default().push(interval.start);
            }
        }
    }
    found
}

/// Whether no program ran on the core at that time.
fn is_idle(core: &Core, time: i64) -> bool {
    let after = core.modules.partition_point(|module| module.start_ps <= time);
    let last = after.checked_sub(1).map(|at| &core.modules[at]);
    last.is_none_or(|module| module.start_ps.saturating_add(module.duration_ps) <= time)
}

impl LostRuns {
    /// What is missing, in words.
    pub(super) fn what(&self) -> &'static str {
        if self.by_host { "launched programs" } else { "program runs of other cores" }
    }

    /// What to say of it; `ends_early` tells that the runs after the last one are told already.
    pub(super) fn loss(&self, core: &Core, ends_early: bool) -> Option<Loss> {
        // Launches after the last run may wait for their turn: others show that it came.
        let after = if ends_early { 0 } else { self.after.min(self.after_elsewhere) };
        let count = self.before + after;
        if count < if self.by_host { 1 } else { FEWEST } {
            return None;
        }
        let (runs, are) = if count == 1 { ("program run", "is") } else { ("program runs", "are") };
        let (who, first) = match self.by_host {
            true => ("the host launched", "launched at"),
            false => ("other cores show", "at"),
        };
        let what = format!("{count} {runs} that {who} {are} missing");
        let first = self.first_ps.map_or(String::new(), |at| format!(", the first {first} {}", ms(at)));
        let message = format!(
            "{}: {what}{first}: the device's trace buffer may have been full; capture a shorter window",
            core.plane
        );
        let first_ps = self.first_ps;
        Some(Loss {
            count: Some(count as u64),
            first_ps,
            ..Loss::of_plane(LossKind::MissingRuns, &core.plane, message)
        })
    }
}

/// Programs of the core whose operations are missing: they run without any, while they have some in other runs.
pub(super) fn without_operations(core: &Core) -> Option<Loss> {
    let empty = core.modules.iter().filter(|module| module.lacks_ops);
    let (count, first_ps) = (empty.clone().count(), empty.map(|module| module.start_ps).min());
    (count >= 2).then(|| {
        let first = first_ps.map_or(String::new(), |at| format!(", the first at {}", ms(at)));
        let unsure = if core.by_device_clock { "; their durations are not counted" } else { "" };
        let message = format!(
            "{}: {count} of {} program runs have no operations{first}: events are missing{unsure}",
            core.plane,
            core.modules.len()
        );
        Loss {
            count: Some(count as u64),
            first_ps,
            ..Loss::of_plane(LossKind::MissingOperations, &core.plane, message)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::launched::Launched;

    /// A core that ran `ids`, each 100 long.
    fn core(ids: impl IntoIterator<Item = u64>) -> Core {
        let module = |id: u64| Module {
            name: "jit_f".into(),
            program_id: Some(1),
            run_id: Some(id),
            run: Some(id),
            start_ps: 100 * id.cast_signed(),
            duration_ps: 90,
            enqueued_ps: None,
            lacks_ops: false,
        };
        Core { plane: "p".into(), modules: ids.into_iter().map(module).collect(), ..Core::default() }
    }

    fn counts(cores: &[Core]) -> Vec<Option<u64>> {
        let missing = of(cores);
        missing.iter().zip(cores).map(|(of, core)| of.loss(core, false).and_then(|loss| loss.count)).collect()
    }

    #[test]
    fn runs_that_other_cores_show_are_missed() {
        let all = || core(0..20);
        assert_eq!(counts(&[all(), all()]), [None, None]);
        assert_eq!(counts(&[all(), core(5..20)]), [None, Some(5)]);
        assert_eq!(counts(&[all(), core(0..16)]), [None, Some(4)]);
        assert_eq!(counts(&[all(), core((0..20).filter(|id| id % 4 != 1)), all()]), [None, Some(5), None]);
        // Two may be chance; a core that was busy meanwhile did other work or is behind.
        assert_eq!(counts(&[all(), core(0..18)]), [None, None]);
        let mut behind = core(0..16);
        behind.modules[15].duration_ps = 1000;
        assert_eq!(counts(&[all(), behind]), [None, None]);
    }

    #[test]
    fn the_host_tells_each_single_run() {
        let launched = |missing: &[u64]| Launched {
            ids: Some((0, 19)),
            missing: missing.iter().map(|&id| (id, id.cast_signed())).collect(),
        };
        let with = |missing: &[u64], core: Core| Core { launched: launched(missing), ..core };
        let all = || with(&[], core(0..20));
        assert_eq!(counts(&[all(), with(&[7], core((0..20).filter(|&id| id != 7)))]), [None, Some(1)]);
        // At the end only where another core came to them.
        let short = || with(&[18, 19], core(0..18));
        assert_eq!(counts(&[all(), short()]), [None, Some(2)]);
        assert_eq!(counts(&[short(), short()]), [None, None]);
        // At the start where another core was traced already.
        assert_eq!(counts(&[all(), with(&[0, 1, 2], core(3..20))]), [None, Some(3)]);
        assert_eq!(counts(&[with(&[0, 1, 2], core(3..20))]), [None]);
    }
}
