//! Aligns steps that have no numbers and whose programs cannot be paired: a collective ends at the same instant on all cores
//! that take part, so at the right shift the gaps between two cores' ends are all the same.

use super::{
    host_trace::Core,
    stepping::{Keys, Stepping},
    summary::{mean, median},
};

/// How many steps of a core are compared.
const COMPARED: usize = 256;
/// The fewest common steps that can prove a shift.
const FEWEST: usize = 3;
/// The right shift's spread, so many times over, is still below the next best one's: never so when both are zero.
const CLEARER: i64 = 4;

/// Keys for the steps of all cores, counted along the first; none if one core cannot be placed.
pub(super) fn keys(cores: &[Stepping<'_>]) -> Option<Vec<Keys>> {
    let (&(_, _, first), rest) = cores.split_first()?;
    let reference = ends(first)?;
    let count = |core: &Core, shift: i64| (0..core.steps.len() as i64).map(|at| Some(at + shift)).collect();
    let mut all = vec![count(first, 0)];
    for &(_, _, core) in rest {
        all.push(count(core, shift(&reference, &ends(core)?)?));
    }
    Some(all)
}

/// Per step the end of its last collective; none if a step has no collective.
fn ends(core: &Core) -> Option<Vec<i64>> {
    let mut ends = vec![None; core.steps.len()];
    for run in &core.collectives {
        if let Some(end) = run.step.and_then(|step| ends.get_mut(step as usize)) {
            *end = Some(end.map_or(run.end_ps, |known: i64| known.max(run.end_ps)));
        }
    }
    ends.into_iter().take(COMPARED).collect()
}

/// How far `other`'s steps lie ahead of the reference's, if one shift is clearly right.
fn shift(reference: &[i64], other: &[i64]) -> Option<i64> {
    let (ours, theirs) = (reference.len() as i64, other.len() as i64);
    let fewest = FEWEST as i64;
    let mut spreads: Vec<(i64, i64)> = (fewest - theirs..=ours - fewest)
        .filter_map(|shift| {
            let from = shift.max(0);
            let to = ours.min(theirs + shift);
            let gap = |at: i64| reference[at as usize].saturating_sub(other[(at - shift) as usize]);
            let gaps: Vec<i64> = (from..to).map(gap).collect();
            (gaps.len() >= FEWEST).then(|| (spread(gaps), shift))
        })
        .collect();
    spreads.sort_unstable();
    let &(best, shift) = spreads.first()?;
    let clear = spreads.get(1).is_some_and(|&(next, _)| best.saturating_mul(CLEARER) < next);
    clear.then_some(shift)
}

/// The mean distance from the median.
fn spread(gaps: Vec<i64>) -> i64 {
    let middle = median(gaps.clone());
    mean(&gaps.iter().map(|gap| gap.saturating_sub(middle).saturating_abs()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_with_constant_gaps_is_the_right_one() {
        let reference = [100, 212, 305, 421, 530, 604, 733];
        // The same steps from the third on, by a clock that began later.
        let other: Vec<i64> = reference[2..].iter().map(|end| end - 250).collect();
        assert_eq!(shift(&reference, &other), Some(2));
        assert_eq!(shift(&other, &reference), Some(-2));
    }

    #[test]
    fn steps_of_equal_length_prove_nothing() {
        let even: Vec<i64> = (0..10).map(|at| at * 100).collect();
        assert_eq!(shift(&even, &even[2..]), None);
        assert_eq!(shift(&even, &even[..2]), None);
    }
}
