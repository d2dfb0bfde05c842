//! Logs when a source begins to miss values, with the reason, and when it has them again: once each, and at a bounded rate.
//!
//! The failure of an endpoint is logged when it lasts: an endpoint that fails because its process ends is gone soon after.

use std::collections::BTreeMap;

use model::{bounded_log::BoundedLog, sample::Origin};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::sources::Absence;

/// The most names in one line.
const MOST_NAMES: usize = 8;
/// Reads after the one that found an endpoint's failure, before it is logged: the discovery sees the end of a process
/// within two.
const LASTING: u32 = 2;

/// The log of one source.
#[derive(Default)]
pub(super) struct FailureLog {
    log: BoundedLog,
    /// What is missing as the log said last.
    logged: Vec<Absence>,
    /// What of endpoints is missing and not logged yet, with the number of reads that found it so.
    new: BTreeMap<String, u32>,
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
    /// Logs what has changed, from what a read missed.
    pub(super) fn note(&mut self, origin: Origin, missing: &[Absence], now: Instant) {
        self.log.flush(now);
        if self.new.is_empty() && self.logged == missing {
            return;
        }
        let lasting = self.lasting(missing);
        for change in changes(&self.logged, &lasting) {
            change.log(origin.as_str(), &mut self.log, now);
        }
        self.logged = lasting;
    }

    /// What of `missing` is logged or lasts long enough, and what was logged of an endpoint of which now everything is
    /// missing.
    fn lasting(&mut self, missing: &[Absence]) -> Vec<Absence> {
        let before = std::mem::take(&mut self.new);
        let mut lasting = Vec::new();
        let mut new = Vec::new();
        for absence in missing {
            let reads = before.get(&absence.what).map_or(0, |reads| reads + 1);
            let is_logged = self.logged.iter().any(|logged| logged.what == absence.what);
            if is_logged || absence.endpoint.is_none() || reads >= LASTING {
                lasting.push(absence.clone());
            } else {
                self.new.insert(absence.what.clone(), reads);
                new.push(absence);
            }
        }
        let is_covered = |logged: &&Absence| {
            new.iter().any(|new| new.covers(logged)) && !lasting.iter().any(|it| it.what == logged.what)
        };
        let covered: Vec<Absence> = self.logged.iter().filter(is_covered).cloned().collect();
        lasting.extend(covered);
        lasting
    }
}

impl FailureChange<'_> {
    fn log(&self, source: &'static str, log: &mut BoundedLog, now: Instant) {
        let (what, why) = (listed(&self.names), self.why.to_owned());
        match self {
            // The endpoint answers again, or has ended with its process.
            Self { began: false, .. } => {
                log.write("failure of a source is over", now, move |text| info!(source, what, "{text}"));
            }
            Self { partial: true, .. } => {
                log.write("source lacks values", now, move |text| info!(source, what, why, "{text}"));
            }
            Self { partial: false, .. } => {
                log.write("source cannot read", now, move |text| warn!(source, what, why, "{text}"));
            }
        }
    }
}

impl Absence {
    /// Whether `part` is missing as long as this is: it is the same, or a part of the endpoint.
    fn covers(&self, part: &Self) -> bool {
        self.what == part.what
            || (part.partial && !self.partial && self.endpoint.is_some() && self.endpoint == part.endpoint)
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
    before.iter().filter(|it| !after.iter().any(|now| now.covers(it))).for_each(|it| add(it, false));
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

    /// What the log has as missing after each of these reads.
    fn logged(reads: &[&[Absence]]) -> Vec<String> {
        let mut log = FailureLog::default();
        let logged = |missing: &&[Absence]| {
            log.note(Origin::Runtime, missing, Instant::now());
            let logged = log.logged.iter().map(|it| format!("{} {}", it.what, it.why));
            logged.collect::<Vec<_>>().join("+")
        };
        reads.iter().map(logged).collect()
    }

    #[test]
    fn an_endpoint_that_fails_while_its_process_ends_is_not_logged() {
        let broken = [Absence { partial: true, ..missing("metric", "broken pipe") }];
        let closed = [missing("port", "nothing listens there")];
        assert_eq!(logged(&[&closed, &[], &broken, &closed, &[]]), [""; 5]);
        let lasts = "port nothing listens there";
        assert_eq!(logged(&[&closed, &closed, &closed, &closed, &[]]), ["", "", lasts, lasts, ""]);
        // Another reason of what is logged is logged at once, and a file has no process to wait for.
        let refused = [missing("port", "refused")];
        assert_eq!(logged(&[&closed, &closed, &closed, &refused])[3], "port refused");
        let file = [Absence::new("/proc/stat", "denied")];
        assert_eq!(logged(&[&file, &[]]), ["/proc/stat denied", ""]);
        // A metric that is missing is not back while its endpoint begins to fail.
        let lacks = "metric broken pipe";
        let reads = logged(&[&broken, &broken, &broken, &closed, &closed, &closed]);
        assert_eq!(reads, ["", "", lacks, lacks, lacks, lasts]);
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
