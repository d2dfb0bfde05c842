//! From which step on the second session differs from the first one.
//!
//! Where both have steps of the same numbers, those are compared, so that what every tenth step does is no
//! change. Else the steps of the second session are compared with the median of the first. A change is what lasts to the
//! end: a single slow step is none.

use std::{cmp::Ordering, collections::BTreeMap};

use serde::Serialize;

use crate::analysis::{SessionStep, median};

/// Fewer steps tell nothing.
const FEWEST_STEPS: usize = 4;
/// Fewer steps before a change do not show that it came later than the session began.
const FEWEST_BEFORE: usize = 3;
/// A change that is smaller, in parts of the median step, is none.
const LEAST_SHARE: f64 = 0.03;
/// The part of the steps that must be on the right side of the change.
const CLEAR: f64 = 0.8;

/// Where the first change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstChangePlace {
    /// At a step of the second session.
    AtStep,
    /// Before the second session began: all its steps differ.
    Before,
    /// Nowhere: the steps take as long at the end of the second session.
    Nowhere,
    /// The data cannot tell.
    Unknown,
}

/// The first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstChange {
    /// Where it is.
    pub found: FirstChangePlace,
    /// The place of that step among those of the second session, counted from 0.
    pub index: Option<usize>,
    /// The number of that step, where it has one.
    pub step_num: Option<i64>,
    /// The same in words.
    pub text: String,
}

impl FirstChange {
    pub(super) fn unknown(why: impl Into<String>) -> Self {
        Self { found: FirstChangePlace::Unknown, index: None, step_num: None, text: why.into() }
    }

    fn nowhere(text: impl Into<String>) -> Self {
        Self { found: FirstChangePlace::Nowhere, index: None, step_num: None, text: text.into() }
    }
}

/// Times that are compared with a level.
struct Series {
    /// The places of the steps in the second session, and their times above the level.
    above: Vec<(usize, i64)>,
    /// Whether they are compared with steps of the same number.
    by_number: bool,
}

/// The first step of `b` from which on its steps take longer or shorter than those of `a`.
pub(super) fn find(a: &[SessionStep], b: &[SessionStep]) -> FirstChange {
    if a.len() < FEWEST_STEPS || b.len() < FEWEST_STEPS {
        return FirstChange::unknown(format!("fewer than {FEWEST_STEPS} steps tell nothing"));
    }
    let level = median(a.iter().map(|step| step.duration_ps).collect());
    let spread =
        median(a.iter().map(|step| step.duration_ps.saturating_sub(level).saturating_abs()).collect());
    let least = ((level as f64 * LEAST_SHARE) as i64).max(spread);
    let series = Series::of(a, b, level);
    let times: Vec<i64> = series.above.iter().map(|&(_, above)| above).collect();
    let Some(shift) = lasting_shift(&times, least) else {
        return FirstChange::nowhere("the last steps of B take as long as those of A");
    };
    let (at, clear) = turning_point(&times, shift);
    if clear < CLEAR {
        return FirstChange::unknown("long and short steps alternate in B");
    }
    let at = if at < FEWEST_BEFORE { 0 } else { at };
    let step = b[series.above[at].0];
    let named = step.step_num.map_or_else(|| format!("run {}", at + 1), |number| format!("step {number}"));
    if at == 0 {
        let text = before(a, b, &series);
        return FirstChange { found: FirstChangePlace::Before, index: None, step_num: None, text };
    }
    let like = if series.by_number { "those of A with the same numbers" } else { "those of A" };
    let longer = if shift > 0 { "longer" } else { "shorter" };
    let text = format!("from {named} of B on steps take {longer}; the {at} before it take as long as {like}");
    FirstChange {
        found: FirstChangePlace::AtStep,
        index: Some(series.above[at].0),
        step_num: step.step_num,
        text,
    }
}

/// In words: all steps differ.
fn before(a: &[SessionStep], b: &[SessionStep], series: &Series) -> String {
    let numbers = |steps: &[SessionStep]| {
        let numbers: Vec<i64> = steps.iter().filter_map(|step| step.step_num).collect();
        numbers.iter().min().copied().zip(numbers.iter().max().copied())
    };
    let all = "all steps of B differ";
    if let Some(first) = series.above.first().filter(|_| series.by_number).and_then(|&(at, _)| b[at].step_num)
    {
        return format!("{all}, from step {first} on, the first that both have: it came earlier");
    }
    match (numbers(a), numbers(b)) {
        (Some((_, last)), Some((first, _))) if last < first => {
            format!(
                "{all}: it came after step {last}, the last of A, and before step {first}, the first of B"
            )
        }
        _ => format!("{all}: it came before B"),
    }
}

impl Series {
    fn of(a: &[SessionStep], b: &[SessionStep], level: i64) -> Self {
        let times: BTreeMap<i64, i64> =
            a.iter().filter_map(|step| Some((step.step_num?, step.duration_ps))).collect();
        let above = |step: &SessionStep| Some(step.duration_ps.saturating_sub(*times.get(&step.step_num?)?));
        let paired: Vec<(usize, i64)> =
            b.iter().enumerate().filter_map(|(at, step)| Some((at, above(step)?))).collect();
        if paired.len() >= FEWEST_STEPS && paired.len() * 2 >= b.len() {
            return Self { above: paired, by_number: true };
        }
        let above = b.iter().enumerate().map(|(at, step)| (at, step.duration_ps.saturating_sub(level)));
        Self { above: above.collect(), by_number: false }
    }
}

/// The median of the last steps, if it is more than `least` away from 0: of the last quarter, else of the last few.
fn lasting_shift(times: &[i64], least: i64) -> Option<i64> {
    let last = |count: usize| median(times[times.len().saturating_sub(count)..].to_vec());
    let counts = [(times.len() / 4).max(FEWEST_STEPS), FEWEST_STEPS];
    counts.into_iter().map(last).find(|shift| shift.saturating_abs() > least)
}

/// The place that parts the times best into those near 0 and those near `shift`, and the part of them that is on the
/// right side of it.
fn turning_point(times: &[i64], shift: i64) -> (usize, f64) {
    let half = shift / 2;
    let is_shifted = |time: i64| match shift.cmp(&0) {
        Ordering::Less => time < half,
        _ => time > half,
    };
    let mut right = times.iter().filter(|&&time| is_shifted(time)).count();
    let (mut best, mut most) = (0, right);
    for (at, &time) in times.iter().enumerate() {
        if is_shifted(time) {
            right -= 1;
        } else {
            right += 1;
        }
        if right > most {
            (best, most) = (at + 1, right);
        }
    }
    // All but the end would be no change.
    (best.min(times.len().saturating_sub(1)), most as f64 / times.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of these times in ms, numbered from `first`.
    fn steps(first: i64, times: &[i64]) -> Vec<SessionStep> {
        let step = |(at, ms): (usize, &i64)| SessionStep {
            step_num: Some(first + at as i64),
            duration_ps: ms * 1_000_000_000,
        };
        times.iter().enumerate().map(step).collect()
    }

    fn unnumbered(times: &[i64]) -> Vec<SessionStep> {
        steps(0, times).into_iter().map(|step| SessionStep { step_num: None, ..step }).collect()
    }

    #[test]
    fn the_first_of_the_slow_steps_is_found() {
        let a = steps(0, &[100, 101, 99, 100, 102, 100]);
        let b = steps(50, &[100, 101, 99, 100, 120, 121, 119, 122]);
        let found = find(&a, &b);
        assert_eq!((found.found, found.index, found.step_num), (FirstChangePlace::AtStep, Some(4), Some(54)));
        assert_eq!(
            found.text,
            "from step 54 of B on steps take longer; the 4 before it take as long as those of A"
        );
        let found = find(&a, &unnumbered(&[100, 101, 99, 80, 81, 79, 82]));
        assert_eq!((found.found, found.index, found.step_num), (FirstChangePlace::AtStep, Some(3), None));
        assert!(found.text.starts_with("from run 4 of B on steps take shorter"), "{}", found.text);
    }

    #[test]
    fn a_change_near_the_end_of_a_long_session_is_found() {
        let a = steps(0, &[100; 100]);
        let mut times = [100; 100];
        times[95..].fill(130);
        assert_eq!(find(&a, &steps(0, &times)).step_num, Some(95));
    }

    #[test]
    fn steps_of_the_same_number_are_compared() {
        // Every fifth step saves a checkpoint; the change comes at step 12.
        let usual: Vec<i64> = (0..20).map(|step| if step % 5 == 0 { 300 } else { 100 }).collect();
        let slow: Vec<i64> =
            usual.iter().enumerate().map(|(at, ms)| if at >= 12 { ms + 20 } else { *ms }).collect();
        let found = find(&steps(0, &usual), &steps(0, &slow));
        assert_eq!((found.found, found.step_num), (FirstChangePlace::AtStep, Some(12)));
        assert!(found.text.ends_with("those of A with the same numbers"), "{}", found.text);
    }

    #[test]
    fn a_change_before_the_session_is_told_by_its_numbers() {
        let a = steps(0, &[100; 8]);
        let text = |first: i64| {
            let found = find(&a, &steps(first, &[130; 8]));
            assert_eq!((found.found, found.index), (FirstChangePlace::Before, None));
            found.text
        };
        assert!(
            text(100).ends_with("it came after step 7, the last of A, and before step 100, the first of B")
        );
        assert!(text(2).ends_with("from step 2 on, the first that both have: it came earlier"));
        let found = find(&unnumbered(&[100; 8]), &unnumbered(&[70; 8]));
        assert_eq!(found.text, "all steps of B differ: it came before B");
        // Two usual steps at the start are no proof that it began there.
        assert_eq!(
            find(&a, &steps(90, &[100, 100, 130, 130, 130, 130, 130])).found,
            FirstChangePlace::Before
        );
    }

    #[test]
    fn what_does_not_last_or_is_not_clear_is_no_change() {
        let a = steps(0, &[100, 103, 97, 100, 104, 96]);
        let found = |times: &[i64]| find(&a, &steps(50, times)).found;
        assert_eq!(found(&[100, 102, 98, 101, 99, 100]), FirstChangePlace::Nowhere);
        assert_eq!(found(&[100, 400, 98, 101, 99, 100]), FirstChangePlace::Nowhere);
        assert_eq!(found(&[150, 150, 100, 101, 99, 100]), FirstChangePlace::Nowhere);
        assert_eq!(found(&[100, 150, 100, 150, 100, 150, 100, 150, 150]), FirstChangePlace::Unknown);
        assert_eq!(found(&[100, 150, 150]), FirstChangePlace::Unknown);
        assert_eq!(find(&a[..3], &a).found, FirstChangePlace::Unknown);
        assert_eq!(find(&a, &a).found, FirstChangePlace::Nowhere);
    }
}
