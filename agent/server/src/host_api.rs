//! The agent's read-only API: status, samples, history and the metrics page. HTTP and gRPC give the same answers.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use export::{OwnMetrics, TextFormat};
use jobs::ledger::LiveLedgers;
use marks::{ledger_series::LedgerSeries, step_series::StepSeries};
use model::{
    label::CHIP,
    sample::Sample,
    snapshot::HostSnapshot,
    step_times::StepTimes,
    time::{Clock, Timestamp},
    workload::Workload,
};
use proto::tpuscope::v1::{HistoryReply, SamplesReply, StatusReply};
use sampling::sampler::{RangeQuery, Sampler};
use store::uploads::Uploads;
use tokio::sync::watch;

use super::{messages, own_metrics, protocol, step_messages, upload_messages};

/// The most points of one series in an answer.
const MAX_POINTS: u32 = 3600;

/// The read-only API.
pub struct HostApi {
    identity: AgentIdentity,
    started: Timestamp,
    clock: Arc<dyn Clock>,
    inputs: HostApiInputs,
    /// Whether a source has given a sample.
    sampled: AtomicBool,
}

/// A selection from the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Metric name.
    pub metric: String,
    /// Only series of this chip.
    pub chip: Option<u32>,
    /// Only points that are not older.
    pub last: Option<Duration>,
    /// The largest number of points of one series.
    pub limit: Option<u32>,
}

/// The host's name and the agent's addresses.
#[derive(Debug, Clone, Default)]
pub struct AgentIdentity {
    /// The host's name.
    pub host: String,
    /// The address of the HTTP server, if it is on.
    pub http: Option<SocketAddr>,
    /// The address of the read-only gRPC server, if it is on.
    pub grpc: Option<SocketAddr>,
    /// The address of the listener for other hosts, if it is on.
    pub remote: Option<SocketAddr>,
}

/// The data that a [`HostApi`] reads.
pub struct HostApiInputs {
    /// The samples and their history.
    pub sampler: Sampler,
    /// The chips and their owners.
    pub snapshot: watch::Receiver<HostSnapshot>,
    /// What could not be read on this host, and why.
    pub notes: watch::Receiver<Vec<String>>,
    /// The agent's own metrics.
    pub own: OwnMetrics,
    /// The uploads.
    pub uploads: Uploads,
    /// The ledgers of the jobs.
    pub ledgers: Arc<LiveLedgers>,
    /// The steps of the workloads, by traces.
    pub steps: Arc<StepTimes>,
    /// The same, by marks.
    pub marked_steps: Arc<StepSeries>,
    /// Where the time of the workloads goes, by marks.
    pub marked_ledgers: Arc<LedgerSeries>,
    /// What an administrator should know of the certificates; `None`: there are none.
    pub certificates: Option<watch::Receiver<Vec<String>>>,
}

impl HostApi {
    /// The API of an agent that starts now.
    pub fn new(identity: AgentIdentity, clock: Arc<dyn Clock>, inputs: HostApiInputs) -> Self {
        Self { identity, started: clock.now(), clock, inputs, sampled: AtomicBool::new(false) }
    }

    /// The time of this host's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Marks the agent as ready.
    pub fn first_sample(&self) {
        self.sampled.store(true, Ordering::Relaxed);
    }

    /// Whether the agent works.
    ///
    /// # Errors
    /// What does not work.
    pub fn alive(&self) -> Result<(), &'static str> {
        if self.inputs.sampler.is_late() { Err("the sampler has stopped") } else { Ok(()) }
    }

    /// Whether the agent has samples.
    ///
    /// # Errors
    /// Why it has none.
    pub fn ready(&self) -> Result<(), &'static str> {
        if !self.sampled.load(Ordering::Relaxed) {
            return Err("no sample yet");
        }
        self.alive()
    }

    /// The host, its chips and their owners, and the state of the sources.
    pub fn status(&self) -> StatusReply {
        let now = self.clock.now();
        let snapshot = self.inputs.snapshot.borrow().clone();
        let view = self.inputs.sampler.view();
        let samples = view.samples(now);
        let absent: Vec<_> = view.sources.iter().flat_map(|source| source.absent()).collect();
        let workloads = &snapshot.workloads;
        let chip = |chip| messages::chip(chip, workloads, &samples, &absent, now);
        let mut chips: Vec<_> = snapshot.chips.iter().map(chip).collect();
        chips.extend(messages::simulated_chips(&snapshot.chips, &samples, now));
        let mut notes = self.inputs.notes.borrow().clone();
        notes.extend(snapshot.workloads.notes.iter().cloned());
        notes.extend(self.inputs.certificates.iter().flat_map(|notes| notes.borrow().clone()));
        let steps = |workload: &Arc<Workload>| {
            step_messages::of_workload(workload, self.inputs.steps.of(&workload.owners))
        };
        StatusReply {
            peer: Some(protocol::agent()),
            host: self.identity.host.clone(),
            at_unix_ns: now.0,
            started_unix_ns: self.started.0,
            ready: self.ready().is_ok(),
            chips,
            owners: workloads.owners.iter().map(messages::owner).collect(),
            steps: snapshot.running.iter().map(steps).collect(),
            sources: view.sources.iter().map(|source| messages::source(source, now)).collect(),
            notes,
            chips_unknown: snapshot.chips_unknown.as_deref().unwrap_or_default().to_owned(),
            http_address: self.identity.http.map(|at| at.to_string()).unwrap_or_default(),
            grpc_address: self.identity.grpc.map(|at| at.to_string()).unwrap_or_default(),
            remote_address: self.identity.remote.map(|at| at.to_string()).unwrap_or_default(),
            uploads: upload_messages::summary(&self.inputs.uploads.summary()),
        }
    }

    /// The latest value of every series, or of the series of `metrics`.
    pub fn samples(&self, metrics: &[String]) -> SamplesReply {
        let now = self.clock.now();
        let view = self.inputs.sampler.view();
        let mut samples = view.samples(now);
        if !metrics.is_empty() {
            samples.retain(|sample| metrics.iter().any(|metric| *metric == sample.metric.name));
        }
        SamplesReply {
            peer: Some(protocol::agent()),
            at_unix_ns: now.0,
            samples: samples.into_iter().map(messages::sample).collect(),
        }
    }

    /// Points of the history.
    pub fn history(&self, query: &HistoryQuery) -> HistoryReply {
        let now = self.clock.now();
        let last = query.last.map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX));
        let points = query.limit.filter(|limit| *limit > 0).unwrap_or(MAX_POINTS).min(MAX_POINTS);
        let mut series = self.inputs.sampler.history(&RangeQuery {
            metric: &query.metric,
            from: Timestamp(last.map_or(i64::MIN, |last| now.0.saturating_sub(last))),
            to: Timestamp(i64::MAX),
            points: points as usize,
        });
        series.retain(|series| query.chip.is_none() || series.key.labels.number(CHIP) == query.chip);
        HistoryReply {
            peer: Some(protocol::agent()),
            series: series.into_iter().map(messages::history).collect(),
        }
    }

    /// The metrics page.
    pub fn metrics(&self, format: TextFormat) -> String {
        let mut page = String::new();
        self.gather(&mut |samples, own, at| page = export::render(samples, own, at, format));
        page
    }

    /// Gives what the agent exports at this moment to `export`: the fresh samples, and its own metrics.
    pub fn gather(&self, export: &mut dyn FnMut(&[&Sample], &OwnMetrics, Timestamp)) {
        let now = self.clock.now();
        let view = self.inputs.sampler.view();
        sampling::own_metrics::update(&view, now);
        own_metrics::ready(self.ready().is_ok());
        let ledgers = self.inputs.ledgers.samples(now);
        let running = Arc::clone(&self.inputs.snapshot.borrow().running);
        let steps = self.inputs.marked_steps.samples(&running, now);
        let marked = self.inputs.marked_ledgers.samples(&running, now);
        let mut samples = view.samples(now);
        samples.extend(ledgers.iter().chain(&marked).chain(&steps));
        export(&samples, &self.inputs.own, now);
    }
}
