//! The lives of a job: from one start to the next, and within them from one rollback to the next.
//!
//! Within an attempt steps are ordered by number, not by clock: the time from its first step to its last is
//! training, however the clock stepped or entries were reordered. A step that was seen before begins a new
//! attempt only if the job really goes back: the numbers up to the largest so far must follow again one by
//! one before any larger one. A second recorder that lags behind the first never does that.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    facts::{JobFacts, JobMark},
    repair::{Repair, Repairs},
};

/// One attempt that made steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attempt {
    /// The last job start before its first step.
    pub(super) begin: Option<i64>,
    /// Steps by number, each at its first start.
    pub(super) steps: Vec<(i64, i64)>,
    /// The job end that closed it.
    pub(super) end: Option<i64>,
    /// Its earliest step start.
    pub(super) first: i64,
    /// Its latest step start.
    pub(super) last: i64,
    /// Steps at and after this number were lost to a later attempt.
    pub(super) limit: Option<i64>,
    /// Until when it trained: the end of its last step as far as that is known.
    pub(super) trained_until: i64,
    /// Whether its last step was finished.
    pub(super) finished: bool,
}

impl Attempt {
    fn new(begin: Option<i64>, steps: BTreeMap<i64, i64>, end: Option<i64>, repairs: &mut Repairs) -> Self {
        let steps: Vec<(i64, i64)> = steps.into_iter().collect();
        let instants = || steps.iter().map(|(_, at)| *at);
        let (first, last) = (instants().min().unwrap_or(0), instants().max().unwrap_or(0));
        let pairs = || steps.windows(2).map(|pair| (pair[0], pair[1]));
        let reordered = pairs().filter(|(a, b)| b.1 < a.1).count();
        let missing = pairs().filter(|(a, b)| a.0.checked_add(1) != Some(b.0)).count();
        repairs.note(Repair::ReorderedSteps, reordered as u64);
        repairs.note(Repair::MissingSteps, missing as u64);
        Self { begin, steps, end, first, last, limit: None, trained_until: last, finished: false }
    }

    /// Its largest step.
    pub(super) fn largest(&self) -> i64 {
        self.steps.last().map_or(0, |(step, _)| *step)
    }

    fn smallest(&self) -> i64 {
        self.steps.first().map_or(0, |(step, _)| *step)
    }

    /// Where it takes over from the one before.
    pub(super) fn takes_over(&self) -> i64 {
        self.begin.unwrap_or(self.first)
    }

    /// Times of steps whose successor was logged: start, length. A clock that stepped back makes none.
    pub(super) fn lengths(&self) -> impl Iterator<Item = (i64, i64)> {
        self.steps
            .windows(2)
            .filter(|pair| pair[0].0.checked_add(1) == Some(pair[1].0))
            .map(|pair| (pair[0].1, pair[1].1 - pair[0].1))
            .filter(|(_, length)| *length >= 0)
    }

    /// Where the lost stretch begins, if there is one.
    pub(super) fn lost_from(&self) -> Option<i64> {
        let limit = self.limit?;
        self.steps.iter().filter(|(step, _)| *step >= limit).map(|(_, at)| *at).min()
    }
}

/// Steps between two life marks.
#[derive(Debug, Default)]
struct Life {
    begin: Option<i64>,
    steps: Vec<(i64, i64)>,
    end: Option<i64>,
}

/// The attempts, and what came after the last of them.
#[derive(Debug)]
pub(super) struct FoundAttempts {
    /// Attempts that made steps.
    pub(super) attempts: Vec<Attempt>,
    /// The job end that nothing follows.
    pub(super) end: Option<i64>,
    /// A job start that led to no step yet.
    pub(super) pending: Option<i64>,
}

/// Finds the attempts.
pub(super) fn find(facts: &JobFacts, repairs: &mut Repairs) -> FoundAttempts {
    let lives = lives(facts, repairs);
    let last = lives.last();
    let end = last.and_then(|life| life.end);
    let pending = last.filter(|life| life.steps.is_empty()).and_then(|life| life.begin);
    let ended = lives.iter().rev().skip(1).filter(|life| life.end.is_some()).count();
    repairs.note(Repair::EndThenMoreWork, ended as u64);
    let mut attempts = Vec::new();
    for life in lives {
        split(life, &mut attempts, repairs);
    }
    limits(&mut attempts, repairs);
    tails(&mut attempts, pending, facts.now, repairs);
    FoundAttempts { attempts, end, pending }
}

/// Cuts at job starts that come after steps, and at steps that come after a job end.
fn lives(facts: &JobFacts, repairs: &mut Repairs) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    let mut life = Life::default();
    for &(at, mark) in &facts.marks {
        match mark {
            JobMark::Start if life.steps.is_empty() && life.end.is_none() => life.begin = Some(at),
            JobMark::Start => {
                keep(&mut lives, std::mem::take(&mut life), repairs);
                life.begin = Some(at);
            }
            JobMark::Step(step) => {
                if life.end.is_some() {
                    keep(&mut lives, std::mem::take(&mut life), repairs);
                }
                life.steps.push((at, step));
            }
            JobMark::End => life.end = Some(at),
        }
    }
    keep(&mut lives, life, repairs);
    lives
}

/// Keeps a life, unless it is only what a second recorder wrote after the first had logged the end.
fn keep(lives: &mut Vec<Life>, life: Life, repairs: &mut Repairs) {
    if let (None, Some(before)) = (life.begin, lives.last_mut())
        && before.end.is_some()
    {
        let seen: BTreeSet<i64> = before.steps.iter().map(|(_, step)| *step).collect();
        if life.steps.iter().all(|(_, step)| seen.contains(step)) {
            repairs.note(Repair::DuplicateSteps, life.steps.len() as u64);
            before.end = before.end.max(life.end);
            return;
        }
    }
    lives.push(life);
}

/// Splits a life where the job really goes back, and keeps each step once.
fn split(life: Life, attempts: &mut Vec<Attempt>, repairs: &mut Repairs) {
    let mut begin = life.begin;
    let mut steps: BTreeMap<i64, i64> = BTreeMap::new();
    let (mut duplicates, mut no_way_back_before) = (0, 0);
    for (place, &(at, step)) in life.steps.iter().enumerate() {
        if let std::collections::btree_map::Entry::Vacant(free) = steps.entry(step) {
            free.insert(at);
            continue;
        }
        let largest = steps.last_key_value().map_or(step, |(largest, _)| *largest);
        let way_back = if place < no_way_back_before {
            None
        } else {
            match way_back(&life.steps[place..], step, largest) {
                Ok(()) => Some(()),
                Err(looked_at) => {
                    no_way_back_before = place + looked_at;
                    None
                }
            }
        };
        if way_back.is_some() {
            let done = std::mem::replace(&mut steps, BTreeMap::from([(step, at)]));
            attempts.push(Attempt::new(begin.take(), done, None, repairs));
        } else {
            duplicates += 1;
        }
    }
    repairs.note(Repair::DuplicateSteps, duplicates);
    if !steps.is_empty() {
        attempts.push(Attempt::new(begin, steps, life.end, repairs));
    }
}

/// Whether the steps that begin with `step` go back over all numbers up to `largest`. If not, how many were
/// looked at before that was clear: the steps among them go nowhere either.
fn way_back(steps: &[(i64, i64)], step: i64, largest: i64) -> Result<(), usize> {
    if step == largest {
        return Err(1);
    }
    let mut expected = step;
    for (looked_at, &(_, next)) in steps.iter().enumerate() {
        if next > largest || next > expected {
            return Err(looked_at);
        }
        if next == expected {
            expected += 1;
        }
        if expected > largest {
            return Ok(());
        }
    }
    // The log ends on the way: one step further back than the first is taken for going back.
    if expected > step + 1 { Ok(()) } else { Err(steps.len()) }
}

/// What later attempts did again is lost.
fn limits(attempts: &mut [Attempt], repairs: &mut Repairs) {
    let mut limit: Option<i64> = None;
    for attempt in attempts.iter_mut().rev() {
        let smallest = attempt.smallest();
        attempt.limit = limit.filter(|limit| *limit <= attempt.largest());
        repairs.note(Repair::RestartFromScratch, u64::from(limit.is_some_and(|limit| limit <= smallest)));
        limit = Some(limit.map_or(smallest, |limit| limit.min(smallest)));
    }
}

/// How long the last step of each attempt may count.
fn tails(attempts: &mut [Attempt], pending: Option<i64>, now: i64, repairs: &mut Repairs) {
    let all = usual(attempts.iter().flat_map(Attempt::lengths).map(|(_, length)| length).collect());
    for at in 0..attempts.len() {
        let next = attempts.get(at + 1).map(|next| (next.takes_over(), next.smallest()));
        let attempt = &mut attempts[at];
        let own = usual(attempt.lengths().map(|(_, length)| length).collect());
        let usual_end = attempt.last.saturating_add(own.or(all).unwrap_or(0));
        (attempt.trained_until, attempt.finished) = match (attempt.end, next) {
            (Some(end), _) if end >= attempt.last => (end, true),
            (_, Some((takes_over, resumed))) if resumed > attempt.largest() => {
                repairs.note(Repair::RestartAtNextStep, 1);
                (usual_end.min(takes_over).max(attempt.last), true)
            }
            (_, Some(_)) => (attempt.last, false),
            (_, None) if pending.is_some() => (attempt.last, false),
            (_, None) => {
                repairs.note(Repair::OpenStep, u64::from(now > attempt.last));
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

/// Attempts that begin inside a window, the first of all apart.
pub(super) fn disruptions(attempts: &[Attempt], start: i64, end: i64) -> u64 {
    let begins = attempts.iter().skip(1).map(|attempt| attempt.first);
    begins.filter(|first| start < *first && *first <= end).count() as u64
}

/// The largest step that was finished inside a window and not lost; 0 if none.
pub(super) fn max_productive(attempts: &[Attempt], start: i64, end: i64) -> i64 {
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
