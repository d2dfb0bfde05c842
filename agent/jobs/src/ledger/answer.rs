//! Answers to questions about the time of jobs: of their whole life, or of a window.
//!
//! Whole seconds are answered where an hour is kept by the second, whole minutes where it is kept by the minute; what is
//! kept no more is unobserved. Must never show a job to a caller who may not see it, not even that it exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use goodput::proxy::live::{
    BLOCK_SECONDS, LedgerBlock, LiveLedger, LossPiece, MinuteBlock, SecondCounts, SecondState, TimeLoss,
    losses,
};
use model::{
    job::{JobKey, JobKind},
    time::Timestamp,
};
use store::{
    StateError,
    ledgers::{HourStep, KeptHour, Ledgers},
};
use thiserror::Error;

use super::{LiveLedgers, job_ledger::JobLedger, keeping, second_of};

/// The most jobs in one answer.
const MOST_JOBS: usize = 32;
/// The most seconds in one answer: what is kept by the second.
const MOST_SECONDS: i64 = 48 * 3600;

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerQuestion {
    /// `[KIND:]ID`, a name, or the label of a running job; `None`: the jobs that run, else the last one.
    pub job: Option<String>,
    /// Only jobs of this user.
    pub uid: Option<u32>,
    /// Only from this time on.
    pub from: Option<Timestamp>,
    /// Only until this time.
    pub until: Option<Timestamp>,
    /// Only so long before `until`, or before now.
    pub last: Option<Duration>,
    /// Whether the state of each second is wanted.
    pub with_seconds: bool,
}

/// A job, for the decision who may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerSubject {
    /// The job.
    pub key: JobKey,
    /// The pid namespace of its processes, where it runs and that may be read.
    pub pid_namespace: Option<u64>,
    /// Whether it has chips open.
    pub is_running: bool,
    name: String,
    label: String,
    end: i64,
}

/// Where the time of a job went.
#[derive(Debug, Clone, PartialEq)]
pub struct JobGoodput {
    /// The job.
    pub key: JobKey,
    /// Its name; it may be empty.
    pub name: String,
    /// Whether it has chips open.
    pub is_running: bool,
    /// The time of the answer: the first second since the epoch, and the one after the last.
    pub from: i64,
    /// The second after the last.
    pub until: i64,
    /// The seconds by state.
    pub counts: SecondCounts,
    /// How often it started again; of a window, the outages in it.
    pub disruptions: u64,
    /// The chips that it needs on this host.
    pub chips: Vec<u32>,
    /// Its losses, the largest first.
    pub losses: Vec<TimeLoss>,
    /// Whether a part of the answer is by the minute.
    pub has_minutes: bool,
    /// The state of each of the last seconds before `until`, where that was wanted.
    pub seconds: Vec<SecondState>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// No such job, or not for this caller.
    #[error("there is no ledger of a job {0} that you may see")]
    NoJob(String),
    /// Several jobs are meant.
    #[error("several jobs are called {0}: {list}", list = .1.join(", "))]
    Ambiguous(String, Vec<String>),
    /// The database cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The answer could not be computed.
    #[error("the answer failed: {0}")]
    Panicked(String),
}

/// A ledger as it was at the time of the question.
struct LedgerCopy {
    key: JobKey,
    name: String,
    is_running: bool,
    first: i64,
    ledger: LiveLedger,
}

impl LiveLedgers {
    /// Where the time of jobs went; `may` says of which jobs the caller may know.
    ///
    /// # Errors
    /// If no job, or more than one, is meant, or the database cannot be read.
    pub async fn ask(
        self: &Arc<Self>,
        question: LedgerQuestion,
        may: impl Fn(&LedgerSubject) -> bool + Send + 'static,
    ) -> Result<Vec<JobGoodput>, LedgerError> {
        let ledgers = Arc::clone(self);
        let answer = tokio::task::spawn_blocking(move || ledgers.answer(&question, may));
        answer.await.map_err(|error| LedgerError::Panicked(error.to_string()))?
    }

    fn answer(
        &self,
        question: &LedgerQuestion,
        may: impl Fn(&LedgerSubject) -> bool,
    ) -> Result<Vec<JobGoodput>, LedgerError> {
        let mut subjects = self.subjects()?;
        subjects.retain(|subject| question.uid.is_none_or(|uid| uid == subject.key.uid) && may(subject));
        let chosen = choose(subjects, question.job.as_deref())?;
        let now = second_of(self.clock.now());
        let mut answers = Vec::new();
        for key in chosen {
            if let Some(copy) = self.copy(&key)? {
                answers.push(copy.answer(&self.kept, &SecondWindow::of(question, now))?);
            }
        }
        Ok(answers)
    }

    /// The users who have a job that is called so. Blocks.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn users_of(&self, job: &str) -> Result<BTreeSet<u32>, StateError> {
        let called = self.subjects()?.into_iter().filter(|subject| subject.is_called(job));
        Ok(called.map(|subject| subject.key.uid).collect())
    }

    /// Where the time of the jobs that have chips open went in their whole life, without their losses. Reads no disk.
    pub fn running(&self) -> Vec<JobGoodput> {
        let set = self.set();
        let running = set.jobs().filter(|job| job.is_running && !job.ledger().is_empty());
        let answer = |job: &JobLedger| JobGoodput {
            key: job.key.clone(),
            name: job.name.clone(),
            is_running: true,
            from: job.first(),
            until: job.end(),
            counts: *job.ledger().counts(),
            disruptions: job.ledger().disruptions(),
            chips: job.ledger().chips().collect(),
            losses: Vec::new(),
            has_minutes: false,
            seconds: Vec::new(),
        };
        running.map(answer).collect()
    }

    /// All jobs, those that run first, then the newest.
    fn subjects(&self) -> Result<Vec<LedgerSubject>, StateError> {
        let mut subjects: BTreeMap<JobKey, LedgerSubject> = BTreeMap::new();
        for row in self.kept.list()? {
            let (name, end) = (row.name, row.end);
            let subject = LedgerSubject { name, end, ..LedgerSubject::new(row.key, None, false) };
            subjects.insert(subject.key.clone(), subject);
        }
        let of_job = |job: &JobLedger| LedgerSubject {
            name: job.name.clone(),
            label: job.workload.label.clone(),
            end: job.end(),
            ..LedgerSubject::new(job.key.clone(), job.pid_namespace, job.is_running)
        };
        let running: Vec<_> = self.set().jobs().map(of_job).collect();
        subjects.extend(running.into_iter().map(|subject| (subject.key.clone(), subject)));
        let mut subjects: Vec<_> = subjects.into_values().collect();
        subjects.sort_by_key(|subject| (!subject.is_running, std::cmp::Reverse(subject.end)));
        Ok(subjects)
    }

    fn copy(&self, key: &JobKey) -> Result<Option<LedgerCopy>, StateError> {
        if let Some(job) = self.set().get(key) {
            return Ok(Some(LedgerCopy {
                key: key.clone(),
                name: job.name.clone(),
                is_running: job.is_running,
                first: job.first(),
                ledger: job.ledger().clone(),
            }));
        }
        let Some(row) = self.kept.find(key)? else { return Ok(None) };
        Ok(keeping::state(&row).map(|state| LedgerCopy {
            key: row.key,
            name: row.name,
            is_running: false,
            first: row.first,
            ledger: state.ledger,
        }))
    }
}

/// The jobs that are meant.
fn choose(subjects: Vec<LedgerSubject>, job: Option<&str>) -> Result<Vec<JobKey>, LedgerError> {
    let Some(job) = job else {
        let running = subjects.iter().take_while(|subject| subject.is_running).count();
        return Ok(subjects
            .into_iter()
            .take(running.clamp(1, MOST_JOBS))
            .map(|subject| subject.key)
            .collect());
    };
    let mut meant: Vec<_> = subjects.into_iter().filter(|subject| subject.is_called(job)).collect();
    match meant.len() {
        0 => Err(LedgerError::NoJob(job.to_owned())),
        1 => Ok(vec![meant.remove(0).key]),
        _ => {
            let of_user = |subject: &LedgerSubject| format!("{} of uid {}", subject.key, subject.key.uid);
            let list = meant.iter().take(MOST_JOBS).map(of_user).collect();
            Err(LedgerError::Ambiguous(job.to_owned(), list))
        }
    }
}

impl LedgerSubject {
    /// A job without a name.
    pub fn new(key: JobKey, pid_namespace: Option<u64>, is_running: bool) -> Self {
        let (name, label, end) = (String::new(), String::new(), i64::MIN);
        Self { key, pid_namespace, is_running, name, label, end }
    }

    fn is_called(&self, job: &str) -> bool {
        let with_kind = job.split_once(':').and_then(|(kind, id)| Some((JobKind::named(kind)?, id)));
        let is_id = self.key.id == job || with_kind == Some((self.key.kind, self.key.id.as_str()));
        is_id || (!self.name.is_empty() && self.name == job) || (!self.label.is_empty() && self.label == job)
    }
}

/// The seconds that are asked for, since the epoch.
#[derive(Debug, Clone, Copy)]
struct SecondWindow {
    from: i64,
    until: i64,
    is_whole: bool,
    with_seconds: bool,
}

impl SecondWindow {
    fn of(question: &LedgerQuestion, now: i64) -> Self {
        let until = question.until.map_or(now, second_of).min(now);
        let last =
            question.last.map(|last| until.saturating_sub(i64::try_from(last.as_secs()).unwrap_or(i64::MAX)));
        let from = question.from.map(second_of).max(last).unwrap_or(i64::MIN);
        let is_whole = question.from.is_none() && question.until.is_none() && last.is_none();
        Self { from, until, is_whole, with_seconds: question.with_seconds }
    }
}

impl LedgerCopy {
    fn answer(&self, kept: &Ledgers, window: &SecondWindow) -> Result<JobGoodput, StateError> {
        let length = i64::try_from(self.ledger.len()).unwrap_or(i64::MAX);
        let end = self.first.saturating_add(length);
        let (from, until) = (window.from.clamp(self.first, end), window.until.clamp(self.first, end));
        let until = if window.is_whole { end } else { until.max(from) };
        let hours = self.hours(kept, from, until)?;
        let mut reading = WindowReading::new(self, from, until);
        hours.into_values().for_each(|hour| reading.add(&hour));
        let WindowReading { pieces, mut counts, has_minutes, .. } = reading;
        let known: u64 = counts.elapsed();
        counts.add(SecondState::Unobserved, until.abs_diff(from).saturating_sub(known));
        let seconds = if window.with_seconds { seconds(&pieces, from, until) } else { Vec::new() };
        let mut disruptions = outages(&pieces);
        let mut losses = losses(pieces);
        if window.is_whole {
            counts = *self.ledger.counts();
            disruptions = self.ledger.disruptions();
            losses = with_all(losses, &counts);
        }
        Ok(JobGoodput {
            key: self.key.clone(),
            name: self.name.clone(),
            is_running: self.is_running,
            from,
            until,
            counts,
            disruptions,
            chips: self.ledger.chips().collect(),
            losses,
            has_minutes,
            seconds,
        })
    }

    /// The hours of the window, by number. Those in memory are newer than those that are kept.
    fn hours(&self, kept: &Ledgers, from: i64, until: i64) -> Result<BTreeMap<u64, HourReading>, StateError> {
        let number = |second: i64| second.abs_diff(self.first) / BLOCK_SECONDS;
        let mut hours = BTreeMap::new();
        if until <= from {
            return Ok(hours);
        }
        let (first, last) = (number(from), number(until - 1));
        let in_memory = self.ledger.blocks().map(LedgerBlock::number).min().unwrap_or(u64::MAX);
        if first < in_memory {
            let read = kept.hours(&self.key, first, last)?;
            hours.extend(read.iter().filter_map(|hour| Some((hour.hour, HourReading::of(hour)?))));
        }
        let in_window = self.ledger.blocks().filter(|block| (first..=last).contains(&block.number()));
        hours.extend(in_window.map(|block| (block.number(), HourReading::Seconds(block.clone()))));
        Ok(hours)
    }
}

/// One hour as it is kept.
enum HourReading {
    Seconds(LedgerBlock),
    Minutes(MinuteBlock),
}

impl HourReading {
    fn of(hour: &KeptHour) -> Option<Self> {
        match hour.step {
            HourStep::Second => keeping::by_second(hour).map(Self::Seconds),
            HourStep::Minute => MinuteBlock::from_bytes(hour.hour, &hour.content).map(Self::Minutes),
        }
    }
}

/// What is read of a window so far.
struct WindowReading<'a> {
    copy: &'a LedgerCopy,
    from: i64,
    until: i64,
    pieces: Vec<LossPiece>,
    counts: SecondCounts,
    has_minutes: bool,
}

impl<'a> WindowReading<'a> {
    fn new(copy: &'a LedgerCopy, from: i64, until: i64) -> Self {
        Self { copy, from, until, pieces: Vec::new(), counts: SecondCounts::default(), has_minutes: false }
    }

    fn time(&self, slot: u64) -> i64 {
        self.copy.first.saturating_add(i64::try_from(slot).unwrap_or(i64::MAX))
    }

    fn add(&mut self, hour: &HourReading) {
        match hour {
            HourReading::Seconds(block) => {
                for (slot, state, chips) in block.seconds() {
                    let second = self.time(slot);
                    if (self.from..self.until).contains(&second) {
                        let state = self.copy.ledger.as_counted(slot, state);
                        self.piece(LossPiece { from: second, until: second + 1, seconds: 1, state, chips });
                    }
                }
            }
            HourReading::Minutes(block) => {
                for (slot, counts) in block.minutes() {
                    let (from, until) = (self.time(slot), self.time(slot + 60));
                    if self.from <= from && until <= self.until {
                        self.minute(slot, &counts, from, until);
                    }
                }
            }
        }
    }

    fn minute(&mut self, slot: u64, counts: &SecondCounts, from: i64, until: i64) {
        self.has_minutes = true;
        for state in SecondState::ALL {
            let seconds = counts.of(state);
            if seconds > 0 {
                let state = self.copy.ledger.as_counted(slot, state);
                self.piece(LossPiece { from, until, seconds, state, chips: 0 });
            }
        }
    }

    /// Pieces of one state that adjoin are one: days of a window are then few of them.
    fn piece(&mut self, piece: LossPiece) {
        self.counts.add(piece.state, piece.seconds);
        match self.pieces.last_mut() {
            Some(last) if (last.state, last.until, last.chips) == (piece.state, piece.from, piece.chips) => {
                last.until = piece.until;
                last.seconds += piece.seconds;
            }
            _ => self.pieces.push(piece),
        }
    }
}

/// The state of each of the last seconds of the window, of those that are kept by the second.
fn seconds(pieces: &[LossPiece], from: i64, until: i64) -> Vec<SecondState> {
    let from = from.max(until.saturating_sub(MOST_SECONDS));
    let mut seconds = vec![SecondState::Unobserved; usize::try_from(until - from).unwrap_or(0)];
    let slot = |second: i64| usize::try_from(second.saturating_sub(from).max(0)).unwrap_or(usize::MAX);
    for piece in pieces.iter().filter(|piece| piece.seconds == piece.until.abs_diff(piece.from)) {
        let range = slot(piece.from).min(seconds.len())..slot(piece.until).min(seconds.len());
        seconds[range].fill(piece.state);
    }
    seconds
}

/// The outages in pieces of a window, which rise in time. One goes on through time that nobody observed, and where only
/// minutes are kept, one of the next minute is the same.
fn outages(pieces: &[LossPiece]) -> u64 {
    let (mut outages, mut reach) = (0, i64::MIN);
    for piece in pieces {
        let goes_on = piece.from <= reach;
        if piece.state == SecondState::Closed {
            outages += u64::from(!goes_on);
            reach = piece.until;
        } else if goes_on && !piece.state.is_known() {
            reach = reach.max(piece.until);
        }
    }
    outages
}

/// The losses of the whole life, with the evidence that is still kept.
fn with_all(evidence: Vec<TimeLoss>, counts: &SecondCounts) -> Vec<TimeLoss> {
    let lost = SecondState::ALL.into_iter().filter(|state| state.is_known() && !state.is_productive());
    let mut all: Vec<TimeLoss> = lost
        .filter(|state| counts.of(*state) > 0)
        .map(|state| {
            let known = evidence.iter().find(|loss| loss.state == state).cloned();
            let known = known.unwrap_or(TimeLoss { state, seconds: 0, runs: 0, longest: Vec::new() });
            TimeLoss { seconds: counts.of(state), ..known }
        })
        .collect();
    all.sort_by(|a, b| b.seconds.cmp(&a.seconds).then(a.state.cmp(&b.state)));
    all
}
