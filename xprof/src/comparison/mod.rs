//! Two sessions beside each other: what takes longer, which operations, who is waited for, and from which step on.
//!
//! ```text
//! figures    one session as the figures that are compared: its report need not be kept
//! steps      step times, programs                 operations   operations, categories, collectives
//! setup      how the sessions were recorded       first_change the first step that differs
//! ```
//!
//! Only what is the same thing in both sessions is compared; what is not is named, with the reason. Must never take a
//! difference of how the sessions were recorded for one of the job.

mod figures;
mod first_change;
mod operations;
mod setup;
mod steps;

use serde::Serialize;

use crate::analysis::{InputWait, Straggler};

pub use self::{
    figures::{SessionFigures, TraceKind},
    first_change::{FirstChange, FirstChangePlace},
    operations::{CategoryChange, CollectiveChange, OpChange, OpTime, Per},
    setup::SetupDifference,
    steps::{ProgramChange, StepTimeChange},
};

/// The same thing in both sessions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair<T> {
    /// In the first session.
    pub a: T,
    /// In the second one.
    pub b: T,
}

impl<T> Pair<T> {
    /// What `of` says of each of the two.
    pub fn map<'p, U>(&'p self, of: impl Fn(&'p T) -> U) -> Pair<U> {
        Pair { a: of(&self.a), b: of(&self.b) }
    }
}

impl<T> Pair<Option<T>> {
    /// Both, if both are known.
    pub fn both(self) -> Option<Pair<T>> {
        Some(Pair { a: self.a?, b: self.b? })
    }
}

/// What two sessions have in common, and where they differ.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// How they were recorded: what is not the same.
    pub setup: Vec<SetupDifference>,
    /// What each of them lost: figures of such a trace are doubtful.
    pub losses: Pair<Vec<String>>,
    /// Step times; null if they cannot be compared.
    pub step_time: Option<StepTimeChange>,
    /// Of each program that both have, where no marker of the host numbers the steps.
    pub programs: Vec<ProgramChange>,
    /// The first step of the second session that differs from the first session.
    pub first_change: FirstChange,
    /// The part of the cores' time in which they were busy.
    pub busy: Option<Pair<f64>>,
    /// How much waited for input; null in a session that does not tell it.
    pub input: Pair<Option<InputWait>>,
    /// The core or host that the others wait for; null in a session without one.
    pub straggler: Pair<Option<Straggler>>,
    /// The collectives, by opcode; none where step times cannot be compared.
    pub collectives: Vec<CollectiveChange>,
    /// The categories of operations, greatest change first; none where step times cannot be compared.
    pub categories: Vec<CategoryChange>,
    /// The operations, greatest change first; with those that only one session has.
    pub operations: Vec<OpChange>,
    /// What cannot be compared, and why.
    pub not_compared: Vec<String>,
    /// The number of warnings of each.
    pub warnings: Pair<usize>,
}

/// Why nothing of two sessions can be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotComparable {
    /// One has devices and the other has none.
    #[error(
        "{host} is a trace of the host alone, and {devices} has devices: no figure of theirs is the same thing"
    )]
    HostAndDevices {
        /// The session without devices.
        host: &'static str,
        /// The other one.
        devices: &'static str,
    },
    /// Neither steps nor operations.
    #[error("{0} has neither steps nor operations")]
    Empty(&'static str),
}

/// What the sessions are called in texts.
const NAMES: [&str; 2] = ["A", "B"];

/// Compares two sessions.
///
/// # Errors
/// If no figure of theirs is the same thing.
pub fn compare(sessions: &Pair<SessionFigures>) -> Result<Comparison, NotComparable> {
    let kinds = sessions.map(|session| session.kind);
    for (kind, name) in [(kinds.a, NAMES[0]), (kinds.b, NAMES[1])] {
        if kind == TraceKind::Empty {
            return Err(NotComparable::Empty(name));
        }
    }
    if kinds.a != kinds.b {
        let (host, devices) = if kinds.a == TraceKind::Host { (0, 1) } else { (1, 0) };
        return Err(NotComparable::HostAndDevices { host: NAMES[host], devices: NAMES[devices] });
    }
    let mut not_compared = Vec::new();
    let step_time = steps::compare(sessions, &mut not_compared);
    let first_change = match &step_time {
        Some(_) => first_change::find(&sessions.a.steps, &sessions.b.steps),
        None => FirstChange::unknown("the step times cannot be compared"),
    };
    let operations = operations::compare(sessions, &mut not_compared);
    let (collectives, categories) = match &step_time {
        Some(_) => (operations::collectives(sessions), operations::categories(sessions)),
        None => {
            not_compared.push("collectives and categories: they are compared by step".to_owned());
            Default::default()
        }
    };
    for (session, name) in [(&sessions.a, NAMES[0]), (&sessions.b, NAMES[1])] {
        if session.kind == TraceKind::Devices && session.cores == 1 {
            not_compared.push(format!("straggler: {name} has one core"));
        }
    }
    Ok(Comparison {
        setup: setup::differences(sessions),
        losses: sessions.map(|session| session.losses.clone()),
        step_time,
        programs: steps::programs(sessions),
        first_change,
        busy: sessions.map(|session| session.busy).both(),
        input: sessions.map(|session| session.input),
        straggler: sessions.map(|session| session.straggler.clone()),
        collectives,
        categories,
        operations,
        not_compared,
        warnings: sessions.map(|session| session.warnings),
    })
}
