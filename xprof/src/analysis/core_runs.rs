//! Which executions of one program on two cores of a host are one run of it.
//!
//! Each core counts its own run ids, so ids of two cores differ by a distance, which closeness in time and the
//! host's enqueue records tell. From the closest pair on, both cores are followed to either end: where one lost a
//! run, its ids skip one and the others stay paired. Without ids the order of the runs stands for them, and a time
//! that fits another run better tells the lost one.
//! Must never pair by position alone: one lost run would shift all that follow.

use std::collections::{HashMap, HashSet};

use super::summary::median;

/// How many runs of a program are compared to find a distance.
const COMPARED: usize = 256;
/// How far from the likeliest distances others are tried.
const AROUND: i64 = 4;
/// What another distance or another run must be, in times closer, to be preferred.
const CLEARER: i64 = 4;

/// One run while cores are added to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) number: u64,
    /// Its run id, or its place among the runs of its program where cores have no ids.
    pub(super) place: i64,
    pub(super) start_ps: i64,
    pub(super) enqueued_ps: Option<i64>,
}

/// Two ways to tell how far apart two runs are.
type Apart = fn(&Run, &Run) -> Option<i64>;

fn started_apart(one: &Run, other: &Run) -> Option<i64> {
    Some(one.start_ps.saturating_sub(other.start_ps).saturating_abs())
}

fn enqueued_apart(one: &Run, other: &Run) -> Option<i64> {
    Some(one.enqueued_ps?.saturating_sub(other.enqueued_ps?).saturating_abs())
}

/// What places are, and which there can be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
    /// Whether they are run ids: then runs with consecutive ids have no run between them.
    pub(super) are_ids: bool,
    /// The first and the last id that the host is known to have launched on the one core and on the other, of any
    /// program.
    pub(super) launched: Option<((i64, i64), (i64, i64))>,
}

/// For each of `own` the one of `runs` that it is part of, and its place among them. Both are sorted by start.
pub(super) fn pairs(runs: &[Run], own: &[Run], places: Places) -> Vec<(Option<usize>, i64)> {
    let at: HashMap<i64, usize> = runs.iter().enumerate().map(|(at, run)| (run.place, at)).collect();
    let by = distance(runs, &at, own, places.launched);
    let closest = by.and_then(|by| {
        let pair = |(own_at, own): (usize, &Run)| Some((own_at, *at.get(&own.place.checked_add(by)?)?));
        let pairs = own.iter().enumerate().filter_map(pair);
        pairs.min_by_key(|&(own_at, other)| started_apart(&runs[other], &own[own_at]))
    });
    let (by, closest) = match constant_lag(runs, own).filter(|_| !places.are_ids) {
        Some((own_at, other)) => {
            (Some(runs[other].place.saturating_sub(own[own_at].place)), Some((own_at, other)))
        }
        None => (by, closest),
    };
    let by = by.unwrap_or(0);
    let mut found: Vec<(Option<usize>, i64)> =
        own.iter().map(|run| (None, run.place.saturating_add(by))).collect();
    let Some((own_at, other)) = closest else { return found };
    let follow = Follow { runs, at: &at, own, are_ids: places.are_ids, tolerance: tolerance(runs, own) };
    found[own_at].0 = Some(other);
    follow.towards(1, (own_at, other), by, &mut found);
    follow.towards(-1, (own_at, other), by, &mut found);
    found
}

/// The closest pair of two cores, if most runs are as far apart as it is: lost runs do not matter to that.
fn constant_lag(runs: &[Run], own: &[Run]) -> Option<(usize, usize)> {
    let nearest = |time: i64| {
        let after = runs.partition_point(|run| run.start_ps < time);
        let off = |&at: &usize| runs[at].start_ps.saturating_sub(time).saturating_abs();
        (after.saturating_sub(1)..runs.len().min(after + 1)).min_by_key(off)
    };
    let pairs = own.iter().enumerate().filter_map(|(at, run)| Some((at, nearest(run.start_ps)?)));
    let lag = |&(at, other): &(usize, usize)| runs[other].start_ps.saturating_sub(own[at].start_ps);
    let closest = pairs.min_by_key(|pair| lag(pair).saturating_abs())?;
    let near = tolerance(runs, own) / CLEARER;
    let fits = own.iter().filter(|run| {
        let expected = run.start_ps.saturating_add(lag(&closest));
        nearest(expected)
            .is_some_and(|at| runs[at].start_ps.saturating_sub(expected).saturating_abs() <= near)
    });
    (4 * fits.count() >= 3 * own.len().min(runs.len())).then_some(closest)
}

/// Half of what normally lies between two runs.
fn tolerance(runs: &[Run], own: &[Run]) -> i64 {
    let gap = |runs: &[Run]| {
        let gaps: Vec<i64> =
            runs.windows(2).map(|pair| pair[1].start_ps.saturating_sub(pair[0].start_ps)).collect();
        (!gaps.is_empty()).then(|| median(gaps) / 2)
    };
    gap(runs).into_iter().chain(gap(own)).min().unwrap_or(i64::MAX)
}

/// Follows two cores from a pair on.
struct Follow<'a> {
    runs: &'a [Run],
    at: &'a HashMap<i64, usize>,
    own: &'a [Run],
    are_ids: bool,
    tolerance: i64,
}

impl Follow<'_> {
    fn towards(
        &self,
        step: isize,
        (mut own_at, mut last): (usize, usize),
        mut by: i64,
        found: &mut [(Option<usize>, i64)],
    ) {
        let mut lag = self.lag(own_at, last);
        while let Some(next) = own_at.checked_add_signed(step).filter(|&next| next < self.own.len()) {
            let partner = self.partner((own_at, next), step, last, by, lag);
            if let Some(other) = partner {
                by = self.runs[other].place.saturating_sub(self.own[next].place);
                lag = self.lag(next, other);
                last = other;
            }
            found[next] = (partner, self.own[next].place.saturating_add(by));
            own_at = next;
        }
    }

    /// How much later the run of the other core started.
    fn lag(&self, own_at: usize, other: usize) -> i64 {
        self.runs[other].start_ps.saturating_sub(self.own[own_at].start_ps)
    }

    /// The run that the execution at `next` is part of; the one before it is at `own_at`.
    fn partner(
        &self,
        (own_at, next): (usize, usize),
        step: isize,
        last: usize,
        by: i64,
        lag: i64,
    ) -> Option<usize> {
        let is_beyond = |other: &usize| if step > 0 { *other > last } else { *other < last };
        let off = |own_at: usize, other: usize| {
            let expected = self.own[own_at].start_ps.saturating_add(lag);
            self.runs[other].start_ps.saturating_sub(expected).saturating_abs()
        };
        let expected = self.own[next].start_ps.saturating_add(lag);
        let after = self.runs.partition_point(|run| run.start_ps < expected);
        let around = after.saturating_sub(1)..self.runs.len().min(after + 1);
        let nearest = around.filter(is_beyond).min_by_key(|&other| off(next, other));
        let nearest = nearest.filter(|&other| off(next, other) <= self.tolerance);
        let place = self.own[next].place;
        let Some(same) = place.checked_add(by).and_then(|place| self.at.get(&place).copied()) else {
            return nearest;
        };
        if !is_beyond(&same) {
            return nearest;
        }
        let are_consecutive = place.abs_diff(self.own[own_at].place) == 1;
        let fits = off(next, same) <= self.tolerance;
        if fits || self.are_ids && are_consecutive {
            return Some(same);
        }
        if let Some(nearest) = nearest {
            let clearly = off(next, nearest).saturating_mul(CLEARER) < off(next, same);
            return Some(if clearly { nearest } else { same });
        }
        // Without ids this tells a run that one core lost.
        self.are_ids.then_some(same)
    }
}

/// How far the places of `own` lie behind those of `runs`, most of the time.
///
/// Cores of a host are traced in one window, so the shorter sequence normally lies within the longer one: of such
/// distances the closest in time. Another distance must be clearly closer: a core that falls behind is close to the
/// wrong runs, too. Of enqueueing and starting, that counts which tells one distance from the others best: a host may
/// enqueue all runs at once.
fn distance(
    runs: &[Run],
    at: &HashMap<i64, usize>,
    own: &[Run],
    launched: Option<((i64, i64), (i64, i64))>,
) -> Option<i64> {
    let (first, last) = (own.first()?, own.last()?);
    let hull = ((runs.first()?.place, runs.last()?.place), (first.place, last.place));
    let (theirs, ours) = launched.unwrap_or(hull);
    let (one, other) = (theirs.0.saturating_sub(ours.0), theirs.1.saturating_sub(ours.1));
    let within = one.min(other)..=one.max(other);
    let kinds: [Apart; 2] = [enqueued_apart, started_apart];
    let mut tried = HashSet::from([one, other]);
    for own in [first, &own[own.len() / 2], last] {
        for apart in kinds {
            let known = runs.iter().filter_map(|run| Some((apart(run, own)?, run.place)));
            let Some((_, place)) = known.min() else { continue };
            let nearest = place.saturating_sub(own.place);
            tried.extend((-AROUND..=AROUND).map(|around| nearest.saturating_add(around)));
        }
    }
    let told = kinds.iter().filter_map(|&apart| {
        let gaps: Vec<_> = tried.iter().filter_map(|&by| gap(runs, at, own, by, apart)).collect();
        let closest = gaps.iter().min()?;
        let other = gaps.iter().filter(|gap| gap.2 != closest.2).min();
        let contrast = other.map_or(1.0, |other| (other.0 as f64 + 1.0) / (closest.0 as f64 + 1.0));
        let inside = gaps.iter().filter(|(_, _, by)| within.contains(by)).min();
        let clearly =
            inside.is_none_or(|inside| launched.is_none() && closest.0.saturating_mul(CLEARER) < inside.0);
        Some((contrast, inside.filter(|_| !clearly).unwrap_or(closest).2))
    });
    told.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, by)| by)
}

/// How far apart the runs are at a distance, how many they are, and the distance.
fn gap(
    runs: &[Run],
    at: &HashMap<i64, usize>,
    own: &[Run],
    by: i64,
    apart: Apart,
) -> Option<(i64, std::cmp::Reverse<usize>, i64)> {
    let pair = |own: &Run| apart(&runs[*at.get(&own.place.checked_add(by)?)?], own);
    let step = own.len().div_ceil(COMPARED).max(1);
    let gaps: Vec<i64> = own.iter().step_by(step).filter_map(pair).collect();
    let common = gaps.len();
    (common > 0).then(|| (median(gaps), std::cmp::Reverse(common), by))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDS: Places = Places { are_ids: true, launched: None };

    fn run(place: i64, start_ps: i64, enqueued_ps: Option<i64>) -> Run {
        Run { number: 0, place, start_ps, enqueued_ps }
    }

    /// What each of `own` is paired with, as places of `runs`.
    fn places_of(runs: &[Run], own: &[Run], places: Places) -> Vec<Option<i64>> {
        pairs(runs, own, places).into_iter().map(|(at, _)| at.map(|at| runs[at].place)).collect()
    }

    fn numbered(starts: impl IntoIterator<Item = i64>) -> Vec<Run> {
        (0..).zip(starts).map(|(place, start)| run(place, start, None)).collect()
    }

    #[test]
    fn the_enqueueing_decides_where_it_tells_more() {
        // The second core falls behind by a whole run.
        let runs: Vec<Run> = (0..10).map(|at| run(at, 1000 + 100 * at, Some(10 * at))).collect();
        let own: Vec<Run> = (0..10).map(|at| run(at, 1100 + 110 * at, Some(10 * at + 1))).collect();
        let all: Vec<Option<i64>> = (0..10).map(Some).collect();
        assert_eq!(places_of(&runs, &own, Places::default()), all);
        assert_eq!(places_of(&runs, &own[3..], IDS), all[3..]);
        assert_eq!(places_of(&runs[3..], &own, IDS), [&[None; 3], &all[3..]].concat());
        assert_eq!(places_of(&runs[..9], &own[1..], IDS), [&all[1..9], &[None]].concat());
        assert_eq!(places_of(&[], &own, IDS), [None; 10]);
        assert_eq!(places_of(&runs, &[], IDS), []);
        // All enqueued at once: nothing can be told by it.
        let runs: Vec<Run> = (0..20).map(|at| run(at + 3, 1000 * at, Some(at))).collect();
        let own: Vec<Run> = (5..20).map(|at| run(at + 1, 1000 * at + 2, Some(at + 300))).collect();
        assert_eq!(places_of(&runs, &own, IDS), (8..23).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn a_core_that_falls_behind_is_paired_by_its_sequence() {
        let runs = numbered((0..20).map(|at| 110 * at));
        let own = numbered((0..20).map(|at| 125 * at));
        assert_eq!(places_of(&runs, &own, Places::default()), (0..20).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn what_the_host_launched_bounds_the_distance() {
        // A core that lacks its first runs and falls behind by more than a run.
        let runs: Vec<Run> = (1..=20).map(|at| run(at, 100 * at, None)).collect();
        let own: Vec<Run> = (11..=20).map(|at| run(at + 40, 100 * at + 130, None)).collect();
        let launched = Some(((1, 20), (41, 60)));
        let places = Places { are_ids: true, launched };
        assert_eq!(places_of(&runs, &own, places), (11..=20).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn another_program_on_one_core_shifts_its_ids() {
        // On the first core a program of its own runs after each fourth run.
        let runs: Vec<Run> = (0..40).map(|at| run(at + at / 4, 100 * at, None)).collect();
        let mut own: Vec<Run> = (0..40).map(|at| run(at, 100 * at + 1, None)).collect();
        let all: Vec<Option<i64>> = runs.iter().map(|run| Some(run.place)).collect();
        assert_eq!(places_of(&runs, &own, IDS), all);
        own.remove(13);
        let mut left = all;
        left.remove(13);
        assert_eq!(places_of(&runs, &own, IDS), left);
    }

    proptest! {
        /// Whatever runs are lost on either core, with ids or without, the others are paired as they were.
        #[test]
        fn lost_runs_leave_the_others_paired(
            gaps in prop::collection::vec(900_000..1_100_000i64, 12..60),
            (lost, others_lost) in (
                prop::collection::hash_set(0..60usize, 0..6),
                prop::collection::hash_set(0..60usize, 0..6),
            ),
            (cut, left) in (0..4usize, 8..60usize),
            (late, offset, are_ids) in (0..400i64, -500..500i64, any::<bool>()),
        ) {
            let starts: Vec<(i64, i64)> = (0..).zip(gaps.iter().scan(0, |sum, gap| { *sum += gap; Some(*sum) })).collect();
            let kept = |lost: &HashSet<usize>| -> Vec<(i64, i64)> {
                starts.iter().enumerate().filter(|(at, _)| !lost.contains(at)).map(|(_, &run)| run).collect()
            };
            let theirs = kept(&others_lost);
            let ours: Vec<(i64, i64)> = kept(&lost).into_iter().skip(cut).take(left).collect();
            let place = |at: usize, id: i64| if are_ids { id } else { at as i64 };
            let runs: Vec<Run> =
                theirs.iter().enumerate().map(|(at, &(id, start))| run(place(at, id), start, None)).collect();
            let own: Vec<Run> = ours
                .iter()
                .enumerate()
                .map(|(at, &(id, start))| run(place(at, id + offset), start + late, None))
                .collect();
            let found: Vec<Option<i64>> =
                pairs(&runs, &own, Places { are_ids, launched: None }).iter().map(|pair| pair.0.map(|at| theirs[at].0)).collect();
            let there: HashSet<i64> = theirs.iter().map(|run| run.0).collect();
            let wanted: Vec<Option<i64>> =
                ours.iter().map(|(id, _)| Some(*id).filter(|id| there.contains(id))).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
