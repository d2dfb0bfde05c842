//! Logs when a source begins to miss values, with the reason, and when it has them again: once each, and at a bounded rate.

use model::{
    log_budget::{LogBudget, LogPermit},
    sample::Origin,
};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::sources::Absence;

/// The most names in one line.
const MOST_NAMES: usize = 8;

/// The log of one source.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    budget: LogBudget,
}

/// Values that began to be missing, or cease to be, for one reason.
#[derive(Debug, PartialEq, Eq)]
struct FailureChange<'a> {
    began: bool,
    /// Whether only a part is missing, such as some metrics of an endpoint that answers.
    partial: bool,
    why: &'a str,
    names: Vec<&'a str>,
}

impl FailureLog {
    /// Compares what is missing with what was missing at the read before.
    pub(super) fn note(&mut self, origin: Origin, before: &[Absence], after: &[Absence], now: Instant) {
        for change in changes(before, after) {
            if let Some(permit) = self.budget.take(now) {
                change.log(origin.as_str(), permit);
            }
        }
    }
}

impl FailureChange<'_> {
    fn log(&self, source: &'static str, permit: LogPermit) {
        let (what, why) = (listed(&self.names), self.why);
        match self {
            // The endpoint answers again, or has ended with its process.
            Self { began: false, .. } => info!(source, what, "failure of a source is over{permit}"),
            Self { partial: true, .. } => info!(source, what, why, "source lacks values{permit}"),
            Self { partial: false, .. } => warn!(source, what, why, "source cannot read{permit}"),
        }
    }
}

/// The changes between two reads: one for all values that have the same reason. Another reason of an endpoint is a change
/// too. Other reasons may count down to the next attempt.
fn changes<'a>(before: &'a [Absence], after: &'a [Absence]) -> Vec<FailureChange<'a>> {
    let mut changes: Vec<FailureChange<'a>> = Vec::new();
    let mut add = |absence: &'a Absence, began: bool| {
        let (partial, why) = (absence.partial, absence.why.as_str());
        let alike = |it: &&mut FailureChange<'_>| (it.began, it.partial, it.why) == (began, partial, why);
        match changes.iter_mut().find(alike) {
            Some(change) => change.names.push(&absence.what),
            None => changes.push(FailureChange { began, partial, why, names: vec![&absence.what] }),
        }
    };
    let same = |absence: &Absence, it: &Absence| {
        it.what == absence.what && (it.endpoint.is_none() || it.why == absence.why)
    };
    after.iter().filter(|it| !before.iter().any(|known| same(it, known))).for_each(|it| add(it, true));
    // A part is still missing when all of its endpoint is.
    let covers = |it: &Absence, part: &Absence| {
        it.what == part.what
            || (part.partial && !it.partial && it.endpoint.is_some() && it.endpoint == part.endpoint)
    };
    before.iter().filter(|it| !after.iter().any(|now| covers(now, it))).for_each(|it| add(it, false));
    changes
}

fn listed(names: &[&str]) -> String {
    let mut text = names[..names.len().min(MOST_NAMES)].join(", ");
    if names.len() > MOST_NAMES {
        text.push_str(&format!(" and {} more", names.len() - MOST_NAMES));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(what: &str, why: &str) -> Absence {
        Absence { what: what.into(), ..Absence::of_endpoint(&"127.0.0.1:8431".parse().unwrap(), why) }
    }

    #[test]
    fn each_failure_is_found_when_it_begins_changes_and_is_over() {
        let (a, b) = ([missing("a", "gone")], [missing("b", "gone")]);
        let another_reason = [missing("a", "closed")];
        let found = |before: &[Absence], after: &[Absence]| {
            let found = changes(before, after);
            found
                .iter()
                .map(|it| format!("{} {} {}", it.began, it.names.join("+"), it.why))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[], &a), ["true a gone"]);
        assert_eq!(found(&a, &a), [""; 0]);
        assert_eq!(found(&a, &another_reason), ["true a closed"]);
        assert_eq!(found(&a, &b), ["true b gone", "false a gone"]);
        assert_eq!(found(&b, &[]), ["false b gone"]);
        let wait = |seconds| [Absence::new("libtpu", format!("the next attempt is in {seconds} s"))];
        assert_eq!(found(&wait(9), &wait(8)), [""; 0]);
    }

    #[test]
    fn values_with_one_reason_are_one_line_and_an_endpoint_without_an_answer_is_another() {
        let of_metric = |what: &str| Absence { partial: true, ..missing(what, "no value") };
        let absences = [of_metric("a"), missing("port", "no value"), of_metric("b")];
        let found = changes(&[], &absences);
        let found: Vec<_> = found.iter().map(|it| (it.partial, it.names.join("+"))).collect();
        assert_eq!(found, [(true, "a+b".to_owned()), (false, "port".to_owned())]);
        // The metrics are not back when the whole endpoint fails, but when it answers.
        let found = |before: &[Absence], after: &[Absence]| {
            let found = changes(before, after);
            found.iter().map(|it| (it.began, it.names.join("+"))).collect::<Vec<_>>()
        };
        let (metrics, whole) = (&[absences[0].clone(), absences[2].clone()], &[absences[1].clone()]);
        assert_eq!(found(metrics, whole), [(true, "port".to_owned())]);
        assert_eq!(found(whole, metrics), [(true, "a+b".to_owned()), (false, "port".to_owned())]);
        assert_eq!(found(metrics, &[]), [(false, "a+b".to_owned())]);
        let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(listed(&names[..1]), "0");
    }
}
