//! The periods that each bucket claims.

use std::collections::BTreeMap;

use super::{
    attempts::{FoundAttempts, LoggedAttempt},
    facts::{JobFacts, LoggedCheckpoint, SpanKind},
    pieces::{Claim, PieceLabel},
    repair::{Repair, Repairs},
    spans::SpanUnion,
};
use crate::{
    badput::BadputType as B,
    entry::{CheckpointOperation, StartupPhase},
};

/// All claims up to `end`, and the union of all data loading.
pub(super) fn all(
    facts: &JobFacts,
    found: &FoundAttempts,
    end: i64,
    repairs: &mut Repairs,
) -> (Vec<Claim>, SpanUnion) {
    let attempts = &found.attempts;
    let breaks: Vec<i64> = attempts.iter().filter_map(|attempt| attempt.job_start).collect();
    let paired = facts.paired(&breaks, repairs);
    let customs: Vec<(i64, i64)> = spans(&paired, |what| matches!(what, SpanKind::Custom(_)));
    let loads = spans(&paired, |what| *what == SpanKind::Phase(StartupPhase::DataLoading));
    let mut claims = Vec::with_capacity(paired.len() + attempts.len() * 4);
    let custom_time = SpanUnion::new(customs.iter().copied());
    for (at, attempt) in attempts.iter().enumerate() {
        let next_start = attempts.get(at + 1).map(LoggedAttempt::started_at).or(found.pending);
        training(attempt, next_start, &custom_time, &mut claims);
    }
    for (what, from, to) in &paired {
        claims.push(Claim { label: label(facts, what), start: *from, end: *to });
    }
    checkpoints(facts, attempts, &mut claims, repairs);
    count_customs(&customs, attempts, end, repairs);
    count_overlaps(&paired, repairs);
    (claims, SpanUnion::new(loads))
}

fn spans(paired: &[(SpanKind, i64, i64)], wanted: impl Fn(&SpanKind) -> bool) -> Vec<(i64, i64)> {
    paired.iter().filter(|(what, ..)| wanted(what)).map(|(_, from, to)| (*from, *to)).collect()
}

fn label(facts: &JobFacts, what: &SpanKind) -> PieceLabel {
    match what {
        SpanKind::Phase(StartupPhase::TpuInit) => PieceLabel::Lost(B::TpuInitialization),
        SpanKind::Phase(StartupPhase::TrainingPrep) => PieceLabel::Lost(B::TrainingPrep),
        // Loading during training is asynchronous: training has the higher priority.
        SpanKind::Phase(StartupPhase::DataLoading) => PieceLabel::Lost(B::DataLoadingSync),
        SpanKind::Custom(name) => PieceLabel::Custom(facts.custom_number(name)),
        SpanKind::Wait(kind) => PieceLabel::Lost(JobFacts::wait_bucket(kind)),
        SpanKind::Reinit => PieceLabel::Lost(B::ElasticReinitialization),
    }
}

/// The claims of one attempt: training, its start-up, lost training, and the outage after it.
fn training(attempt: &LoggedAttempt, next_start: Option<i64>, customs: &SpanUnion, claims: &mut Vec<Claim>) {
    let mut claim = |label, start, end| claims.push(Claim { label, start, end });
    claim(PieceLabel::Productive, attempt.first, attempt.trained_until);
    if let Some(lost_from) = attempt.lost_from() {
        claim(PieceLabel::Lost(B::WastedProgress), lost_from, attempt.trained_until);
    }
    claim(PieceLabel::Lost(B::ProgramStartup), attempt.first, attempt.first + startup(attempt, customs));
    if let Some(next_start) = next_start {
        claim(PieceLabel::Lost(B::InfrastructureRecovery), attempt.trained_until, next_start);
    }
}

/// The time of the first step above the mean of the others, by the library's rule: without custom events and
/// without lost steps.
fn startup(attempt: &LoggedAttempt, customs: &SpanUnion) -> i64 {
    let kept_until = attempt.lost_from().unwrap_or(i64::MAX);
    let net = |(start, length): (i64, i64)| (length - customs.measure(start, start + length)).max(0);
    let mut lengths = attempt.lengths().filter(|(start, length)| start + length <= kept_until);
    let Some(first) = lengths.next().filter(|(start, _)| *start == attempt.first) else { return 0 };
    let (sum, count) = lengths.map(net).fold((0_i64, 0_i64), |(sum, count), net| (sum + net, count + 1));
    if count == 0 { 0 } else { (net(first) - sum / count).max(0) }
}

/// One claim for each operation of each attempt. If several hosts logged it, its length is the mean of theirs.
fn checkpoints(facts: &JobFacts, attempts: &[LoggedAttempt], claims: &mut Vec<Claim>, repairs: &mut Repairs) {
    let mut groups: BTreeMap<(CheckpointOperation, usize, &str, i64), Vec<&LoggedCheckpoint>> =
        BTreeMap::new();
    for checkpoint in &facts.checkpoints {
        let attempt = attempts.partition_point(|attempt| attempt.started_at() <= checkpoint.start);
        // An entry without step and directory is an operation of its own.
        let alone = if checkpoint.group.is_empty() { checkpoint.start } else { i64::MIN };
        groups.entry((checkpoint.operation, attempt, &checkpoint.group, alone)).or_default().push(checkpoint);
    }
    for ((operation, attempt, ..), logged) in groups {
        let count = i64::try_from(logged.len()).unwrap_or(1);
        let length = logged.iter().map(|checkpoint| checkpoint.length / count).sum::<i64>();
        let start = logged.iter().map(|checkpoint| checkpoint.start).min().unwrap_or(0);
        let lost = attempt.checked_sub(1).and_then(|at| attempts[at].lost_from());
        let kind = match operation {
            CheckpointOperation::Save => B::CheckpointSave,
            CheckpointOperation::Restore => B::CheckpointRestore,
        };
        let in_lost_time = operation == CheckpointOperation::Save && lost.is_some_and(|lost| start >= lost);
        repairs.add(Repair::SaveInLostTime, u64::from(in_lost_time));
        claims.push(Claim { label: PieceLabel::Lost(kind), start, end: start.saturating_add(length) });
    }
}

/// The library counts a custom event only inside one finished step. Attempts follow one another, so only the
/// last one that started before the event can have such a step.
fn count_customs(customs: &[(i64, i64)], attempts: &[LoggedAttempt], end: i64, repairs: &mut Repairs) {
    let starts: Vec<Vec<i64>> = attempts.iter().map(sorted_starts).collect();
    let inside_a_step = |from: i64, to: i64| {
        let started = attempts.partition_point(|attempt| attempt.first <= from);
        let Some(starts) = started.checked_sub(1).map(|at| &starts[at]) else { return false };
        let next = starts.partition_point(|at| *at <= from);
        starts.get(next).is_some_and(|at| to <= *at)
    };
    let elsewhere = customs.iter().filter(|(from, to)| *from < end && !inside_a_step(*from, *to)).count();
    repairs.add(Repair::CustomAnywhere, elsewhere as u64);
}

fn sorted_starts(attempt: &LoggedAttempt) -> Vec<i64> {
    let mut starts: Vec<i64> = attempt.steps.iter().map(|(_, at)| *at).collect();
    starts.sort_unstable();
    starts
}

/// Counts phases that overlap: the library counts their time twice.
fn count_overlaps(paired: &[(SpanKind, i64, i64)], repairs: &mut Repairs) {
    let mut phases = spans(paired, |what| matches!(what, SpanKind::Phase(_) | SpanKind::Reinit));
    phases.sort_unstable();
    let mut until = i64::MIN;
    let mut overlaps = 0;
    for (from, to) in phases {
        overlaps += u64::from(from < until);
        until = until.max(to);
    }
    repairs.add(Repair::OverlappingPhases, overlaps);
}
