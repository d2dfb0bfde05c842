//! Where the time of a marked job went: the exact and the strict ledger of its stored marks.
//!
//! The log of a job and the calculator of the exact ledger stay in memory while questions about the job come, so that the
//! next answer reads only what is new. Both are bounded: the job that was not asked about for the longest goes first. All
//! calls block. Must never answer from marks of another job, or from fewer marks than are stored without saying so.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use goodput::{
    answer::{self, LedgerAnswer},
    entry::{LogEntry, Payload},
    exact::{Calculator, CalculatorOptions},
    export::SeriesLabels,
    log::{EventLog, LogFull},
    query::LedgerQuery,
    strict::{self, StrictAnswer},
    time::{Micros, Nanos},
};
use model::time::{Clock, Timestamp};
use store::marks::{MarkedJob, Marks, MarksError, StoredMark};

/// Marks that are read from the database at once: others wait for it meanwhile.
const PAGE: usize = 5000;
/// The most memory of one job's log, and of all that are kept.
const MAX_BYTES: usize = 64 << 20;
/// A log is kept for so long after the last question.
const KEEP: Duration = Duration::from_secs(600);
/// A clock that goes back by more than this was set back, in nanoseconds.
const SET_BACK: i64 = 1_000_000_000;
/// The exact ledger looks back to the first mark, however old: only what is stored can be read.
const LOOK_BACK: i64 = i64::MAX / 4;

/// A question about a marked job.
#[derive(Debug, Clone)]
pub struct MarkLedgerQuestion {
    /// The ledger.
    pub ledger: MarkLedger,
    /// The time of the query; `None`: now.
    pub now: Option<Micros>,
    /// The window; `None`: the whole job.
    pub window: Option<(Micros, Micros)>,
    /// Whether to use the elastic calculator also without elastic marks.
    pub elastic: bool,
    /// The labels of the series in the answer.
    pub labels: SeriesLabels,
}

/// The ledgers that marks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkLedger {
    /// As the library computes.
    Exact,
    /// Without the library's faults.
    Strict,
}

/// What a ledger says.
#[derive(Debug, Clone)]
pub enum MarkAnswer {
    /// The exact ledger.
    Exact(LedgerAnswer),
    /// The strict ledger.
    Strict(StrictAnswer),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum MarkLedgerError {
    /// The job has no marks any more.
    #[error("the job has no marks any more")]
    Gone,
    /// The job has more marks than fit into memory.
    #[error("the job has {marks} marks, more than the agent reads at once ({} MiB)", MAX_BYTES >> 20)]
    TooLarge {
        /// The marks that are stored.
        marks: u64,
    },
    /// The log is full.
    #[error(transparent)]
    Full(#[from] LogFull),
    /// The store refuses.
    #[error(transparent)]
    Marks(#[from] MarksError),
}

/// The ledgers of all marked jobs.
pub struct MarkLedgers {
    marks: Arc<Marks>,
    clock: Arc<dyn Clock>,
    kept: Mutex<BTreeMap<i64, KeptLog>>,
}

impl fmt::Debug for MarkLedgers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MarkLedgers").finish_non_exhaustive()
    }
}

/// A log that is kept for the next question.
#[derive(Debug)]
struct KeptLog {
    log: Arc<Mutex<JobLog>>,
    /// In uptime.
    asked: Duration,
    bytes: usize,
}

impl MarkLedgers {
    /// Ledgers of the marks in a store.
    pub fn new(marks: Arc<Marks>, clock: Arc<dyn Clock>) -> Self {
        Self { marks, clock, kept: Mutex::default() }
    }

    /// Answers a question about a job, with the job as it is stored at that moment.
    ///
    /// # Errors
    /// If the job is gone or too large, or the store refuses.
    pub fn ask(
        &self,
        job: i64,
        question: &MarkLedgerQuestion,
    ) -> Result<(MarkedJob, MarkAnswer), MarkLedgerError> {
        let log = self.log(job);
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let read = log.read_new(&self.marks, job);
        let present = Micros(self.clock.now().0 / 1000);
        match (read, question.window) {
            (Ok(row), _) => {
                let answer = log.answer(question, present);
                self.keep(job, log.bytes);
                Ok((row, answer))
            }
            (Err(error), window) => {
                *log = JobLog::default();
                self.kept().remove(&job);
                match (error, window) {
                    (MarkLedgerError::TooLarge { .. }, Some(window)) => {
                        let mut part = JobLog::of_window(window);
                        let row = part.read_new(&self.marks, job)?;
                        Ok((row, part.answer(question, present)))
                    }
                    (error, _) => Err(error),
                }
            }
        }
    }

    /// Forgets the logs of jobs that nobody asks about.
    pub fn forget_idle(&self) {
        let now = self.clock.uptime();
        self.kept().retain(|_, kept| now.saturating_sub(kept.asked) < KEEP);
    }

    fn log(&self, job: i64) -> Arc<Mutex<JobLog>> {
        let asked = self.clock.uptime();
        let mut kept = self.kept();
        let kept = kept.entry(job).or_insert_with(|| KeptLog { log: Arc::default(), asked, bytes: 0 });
        kept.asked = asked;
        Arc::clone(&kept.log)
    }

    /// Notes the size of a log, and forgets the others that were not asked about for the longest until all fit.
    fn keep(&self, job: i64, bytes: usize) {
        let mut kept = self.kept();
        if let Some(log) = kept.get_mut(&job) {
            log.bytes = bytes;
        }
        while kept.values().map(|kept| kept.bytes).sum::<usize>() > MAX_BYTES {
            let others = kept.iter().filter(|(other, _)| **other != job);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.asked).map(|(other, _)| *other) else {
                return;
            };
            kept.remove(&oldest);
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<i64, KeptLog>> {
        // Every change leaves the map whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The marks of one job as the log of a ledger.
#[derive(Debug, Default)]
struct JobLog {
    log: EventLog,
    /// Only the marks of this window are read, of a job that is too large to be read whole.
    window: Option<(Timestamp, Timestamp)>,
    /// The exact ledger at the present: it goes on from question to question.
    present: Option<Calculator>,
    /// The number of the last mark that was read.
    read_to: i64,
    /// What had been removed from the store then.
    removed: u64,
    /// The clock of each recorder.
    clocks: BTreeMap<i64, RecorderClock>,
    /// The latest time of all.
    last: Option<Nanos>,
    bytes: usize,
}

/// The clock of a recorder, as its marks show it.
#[derive(Debug, Clone, Copy)]
struct RecorderClock {
    /// The time of its last mark in the log.
    latest: i64,
    /// By how much it was set back, as far as that is known: no time passed between the marks before and after.
    set_back: i64,
}

impl RecorderClock {
    /// Takes the time of the next mark. Threads may mark a little out of order.
    fn next(&mut self, given: i64) {
        if given >= self.latest {
            self.set_back = 0;
        } else if given.saturating_add(self.set_back) < self.latest.saturating_sub(SET_BACK) {
            self.set_back = self.latest.saturating_sub(given);
        }
        self.latest = self.latest.max(given.saturating_add(self.set_back));
    }
}

impl JobLog {
    fn of_window((start, end): (Micros, Micros)) -> Self {
        let instant = |at: Micros| Timestamp(Nanos::from(at).0);
        Self { window: Some((instant(start), instant(end))), ..Self::default() }
    }

    /// Reads the marks that are new.
    fn read_new(&mut self, marks: &Marks, job: i64) -> Result<MarkedJob, MarkLedgerError> {
        loop {
            let row = marks.job(job)?.ok_or(MarkLedgerError::Gone)?;
            if row.removed != self.removed {
                *self = Self { removed: row.removed, window: self.window, ..Self::default() };
            }
            let least = row.marks.saturating_mul(size_of::<LogEntry>() as u64);
            if self.window.is_none() && least > MAX_BYTES as u64 {
                return Err(MarkLedgerError::TooLarge { marks: row.marks });
            }
            let page = marks.read(job, self.read_to, PAGE, self.window)?;
            let done = page.len() < PAGE;
            for mark in page {
                self.add(&mark)?;
            }
            if self.bytes > MAX_BYTES {
                return Err(MarkLedgerError::TooLarge { marks: row.marks });
            }
            // Marks may have been removed between the pages.
            if done && marks.job(job)?.is_some_and(|now| now.removed == self.removed) {
                return Ok(row);
            }
        }
    }

    fn add(&mut self, mark: &StoredMark) -> Result<(), LogFull> {
        self.read_to = mark.number;
        // It was checked when it came; a database that was changed by hand has another.
        let Ok(payload) = Payload::parse(mark.payload.as_bytes()) else { return Ok(()) };
        let RecorderClock { latest, set_back } = self.clock_at(mark);
        let time = Nanos(latest);
        // Without an id: marks of one time keep the order in which they came, and none is a repetition.
        let mut entry = payload.entry(time, "".into());
        if set_back > 0 {
            entry.move_payload_by(set_back);
        }
        self.bytes += entry.bytes();
        if self.last.is_some_and(|last| time <= last) || entry.is_elastic() && !self.log.is_elastic() {
            // A calculator reads only later times; and elastic entries need another one.
            self.present = None;
        }
        self.last = self.last.max(Some(time));
        self.log.push(entry)
    }

    /// The clock of a mark's recorder. Marks of one recorder keep their order also when its clock is set back: their times
    /// then go on from the last one before.
    fn clock_at(&mut self, mark: &StoredMark) -> RecorderClock {
        let first = RecorderClock { latest: mark.at.0, set_back: 0 };
        let Some(recorder) = mark.recorder else { return first };
        let clock = self.clocks.entry(recorder).or_insert(first);
        clock.next(mark.at.0);
        *clock
    }

    fn answer(&mut self, question: &MarkLedgerQuestion, present: Micros) -> MarkAnswer {
        // After a clock was set back, the last marks lie in the future: they belong to the answer all the same.
        let last = self.last.map_or(present, |last| Micros(last.micros().0 + 1));
        let until = question.now.unwrap_or(present.max(last));
        let now = until.seconds();
        let query = match question.window {
            Some((start, end)) => {
                // The exact ledger stops at the present by itself.
                let is_cut = question.ledger == MarkLedger::Strict && start < until;
                let end = if is_cut { end.min(until) } else { end };
                let (start, end) = (start.seconds(), end.seconds());
                LedgerQuery::Interval { start, end, now: question.now.map(|_| now), reuse_calculator: None }
            }
            None => LedgerQuery::Cumulative { now, ideal_step_time: None, reuse_calculator: None },
        };
        if question.ledger == MarkLedger::Strict {
            return MarkAnswer::Strict(strict::ask(&self.log, &query, &question.labels));
        }
        let elastic = question.elastic || self.log.is_elastic();
        let options = CalculatorOptions { elastic, lookback: LOOK_BACK, ..CalculatorOptions::default() };
        let goes_on = question.window.is_none() && question.now.is_none();
        let mut calculator =
            match self.present.take().filter(|kept| goes_on && kept.options().elastic == elastic) {
                Some(kept) => kept,
                None => Calculator::new(options),
            };
        let answer = answer::ask(&mut calculator, &self.log, &query, &question.labels);
        if goes_on {
            self.present = Some(calculator);
        }
        MarkAnswer::Exact(answer)
    }
}

#[cfg(test)]
mod tests;
