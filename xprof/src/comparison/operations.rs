//! Operations, categories and collectives beside each other, per run of their program or per step.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use serde::Serialize;

use super::{
    Pair, SessionFigures,
    figures::{OpName, OpSum},
};

/// What the time of an operation is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// The runs of its program on all cores.
    ProgramRun,
    /// The steps of all cores, or without cores of all hosts.
    Step,
}

/// What an operation takes in one session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OpTime {
    /// Self time on one core.
    pub self_time_ps: i64,
    /// How often it runs on one core.
    pub occurrences: f64,
}

/// One operation in both sessions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpChange {
    /// Its name.
    pub name: String,
    /// Its program, where the trace says it.
    pub program: Option<String>,
    /// Its category.
    pub category: String,
    /// What its time is divided by.
    pub per: Per,
    /// In the first session; null: it is new.
    pub a: Option<OpTime>,
    /// In the second one; null: it is gone.
    pub b: Option<OpTime>,
    /// How much more time it takes in the second one.
    pub change_ps: i64,
}

/// One category of operations in both sessions, per step on one core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CategoryChange {
    /// Its name.
    pub category: String,
    /// Self time in the first session.
    pub a_ps: i64,
    /// Self time in the second one.
    pub b_ps: i64,
}

/// One kind of collective in both sessions, per step on one core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CollectiveChange {
    /// Its opcode.
    pub opcode: &'static str,
    /// Time in the first session, waiting included.
    pub a_ps: i64,
    /// Time in the second one.
    pub b_ps: i64,
}

/// The operations of the programs that both have, greatest change first.
pub(super) fn compare(sessions: &Pair<SessionFigures>, not_compared: &mut Vec<String>) -> Vec<OpChange> {
    let programs = sessions.map(programs_of);
    let common: BTreeSet<&str> = programs.a.intersection(&programs.b).copied().collect();
    if common.is_empty() {
        not_compared.push("operations: no program is in both sessions".to_owned());
        return Vec::new();
    }
    let names: BTreeSet<&OpName> = sessions
        .a
        .operations
        .keys()
        .chain(sessions.b.operations.keys())
        .filter(|(program, _)| common.contains(program.as_str()))
        .collect();
    let mut undivided = BTreeSet::new();
    let mut changes: Vec<OpChange> = Vec::with_capacity(names.len());
    for name in names {
        match units(sessions, &name.0) {
            Some((per, runs)) => changes.push(OpChange::of(name, per, &runs, sessions)),
            None => {
                undivided.insert(name.0.as_str());
            }
        }
    }
    if !undivided.is_empty() {
        let why = "without steps or runs of its program there is nothing to divide its time by";
        not_compared.push(match undivided.iter().find(|name| !name.is_empty()) {
            Some(program) => format!("operations of {program}: {why}"),
            None => format!("operations: {why}"),
        });
    }
    changes.sort_by_key(|change| Reverse(change.change_ps.saturating_abs()));
    changes
}

/// The programs of the operations; empty for those whose program is not known.
fn programs_of(session: &SessionFigures) -> BTreeSet<&str> {
    session.operations.keys().map(|(program, _)| program.as_str()).collect()
}

/// What the times of a program's operations are divided by: the same kind of thing in both sessions.
fn units(sessions: &Pair<SessionFigures>, program: &str) -> Option<(Per, Pair<u64>)> {
    let runs = sessions.map(|session| session.program_runs.get(program).copied());
    if let Some(runs) = runs.both() {
        return Some((Per::ProgramRun, runs));
    }
    let steps = sessions.map(|session| session.core_steps);
    (steps.a > 0 && steps.b > 0).then_some((Per::Step, steps))
}

impl OpTime {
    /// The trace cuts a run at each of its ends on each core, and may lack the run of which it has operations. So where no
    /// more than that parts the occurrences from a whole number a run, that number is meant.
    fn of(sum: &OpSum, units: u64, cores: u64) -> Self {
        let (occurrences, units) = (sum.occurrences as f64, units.max(1) as f64);
        let whole = (occurrences / units).round();
        let cut = (occurrences - whole * units).abs();
        let each = if whole > 0.0 && cut <= 2.0 * whole * cores as f64 { whole } else { occurrences / units };
        let time = sum.self_time_ps as f64 / occurrences.max(1.0) * each;
        Self { self_time_ps: time.round() as i64, occurrences: each }
    }
}

impl OpChange {
    fn of((program, name): &OpName, per: Per, units: &Pair<u64>, sessions: &Pair<SessionFigures>) -> Self {
        let key = (program.clone(), name.clone());
        let sums = sessions.map(|session| session.operations.get(&key).cloned());
        let category = sums.a.as_ref().or(sums.b.as_ref()).map(|sum| sum.category.clone());
        let cores = sessions.map(SessionFigures::lanes);
        let a = sums.a.map(|sum| OpTime::of(&sum, units.a, cores.a));
        let b = sums.b.map(|sum| OpTime::of(&sum, units.b, cores.b));
        let time = |of: &Option<OpTime>| of.map_or(0, |time| time.self_time_ps);
        Self {
            change_ps: time(&b).saturating_sub(time(&a)),
            name: name.clone(),
            program: Some(program.clone()).filter(|program| !program.is_empty()),
            category: category.unwrap_or_default(),
            per,
            a,
            b,
        }
    }
}

fn divided(time_ps: i64, units: u64) -> i64 {
    time_ps / i64::try_from(units.max(1)).unwrap_or(i64::MAX)
}

/// The times of both by name, per step on one core: none where one of the sessions has no steps.
fn per_step<'s, K: Ord + Copy + 's>(
    sessions: &'s Pair<SessionFigures>,
    of: impl Fn(&'s SessionFigures) -> BTreeMap<K, i64>,
) -> Vec<(K, i64, i64)> {
    let steps = sessions.map(|session| session.core_steps);
    if steps.a == 0 || steps.b == 0 {
        return Vec::new();
    }
    let (a, b) = (of(&sessions.a), of(&sessions.b));
    let names: BTreeSet<K> = a.keys().chain(b.keys()).copied().collect();
    let time =
        |times: &BTreeMap<K, i64>, name: &K, steps| divided(times.get(name).copied().unwrap_or(0), steps);
    names.into_iter().map(|name| (name, time(&a, &name, steps.a), time(&b, &name, steps.b))).collect()
}

/// The collectives of both.
pub(super) fn collectives(sessions: &Pair<SessionFigures>) -> Vec<CollectiveChange> {
    let all = per_step(sessions, |session| session.collectives.clone());
    all.into_iter().map(|(opcode, a_ps, b_ps)| CollectiveChange { opcode, a_ps, b_ps }).collect()
}

/// The categories of both, greatest change first.
pub(super) fn categories(sessions: &Pair<SessionFigures>) -> Vec<CategoryChange> {
    let all = per_step(sessions, |session| {
        session.categories.iter().map(|(name, time)| (name.as_str(), *time)).collect()
    });
    let mut changes: Vec<CategoryChange> = all
        .into_iter()
        .map(|(category, a_ps, b_ps)| CategoryChange { category: category.to_owned(), a_ps, b_ps })
        .collect();
    changes.sort_by_key(|change| Reverse(change.b_ps.saturating_sub(change.a_ps).saturating_abs()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_the_trace_cuts_do_not_change_the_time_of_a_run() {
        let time = |occurrences: u64, units: u64, cores: u64| {
            let self_time_ps = i64::try_from(occurrences).unwrap() * 300;
            let sum = OpSum { occurrences, self_time_ps, ..OpSum::default() };
            OpTime::of(&sum, units, cores)
        };
        assert_eq!(time(10, 10, 1), OpTime { self_time_ps: 300, occurrences: 1.0 });
        // The eleventh run is cut and does not count; a loop of it was cut too.
        assert_eq!(time(11, 10, 1), OpTime { self_time_ps: 300, occurrences: 1.0 });
        assert_eq!(time(67, 10, 1), OpTime { self_time_ps: 2100, occurrences: 7.0 });
        assert_eq!(time(9, 10, 1).occurrences, 1.0);
        // Every second run has it, or a loop has no fixed length.
        assert_eq!(time(50, 100, 1), OpTime { self_time_ps: 150, occurrences: 0.5 });
        assert_eq!(time(1230, 100, 1).occurrences, 12.3);
        // Rare, and cut runs of many cores.
        assert_eq!(time(1, 100, 1).occurrences, 0.01);
        assert_eq!(time(44, 40, 4).occurrences, 1.0);
    }
}
