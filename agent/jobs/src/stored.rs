//! Attempts as rows of the store, and back.
//!
//! What a later version wrote and this one does not know is left out.

use model::{device::ChipIndex, job::JobKey, time::Timestamp, workload::ProcessKey};
use serde::{Deserialize, Serialize};
use store::job_attempts::StoredAttempt;

use crate::{
    attempt::{Attempt, AttemptEnd, AttemptLeftover, Configuration, Ending, JobDescription},
    record::JobRecord,
};

/// What has no column of its own.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct AttemptFacts {
    end: Option<EndFacts>,
    user: Option<String>,
    hosts: Vec<String>,
    rank: Option<u32>,
    awaits_hook: bool,
    /// Pid and start time, as `processes`.
    command: Option<(u32, u64)>,
    command_ending: Option<EndingFacts>,
    processes: Vec<(u32, u64)>,
    chips: Vec<u32>,
    configuration: Configuration,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leftovers: Vec<AttemptLeftover>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct EndFacts {
    at_ns: i64,
    ending: EndingFacts,
    told: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct EndingFacts {
    how: String,
    code: Option<u8>,
}

impl From<Ending> for EndingFacts {
    fn from(ending: Ending) -> Self {
        let (how, code) = ending.parts();
        Self { how: how.to_owned(), code }
    }
}

impl From<EndingFacts> for Ending {
    fn from(EndingFacts { how, code }: EndingFacts) -> Self {
        Self::of_parts(&how, code).unwrap_or(Self::Unknown)
    }
}

/// The rows of a job.
pub(crate) fn rows(record: &JobRecord) -> impl Iterator<Item = StoredAttempt> {
    record.attempts.iter().map(|attempt| row(&record.key, attempt))
}

/// The jobs that these rows are attempts of, in their order.
pub(crate) fn records(rows: impl IntoIterator<Item = StoredAttempt>) -> Vec<JobRecord> {
    let mut records: Vec<JobRecord> = Vec::new();
    for row in rows {
        let attempt = attempt(&row);
        match records.iter_mut().find(|record| record.key == row.key) {
            Some(record) => record.attempts.push(attempt),
            None => records.push(JobRecord { key: row.key, attempts: vec![attempt] }),
        }
    }
    for record in &mut records {
        record.attempts.sort_by_key(|attempt| attempt.number);
    }
    records
}

fn row(key: &JobKey, attempt: &Attempt) -> StoredAttempt {
    let JobDescription { name, other_id, user, hosts, rank } = attempt.description.clone();
    let end =
        attempt.end.map(|AttemptEnd { at, how, told }| EndFacts { at_ns: at.0, ending: how.into(), told });
    let pair = |process: ProcessKey| (process.pid, process.start_ticks);
    let facts = AttemptFacts {
        end,
        user,
        hosts,
        rank,
        awaits_hook: attempt.awaits_hook,
        command: attempt.command.map(pair),
        command_ending: attempt.command_ending.map(EndingFacts::from),
        processes: attempt.processes.iter().copied().map(pair).collect(),
        chips: attempt.chips.iter().map(|chip| chip.0).collect(),
        configuration: attempt.configuration.clone(),
        leftovers: attempt.leftovers.clone(),
    };
    StoredAttempt {
        key: key.clone(),
        attempt: attempt.number,
        is_open: attempt.is_open(),
        start: attempt.start,
        last_event: attempt.last_event,
        name,
        other_id,
        // Texts and numbers: JSON can hold them.
        facts: serde_json::to_string(&facts).unwrap_or_default(),
    }
}

fn attempt(row: &StoredAttempt) -> Attempt {
    let facts: AttemptFacts = serde_json::from_str(&row.facts).unwrap_or_default();
    let process = |(pid, start_ticks)| ProcessKey { pid, start_ticks };
    let end = facts.end.map(|EndFacts { at_ns, ending, told }| AttemptEnd {
        at: Timestamp(at_ns),
        how: ending.into(),
        told,
    });
    // The column counts: facts of a later version may not be readable.
    let concluded = AttemptEnd { at: row.last_event, how: Ending::Unknown, told: false };
    let end = if row.is_open { None } else { Some(end.unwrap_or(concluded)) };
    Attempt {
        number: row.attempt,
        start: row.start,
        end,
        last_event: row.last_event,
        description: JobDescription {
            name: row.name.clone(),
            other_id: row.other_id.clone(),
            user: facts.user,
            hosts: facts.hosts,
            rank: facts.rank,
        },
        awaits_hook: facts.awaits_hook && row.is_open,
        command: facts.command.map(process),
        command_ending: facts.command_ending.map(Ending::from),
        processes: facts.processes.into_iter().map(process).collect(),
        chips: facts.chips.into_iter().map(ChipIndex).collect(),
        configuration: facts.configuration,
        leftovers: facts.leftovers,
    }
}

#[cfg(test)]
mod tests {
    use model::job::JobKind;

    use super::*;

    #[test]
    fn what_is_stored_is_read_as_it_was() {
        let end = AttemptEnd { at: Timestamp(9), how: Ending::Signal(15), told: true };
        let description = JobDescription {
            name: Some("train".into()),
            other_id: Some("6_1".into()),
            user: Some("ada".into()),
            hosts: vec!["t0".into(), "t1".into()],
            rank: Some(1),
        };
        let ended = Attempt {
            number: 0,
            start: Some(Timestamp(5)),
            end: Some(end),
            last_event: Timestamp(9),
            description,
            chips: vec![ChipIndex(3)],
            configuration: [("version.jax".to_owned(), "0.10.2".to_owned())].into(),
            leftovers: vec![AttemptLeftover { pid: None, command: String::new(), files: vec!["/l".into()] }],
            ..Attempt::default()
        };
        let process = ProcessKey { pid: 7, start_ticks: 8 };
        let open = Attempt {
            number: 1,
            start: Some(Timestamp(20)),
            last_event: Timestamp(21),
            awaits_hook: true,
            command: Some(process),
            command_ending: Some(Ending::Exit(7)),
            processes: vec![process],
            ..Attempt::default()
        };
        let key = JobKey { kind: JobKind::Slurm, cluster: "a".into(), uid: 1000, id: "7".into() };
        let record = JobRecord { key, attempts: vec![ended, open] };
        let mut backwards: Vec<_> = rows(&record).collect();
        backwards.reverse();
        assert_eq!(records(backwards), [record]);
    }

    #[test]
    fn facts_that_cannot_be_read_leave_the_columns() {
        let row = StoredAttempt {
            key: JobKey::default(),
            attempt: 4,
            is_open: false,
            start: None,
            last_event: Timestamp(7),
            name: None,
            other_id: None,
            facts: "[1]".into(),
        };
        let read = attempt(&row);
        assert_eq!(
            (read.number, read.end.map(|end| (end.at, end.how))),
            (4, Some((Timestamp(7), Ending::Unknown)))
        );
    }
}
