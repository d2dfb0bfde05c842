//! One runtime metric service: what it has, and its values.
//!
//! ```text
//!            connect              list                    metrics
//! (retry) ─────────▶ connected ───────▶ asked each tick ──────────▶ samples
//!     ▲                  │ list empty: asked again next tick   │
//!     └──────────────────┴──────── broken ◀────────────────────┘
//! ```

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use model::{
    catalog::{self, METRICS, Metric},
    job::Job,
    sample::Origin,
    time::Timestamp,
    untrusted::{LABEL, clean},
    workload::Address,
};
use proto::tpu::monitoring::runtime::{ListSupportedMetricsRequest, MetricRequest};
use tokio::time::Instant;

use super::{
    Cores, decode,
    series::{Found, Interpreter},
};
use crate::sources::{
    Absence, Reading,
    grpc::{Call, CallError, Connection, NOT_FOUND, UNIMPLEMENTED},
    retry::Retry,
};

const LIST: &str = "/tpu.monitoring.runtime.RuntimeMetricService/ListSupportedMetrics";
const GET: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";
/// How often the list is asked for again: a program may bring new metrics.
const LIST_AGAIN: Duration = Duration::from_secs(30);
/// Unknown names that are reported.
const MOST_UNKNOWN: usize = 16;

/// A metric that the service lists and we know.
struct Asked {
    metric: &'static Metric,
    /// Its name on the wire.
    name: &'static str,
    scale: f64,
    call: Call,
    /// What was refused or not answered is asked again later.
    retry: Retry,
    /// What was wrong with it when it was last asked.
    trouble: Option<String>,
}

/// One service.
pub(super) struct Peer {
    address: Address,
    connection: Option<Connection>,
    retry: Retry,
    trouble: Option<String>,
    list: Call,
    listed: Option<Instant>,
    asked: Vec<Asked>,
    unknown: Vec<String>,
    interpreter: Interpreter,
}

impl Peer {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            connection: None,
            retry: Retry::default(),
            trouble: None,
            list: Call::new(LIST, &ListSupportedMetricsRequest::default()),
            listed: None,
            asked: Vec::new(),
            unknown: Vec::new(),
            interpreter: Interpreter::default(),
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Who is behind it. Another job than before is another process: nothing known of the old one holds.
    pub(super) fn belongs_to(&mut self, job: Option<Arc<Job>>, own: Cores, host: Cores) {
        if self.interpreter.job() != job.as_ref() {
            let list = self.list.clone();
            *self = Self { list, interpreter: Interpreter::new(job), ..Self::new(self.address.clone()) };
        }
        self.interpreter.set_cores(own, host);
    }

    /// Reads everything that it has.
    pub(super) async fn read(&mut self, at: Timestamp) -> Reading {
        let now = Instant::now();
        let mut reading = Reading::default();
        match self.prepare(now).await {
            Err(why) => {
                self.connection = None;
                self.retry.failed(now);
                self.trouble = Some(why);
            }
            Ok(false) => {}
            Ok(true) => {
                self.retry.succeeded();
                self.trouble = None;
                self.values(now, at, &mut reading).await;
            }
        }
        self.say_what_is_missing(&mut reading.absent);
        reading
    }

    /// Connects if it is time to, and finds out what can be asked; false while it waits for its next try.
    async fn prepare(&mut self, now: Instant) -> Result<bool, String> {
        if self.connection.as_ref().is_none_or(Connection::is_broken) {
            self.connection = None;
            if !self.retry.due(now) {
                return Ok(false);
            }
            self.connection = Some(Connection::open(&self.address).await.map_err(|error| unreached(&error))?);
            self.listed = None;
            self.interpreter.forget_devices();
        }
        if self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_AGAIN) {
            self.refresh(now).await?;
        }
        Ok(true)
    }

    /// Asks for the list. An empty one is asked for again at the next tick.
    async fn refresh(&mut self, now: Instant) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let reply = connection.all(&[&self.list]).await.pop().unwrap_or(Err(CallError::Deadline));
        let names = match reply {
            Ok(reply) => decode::names(&reply).map_err(|error| error.to_string())?,
            // Older than the list: every name is tried, and what it lacks rests.
            Err(CallError::Status { code: UNIMPLEMENTED, .. }) => known_names(),
            Err(error) => return Err(unreached(&error)),
        };
        self.listed = (!names.is_empty()).then_some(now);
        self.adopt(&names);
        Ok(())
    }

    fn adopt(&mut self, names: &[String]) {
        self.asked.retain(|asked| names.iter().any(|name| name == asked.name));
        self.unknown.clear();
        for name in names {
            let Some((metric, wire)) = catalog::by_wire(Origin::Runtime, name) else {
                self.unknown.push(clean(name, LABEL));
                continue;
            };
            if let Some(asked) = self.asked.iter_mut().find(|asked| asked.name == wire.name) {
                asked.retry.succeeded();
                continue;
            }
            let request = MetricRequest { metric_name: name.clone(), ..MetricRequest::default() };
            self.asked.push(Asked {
                metric,
                name: wire.name,
                scale: wire.scale,
                call: Call::new(GET, &request),
                retry: Retry::default(),
                trouble: None,
            });
        }
        self.unknown.truncate(MOST_UNKNOWN);
    }

    /// Asks for all metrics at once.
    async fn values(&mut self, now: Instant, at: Timestamp, reading: &mut Reading) {
        let Some(connection) = &mut self.connection else { return };
        let due: Vec<&mut Asked> = self.asked.iter_mut().filter(|asked| asked.retry.due(now)).collect();
        let calls: Vec<&Call> = due.iter().map(|asked| &asked.call).collect();
        let replies = connection.all(&calls).await;
        let mut decoded = Vec::with_capacity(due.len());
        for (asked, reply) in due.into_iter().zip(replies) {
            if let Some(found) = asked.judge(now, reply) {
                self.interpreter.learn(asked.metric, &found);
                decoded.push((asked, found));
            }
        }
        for (asked, found) in decoded {
            let Found { samples, trouble } = self.interpreter.samples(asked.metric, asked.scale, found, at);
            asked.trouble = trouble;
            reading.samples.extend(samples);
        }
    }

    fn say_what_is_missing(&self, absent: &mut Vec<Absence>) {
        let mut say = |why: String| absent.push(Absence { what: self.address.to_string(), why });
        if let Some(why) = &self.trouble {
            return say(why.clone());
        }
        if self.asked.is_empty() {
            say("it listens and lists no metric that we know: no program has been loaded yet".to_owned());
        }
        if !self.unknown.is_empty() {
            say(format!("this release does not know {}", self.unknown.join(", ")));
        }
        for asked in &self.asked {
            if let Some(why) = &asked.trouble {
                absent
                    .push(Absence { what: format!("{} of {}", asked.name, self.address), why: why.clone() });
            }
        }
    }
}

impl Asked {
    /// Takes one reply, or its failure as this metric's trouble alone.
    fn judge(&mut self, now: Instant, reply: Result<Bytes, CallError>) -> Option<decode::Series> {
        match reply.map(|reply| decode::series(&reply)) {
            Ok(Ok(found)) => {
                self.retry.succeeded();
                return Some(found);
            }
            Ok(Err(error)) => self.trouble = Some(error.to_string()),
            Err(CallError::Status { code: NOT_FOUND, .. }) => {
                self.trouble = Some("this workload's libtpu does not have it".to_owned());
                self.retry.rest(now + LIST_AGAIN);
                return None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
        self.retry.failed(now);
        None
    }
}

/// Every name that some libtpu has.
fn known_names() -> Vec<String> {
    let wires = METRICS.iter().flat_map(|metric| metric.wires);
    wires.filter(|wire| wire.origin == Origin::Runtime).map(|wire| wire.name.to_owned()).collect()
}

/// Why an endpoint gave nothing at all, with what to look at.
fn unreached(error: &CallError) -> String {
    match error {
        CallError::Refused(_) => {
            format!(
                "{error}: the workload has not initialised its TPU yet, has ended, or has its metrics disabled"
            )
        }
        CallError::Broken(_) | CallError::NotGrpc(_) => {
            format!("{error}: it may be another service than libtpu's, or the workload has just ended")
        }
        _ => error.to_string(),
    }
}
