//! Which executions of a program on several cores are one run of it.
//!
//! Run ids prove nothing: each core counts its own. Within a host the executions of one program are paired by when
//! the host enqueued them, else by when they started, at one distance for the whole trace. Hosts are paired only
//! if their sequences of programs fit at one distance and at no other; otherwise their runs stay apart.
//! Must never pair by position alone: a core or host whose trace begins later would be given the wrong runs.

use std::collections::{HashMap, HashSet};

use super::{core::Module, host_trace::HostTrace, summary::median};

/// How many runs of a program are compared to find a distance.
const COMPARED: usize = 256;
/// How far from the likeliest distances others are tried.
const AROUND: i64 = 4;
/// A distance at which a sequence is cut must be so many times closer than one at which it is not.
const CLEARER: i64 = 4;
/// How many runs of a host are compared with another host's.
const COMPARED_HOSTS: usize = 4096;
/// The fewest runs that two hosts must have in common.
const FEWEST: usize = 3;

/// A program within one session: its name and id.
type Program = (String, Option<u64>);

/// One run while cores are added to it.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u64,
    start_ps: i64,
    enqueued_ps: Option<i64>,
}

impl Run {
    fn of(number: u64, module: &Module) -> Self {
        Self { number, start_ps: module.start_ps, enqueued_ps: module.enqueued_ps }
    }

    /// How far apart the two were enqueued, else started.
    fn apart(&self, other: &Self) -> i64 {
        let enqueued = self.enqueued_ps.zip(other.enqueued_ps);
        let (one, other) = enqueued.unwrap_or((self.start_ps, other.start_ps));
        one.saturating_sub(other).saturating_abs()
    }
}

/// Numbers the runs of all hosts. `true` if the runs of all hosts with programs are paired.
pub(super) fn pair(hosts: &mut [HostTrace]) -> bool {
    let mut next = 0;
    for host in &mut *hosts {
        pair_cores(host, &mut next);
    }
    pair_hosts(hosts)
}

fn pair_cores(host: &mut HostTrace, next: &mut u64) {
    let mut known: HashMap<Program, Vec<Run>> = HashMap::new();
    for core in host.cores.iter_mut().filter(|core| !core.sparse) {
        let mut of_program: HashMap<Program, Vec<usize>> = HashMap::new();
        for (at, module) in core.modules.iter().enumerate() {
            of_program.entry((module.name.clone(), module.program_id)).or_default().push(at);
        }
        for (program, places) in of_program {
            let own: Vec<Run> = places.iter().map(|&at| Run::of(u64::MAX, &core.modules[at])).collect();
            let runs = known.entry(program).or_default();
            let distance = distance(runs, &own);
            let mut new = Vec::new();
            for (at, (place, own)) in (0i64..).zip(places.into_iter().zip(own)) {
                let run = distance.and_then(|by| usize::try_from(at + by).ok()).and_then(|at| runs.get(at));
                let number = run.map_or(*next, |run| run.number);
                if run.is_none() {
                    new.push(Run { number, ..own });
                    *next += 1;
                }
                core.modules[place].run = Some(number);
            }
            runs.extend(new);
            runs.sort_by_key(|run| run.start_ps);
        }
    }
}

/// How far the positions of `own` lie behind those of `runs`.
///
/// Cores of a host are traced in one window, so the shorter sequence normally lies within the longer one: of such
/// distances the closest in time. Another distance must be clearly closer: a core that falls behind is close to the
/// wrong runs, too.
fn distance(runs: &[Run], own: &[Run]) -> Option<i64> {
    let longer = runs.len() as i64 - own.len() as i64;
    let within = longer.min(0)..=longer.max(0);
    let mut tried = HashSet::from([*within.start(), *within.end()]);
    for at in [0, own.len() / 2, own.len().checked_sub(1)?] {
        let nearest = (0..runs.len()).min_by_key(|&other| runs[other].apart(&own[at]))?;
        tried.extend((-AROUND..=AROUND).map(|around| nearest as i64 - at as i64 + around));
    }
    let gap = |by: i64| {
        let from = (-by).max(0);
        let to = (own.len() as i64).min(runs.len() as i64 - by);
        let common = usize::try_from(to - from).ok().filter(|&common| common > 0)?;
        let step = common.div_ceil(COMPARED);
        let apart = (from..to).step_by(step).map(|at| runs[(at + by) as usize].apart(&own[at as usize]));
        Some((median(apart.collect()), std::cmp::Reverse(common), by))
    };
    let gaps: Vec<_> = tried.into_iter().filter_map(gap).collect();
    let closest = gaps.iter().min()?;
    let inside = gaps.iter().filter(|(_, _, by)| within.contains(by)).min()?;
    let clearly = closest.0.saturating_mul(CLEARER) < inside.0;
    Some(if clearly { closest.2 } else { inside.2 })
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
    use proptest::prelude::*;

    use super::*;

    fn run(number: u64, start_ps: i64, enqueued_ps: Option<i64>) -> Run {
        Run { number, start_ps, enqueued_ps }
    }

    #[test]
    fn the_enqueueing_decides_where_it_is_known() {
        // The second core falls behind by a whole run.
        let runs: Vec<Run> =
            (0..10).map(|at| run(at, 1000 + 100 * at as i64, Some(10 * at as i64))).collect();
        let own: Vec<Run> = (0..10).map(|at| run(0, 1100 + 110 * at, Some(10 * at + 1))).collect();
        assert_eq!(distance(&runs, &own), Some(0));
        assert_eq!(distance(&runs, &own[3..]), Some(3));
        assert_eq!(distance(&runs[3..], &own), Some(-3));
        // One more at the one end, one less at the other.
        assert_eq!(distance(&runs[..9], &own[1..]), Some(1));
        assert_eq!(distance(&[], &own), None);
        assert_eq!(distance(&runs, &[]), None);
    }

    #[test]
    fn a_core_that_falls_behind_is_paired_by_its_sequence() {
        let runs: Vec<Run> = (0..20).map(|at| run(at, 110 * at as i64, None)).collect();
        let own: Vec<Run> = (0..20).map(|at| run(0, 125 * at, None)).collect();
        assert_eq!(distance(&runs, &own), Some(0));
    }

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

    proptest! {
        /// Whatever runs are missing at either end of a core's trace, the others are found.
        #[test]
        fn a_trace_that_begins_later_is_paired_as_it_was(
            gaps in prop::collection::vec(1_000..1_000_000i64, 8..60),
            (cut, left) in (0..6usize, 2..50usize),
            late in 0..400i64,
        ) {
            let starts: Vec<i64> = gaps.iter().scan(0, |sum, gap| { *sum += gap; Some(*sum) }).collect();
            let runs: Vec<Run> = (0..).zip(&starts).map(|(at, &start)| run(at, start, None)).collect();
            let own: Vec<Run> =
                starts.iter().skip(cut).take(left).map(|&start| run(0, start + late, None)).collect();
            prop_assert_eq!(distance(&runs, &own), Some(cut as i64));
        }
    }
}
