//! What the agent can be asked, whichever door the question came through: one answer for HTTP, gRPC and the
//! command line.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use export::{OwnMetrics, TextFormat};
use model::{
    label::CHIP,
    snapshot::HostSnapshot,
    time::{Clock, Timestamp},
};
use proto::tpuscope::v1::{HistoryReply, SamplesReply, StatusReply};
use sampling::sampler::{RangeQuery, Sampler};
use tokio::sync::watch;

use super::{own_metrics, protocol, wire};

/// The most points of a series that one answer holds.
const MOST_POINTS: u32 = 3600;

/// Answers questions; changes nothing.
pub struct HostApi {
    identity: AgentIdentity,
    started: Timestamp,
    clock: Arc<dyn Clock>,
    sampler: Sampler,
    snapshot: watch::Receiver<HostSnapshot>,
    notes: watch::Receiver<Vec<String>>,
    own: OwnMetrics,
    /// The first sample was there.
    sampled: AtomicBool,
}

/// What to take from the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Metric name.
    pub metric: String,
    /// Only of this chip.
    pub chip: Option<u32>,
    /// No older than this.
    pub last: Option<Duration>,
    /// At most so many points a series.
    pub limit: Option<u32>,
}

/// Where the agent is.
#[derive(Debug, Clone, Default)]
pub struct AgentIdentity {
    /// What this host is called.
    pub host: String,
    /// Where HTTP is served, if anywhere.
    pub http: Option<SocketAddr>,
    /// Where read-only gRPC is served, if anywhere.
    pub grpc: Option<SocketAddr>,
}

/// What the host_api looks at.
pub struct HostApiInputs {
    /// What is measured.
    pub sampler: Sampler,
    /// The chips, and who holds them.
    pub snapshot: watch::Receiver<HostSnapshot>,
    /// What could not be seen on this host.
    pub notes: watch::Receiver<Vec<String>>,
    /// The agent's own metrics.
    pub own: OwnMetrics,
}

impl HostApi {
    /// A host_api of an agent that starts now.
    pub fn new(identity: AgentIdentity, clock: Arc<dyn Clock>, sight: HostApiInputs) -> Self {
        let HostApiInputs { sampler, snapshot, notes, own } = sight;
        Self {
            identity,
            started: clock.now(),
            clock,
            sampler,
            snapshot,
            notes,
            own,
            sampled: AtomicBool::new(false),
        }
    }

    /// From now on there are samples.
    pub fn first_sample(&self) {
        self.sampled.store(true, Ordering::Relaxed);
    }

    /// An error says what is wrong with the agent itself.
    pub fn alive(&self) -> Result<(), &'static str> {
        if self.sampler.is_late() { Err("the sampler stands still") } else { Ok(()) }
    }

    /// An error says why there are no samples yet.
    pub fn ready(&self) -> Result<(), &'static str> {
        if !self.sampled.load(Ordering::Relaxed) {
            return Err("no sample yet");
        }
        self.alive()
    }

    /// The host, its chips, who holds them, and how the sources do.
    pub fn status(&self) -> StatusReply {
        let now = self.clock.now();
        let snapshot = self.snapshot.borrow().clone();
        let view = self.sampler.view();
        let samples = view.samples(now);
        let absent: Vec<_> = view.sources.iter().flat_map(|source| source.absent()).collect();
        let owners = &snapshot.workloads.owners;
        let mut notes = self.notes.borrow().clone();
        notes.extend(snapshot.workloads.notes.iter().cloned());
        StatusReply {
            peer: Some(protocol::own()),
            host: self.identity.host.clone(),
            at_unix_ns: now.0,
            started_unix_ns: self.started.0,
            ready: self.ready().is_ok(),
            chips: snapshot
                .chips
                .iter()
                .map(|chip| wire::chip(chip, owners, &samples, &absent, now))
                .collect(),
            owners: owners.iter().map(wire::owner).collect(),
            sources: view.sources.iter().map(|source| wire::source(source, now)).collect(),
            notes,
            http_address: self.identity.http.map(|at| at.to_string()).unwrap_or_default(),
            grpc_address: self.identity.grpc.map(|at| at.to_string()).unwrap_or_default(),
        }
    }

    /// The latest value of every series, or of those of `metrics`.
    pub fn samples(&self, metrics: &[String]) -> SamplesReply {
        let now = self.clock.now();
        let view = self.sampler.view();
        let mut samples = view.samples(now);
        if !metrics.is_empty() {
            samples.retain(|sample| metrics.iter().any(|metric| *metric == sample.metric.name));
        }
        SamplesReply {
            peer: Some(protocol::own()),
            at_unix_ns: now.0,
            samples: samples.into_iter().map(wire::sample).collect(),
        }
    }

    /// What the history has.
    pub fn history(&self, query: &HistoryQuery) -> HistoryReply {
        let now = self.clock.now();
        let last = query.last.map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX));
        let points = query.limit.filter(|limit| *limit > 0).unwrap_or(MOST_POINTS).min(MOST_POINTS);
        let mut series = self.sampler.history(&RangeQuery {
            metric: &query.metric,
            from: Timestamp(last.map_or(i64::MIN, |last| now.0.saturating_sub(last))),
            to: Timestamp(i64::MAX),
            points: points as usize,
        });
        series.retain(|series| query.chip.is_none() || series.key.labels.number(CHIP) == query.chip);
        HistoryReply { peer: Some(protocol::own()), series: series.into_iter().map(wire::history).collect() }
    }

    /// The page for a scraper.
    pub fn metrics(&self, format: TextFormat) -> String {
        let now = self.clock.now();
        let view = self.sampler.view();
        sampling::own_metrics::update(&view, now);
        own_metrics::ready(self.ready().is_ok());
        export::render(&view.samples(now), &self.own, now, format)
    }
}
