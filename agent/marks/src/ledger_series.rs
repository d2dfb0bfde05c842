//! The exact ledgers of marked workloads as series of the metrics page: where their time goes, by their marks.
//!
//! Computed on a thread that may block, and only while the page is read: each read starts the computation that the next
//! one shows. Bounded in workloads and in marks. Must never let a read of the page wait, or cost anything on a host without
//! marks.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use goodput::{
    answer::{JobAnswer, LedgerAnswer},
    badput::BadputType,
    export::SeriesLabels,
};
use model::{
    catalog,
    label::Labels,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::{Clock, Timestamp},
    workload::{Workload, WorkloadId},
};
use store::marks::{MarkedJob, Marks, MarksError};
use tracing::debug;

use crate::{
    ledgers::{MarkAnswer, MarkLedger, MarkLedgerQuestion, MarkLedgers},
    step_series::LEDGER,
};

/// The shortest time between two computations.
const EVERY: Duration = Duration::from_secs(10);
/// Older figures are not shown: nobody read the page meanwhile, or the database does not answer.
const SHOWN: Duration = Duration::from_secs(300);
/// The most workloads that have these series.
const MOST_WORKLOADS: usize = 32;
/// The most marks of all of them together. Their logs stay in memory between two reads of the page.
const MOST_MARKS: u64 = 100_000;
/// A ratio of less time is not shown.
const LEAST_SECONDS: f64 = 60.0;

/// The exact ledgers of the workloads that run.
pub struct LedgerSeries {
    marks: Arc<Marks>,
    ledgers: Arc<MarkLedgers>,
    clock: Arc<dyn Clock>,
    kept: Mutex<KeptFigures>,
}

impl fmt::Debug for LedgerSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerSeries").finish_non_exhaustive()
    }
}

/// What was computed last. Times are uptimes.
#[derive(Debug, Default)]
struct KeptFigures {
    figures: Vec<LedgerFigures>,
    computed: Option<Duration>,
    is_computing: bool,
    /// The marks that had come when it was found that no workload has any.
    none_until: Option<u64>,
}

/// What the exact ledger says of one workload. Times in seconds.
#[derive(Debug, Clone, PartialEq)]
struct LedgerFigures {
    workload: WorkloadId,
    elapsed: f64,
    productive: f64,
    goodput: f64,
    /// By reason.
    lost: Vec<(&'static str, f64)>,
    /// Without its hosts, or with fewer of them.
    down: f64,
    /// The share of its marks that is kept.
    coverage: f64,
    disruptions: u64,
}

impl LedgerSeries {
    /// Those of the marks in a store, by its ledgers.
    pub fn new(marks: Arc<Marks>, ledgers: Arc<MarkLedgers>, clock: Arc<dyn Clock>) -> Self {
        Self { marks, ledgers, clock, kept: Mutex::default() }
    }

    /// The series of the workloads that run, as they were computed last. Starts the next computation where that is due.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn samples(self: &Arc<Self>, running: &[Arc<Workload>], at: Timestamp) -> Vec<Sample> {
        if running.is_empty() {
            return Vec::new();
        }
        let now = self.clock.uptime();
        let mut kept = self.kept();
        if kept.is_due(now, self.marks.stored()) {
            kept.is_computing = true;
            let (this, ids) =
                (Arc::clone(self), running.iter().map(|workload| workload.id.clone()).collect());
            tokio::task::spawn_blocking(move || this.compute(ids));
        }
        if kept.computed.is_none_or(|computed| now.saturating_sub(computed) > SHOWN) {
            return Vec::new();
        }
        let of = |workload: &Arc<Workload>| {
            let figures = kept.figures.iter().find(|figures| figures.workload == workload.id)?;
            Some(figures.samples(workload, at))
        };
        running.iter().filter_map(of).flatten().collect()
    }

    /// Asks the ledgers of these workloads.
    fn compute(&self, running: Vec<WorkloadId>) {
        let stored = self.marks.stored();
        let figures = self.figures(running).unwrap_or_else(|error| {
            debug!(%error, "the exact ledgers have no series: the marks cannot be read");
            Vec::new()
        });
        let mut kept = self.kept();
        kept.none_until = figures.is_empty().then_some(stored);
        kept.computed = Some(self.clock.uptime());
        (kept.figures, kept.is_computing) = (figures, false);
    }

    fn figures(&self, running: Vec<WorkloadId>) -> Result<Vec<LedgerFigures>, MarksError> {
        let (mut all, mut room) = (Vec::new(), MOST_MARKS);
        for workload in running.into_iter().take(MOST_WORKLOADS) {
            let Some(job) = self.marks.last_of(&workload)? else { continue };
            let Some(left) = room.checked_sub(job.marks) else { continue };
            room = left;
            // A job without a step has no answer, as in the library.
            if let Ok((job, MarkAnswer::Exact(LedgerAnswer::Job(answer)))) =
                self.ledgers.ask(job.number, &question())
            {
                all.push(LedgerFigures::of(workload, &job, &answer));
            }
        }
        Ok(all)
    }

    fn kept(&self) -> MutexGuard<'_, KeptFigures> {
        // Every change is a few assignments.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptFigures {
    /// Whether there may be other figures than those that are kept. `stored` counts the marks that came.
    fn is_due(&self, now: Duration, stored: u64) -> bool {
        let is_time = self.computed.is_none_or(|computed| now.saturating_sub(computed) >= EVERY);
        is_time && !self.is_computing && self.none_until != Some(stored)
    }
}

/// The whole job at the present. Nobody reads the series of an uploader in the answer.
fn question() -> MarkLedgerQuestion {
    let none = String::new;
    let (location, workload_id, replica_id, accelerator_type) = (none(), none(), none(), none());
    MarkLedgerQuestion {
        ledger: MarkLedger::Exact,
        now: None,
        window: None,
        elastic: false,
        labels: SeriesLabels { location, workload_id, replica_id, accelerator_type, cluster_name: None },
    }
}

/// The value of the label `reason`; `None` for time that is not lost. The same as that of the proxy for the same cause.
fn reason(kind: BadputType) -> Option<&'static str> {
    use BadputType as B;
    match kind {
        B::TpuInitialization => Some("init"),
        B::TrainingPrep => Some("prep"),
        B::ProgramStartup => Some("startup"),
        B::DataLoadingSync => Some("input"),
        B::DataLoadingAsync => None,
        B::CheckpointSave => Some("checkpoint"),
        B::CheckpointRestore => Some("restore"),
        B::WastedProgress => Some("wasted"),
        B::InfrastructureRecovery => Some("recovery"),
        B::CustomEvents => Some("custom"),
        B::Other => Some("other"),
        B::ElasticSliceDown => Some("elastic_slice_down"),
        B::ElasticScaleUp => Some("elastic_scale_up"),
        B::ElasticReinitialization => Some("elastic_reinitialization"),
    }
}

impl LedgerFigures {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 marks")]
    fn of(workload: WorkloadId, job: &MarkedJob, answer: &JobAnswer) -> Self {
        let lost = &answer.unproductive_seconds;
        let elastic = BadputType::ELASTIC.into_iter().filter(|kind| lost.get(*kind).is_some());
        let kinds = BadputType::STANDARD.into_iter().chain(elastic);
        let missing = job.lost.saturating_add(job.refused).saturating_add(job.removed);
        Self {
            workload,
            elapsed: answer.total_elapsed_seconds,
            productive: answer.productive_seconds,
            goodput: answer.goodput_percent / 100.0,
            lost: kinds.filter_map(|kind| Some((reason(kind)?, lost.seconds(kind)))).collect(),
            down: lost.seconds(BadputType::InfrastructureRecovery)
                + lost.seconds(BadputType::ElasticSliceDown),
            coverage: job.marks as f64 / job.marks.saturating_add(missing).max(1) as f64,
            disruptions: answer.disruptions,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]
    fn samples(&self, workload: &Arc<Workload>, at: Timestamp) -> Vec<Sample> {
        let sample = |metric: &'static Descriptor, labels, value| Sample {
            metric: metric.into(),
            labels,
            value,
            origin: Origin::Agent,
            at,
            workload: Some(Arc::clone(workload)),
        };
        let of_ledger = || Labels::one("ledger", LEDGER);
        let gauge = |metric, value| sample(metric, of_ledger(), SampleValue::Gauge(value));
        let disruptions = SampleValue::Counter(self.disruptions as f64);
        let mut samples = vec![
            gauge(&catalog::TPU_JOB_GOODPUT_SECONDS, self.productive),
            gauge(&catalog::TPU_JOB_GOODPUT_COVERAGE_RATIO, self.coverage),
            sample(&catalog::TPU_JOB_DISRUPTIONS_TOTAL, of_ledger(), disruptions),
        ];
        if self.elapsed >= LEAST_SECONDS {
            let up = (1.0 - self.down / self.elapsed).clamp(0.0, 1.0);
            samples.push(gauge(&catalog::TPU_JOB_GOODPUT_RATIO, self.goodput));
            samples.push(gauge(&catalog::TPU_JOB_SCHEDULING_GOODPUT_RATIO, up));
        }
        samples.extend(self.lost.iter().map(|(reason, seconds)| {
            let labels = of_ledger().with("reason", *reason);
            sample(&catalog::TPU_JOB_BADPUT_SECONDS, labels, SampleValue::Gauge(*seconds))
        }));
        samples
    }
}

#[cfg(test)]
mod tests;
