//! Which executions of a program on several cores are one run of it.
//!
//! Within a host the executions of one program are paired core by core ([`core_runs`]). Hosts are paired only if their
//! sequences of programs fit at one distance and at no other; otherwise their runs stay apart.
//! Must never take run ids for equal across cores: each core counts its own.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    core::Module,
    core_runs::{self, Places, Run},
    host_trace::{Core, HostTrace},
};

/// How many runs of a host are compared with another host's.
const COMPARED_HOSTS: usize = 4096;
/// The fewest runs that two hosts must have in common.
const FEWEST: usize = 3;

/// A program within one session: its name and id.
type Program = (String, Option<u64>);

/// The runs of a program on the cores before, and the first and the last id launched on the first of these.
type Known = (Vec<Run>, Option<(i64, i64)>);

/// Makes the numbers of the runs, which [`pair_cores`] counted within each host, those of the session. `true` if the
/// runs of all hosts with programs are paired.
pub(super) fn pair(hosts: &mut [HostTrace]) -> bool {
    let mut next = 0;
    for host in &mut *hosts {
        let from = next;
        for run in host.cores.iter_mut().flat_map(|core| &mut core.modules).filter_map(|of| of.run.as_mut()) {
            *run += from;
            next = next.max(*run + 1);
        }
    }
    pair_hosts(hosts)
}

/// Numbers the runs of one host's cores, from 0 on.
pub(super) fn pair_cores(cores: &mut [Core]) {
    let are_ids = cores.iter().filter(|core| !core.sparse).all(has_ids);
    let mut known: HashMap<Program, Known> = HashMap::new();
    let mut next = 0;
    for core in cores.iter_mut().filter(|core| !core.sparse) {
        let launched = core.launched_ids().filter(|_| are_ids);
        let mut of_program: BTreeMap<Program, Vec<usize>> = BTreeMap::new();
        for (at, module) in core.modules.iter().enumerate() {
            of_program.entry((module.name.clone(), module.program_id)).or_default().push(at);
        }
        for (program, places) in of_program {
            let run = |(nth, &at): (i64, &usize)| of(&core.modules[at], nth, are_ids);
            let own: Vec<Run> = (0..).zip(&places).map(run).collect();
            let (runs, launched_first) = known.entry(program).or_insert_with(|| (Vec::new(), launched));
            let places_are = Places { are_ids, launched: launched_first.zip(launched) };
            let pairs = core_runs::pairs(runs, &own, places_are);
            let mut new = Vec::new();
            for ((at, own), (partner, place)) in places.into_iter().zip(own).zip(pairs) {
                let number = partner.map_or(next, |partner| runs[partner].number);
                if partner.is_none() {
                    new.push(Run { number, place, ..own });
                    next += 1;
                }
                core.modules[at].run = Some(number);
            }
            runs.extend(new);
            runs.sort_by_key(|run| run.start_ps);
            if !are_ids {
                (0..).zip(runs).for_each(|(nth, run)| run.place = nth);
            }
        }
    }
}

/// Whether each execution on the core has a run id, in their order.
fn has_ids(core: &Core) -> bool {
    let id = |module: &Module| module.run_id.and_then(|id| i64::try_from(id).ok());
    core.modules.iter().all(|module| id(module).is_some()) && core.modules.is_sorted_by(|a, b| id(a) < id(b))
}

fn of(module: &Module, nth: i64, are_ids: bool) -> Run {
    let id = module.run_id.filter(|_| are_ids).and_then(|id| i64::try_from(id).ok());
    Run { number: 0, place: id.unwrap_or(nth), start_ps: module.start_ps, enqueued_ps: module.enqueued_ps }
}

/// The runs of one host in order: number and program.
fn sequence(host: &HostTrace) -> Vec<(u64, Program)> {
    let mut runs: HashMap<u64, (i64, Program)> = HashMap::new();
    for module in host.cores.iter().filter(|core| !core.sparse).flat_map(|core| &core.modules) {
        let Some(number) = module.run else { continue };
        let run =
            runs.entry(number).or_insert_with(|| (module.start_ps, (module.name.clone(), module.program_id)));
        run.0 = module.start_ps.min(run.0);
    }
    let mut runs: Vec<_> =
        runs.into_iter().map(|(number, (start, program))| (start, number, program)).collect();
    runs.sort_unstable_by_key(|&(start, number, _)| (start, number));
    runs.into_iter().map(|(_, number, program)| (number, program)).collect()
}

/// Gives the runs of each host the numbers of the first host's.
fn pair_hosts(hosts: &mut [HostTrace]) -> bool {
    let (first, others) = match hosts {
        [] | [_] => return true,
        [first, others @ ..] => (sequence(first), others),
    };
    let mut all = true;
    for host in others.iter_mut() {
        let own = sequence(host);
        if own.is_empty() && first.is_empty() {
            continue;
        }
        let Some(numbers) = same_runs(&first, &own) else {
            all = false;
            continue;
        };
        for module in host.cores.iter_mut().flat_map(|core| &mut core.modules) {
            if let Some(number) = module.run.and_then(|run| numbers.get(&run)) {
                module.run = Some(*number);
            }
        }
    }
    all
}

/// For each run of `own` the run of `first` that it is part of; none if more than one distance fits, or none.
fn same_runs(first: &[(u64, Program)], own: &[(u64, Program)]) -> Option<HashMap<u64, u64>> {
    let common: HashSet<&Program> = own.iter().map(|(_, program)| program).collect();
    let first: Vec<_> = first.iter().filter(|(_, program)| common.contains(program)).collect();
    let common: HashSet<&Program> = first.iter().map(|(_, program)| program).collect();
    let own: Vec<_> = own.iter().filter(|(_, program)| common.contains(program)).collect();
    // Programs by number: names are compared once.
    let numbers: HashMap<&Program, u32> = common.into_iter().zip(0..).collect();
    let ids = |runs: &[&(u64, Program)]| -> Vec<u32> {
        runs.iter().take(COMPARED_HOSTS).filter_map(|(_, program)| numbers.get(program).copied()).collect()
    };
    let by = only_fit(&ids(&first), &ids(&own))?;
    let pairs = (0i64..).zip(&own).filter_map(|(at, (number, _))| {
        let run = first.get(usize::try_from(at + by).ok()?)?;
        Some((*number, run.0))
    });
    Some(pairs.collect())
}

/// The one distance at which both sequences agree wherever they overlap.
fn only_fit(first: &[u32], own: &[u32]) -> Option<i64> {
    let (ours, theirs) = (first.len() as i64, own.len() as i64);
    let fewest = FEWEST.min(first.len()).min(own.len()).max(1) as i64;
    let fits = |by: &i64| {
        let (from, to) = ((-by).max(0), theirs.min(ours - by));
        (from..to).all(|at| first[(at + by) as usize] == own[at as usize])
    };
    let mut fitting = (fewest - theirs..=ours - fewest).filter(fits);
    let by = fitting.next()?;
    fitting.next().is_none().then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_paired_only_where_one_distance_fits() {
        assert_eq!(only_fit(&[0, 1, 1, 1, 1], &[0, 1, 1, 1, 1]), Some(0));
        assert_eq!(only_fit(&[0, 1, 2, 0, 3, 1], &[2, 0, 3, 1, 1]), Some(2));
        assert_eq!(only_fit(&[2, 0, 3, 1, 1], &[0, 1, 2, 0, 3, 1]), Some(-2));
        // The same program over and over fits anywhere.
        assert_eq!(only_fit(&[1, 1, 1, 1], &[1, 1, 1, 1]), None);
        assert_eq!(only_fit(&[0, 1, 0, 1, 0, 1], &[0, 1, 0, 1, 0, 1]), None);
        assert_eq!(only_fit(&[0, 1, 2], &[3, 4, 5]), None);
        assert_eq!(only_fit(&[], &[]), None);
    }
}
