//! Cloud Monitoring: points of the exact ledgers and of libtpu's distributions, sent every so often by REST.
//!
//! [`series`] is one time series, [`rendering`] makes those of a round, [`exported_jobs`] says of which jobs, [`sender`] makes
//! one request, [`failure`] says what an answer means. All runs on a thread of its own, which starts only where the exporter
//! is on. What could not be sent is not kept: the next round has newer points. Must never send the estimate of the proxy
//! ledger, nor a series that another host writes.

mod distributions;
mod exported_jobs;
pub mod failure;
mod failure_log;
mod rendering;
mod sender;
pub mod series;
pub mod settings;
mod target;

use std::{sync::Arc, time::Duration};

use cluster::hosts::GceMetadata;
use marks::ledgers::MarkLedgers;
use model::{
    backoff::{Backoff, spread},
    snapshot::HostSnapshot,
    time::{Clock, Timestamp},
};
use sampling::sampler::Sampler;
use store::{marks::Marks, own_thread};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

pub use failure::{ExportFailure, ExportFailureKind};

use crate::own_metrics::ExportCounters;
use exported_jobs::ExportedJobs;
use failure_log::ExportFailureLog;
use rendering::Rendering;
use sender::RequestSender;
use series::{CloudSeries, MOST_IN_REQUEST, request_body};
use settings::CloudMonitoringSettings;
use target::ExportTarget;

/// The longest wait after a failure, unless the interval is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(900);

/// What the exporter reads.
#[derive(Clone)]
pub struct CloudMonitoringInputs {
    /// The settings.
    pub settings: CloudMonitoringSettings,
    /// The name of this host.
    pub host: String,
    /// The marked jobs.
    pub marks: Arc<Marks>,
    /// Their ledgers.
    pub ledgers: Arc<MarkLedgers>,
    /// The workloads of this host.
    pub workloads: watch::Receiver<HostSnapshot>,
    /// The samples.
    pub sampler: Sampler,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What to do about a failure.
    pub remedy: fn(ExportFailureKind) -> &'static str,
}

/// The exporter.
pub struct CloudMonitoring {
    inputs: CloudMonitoringInputs,
    metadata: GceMetadata,
    target: Option<ExportTarget>,
    sender: RequestSender,
    jobs: ExportedJobs,
    log: ExportFailureLog,
    counters: ExportCounters,
    /// When the distributions that were sent last were rendered.
    distributions: Option<Timestamp>,
    /// The first series of the next round: where a round ends early, the next one goes on there.
    first: usize,
}

/// Sends points until `stop`, on a thread of its own.
///
/// # Errors
/// If there is no thread, or it panicked.
pub async fn run(inputs: CloudMonitoringInputs, stop: CancellationToken) -> Result<(), String> {
    let work = move || async move {
        stop.run_until_cancelled(CloudMonitoring::new(inputs).rounds()).await;
    };
    own_thread::run("monitoring", work).await
}

impl CloudMonitoring {
    /// An exporter that has sent nothing yet.
    pub fn new(inputs: CloudMonitoringInputs) -> Self {
        Self {
            metadata: GceMetadata::default(),
            target: None,
            sender: RequestSender::new(
                inputs.settings.credentials.clone(),
                inputs.settings.interval.get(),
                Arc::clone(&inputs.clock),
            ),
            jobs: ExportedJobs::default(),
            log: ExportFailureLog::new(inputs.remedy),
            counters: ExportCounters::new("cloud_monitoring"),
            distributions: None,
            first: 0,
            inputs,
        }
    }

    /// One round after the other, for ever. Hosts do not send in step.
    async fn rounds(mut self) {
        let interval = self.inputs.settings.interval.get();
        // The first wait is at least the interval: what was written of a round that failed is not due again before.
        let mut backoff = Backoff::new(2 * interval, LONGEST_WAIT.max(2 * interval));
        let mut wait = spread(Duration::ZERO, interval, fastrand::f64());
        loop {
            sleep(wait).await;
            let start = Instant::now();
            wait = match self.round().await {
                Ok(_) => {
                    backoff.succeeded();
                    interval.saturating_sub(start.elapsed())
                }
                Err(_) => backoff.failed(fastrand::f64()),
            };
        }
    }

    /// Sends the points of now, and returns how many were written. Its failures are in the log and in the agent's metrics.
    /// Blocks where it reads the marks.
    ///
    /// # Errors
    /// If the service takes none, or stopped taking them.
    pub async fn round(&mut self) -> Result<u64, ExportFailure> {
        let sent = self.try_round().await;
        match &sent {
            // Nothing was due, so nothing is known of the service and of the credentials.
            Ok(0) => {}
            Ok(_) => {
                self.counters.succeeded(self.inputs.clock.now());
                self.log.succeeded();
            }
            Err(failure) => {
                self.counters.failed(failure.kind.as_str());
                self.log.failed(failure, Instant::now());
            }
        }
        sent
    }

    async fn try_round(&mut self) -> Result<u64, ExportFailure> {
        let target = match &self.target {
            Some(target) => target.clone(),
            None => ExportTarget::find(&self.inputs.settings, &self.metadata).await?,
        };
        self.target = Some(target.clone());
        let at = self.inputs.clock.now();
        let rendering = self.render(&target, at)?.finish();
        for (kind, what) in &rendering.remarks {
            self.log.remark(*kind, what, Instant::now());
        }
        self.counters.dropped(rendering.dropped);
        let sent = self.send(&target.url(&self.inputs.settings.endpoint), rendering.series).await?;
        self.distributions = Some(at);
        for (number, last) in rendering.ended {
            self.jobs.end_sent(number, last);
        }
        Ok(sent)
    }

    fn render(&mut self, target: &ExportTarget, at: Timestamp) -> Result<Rendering, ExportFailure> {
        let CloudMonitoringInputs { settings, marks, ledgers, workloads, sampler, host, .. } = &self.inputs;
        let mut rendering = Rendering::new(at);
        let marked =
            marks.jobs(None, None).map_err(|error| ExportFailure::new(ExportFailureKind::Marks, error))?;
        let choice = self.jobs.choose(marked, &workloads.borrow().clone(), at);
        for job in &choice.exported {
            rendering.add_job(job, ledgers, target, settings);
        }
        if choice.same_name {
            rendering
                .remarks
                .push((ExportFailureKind::SameName, "of jobs of one name only one is exported".into()));
        }
        if choice.too_many {
            let what = format!("only {} jobs are exported at once", choice.exported.len());
            rendering.remarks.push((ExportFailureKind::TooMany, what));
        }
        if settings.distributions {
            // After the clock was set back, what was sent lies in the future.
            let after = self.distributions.filter(|after| *after <= at);
            rendering.add_distributions(&sampler.view().samples(at), &target.host(host), after);
        }
        Ok(rendering)
    }

    /// Sends series in requests of at most [`MOST_IN_REQUEST`]. A request whose points are refused does not keep the others
    /// from being sent; any other failure does.
    async fn send(&mut self, url: &str, mut series: Vec<CloudSeries>) -> Result<u64, ExportFailure> {
        let count = series.len();
        let first = if count == 0 { 0 } else { self.first % count };
        series.rotate_left(first);
        let (mut tried, mut written, mut refused, mut clock) = (0, 0, None, None);
        for batch in series.chunks(MOST_IN_REQUEST) {
            let body =
                request_body(batch).map_err(|error| ExportFailure::new(ExportFailureKind::Refused, error))?;
            match self.sender.send(url, body).await {
                Ok(answer) => {
                    written += batch.len() as u64;
                    clock = clock.or(answer.clock);
                }
                Err(failure) if failure.kind.is_of_the_points() => {
                    written += failure.written.min(batch.len() as u64);
                    refused.get_or_insert(failure);
                }
                Err(failure) => {
                    self.first = first + tried;
                    self.count(written, count);
                    return Err(failure);
                }
            }
            tried += batch.len();
        }
        self.first = 0;
        self.count(written, count);
        if let Some(clock) = clock {
            self.counters.failed(ExportFailureKind::Clock.as_str());
            self.log.remark(ExportFailureKind::Clock, &clock, Instant::now());
        }
        match refused {
            Some(failure) if written == 0 => Err(failure),
            Some(failure) => {
                self.counters.failed(failure.kind.as_str());
                let what = format!("some points were refused, others written: {failure}");
                self.log.remark(failure.kind, &what, Instant::now());
                Ok(written)
            }
            None => Ok(written),
        }
    }

    fn count(&self, written: u64, all: usize) {
        self.counters.sent(written);
        self.counters.dropped((all as u64).saturating_sub(written));
    }
}
