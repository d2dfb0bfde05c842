//! The strict ledger: the answers to the library's queries without the library's faults.
//!
//! The time of the job is divided into pieces, and every piece belongs to exactly one bucket: productive and
//! lost time add up to the total, and the order of the entries does not change the answer. [`facts`] reads the
//! entries, [`attempts`] finds the attempts, [`claims`] lists the periods that each bucket claims, and [`pieces`]
//! gives each piece to the claim with the highest priority. The answer names each difference from the library's
//! numbers as a [`Repair`].

mod attempts;
mod claims;
mod facts;
mod pieces;
mod repair;
mod spans;

pub use repair::{Repair, Repairs};

use serde::{Deserialize, Serialize};

use crate::{
    answer::{CountedPeriod, DeviationList, JobAnswer, LedgerAnswer, WindowAnswer, window_export},
    badput::{Amount, BadputType, Buckets},
    error::Error,
    exact::{CountedUntil, FromBaseline, SliceEfficiency, StepInfo, step_times::ExactStepTimes},
    export::{CumulativeUpload, SeriesLabels, cumulative_series, tensorboard},
    log::EventLog,
    query::{LedgerQuery, instants},
    time::Micros,
};
use attempts::LoggedAttempt;
use facts::JobFacts;
use pieces::{PieceLabel, Timeline};

/// An answer of the strict ledger.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StrictAnswer {
    /// The name of the ledger.
    pub ledger: StrictLedger,
    /// The same fields as the exact ledger's.
    #[serde(flatten)]
    pub answer: LedgerAnswer,
    /// The differences from the library's rules.
    pub repairs: Repairs,
}

/// The name of the strict ledger in its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrictLedger {
    /// `strict`.
    Strict,
}

/// The job until a given time.
#[derive(Debug)]
struct JobHistory {
    origin: i64,
    end: i64,
    job_end_logged: bool,
    pieces: Timeline,
    attempts: Vec<LoggedAttempt>,
    loads: spans::SpanUnion,
    facts: JobFacts,
    repairs: Repairs,
}

/// Answers a query. The order of the entries does not matter.
pub fn ask(log: &EventLog, query: &LedgerQuery, labels: &SeriesLabels) -> StrictAnswer {
    let mut repairs = Repairs::default();
    let answer = answer(log, query, labels, &mut repairs)
        .unwrap_or_else(|error| LedgerAnswer::failed(error, failed_window(query, labels)));
    StrictAnswer { ledger: StrictLedger::Strict, answer, repairs }
}

fn failed_window(query: &LedgerQuery, labels: &SeriesLabels) -> Option<crate::answer::WindowExport> {
    let LedgerQuery::Interval { start, end, .. } = query else { return None };
    let window = (Micros::from_seconds(*start).ok()?, Micros::from_seconds(*end).ok()?);
    Some(window_export(None, None, window, labels))
}

fn answer(
    log: &EventLog,
    query: &LedgerQuery,
    labels: &SeriesLabels,
    repairs: &mut Repairs,
) -> Result<LedgerAnswer, Error> {
    match query {
        LedgerQuery::Cumulative { now, ideal_step_time, .. } => {
            let job = JobHistory::new(log, Micros::from_seconds(*now)?)?;
            let answer = job.job(&spans::SpanUnion::default(), *ideal_step_time, false, labels);
            *repairs = job.repairs;
            Ok(answer)
        }
        LedgerQuery::Exclusions { now, exclude, ideal_step_time, .. } => {
            let job = JobHistory::new(log, Micros::from_seconds(*now)?)?;
            let excluded = spans::SpanUnion::new(instants(exclude)?.iter().map(|(s, e)| (s.0, e.0)));
            let answer = job.job(&excluded, *ideal_step_time, true, labels);
            *repairs = job.repairs;
            Ok(answer)
        }
        LedgerQuery::Interval { start, end, now, .. } => {
            let (start, end) = (Micros::from_seconds(*start)?, Micros::from_seconds(*end)?);
            let now = now.map_or(Ok(end), Micros::from_seconds)?;
            let mut job = JobHistory::new(log, now)?;
            let answer = job.window(start, end, labels);
            *repairs = job.repairs;
            answer
        }
    }
}

/// Productive seconds, total seconds, and seconds by bucket.
struct BucketSums {
    productive: f64,
    total: f64,
    buckets: Buckets,
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 for every instant the type can hold")]
fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}

impl JobHistory {
    fn new(log: &EventLog, now: Micros) -> Result<Self, Error> {
        let mut repairs = Repairs::default();
        let facts = JobFacts::new(log.iter(), now.0, &mut repairs);
        let origin = facts.origin(&mut repairs).ok_or_else(Error::total_is_zero)?;
        let found = attempts::find(&facts, &mut repairs);
        let job_end_logged = found.end.is_some();
        let end = found.end.unwrap_or(now.0);
        if end <= origin {
            return Err(Error::total_is_zero());
        }
        let (claims, loads) = claims::all(&facts, &found, end, &mut repairs);
        let pieces = Timeline::new(origin, end, claims);
        let attempts = found.attempts;
        Ok(Self { origin, end, job_end_logged, pieces, attempts, loads, facts, repairs })
    }

    fn sums(&self, start: i64, end: i64, excluded: &spans::SpanUnion) -> BucketSums {
        let mut productive = 0;
        let mut by_type = std::collections::BTreeMap::<BadputType, i64>::new();
        let mut customs = std::collections::BTreeMap::<u32, i64>::new();
        for (label, from, to) in self.pieces.within(start, end) {
            let length = to - from - excluded.measure(from, to);
            match label {
                PieceLabel::Productive => productive += length,
                PieceLabel::Lost(kind) => *by_type.entry(kind).or_default() += length,
                PieceLabel::Custom(kind) => *customs.entry(kind).or_default() += length,
            }
        }
        let sync = by_type.get(&BadputType::DataLoadingSync).copied().unwrap_or(0);
        let loaded = self.loads.measure(start, end);
        by_type.insert(BadputType::DataLoadingAsync, (loaded - sync).max(0));
        let elastic = if self.facts.elastic { &BadputType::ELASTIC[..] } else { &[] };
        let buckets = BadputType::STANDARD.iter().chain(elastic).map(|&kind| {
            let amount = if kind == BadputType::CustomEvents {
                let named = customs.iter().map(|(k, v)| (self.facts.custom_name(*k).to_owned(), seconds(*v)));
                Amount::Custom(named.collect())
            } else {
                Amount::Flat(seconds(by_type.get(&kind).copied().unwrap_or(0)))
            };
            (kind, amount)
        });
        BucketSums {
            productive: seconds(productive),
            total: seconds(end - start - excluded.measure(start, end)),
            buckets: buckets.collect(),
        }
    }

    /// Every type as percent of the total.
    fn percent(sums: &BucketSums) -> Buckets {
        let percent = |value: f64| if sums.total > 0.0 { value / sums.total * 100.0 } else { 0.0 };
        let scaled = sums.buckets.iter().map(|(kind, amount)| {
            let amount = match amount {
                Amount::Flat(value) => Amount::Flat(percent(*value)),
                Amount::Custom(kinds) => Amount::Custom(
                    kinds.iter().map(|(name, value)| (name.clone(), percent(*value))).collect(),
                ),
            };
            (*kind, amount)
        });
        scaled.collect()
    }

    fn goodput(sums: &BucketSums) -> f64 {
        if sums.total > 0.0 { (sums.productive / sums.total * 100.0).min(100.0) } else { 0.0 }
    }

    fn job(
        &self,
        excluded: &spans::SpanUnion,
        ideal: Option<f64>,
        excluding: bool,
        labels: &SeriesLabels,
    ) -> LedgerAnswer {
        let sums = self.sums(self.origin, self.end, excluded);
        let (info, deviations) = self.step_info(ideal);
        let (goodput, badput) = (Self::goodput(&sums), Self::percent(&sums));
        let efficiency = self.efficiency(self.origin, self.end);
        let max_step = attempts::max_productive(&self.attempts, self.origin, self.end);
        let upload = CumulativeUpload {
            productive: Some(sums.productive),
            unproductive: &sums.buckets,
            disruptions: attempts::disruptions(&self.attempts, self.origin, self.end),
            max_step,
            deviation: info.as_ref().map(|info| info.from_baseline.cumulative),
            elapsed: sums.total,
            ideal: info.as_ref().map_or(0.0, |info| info.ideal),
            efficiency,
        };
        let excluded_time = seconds(excluded.measure(self.origin, self.end));
        LedgerAnswer::Job(Box::new(JobAnswer {
            goodput_percent: goodput,
            returned_step: max_step,
            returned_excluded_seconds: excluding.then_some(excluded_time),
            total_elapsed_seconds: sums.total,
            productive_seconds: sums.productive,
            unproductive_seconds: sums.buckets.clone(),
            max_productive_step: max_step,
            last_recorded_step: self.attempts.last().map_or(0, LoggedAttempt::largest),
            disruptions: upload.disruptions,
            excluded_seconds: excluded_time,
            period: self.period(excluding),
            ideal_step_time: upload.ideal,
            deviations: DeviationList::new(deviations),
            step_deviation_from_baseline: info
                .as_ref()
                .map_or_else(FromBaseline::default, |info| info.from_baseline),
            step_deviation_mean: info.as_ref().and_then(|info| info.mean),
            stepping_slice_efficiency: efficiency.map(|e| e.stepping),
            available_slice_efficiency: efficiency.map(|e| e.available),
            cloud_monitoring_series: cumulative_series(&upload, labels),
            tensorboard_scalars: (!excluding).then(|| tensorboard(goodput, &badput, max_step)),
            badput_percent: badput,
        }))
    }

    fn period(&self, excluding: bool) -> CountedPeriod {
        let last_entry = self.facts.latest();
        let until = last_entry.filter(|last| *last > self.origin && !self.job_end_logged && !excluding);
        CountedPeriod {
            job_end_logged: self.job_end_logged,
            counted_until: seconds(self.end),
            last_entry: last_entry.map(seconds),
            until_last_entry: until.map(|until| self.counted_until(until)),
        }
    }

    fn counted_until(&self, until: i64) -> CountedUntil {
        let sums = self.sums(self.origin, until, &spans::SpanUnion::default());
        CountedUntil {
            time: seconds(until),
            goodput_percent: Self::goodput(&sums),
            badput_percent: Self::percent(&sums),
            total_elapsed_seconds: sums.total,
            productive_seconds: sums.productive,
            unproductive_seconds: sums.buckets,
        }
    }

    fn window(&mut self, start: Micros, end: Micros, labels: &SeriesLabels) -> Result<LedgerAnswer, Error> {
        let (first, last) = (start.0.max(self.origin), end.0.min(self.end));
        if first >= last {
            return Err(Error::window_is_empty());
        }
        self.repairs.add(Repair::WindowEdges, 1);
        let sums = self.sums(first, last, &spans::SpanUnion::default());
        let (goodput, badput) = (Self::goodput(&sums), Self::percent(&sums));
        let efficiency = self.efficiency(start.0, end.0);
        let export = window_export(Some((goodput, &badput)), efficiency, (start, end), labels);
        Ok(LedgerAnswer::Window(Box::new(WindowAnswer {
            goodput_percent: goodput,
            badput_percent: badput,
            returned_step: attempts::max_productive(&self.attempts, first, last),
            total_seconds: sums.total,
            disruptions: attempts::disruptions(&self.attempts, first, last),
            effective_start: seconds(first),
            effective_end: seconds(last),
            export: Some(export),
        })))
    }

    fn efficiency(&self, start: i64, end: i64) -> Option<SliceEfficiency> {
        self.facts.slices.efficiency(seconds(start), seconds(end))
    }

    /// Step statistics by the library's rules, without step times that contain an outage.
    fn step_info(&self, ideal: Option<f64>) -> (Option<StepInfo>, Vec<(i64, f64)>) {
        let mut times = ExactStepTimes::default();
        for attempt in &self.attempts {
            times.interrupt();
            for (step, at) in &attempt.steps {
                times.push(*step, seconds(*at));
            }
        }
        if times.times().is_empty() {
            return (None, Vec::new());
        }
        let Some(ideal) = ideal.or_else(|| times.ideal()).filter(|ideal| *ideal != 0.0) else {
            return (None, Vec::new());
        };
        let info = StepInfo::of_times(&mut times, ideal);
        let deviations = info.deviations(&times);
        (Some(info), deviations)
    }
}
