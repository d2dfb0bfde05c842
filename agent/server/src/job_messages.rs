//! Jobs and their attempts as messages.

use std::collections::BTreeSet;

use jobs::{
    attempt::{Attempt, AttemptEnd, AttemptLeftover, MAX_LEFTOVERS},
    record::JobRecord,
};
use model::{
    device::ChipIndex,
    job::JobKey,
    untrusted::{LABEL, MESSAGE, clean},
};
use proto::tpuscope::v1::{self, AttemptEnding, AttemptStatus, JobStatus, Leftover};

/// The most files of a leftover that are kept.
const MAX_FILES: usize = 16;

/// The name of a state.
pub(super) fn state(is_running: bool) -> &'static str {
    if is_running { "running" } else { "ended" }
}

pub(super) fn key(key: &JobKey) -> v1::JobKey {
    let JobKey { kind, cluster, uid, id } = key.clone();
    v1::JobKey { kind: kind.as_str().to_owned(), cluster, uid, id }
}

/// A job with its newest attempt and those that run; with nothing but key, state and chips if the caller may not read more.
pub(super) fn listed(record: &JobRecord, may_read: bool) -> JobStatus {
    let is_running = record.attempts.iter().any(Attempt::is_open);
    let newest = record.newest().map(|newest| newest.number);
    let is_listed = |attempt: &&Attempt| attempt.is_open() || Some(attempt.number) == newest;
    let attempts: Vec<&Attempt> = record.attempts.iter().filter(is_listed).collect();
    let holding = attempts.iter().filter(|attempt| attempt.is_open() == is_running);
    let chips: BTreeSet<ChipIndex> = holding.flat_map(|attempt| attempt.chips.iter().copied()).collect();
    let status = JobStatus {
        key: Some(key(&record.key)),
        is_private: !may_read,
        state: state(is_running).to_owned(),
        chips: chips.into_iter().map(|chip| chip.0).collect(),
        ..JobStatus::default()
    };
    if !may_read {
        return status;
    }
    // What hooks and processes say of the newest attempt may come late.
    let told = || record.attempts.iter().rev().map(|attempt| &attempt.description);
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    JobStatus {
        name: text(told().find_map(|told| told.name.as_ref())),
        other_id: text(told().find_map(|told| told.other_id.as_ref())),
        user: text(told().find_map(|told| told.user.as_ref())),
        attempts: attempts.into_iter().map(without_configuration).collect(),
        ..status
    }
}

fn without_configuration(of: &Attempt) -> AttemptStatus {
    AttemptStatus { configuration: Default::default(), ..attempt(of) }
}

/// A job with all its attempts.
pub(super) fn shown(record: &JobRecord) -> JobStatus {
    JobStatus { attempts: record.attempts.iter().map(attempt).collect(), ..listed(record, true) }
}

fn attempt(attempt: &Attempt) -> AttemptStatus {
    let ending = attempt.end.map(|AttemptEnd { how, .. }| {
        let (how, code) = how.parts();
        AttemptEnding { how: how.to_owned(), code: code.map(u32::from) }
    });
    AttemptStatus {
        attempt: attempt.number,
        state: state(attempt.is_open()).to_owned(),
        start_unix_ns: attempt.start.map(|start| start.0),
        end_unix_ns: attempt.end.map(|end| end.at.0),
        ending,
        hosts: attempt.description.hosts.clone(),
        rank: attempt.description.rank,
        pids: attempt.processes.iter().map(|process| process.pid).collect(),
        chips: numbers(&attempt.chips),
        configuration: attempt.configuration.clone(),
        leftovers: attempt.leftovers.iter().map(leftover).collect(),
    }
}

fn leftover(left: &AttemptLeftover) -> Leftover {
    let AttemptLeftover { pid, command, files } = left.clone();
    Leftover { pid: pid.unwrap_or(0), command, files }
}

/// What a hook found, as far as it is kept.
pub(super) fn told_leftovers(told: &[Leftover]) -> Vec<AttemptLeftover> {
    let checked = |Leftover { pid, command, files }: &Leftover| AttemptLeftover {
        pid: (*pid != 0).then_some(*pid),
        command: clean(command, LABEL),
        files: files.iter().take(MAX_FILES).map(|file| clean(file, MESSAGE)).collect(),
    };
    told.iter().take(MAX_LEFTOVERS).map(checked).collect()
}

fn numbers(chips: &[ChipIndex]) -> Vec<u32> {
    chips.iter().map(|chip| chip.0).collect()
}

#[cfg(test)]
mod tests {
    use jobs::attempt::{Ending, JobDescription};
    use model::{job::JobKind, time::Timestamp};

    use super::*;

    #[test]
    fn of_jobs_of_others_key_state_and_chips_are_shown() {
        let end = AttemptEnd { at: Timestamp(9), how: Ending::Exit(3), told: true };
        let left = Leftover { pid: 7, command: "python".into(), files: vec!["/dev/vfio/0".into()] };
        let named = Attempt {
            start: Some(Timestamp(5)),
            end: Some(end),
            description: JobDescription { name: Some("train".into()), ..JobDescription::default() },
            configuration: [("version.jax".to_owned(), "0.10.2".to_owned())].into(),
            leftovers: told_leftovers(std::slice::from_ref(&left)),
            ..Attempt::default()
        };
        let newest = Attempt {
            number: 1,
            start: Some(Timestamp(20)),
            chips: vec![ChipIndex(2)],
            ..Attempt::default()
        };
        let key = JobKey { kind: JobKind::Slurm, uid: 7, id: "12".into(), ..JobKey::default() };
        let record = JobRecord { key, attempts: vec![named, newest] };
        let own = listed(&record, true);
        assert_eq!((own.name.as_str(), own.state.as_str(), own.attempts.len()), ("train", "running", 1));
        let others = listed(&record, false);
        let wanted = JobStatus {
            key: own.key.clone(),
            is_private: true,
            state: "running".into(),
            chips: vec![2],
            ..JobStatus::default()
        };
        assert_eq!(others, wanted);
        let all = shown(&record);
        assert_eq!(all.attempts[0].configuration["version.jax"], "0.10.2");
        assert_eq!(all.attempts[0].leftovers, [left]);
        assert_eq!(all.attempts[0].ending, Some(AttemptEnding { how: "exit".into(), code: Some(3) }));
        assert_eq!((all.attempts[1].state.as_str(), all.attempts[1].end_unix_ns), ("running", None));
    }

    #[test]
    fn all_attempts_that_run_are_listed_with_their_chips() {
        let open = |number, chips: [u32; 2]| Attempt {
            number,
            chips: chips.map(ChipIndex).into(),
            ..Attempt::default()
        };
        let end = AttemptEnd { at: Timestamp(9), how: Ending::Exit(0), told: true };
        let ended = |number, chips| Attempt { end: Some(end), ..open(number, chips) };
        let key = JobKey { kind: JobKind::Run, id: "twin".into(), ..JobKey::default() };
        let listed = |attempts| {
            let of = listed(&JobRecord { key: key.clone(), attempts }, true);
            let shown: Vec<_> =
                of.attempts.iter().map(|attempt| (attempt.attempt, attempt.chips.clone())).collect();
            (of.chips, shown)
        };
        let both = listed(vec![ended(0, [4, 5]), open(1, [0, 1]), open(2, [2, 3])]);
        assert_eq!(both, (vec![0, 1, 2, 3], vec![(1, vec![0, 1]), (2, vec![2, 3])]));
        let older = listed(vec![open(1, [0, 1]), ended(2, [2, 3])]);
        assert_eq!(older, (vec![0, 1], vec![(1, vec![0, 1]), (2, vec![2, 3])]));
        assert_eq!(listed(vec![ended(1, [0, 1])]), (vec![0, 1], vec![(1, vec![0, 1])]));
    }

    #[test]
    fn what_a_hook_tells_is_bounded_and_cleaned() {
        let lock = Leftover { files: vec!["/tmp/\u{1b}[31m".into(); 20], ..Leftover::default() };
        let kept = told_leftovers(&vec![lock; 100]);
        assert_eq!((kept.len(), kept[0].files.len(), kept[0].pid), (MAX_LEFTOVERS, MAX_FILES, None));
        assert!(!kept[0].files[0].contains('\u{1b}'), "{:?}", kept[0]);
    }
}
