//! The library's calculator with its state between queries and its faults.
//!
//! A calculator reads an [`EventLog`] by the library's read rule, keeps the cumulative walk and the window's
//! entries, and reuses the last result when a query brings no new entry. Entries may be added to the log, never removed.

use super::{
    compat::Compat,
    elastic::SliceEfficiency,
    exclusions::{self, Exclusions},
    results::{CountedUntil, CumulativeResult, ExclusionsResult, IntervalResult, LastResult},
    step_info::StepInfo,
    step_times::{self, ExactStepTimes},
    walk::{LogWalk, WalkTotals},
};
use crate::{
    badput::{Amount, BadputType, Buckets},
    entry::JobEvent,
    error::Error,
    log::{EntryId, EventLog, ReadCursor, ReadFrom},
    time::{Micros, Nanos},
};

/// How far the first read looks back, in microseconds.
const LOOKBACK: i64 = 7 * 86_400 * 1_000_000;
/// Once a job start is known, reads without a cursor start this long before it, in microseconds.
const BEFORE_START: i64 = 10 * 1_000_000;

/// The options of a calculator.
#[derive(Debug, Clone, Copy)]
pub struct CalculatorOptions {
    /// The version of the library whose numbers are computed.
    pub compat: Compat,
    /// Whether to use the elastic calculator.
    pub elastic: bool,
    /// How far the first read looks back, in microseconds.
    pub lookback: i64,
}

impl Default for CalculatorOptions {
    fn default() -> Self {
        Self { compat: Compat::V0_2_3, elastic: false, lookback: LOOKBACK }
    }
}

/// The state of queries for a window.
#[derive(Debug, Default)]
struct WindowState {
    entries: Vec<EntryId>,
    cursor: Option<ReadCursor>,
    last: Option<(Micros, Micros)>,
    walk: Option<LogWalk>,
}

/// A calculator of one job.
#[derive(Debug)]
pub struct Calculator {
    options: CalculatorOptions,
    /// The first job start in the entries that any query has read.
    seen_job_start: Option<Micros>,
    entries: Vec<EntryId>,
    cursor: Option<ReadCursor>,
    job_start: Option<Micros>,
    job_end: Option<Micros>,
    /// The latest time of an event in seconds.
    last_event: Option<f64>,
    damage: Option<Error>,
    walk: LogWalk,
    steps: ExactStepTimes,
    remembered: Option<LastResult>,
    step_info: Option<StepInfo>,
    interruptions: u64,
    window: WindowState,
}

impl Calculator {
    /// A calculator that has not read any entry.
    pub fn new(options: CalculatorOptions) -> Self {
        Self {
            options,
            seen_job_start: None,
            entries: Vec::new(),
            cursor: None,
            job_start: None,
            job_end: None,
            last_event: None,
            damage: None,
            walk: LogWalk::new(options.elastic),
            steps: ExactStepTimes::default(),
            remembered: None,
            step_info: None,
            interruptions: 0,
            window: WindowState::default(),
        }
    }

    /// The options of the calculator.
    pub fn options(&self) -> CalculatorOptions {
        self.options
    }

    /// The number of elementary operations so far, for tests of the cost of a step.
    pub fn work(&self) -> u64 {
        self.walk.work() + self.steps.work()
    }

    /// The result of the last cumulative query.
    pub fn remembered(&self) -> Option<&LastResult> {
        self.remembered.as_ref()
    }

    /// The latest job end of the entries read by queries over the whole job. Time counts until then, or until
    /// `now` without one.
    pub fn job_end(&self) -> Option<Micros> {
        self.job_end
    }

    /// The latest event of the entries read by queries over the whole job, but not after `now`.
    pub fn last_event(&self, now: Micros) -> Option<Micros> {
        Micros::from_seconds(self.last_event?).ok().map(|at| at.min(now))
    }

    /// The last cumulative answer with time counted until `until` instead of the time of the query: the
    /// answer to the same query at `until`. `None` if there is no such answer.
    pub fn counted_until(&self, until: Micros) -> Option<CountedUntil> {
        let last = self.remembered.as_ref()?;
        let total = until.seconds() - self.job_start?.seconds();
        if !(total > 0.0 && (0.0..=total).contains(&last.productive_seconds)) {
            return None;
        }
        let mut buckets = last.unproductive_seconds.clone();
        buckets.sanitize(total);
        buckets.set(BadputType::Other, Amount::Flat(buckets.other(total, last.productive_seconds)));
        Some(CountedUntil {
            time: until.seconds(),
            goodput_percent: last.productive_seconds / total * 100.0,
            badput_percent: buckets.breakdown(total, self.options.elastic),
            total_elapsed_seconds: total,
            productive_seconds: last.productive_seconds,
            unproductive_seconds: buckets,
        })
    }

    /// Step statistics of the last query that computed them.
    pub fn step_info(&self) -> Option<&StepInfo> {
        self.step_info.as_ref()
    }

    /// Step and deviation, in order.
    pub fn deviations(&self) -> Vec<(i64, f64)> {
        self.step_info.as_ref().map_or_else(Vec::new, |info| info.deviations(&self.steps))
    }

    /// Step and time, in order.
    pub fn step_times(&self) -> &[(i64, f64)] {
        self.steps.times()
    }

    /// Slice efficiency over the job; `None` without slice counts or for other calculators.
    pub fn efficiency(&self) -> Option<SliceEfficiency> {
        let start = self.job_start?.seconds();
        let elapsed = self.remembered.as_ref().map_or(0.0, |info| info.total_elapsed_seconds);
        self.walk.elastic()?.efficiency(start, start + elapsed)
    }

    /// Slice efficiency over the window of the last interval query.
    pub fn window_efficiency(&self, start: Micros, end: Micros) -> Option<SliceEfficiency> {
        self.window.walk.as_ref()?.elastic()?.efficiency(start.seconds(), end.seconds())
    }

    /// Goodput of the whole job at `now`, with `ideal` instead of the computed ideal step time if given.
    ///
    /// # Errors
    /// The library's.
    pub fn cumulative(
        &mut self,
        log: &EventLog,
        now: Micros,
        ideal: Option<f64>,
    ) -> Result<CumulativeResult, Error> {
        let (any, any_step) = self.fetch(log, now)?;
        let total = self.total(now);
        if total == 0.0 {
            return Err(Error::total_is_zero());
        }
        let mut totals = self.totals(any)?;
        if !(totals.productive >= 0.0 && totals.productive <= total) {
            return Err(Error::productive_is_invalid());
        }
        totals.buckets.sanitize(total);
        let other = totals.buckets.other(total, totals.productive);
        totals.buckets.set(BadputType::Other, Amount::Flat(other));
        let answer = CumulativeResult {
            goodput_percent: totals.productive / total * 100.0,
            badput_percent: totals.buckets.breakdown(total, self.options.elastic),
            returned_step: totals.max_step,
        };
        self.remember(totals, total, 0.0);
        self.update_step_info(any_step, ideal);
        Ok(answer)
    }

    /// The totals of the walk, or of the last result if there is no new entry.
    fn totals(&mut self, any_new: bool) -> Result<WalkTotals, Error> {
        if let (false, Some(old)) = (any_new, &self.remembered) {
            return Ok(WalkTotals {
                productive: old.productive_seconds,
                buckets: old.unproductive_seconds.clone(),
                max_step: old.max_productive_step,
                last_step: old.last_recorded_step,
            });
        }
        self.interruptions = self.walk.disruptions();
        self.walk.totals()
    }

    fn remember(&mut self, totals: WalkTotals, total: f64, excluded: f64) {
        self.remembered = Some(LastResult {
            productive_seconds: totals.productive,
            unproductive_seconds: totals.buckets,
            total_elapsed_seconds: total,
            max_productive_step: totals.max_step,
            last_recorded_step: totals.last_step,
            disruptions: self.interruptions,
            excluded_seconds: excluded,
        });
    }

    /// Keeps the previous statistics if the ideal step time cannot be computed.
    fn update_step_info(&mut self, any_step: bool, ideal: Option<f64>) {
        if !any_step && self.step_info.as_ref().is_some_and(StepInfo::has_deviations) {
            return;
        }
        if self.steps.times().is_empty() {
            return;
        }
        if let Some(ideal) = ideal.or_else(|| self.steps.ideal()).filter(|ideal| *ideal != 0.0) {
            self.step_info = Some(StepInfo::of_times(&mut self.steps, ideal));
        }
    }

    /// Seconds from the first job start to the latest job end, else to `now`; 0 without a job start.
    fn total(&self, now: Micros) -> f64 {
        let Some(start) = self.job_start else { return 0.0 };
        self.job_end.unwrap_or(now).seconds() - start.seconds()
    }

    /// Reads new entries; returns whether there are any, and whether they contain a step.
    fn fetch(&mut self, log: &EventLog, now: Micros) -> Result<(bool, bool), Error> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let new = match &self.cursor {
            Some(cursor) if Nanos::from(now) <= cursor.time => &[],
            Some(cursor) => log.read(ReadFrom::Cursor(cursor), now),
            None => log.read(ReadFrom::After(self.first_read_from(now).into()), now),
        };
        let Some(&last) = new.last() else { return Ok((false, false)) };
        self.cursor = Some(log.cursor(last));
        self.note_job_start(log, new)?;
        self.entries.extend_from_slice(new);
        let mut any_step = false;
        for &id in new {
            let entry = log.entry(id);
            self.walk.push(entry);
            for event in entry.events.as_slice() {
                self.last_event = event.at().into_iter().chain(self.last_event).reduce(f64::max);
                match event {
                    JobEvent::Step { step, start } => {
                        any_step = true;
                        self.steps.push(*step, *start);
                    }
                    JobEvent::JobStart(at) if self.job_start.is_none() => {
                        self.job_start = Some(self.instant(*at)?);
                    }
                    JobEvent::JobEnd(at) => self.job_end = Some(self.instant(*at)?),
                    JobEvent::Damaged(error) => self.damage = Some((**error).clone()),
                    _ => {}
                }
            }
        }
        self.damage.clone().map_or(Ok((true, any_step)), Err)
    }

    /// A time out of range makes this and all later queries fail.
    fn instant(&mut self, at: f64) -> Result<Micros, Error> {
        Micros::from_seconds(at).inspect_err(|error| self.damage = Some(error.clone()))
    }

    fn first_read_from(&self, now: Micros) -> Micros {
        match self.seen_job_start {
            Some(start) => start.plus(-BEFORE_START),
            None => now.plus(-self.options.lookback),
        }
    }

    fn note_job_start(&mut self, log: &EventLog, read: &[EntryId]) -> Result<(), Error> {
        if self.seen_job_start.is_none()
            && let Some(at) = read.iter().find_map(|&id| log.entry(id).job_start())
        {
            self.seen_job_start = Some(Micros::from_seconds(at)?);
        }
        Ok(())
    }

    /// Goodput of the window from `start` to `end`.
    ///
    /// # Errors
    /// The library's.
    pub fn interval(&mut self, log: &EventLog, start: Micros, end: Micros) -> Result<IntervalResult, Error> {
        self.read_window(log, start, end)?;
        let mut walk = LogWalk::new(self.options.elastic);
        for &id in &self.window.entries {
            walk.push(log.entry(id));
        }
        let walk = self.window.walk.insert(walk);
        let payload_time = |id: Option<&EntryId>| match id {
            Some(&id) => log.entry(id).payload_time.instant(),
            None => Ok(None),
        };
        let first = payload_time(self.window.entries.first())?.map_or(start, |first| start.max(first));
        let last = payload_time(self.window.entries.last())?.map_or(end, |last| end.min(last));
        if first >= last {
            return Err(Error::window_is_empty());
        }
        let total = last.seconds() - first.seconds();
        self.interruptions = walk.disruptions();
        let mut totals = walk.totals()?;
        if !(totals.productive >= 0.0 && totals.productive <= total) {
            return Err(Error::productive_is_invalid());
        }
        totals.buckets.sanitize(total);
        let other = totals.buckets.other(total, totals.productive);
        totals.buckets.set(BadputType::Other, Amount::Flat(other));
        Ok(IntervalResult {
            goodput_percent: totals.productive / total * 100.0,
            badput_percent: totals.buckets.breakdown(total, self.options.elastic),
            returned_step: totals.max_step,
            total_seconds: total,
            disruptions: self.interruptions,
            effective_start: first,
            effective_end: last,
        })
    }

    /// Reads the entries of the window: only new ones if the window moved forward, else all.
    fn read_window(&mut self, log: &EventLog, start: Micros, end: Micros) -> Result<(), Error> {
        self.window.walk = None;
        let forward = self.window.last.is_some_and(|(s, e)| end > e && start >= s);
        let cursor = self.window.cursor.take().filter(|_| forward && !self.window.entries.is_empty());
        if let Some(cursor) = cursor {
            let new = log.read(ReadFrom::Cursor(&cursor), end);
            self.note_job_start(log, new)?;
            self.window.entries.extend_from_slice(new);
            self.window.cursor = new.last().map(|&last| log.cursor(last)).or(Some(cursor));
        } else {
            let new = log.read(ReadFrom::After(start.into()), end);
            self.note_job_start(log, new)?;
            self.window.entries = new.to_vec();
            self.window.cursor = new.last().map(|&last| log.cursor(last));
        }
        let mut kept = Vec::with_capacity(self.window.entries.len());
        for &id in &self.window.entries {
            if log.entry(id).payload_time.instant()?.is_some_and(|at| at > start) {
                kept.push(id);
            }
        }
        self.window.entries = kept;
        self.window.last = Some((start, end));
        if self.window.entries.is_empty() {
            return Err(Error::value(format!(
                "No log entries found within the interval window between {start} and {end}."
            )));
        }
        Ok(())
    }

    /// Goodput of the whole job at `now` without `intervals`.
    ///
    /// # Errors
    /// The library's.
    pub fn excluding(
        &mut self,
        log: &EventLog,
        intervals: &[(Micros, Micros)],
        now: Micros,
        ideal: Option<f64>,
    ) -> Result<ExclusionsResult, Error> {
        self.fetch(log, now)?;
        let exclusions = Exclusions::new(intervals);
        let entries = self.entries.iter().map(|&id| log.entry(id));
        let walked = exclusions::walk(entries, self.walk.customs(), &exclusions);
        self.interruptions = walked.disruptions;
        let total = (self.total(now) - walked.excluded).max(0.0);
        let mut totals = walked.totals;
        if total == 0.0 {
            let answer = CumulativeResult {
                goodput_percent: 0.0,
                badput_percent: Buckets::new(),
                returned_step: totals.max_step,
            };
            return Ok(ExclusionsResult { answer, excluded_seconds: walked.excluded });
        }
        totals.buckets.sanitize(total);
        let other = totals.buckets.other(total, totals.productive);
        totals.buckets.set(BadputType::Other, Amount::Flat(other));
        let answer = CumulativeResult {
            goodput_percent: totals.productive / total * 100.0,
            badput_percent: totals.buckets.breakdown(total, self.options.elastic),
            returned_step: totals.max_step,
        };
        let ideal = ideal.filter(|x| *x != 0.0).or_else(|| step_times::ideal_of(&walked.step_times));
        if let Some(ideal) = ideal {
            let deviations = walked.step_times.into_iter().map(|(step, time)| (step, time - ideal)).collect();
            self.step_info = Some(StepInfo::listed(ideal, deviations));
        }
        self.remember(totals, total, walked.excluded);
        Ok(ExclusionsResult { answer, excluded_seconds: walked.excluded })
    }
}
