//! A job and its attempts as JSON (`docs/schemas/jobs-*.schema.json`), and the words for them in text.

use std::collections::BTreeMap;

use model::time::Timestamp;
use proto::tpuscope::v1::{AttemptEnding, AttemptStatus, JobKey, JobStatus, Leftover};
use serde::Serialize;

use crate::{goodput::duration, output::one_line};

/// A job in JSON. What is not known, or is another user's, is null.
#[derive(Debug, Serialize)]
pub(crate) struct JobRow {
    kind: String,
    id: String,
    cluster: Option<String>,
    uid: u32,
    private: bool,
    state: String,
    chips: Vec<u32>,
    name: Option<String>,
    other_id: Option<String>,
    user: Option<String>,
    attempts: Vec<AttemptRow>,
}

/// An attempt in JSON.
#[derive(Debug, Serialize)]
pub(super) struct AttemptRow {
    attempt: u32,
    state: String,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    ending: Option<EndingRow>,
    hosts: Vec<String>,
    rank: Option<u32>,
    pids: Vec<u32>,
    chips: Vec<u32>,
    configuration: BTreeMap<String, String>,
    leftovers: Vec<LeftoverRow>,
}

#[derive(Debug, Serialize)]
struct LeftoverRow {
    pid: Option<u32>,
    command: Option<String>,
    files: Vec<String>,
}

#[derive(Debug, Serialize)]
struct EndingRow {
    how: String,
    code: Option<u32>,
}

fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl From<&JobStatus> for JobRow {
    fn from(job: &JobStatus) -> Self {
        let JobKey { kind, cluster, uid, id } = job.key.clone().unwrap_or_default();
        Self {
            kind,
            id,
            cluster: known(&cluster),
            uid,
            private: job.is_private,
            state: job.state.clone(),
            chips: job.chips.clone(),
            name: known(&job.name),
            other_id: known(&job.other_id),
            user: known(&job.user),
            attempts: job.attempts.iter().map(AttemptRow::from).collect(),
        }
    }
}

impl From<&AttemptStatus> for AttemptRow {
    fn from(attempt: &AttemptStatus) -> Self {
        let ending = |ending: &AttemptEnding| EndingRow { how: ending.how.clone(), code: ending.code };
        Self {
            attempt: attempt.attempt,
            state: attempt.state.clone(),
            start: attempt.start_unix_ns.map(Timestamp),
            end: attempt.end_unix_ns.map(Timestamp),
            ending: attempt.ending.as_ref().map(ending),
            hosts: attempt.hosts.clone(),
            rank: attempt.rank,
            pids: attempt.pids.clone(),
            chips: attempt.chips.clone(),
            configuration: attempt.configuration.clone(),
            leftovers: attempt.leftovers.iter().map(LeftoverRow::from).collect(),
        }
    }
}

impl From<&Leftover> for LeftoverRow {
    fn from(left: &Leftover) -> Self {
        let pid = (left.pid != 0).then_some(left.pid);
        Self { pid, command: known(&left.command), files: left.files.clone() }
    }
}

/// `slurm:12`.
pub(super) fn job_name(job: &JobStatus) -> String {
    let key = job.key.clone().unwrap_or_default();
    one_line(&format!("{}:{}", key.kind, key.id))
}

/// The user of a job: the name, or the uid where the name is not known or another user's.
pub(super) fn user(job: &JobStatus) -> String {
    match job.user.as_str() {
        "" => job.key.as_ref().map_or_else(String::new, |key| key.uid.to_string()),
        user => user.to_owned(),
    }
}

/// How an attempt stands: `running`, `exit 3`, `signal 15`, `node lost`, `requeued`, or `ended` where nobody said how.
pub(super) fn state(attempt: &AttemptStatus) -> String {
    match &attempt.ending {
        None => attempt.state.clone(),
        Some(AttemptEnding { how, .. }) if how == "unknown" => "ended".to_owned(),
        Some(AttemptEnding { how, code: Some(code) }) => format!("{how} {code}"),
        Some(AttemptEnding { how, code: None }) => how.replace('_', " "),
    }
}

/// How long an attempt ran, until `now` if it runs; `None` if its start is not known.
pub(super) fn lasted(attempt: &AttemptStatus, now: Timestamp) -> Option<String> {
    let end = attempt.end_unix_ns.map_or(now, Timestamp);
    attempt.start_unix_ns.map(|start| duration(Timestamp(start).age(end).as_secs_f64()))
}

/// An instant in text, to the second.
pub(super) fn instant(unix_ns: i64) -> String {
    Timestamp(unix_ns - unix_ns.rem_euclid(1_000_000_000)).to_string()
}

/// Chips in text.
pub(super) fn chips(chips: &[u32]) -> String {
    chips.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(how: &str, code: Option<u32>) -> AttemptStatus {
        let ending = Some(AttemptEnding { how: how.into(), code });
        let (start, end) = (Some(5_000_000_000), Some(8_000_000_000));
        let state = "ended".into();
        AttemptStatus { state, start_unix_ns: start, end_unix_ns: end, ending, ..AttemptStatus::default() }
    }

    #[test]
    fn the_end_of_an_attempt_is_said_in_words() {
        for (how, code, wanted) in [
            ("exit", Some(3), "exit 3"),
            ("signal", Some(15), "signal 15"),
            ("node_lost", None, "node lost"),
            ("requeued", None, "requeued"),
            ("unknown", None, "ended"),
        ] {
            assert_eq!(state(&ended(how, code)), wanted);
        }
        let running = AttemptStatus { state: "running".into(), ..AttemptStatus::default() };
        assert_eq!((state(&running).as_str(), lasted(&running, Timestamp(9))), ("running", None));
        assert_eq!(lasted(&ended("exit", Some(0)), Timestamp(0)), Some("3.0 s".into()));
        assert_eq!(instant(1_500_000_000), "1970-01-01T00:00:01Z");
    }
}
