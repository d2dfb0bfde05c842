//! Step times beside each other.

use serde::Serialize;

use super::{NAMES, Pair, SessionFigures, figures::base};
use crate::analysis::DurationSummary;

/// The step times of both sessions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTimeChange {
    /// The program whose runs stand for steps; null where markers of the host number the steps.
    pub program: Option<String>,
    /// In the first session.
    pub a: DurationSummary,
    /// In the second one.
    pub b: DurationSummary,
    /// How much longer the median step of the second one is, in parts of that of the first one.
    pub median_change: f64,
}

/// The run times of a program that both sessions have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProgramChange {
    /// The program.
    pub program: String,
    /// In the first session.
    pub a: DurationSummary,
    /// In the second one.
    pub b: DurationSummary,
    /// How much longer the median run of the second one is, in parts of that of the first one.
    pub median_change: f64,
}

/// `new` in parts of `old`, less 1.
pub(super) fn change(old: i64, new: i64) -> f64 {
    if old == 0 { 0.0 } else { new as f64 / old as f64 - 1.0 }
}

/// The steps of both, if they are the same thing.
pub(super) fn compare(
    sessions: &Pair<SessionFigures>,
    not_compared: &mut Vec<String>,
) -> Option<StepTimeChange> {
    let Pair { a, b } = sessions;
    let mut refuse = |why: String| {
        not_compared.push(format!("step time: {why}"));
        None
    };
    for (session, name) in [(a, NAMES[0]), (b, NAMES[1])] {
        if session.step_time.count == 0 {
            return refuse(format!("{name} has no steps"));
        }
    }
    match (&a.step_program, &b.step_program) {
        (Some(one), Some(other)) if one != other => {
            refuse(format!("the steps of A are runs of {one}, those of B runs of {other}"))
        }
        (Some(one), None) => refuse(format!("the steps of A are runs of {one}, those of B have markers")),
        (None, Some(other)) => refuse(format!("the steps of A have markers, those of B are runs of {other}")),
        (program, _) => Some(StepTimeChange {
            program: program.clone(),
            a: a.step_time,
            b: b.step_time,
            median_change: change(a.step_time.median_ps, b.step_time.median_ps),
        }),
    }
}

/// The programs that both have, that with most time first.
pub(super) fn programs(sessions: &Pair<SessionFigures>) -> Vec<ProgramChange> {
    let mut found: Vec<ProgramChange> = Vec::new();
    for program in &sessions.a.programs {
        let name = base(&program.name);
        let other = sessions.b.programs.iter().find(|other| base(&other.name) == name);
        // Of several that were compiled from one function the one with most time stands for all.
        let is_new = !name.is_empty() && found.iter().all(|known| known.program != name);
        if let Some(other) = other.filter(|_| is_new) {
            let (a, b) = (program.run_time, other.run_time);
            let median_change = change(a.median_ps, b.median_ps);
            found.push(ProgramChange { program: name.to_owned(), a, b, median_change });
        }
    }
    found
}
