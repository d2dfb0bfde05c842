//! Logs when a source begins to miss a value, with the reason, and when it has the value again.

use std::time::Instant;

use model::{log_budget::LogBudget, sample::Origin};
use tracing::{info, warn};

use crate::sources::Absence;

/// The log of one source.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    budget: LogBudget,
}

impl FailureLog {
    /// Compares what is missing with what was missing at the read before.
    pub(super) fn note(&mut self, origin: Origin, before: &[Absence], after: &[Absence], now: Instant) {
        let source = origin.as_str();
        for (absence, began) in changes(before, after) {
            let Some(suffix) = self.budget.take(now).suffix() else { return };
            let (what, why) = (&absence.what, &absence.why);
            if began {
                warn!(source, %what, %why, "a source cannot read a value{suffix}");
            } else {
                info!(source, %what, "a source can read a value again{suffix}");
            }
        }
    }
}

/// The absences that began (true) and those that are over.
fn changes<'a>(before: &'a [Absence], after: &'a [Absence]) -> impl Iterator<Item = (&'a Absence, bool)> {
    let only_in = |one: &'a [Absence], other: &'a [Absence]| {
        one.iter().filter(move |absence| other.iter().all(|known| known.what != absence.what))
    };
    let began = only_in(after, before).map(|absence| (absence, true));
    began.chain(only_in(before, after).map(|absence| (absence, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_logged_when_it_begins_and_when_it_is_over() {
        let missing = |what: &str, why: &str| Absence { what: what.into(), why: why.into() };
        let (a, b) = ([missing("a", "gone")], [missing("b", "gone")]);
        let another_reason = [missing("a", "closed")];
        let found = |before: &[Absence], after: &[Absence]| {
            changes(before, after).map(|(absence, began)| (absence.what.clone(), began)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[], &a), [("a".to_owned(), true)]);
        assert_eq!(found(&a, &another_reason), []);
        assert_eq!(found(&a, &b), [("b".to_owned(), true), ("a".to_owned(), false)]);
        assert_eq!(found(&b, &[]), [("b".to_owned(), false)]);
    }
}
