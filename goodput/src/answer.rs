//! Answers as JSON objects, under the field names of the golden vectors. What is read back lacks the series and scalars
//! of uploaders.

use serde::{Deserialize, Serialize};

use crate::{
    badput::Buckets,
    error::{Error, ExceptionKind},
    exact::{
        Calculator, CountedUntil, CumulativeResult, FromBaseline, IntervalResult, SliceEfficiency, StepInfo,
    },
    export::{
        CumulativeUpload, SeriesLabels, TensorBoardScalar, TimeSeries, cumulative_series, interval_series,
        tensorboard,
    },
    log::EventLog,
    query::{LedgerQuery, instants},
    time::Micros,
};

/// Above this many, deviations are also given as count, head and tail.
const LONG: usize = 2_000;
/// Above this many, deviations are given only as count, head and tail.
const LONGEST: usize = 10_000;
/// Deviations in head and tail.
const ENDS: usize = 20;

/// The answer of a ledger to one query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LedgerAnswer {
    /// The answer about the whole job, with or without exclusions.
    Job(Box<JobAnswer>),
    /// The answer about a window.
    Window(Box<WindowAnswer>),
    /// The query has no answer.
    Failed(FailedAnswer),
}

/// The answer about the whole job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/goodput.md describes every field")]
pub struct JobAnswer {
    pub goodput_percent: f64,
    pub badput_percent: Buckets,
    pub returned_step: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned_excluded_seconds: Option<f64>,
    pub total_elapsed_seconds: f64,
    pub productive_seconds: f64,
    pub unproductive_seconds: Buckets,
    pub max_productive_step: i64,
    pub last_recorded_step: i64,
    pub disruptions: u64,
    pub excluded_seconds: f64,
    #[serde(flatten)]
    pub period: CountedPeriod,
    pub ideal_step_time: f64,
    #[serde(flatten)]
    pub deviations: DeviationList,
    pub step_deviation_from_baseline: FromBaseline,
    pub step_deviation_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepping_slice_efficiency: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_slice_efficiency: Option<f64>,
    #[serde(skip_deserializing)]
    pub cloud_monitoring_series: Vec<TimeSeries>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub tensorboard_scalars: Option<Vec<TensorBoardScalar>>,
}

/// Until when an answer about the whole job counts time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CountedPeriod {
    /// Whether the log says that the job ended. Without a job end, time counts until the time of the query.
    pub job_end_logged: bool,
    /// The end of the counted time, in epoch seconds.
    pub counted_until: f64,
    /// The latest event, in epoch seconds.
    pub last_entry: Option<f64>,
    /// The answer with time counted until the last entry. Given without a job end and without exclusions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_last_entry: Option<CountedUntil>,
}

/// Step deviations: all of them, or both ends of a long list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/goodput.md describes every field")]
pub struct DeviationList {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_deviations: Option<Vec<(i64, f64)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_deviations_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_deviations_head: Option<Vec<(i64, f64)>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_deviations_tail: Option<Vec<(i64, f64)>>,
}

impl DeviationList {
    /// Lists deviations.
    pub fn new(all: Vec<(i64, f64)>) -> Self {
        let mut list = Self::default();
        if all.len() > LONG {
            list.step_deviations_count = Some(all.len());
            list.step_deviations_head = Some(all[..ENDS].to_vec());
            list.step_deviations_tail = Some(all[all.len() - ENDS..].to_vec());
        }
        list.step_deviations = (all.len() <= LONGEST).then_some(all);
        list
    }
}

/// The answer about a window.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/goodput.md describes every field")]
pub struct WindowAnswer {
    pub goodput_percent: f64,
    pub badput_percent: Buckets,
    pub returned_step: i64,
    pub total_seconds: f64,
    pub disruptions: u64,
    pub effective_start: f64,
    pub effective_end: f64,
    #[serde(flatten)]
    pub export: Option<WindowExport>,
}

/// The values that an uploader would send for a window. The library queries again for them, which moves its
/// window; the answer to a query that reuses a calculator therefore has none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "docs/goodput.md describes every field")]
pub struct WindowExport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stepping_slice_efficiency: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_slice_efficiency: Option<f64>,
    pub interval_size_seconds: i64,
    #[serde(skip_deserializing)]
    pub cloud_monitoring_series: Vec<TimeSeries>,
}

/// Why a query has no answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FailedAnswer {
    /// The type of the library's exception.
    pub error: ExceptionKind,
    /// The text of the exception.
    pub message: String,
    /// The values that an uploader would send nevertheless.
    #[serde(flatten)]
    pub export: Option<WindowExport>,
}

impl LedgerAnswer {
    /// An answer that is an error.
    pub fn failed(error: Error, export: Option<WindowExport>) -> Self {
        LedgerAnswer::Failed(FailedAnswer { error: error.kind, message: error.message, export })
    }
}

/// Queries a calculator.
pub fn ask(
    calculator: &mut Calculator,
    log: &EventLog,
    query: &LedgerQuery,
    labels: &SeriesLabels,
) -> LedgerAnswer {
    let answer = match query {
        LedgerQuery::Cumulative { now, ideal_step_time, .. } => Micros::from_seconds(*now).and_then(|now| {
            let answer = calculator.cumulative(log, now, *ideal_step_time)?;
            Ok(job(calculator, answer, None, period(calculator, now, true), labels))
        }),
        LedgerQuery::Exclusions { now, exclude, ideal_step_time, .. } => {
            Micros::from_seconds(*now).and_then(|now| {
                let answer = calculator.excluding(log, &instants(exclude)?, now, *ideal_step_time)?;
                let period = period(calculator, now, false);
                Ok(job(calculator, answer.answer, Some(answer.excluded_seconds), period, labels))
            })
        }
        LedgerQuery::Interval { start, end, reuse_calculator, .. } => {
            let window =
                Micros::from_seconds(*start).and_then(|start| Ok((start, Micros::from_seconds(*end)?)));
            window.map(|(start, end)| {
                let export = *reuse_calculator != Some(true);
                interval(calculator, log, (start, end), export.then_some(labels))
            })
        }
    };
    answer.unwrap_or_else(|error| LedgerAnswer::failed(error, None))
}

fn period(calculator: &Calculator, now: Micros, with_last_entry: bool) -> CountedPeriod {
    let (job_end, last_entry) = (calculator.job_end(), calculator.last_event(now));
    let until = last_entry.filter(|_| job_end.is_none() && with_last_entry);
    CountedPeriod {
        job_end_logged: job_end.is_some(),
        counted_until: job_end.unwrap_or(now).seconds(),
        last_entry: last_entry.map(Micros::seconds),
        until_last_entry: until.and_then(|until| calculator.counted_until(until)),
    }
}

fn job(
    calculator: &Calculator,
    answer: CumulativeResult,
    excluded: Option<f64>,
    period: CountedPeriod,
    labels: &SeriesLabels,
) -> LedgerAnswer {
    let none = Buckets::new();
    let left = calculator.remembered();
    let info = calculator.step_info();
    let unproductive = left.map_or(&none, |left| &left.unproductive_seconds);
    let efficiency = calculator.efficiency();
    let upload = CumulativeUpload {
        productive: left.map(|left| left.productive_seconds),
        unproductive,
        disruptions: left.map_or(0, |left| left.disruptions),
        max_step: left.map_or(0, |left| left.max_productive_step),
        deviation: info.filter(|info| info.mean.is_some()).map(|info| info.from_baseline.cumulative),
        elapsed: left.map_or(0.0, |left| left.total_elapsed_seconds),
        ideal: info.map_or(0.0, |info| info.ideal),
        efficiency,
    };
    let scalars = tensorboard(answer.goodput_percent, &answer.badput_percent, answer.returned_step);
    LedgerAnswer::Job(Box::new(JobAnswer {
        goodput_percent: answer.goodput_percent,
        badput_percent: answer.badput_percent,
        returned_step: answer.returned_step,
        returned_excluded_seconds: excluded,
        total_elapsed_seconds: upload.elapsed,
        productive_seconds: upload.productive.unwrap_or(0.0),
        unproductive_seconds: unproductive.clone(),
        max_productive_step: upload.max_step,
        last_recorded_step: left.map_or(0, |left| left.last_recorded_step),
        disruptions: upload.disruptions,
        excluded_seconds: left.map_or(0.0, |left| left.excluded_seconds),
        period,
        ideal_step_time: upload.ideal,
        deviations: DeviationList::new(calculator.deviations()),
        step_deviation_from_baseline: info.map_or_else(FromBaseline::default, |info| info.from_baseline),
        step_deviation_mean: info.and_then(|info: &StepInfo| info.mean),
        stepping_slice_efficiency: efficiency.map(|e| e.stepping),
        available_slice_efficiency: efficiency.map(|e| e.available),
        cloud_monitoring_series: cumulative_series(&upload, labels),
        tensorboard_scalars: excluded.is_none().then_some(scalars),
    }))
}

fn interval(
    calculator: &mut Calculator,
    log: &EventLog,
    (start, end): (Micros, Micros),
    labels: Option<&SeriesLabels>,
) -> LedgerAnswer {
    let result = calculator.interval(log, start, end);
    let export = labels.map(|labels| {
        let percent = result.as_ref().ok().map(|answer| (answer.goodput_percent, &answer.badput_percent));
        window_export(percent, calculator.window_efficiency(start, end), (start, end), labels)
    });
    match result {
        Ok(answer) => LedgerAnswer::Window(Box::new(window(answer, export))),
        Err(error) => LedgerAnswer::failed(error, export),
    }
}

fn window(answer: IntervalResult, export: Option<WindowExport>) -> WindowAnswer {
    WindowAnswer {
        goodput_percent: answer.goodput_percent,
        badput_percent: answer.badput_percent,
        returned_step: answer.returned_step,
        total_seconds: answer.total_seconds,
        disruptions: answer.disruptions,
        effective_start: answer.effective_start.seconds(),
        effective_end: answer.effective_end.seconds(),
        export,
    }
}

pub(crate) fn window_export(
    percent: Option<(f64, &Buckets)>,
    efficiency: Option<SliceEfficiency>,
    (start, end): (Micros, Micros),
    labels: &SeriesLabels,
) -> WindowExport {
    let size = (end.0 - start.0) / 1_000_000;
    WindowExport {
        stepping_slice_efficiency: efficiency.map(|e| e.stepping),
        available_slice_efficiency: efficiency.map(|e| e.available),
        interval_size_seconds: size,
        cloud_monitoring_series: interval_series(percent, efficiency, size, labels),
    }
}
