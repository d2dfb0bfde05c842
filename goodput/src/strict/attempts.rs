//! The attempts of a job. A new attempt starts at a job start after steps, and at a rollback.
//!
//! Within an attempt steps are ordered by number, not by clock: the time from its first step to its last is
//! training, even if the clock was set back or entries were reordered. A repeated step starts a new attempt only
//! if the job rolled back: all numbers up to the largest so far must follow again one by one before any larger
//! number. The steps of a second recorder that lags behind the first never do that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    facts::{JobFacts, JobMark},
    repair::{Repair, Repairs},
};

/// One attempt with at least one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedAttempt {
    /// The last job start before its first step.
    pub(super) job_start: Option<i64>,
    /// Steps by number, each with its first start.
    pub(super) steps: Vec<(i64, i64)>,
    /// The job end of the attempt.
    pub(super) end: Option<i64>,
    /// The earliest step start.
    pub(super) first: i64,
    /// The latest step start.
    pub(super) last: i64,
    /// Steps at and after this number were lost to a later attempt.
    pub(super) limit: Option<i64>,
    /// The end of training: the known or estimated end of the last step.
    pub(super) trained_until: i64,
    /// Whether the last step finished.
    pub(super) finished: bool,
}

impl LoggedAttempt {
    fn new(
        job_start: Option<i64>,
        steps: BTreeMap<i64, i64>,
        end: Option<i64>,
        repairs: &mut Repairs,
    ) -> Self {
        let steps: Vec<(i64, i64)> = steps.into_iter().collect();
        let instants = || steps.iter().map(|(_, at)| *at);
        let (first, last) = (instants().min().unwrap_or(0), instants().max().unwrap_or(0));
        let pairs = || steps.windows(2).map(|pair| (pair[0], pair[1]));
        let reordered = pairs().filter(|(a, b)| b.1 < a.1).count();
        let missing = pairs().filter(|(a, b)| a.0.checked_add(1) != Some(b.0)).count();
        repairs.add(Repair::ReorderedSteps, reordered as u64);
        repairs.add(Repair::MissingSteps, missing as u64);
        Self { job_start, steps, end, first, last, limit: None, trained_until: last, finished: false }
    }

    /// The largest step.
    pub(super) fn largest(&self) -> i64 {
        self.steps.last().map_or(0, |(step, _)| *step)
    }

    fn smallest(&self) -> i64 {
        self.steps.first().map_or(0, |(step, _)| *step)
    }

    /// The start of the attempt.
    pub(super) fn started_at(&self) -> i64 {
        self.job_start.unwrap_or(self.first)
    }

    /// Start and length of the steps whose successor was logged, without negative lengths.
    pub(super) fn lengths(&self) -> impl Iterator<Item = (i64, i64)> {
        self.steps
            .windows(2)
            .filter(|pair| pair[0].0.checked_add(1) == Some(pair[1].0))
            .map(|pair| (pair[0].1, pair[1].1 - pair[0].1))
            .filter(|(_, length)| *length >= 0)
    }

    /// The start of the lost period, if there is one.
    pub(super) fn lost_from(&self) -> Option<i64> {
        let limit = self.limit?;
        self.steps.iter().filter(|(step, _)| *step >= limit).map(|(_, at)| *at).min()
    }
}

/// Marks without a job start after steps; a rollback may divide them into several attempts.
#[derive(Debug, Default)]
struct MarkedSpan {
    job_start: Option<i64>,
    steps: Vec<(i64, i64)>,
    end: Option<i64>,
}

/// The attempts of a job.
#[derive(Debug)]
pub(super) struct FoundAttempts {
    /// Attempts with at least one step.
    pub(super) attempts: Vec<LoggedAttempt>,
    /// The last job end, if nothing follows it.
    pub(super) end: Option<i64>,
    /// A job start without a step after it.
    pub(super) pending: Option<i64>,
}

/// Finds the attempts.
pub(super) fn find(facts: &JobFacts, repairs: &mut Repairs) -> FoundAttempts {
    let spans = spans(facts, repairs);
    let last = spans.last();
    let end = last.and_then(|span| span.end);
    let pending = last.filter(|span| span.steps.is_empty()).and_then(|span| span.job_start);
    let ended = spans.iter().rev().skip(1).filter(|span| span.end.is_some()).count();
    repairs.add(Repair::EndThenMoreWork, ended as u64);
    let mut attempts = Vec::new();
    for span in spans {
        split(span, &mut attempts, repairs);
    }
    limits(&mut attempts, repairs);
    training_ends(&mut attempts, pending, facts.now, repairs);
    FoundAttempts { attempts, end, pending }
}

/// Splits the marks at job starts after steps and at steps after a job end.
fn spans(facts: &JobFacts, repairs: &mut Repairs) -> Vec<MarkedSpan> {
    let mut spans: Vec<MarkedSpan> = Vec::new();
    let mut span = MarkedSpan::default();
    for &(at, mark) in &facts.marks {
        match mark {
            JobMark::Start if span.steps.is_empty() && span.end.is_none() => span.job_start = Some(at),
            JobMark::Start => {
                keep(&mut spans, std::mem::take(&mut span), repairs);
                span.job_start = Some(at);
            }
            JobMark::Step(step) => {
                if span.end.is_some() {
                    keep(&mut spans, std::mem::take(&mut span), repairs);
                }
                span.steps.push((at, step));
            }
            JobMark::End => span.end = Some(at),
        }
    }
    keep(&mut spans, span, repairs);
    spans
}

/// Keeps the marks, unless they are steps that a second recorder wrote after the first had logged the job end.
fn keep(spans: &mut Vec<MarkedSpan>, span: MarkedSpan, repairs: &mut Repairs) {
    if let (None, Some(before)) = (span.job_start, spans.last_mut())
        && before.end.is_some()
    {
        let seen: BTreeSet<i64> = before.steps.iter().map(|(_, step)| *step).collect();
        if span.steps.iter().all(|(_, step)| seen.contains(step)) {
            repairs.add(Repair::DuplicateSteps, span.steps.len() as u64);
            before.end = before.end.max(span.end);
            return;
        }
    }
    spans.push(span);
}

/// Splits the marks at rollbacks and keeps each step once.
fn split(span: MarkedSpan, attempts: &mut Vec<LoggedAttempt>, repairs: &mut Repairs) {
    let mut job_start = span.job_start;
    let mut steps: BTreeMap<i64, i64> = BTreeMap::new();
    let (mut duplicates, mut no_rollback_before) = (0, 0);
    for (position, &(at, step)) in span.steps.iter().enumerate() {
        if let std::collections::btree_map::Entry::Vacant(free) = steps.entry(step) {
            free.insert(at);
            continue;
        }
        let largest = steps.last_key_value().map_or(step, |(largest, _)| *largest);
        let rolls_back = if position < no_rollback_before {
            None
        } else {
            match rolls_back(&span.steps[position..], step, largest) {
                Ok(()) => Some(()),
                Err(read) => {
                    no_rollback_before = position + read;
                    None
                }
            }
        };
        if rolls_back.is_some() {
            let done = std::mem::replace(&mut steps, BTreeMap::from([(step, at)]));
            attempts.push(LoggedAttempt::new(job_start.take(), done, None, repairs));
        } else {
            duplicates += 1;
        }
    }
    repairs.add(Repair::DuplicateSteps, duplicates);
    if !steps.is_empty() {
        attempts.push(LoggedAttempt::new(job_start, steps, span.end, repairs));
    }
}

/// Whether the steps that start with `step` repeat all numbers up to `largest`. If not, the error is the number of
/// steps that were read to find out; no rollback starts at any of those.
fn rolls_back(steps: &[(i64, i64)], step: i64, largest: i64) -> Result<(), usize> {
    if step == largest {
        return Err(1);
    }
    let mut expected = step;
    for (read, &(_, next)) in steps.iter().enumerate() {
        if next > largest || next > expected {
            return Err(read);
        }
        if next == expected {
            expected += 1;
        }
        if expected > largest {
            return Ok(());
        }
    }
    // The log ends before the largest number: two consecutive repeated steps count as a rollback.
    if expected > step + 1 { Ok(()) } else { Err(steps.len()) }
}

/// Sets the limit of each attempt: steps that a later attempt repeated are lost.
fn limits(attempts: &mut [LoggedAttempt], repairs: &mut Repairs) {
    let mut limit: Option<i64> = None;
    for attempt in attempts.iter_mut().rev() {
        let smallest = attempt.smallest();
        attempt.limit = limit.filter(|limit| *limit <= attempt.largest());
        repairs.add(Repair::RestartFromScratch, u64::from(limit.is_some_and(|limit| limit <= smallest)));
        limit = Some(limit.map_or(smallest, |limit| limit.min(smallest)));
    }
}

/// Sets the end of training of each attempt.
fn training_ends(attempts: &mut [LoggedAttempt], pending: Option<i64>, now: i64, repairs: &mut Repairs) {
    let all = usual(attempts.iter().flat_map(LoggedAttempt::lengths).map(|(_, length)| length).collect());
    for at in 0..attempts.len() {
        let next = attempts.get(at + 1).map(|next| (next.started_at(), next.smallest()));
        let attempt = &mut attempts[at];
        let own = usual(attempt.lengths().map(|(_, length)| length).collect());
        let usual_end = attempt.last.saturating_add(own.or(all).unwrap_or(0));
        (attempt.trained_until, attempt.finished) = match (attempt.end, next) {
            (Some(end), _) if end >= attempt.last => (end, true),
            (_, Some((started_at, resumed))) if resumed > attempt.largest() => {
                repairs.add(Repair::RestartAtNextStep, 1);
                (usual_end.min(started_at).max(attempt.last), true)
            }
            (_, Some(_)) => (attempt.last, false),
            (_, None) if pending.is_some() => (attempt.last, false),
            (_, None) => {
                repairs.add(Repair::OpenStep, u64::from(now > attempt.last));
                (usual_end.min(now).max(attempt.last), false)
            }
        };
    }
}

/// The median length, if there is any.
fn usual(mut lengths: Vec<i64>) -> Option<i64> {
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied()
}

/// The number of attempts that start inside a window, without the first attempt of the job.
pub(super) fn disruptions(attempts: &[LoggedAttempt], start: i64, end: i64) -> u64 {
    let begins = attempts.iter().skip(1).map(|attempt| attempt.first);
    begins.filter(|first| start < *first && *first <= end).count() as u64
}

/// The largest step that finished inside a window and was not lost; 0 if there is none.
pub(super) fn max_productive(attempts: &[LoggedAttempt], start: i64, end: i64) -> i64 {
    let mut max = 0;
    for attempt in attempts {
        let kept = |step| attempt.limit.is_none_or(|limit| step < limit);
        let finished = attempt.steps.windows(2).map(|pair| (pair[0].0, pair[1].1));
        let last = attempt.finished.then(|| (attempt.largest(), attempt.trained_until));
        for (step, at) in finished.chain(last) {
            if kept(step) && start < at && at <= end {
                max = max.max(step);
            }
        }
    }
    max
}
