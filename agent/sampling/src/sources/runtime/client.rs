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
    catalog,
    metric::{Descriptor, OriginName},
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    untrusted::{LABEL, clean},
    workload::{Address, ProcessKey, Workload},
};
use proto::tpu::monitoring::runtime::{ListSupportedMetricsRequest, MetricRequest};
use tokio::time::Instant;
use tracing::debug;

use super::{
    CoreMap,
    first_values::FirstValues,
    interpreter::{Interpreted, Interpreter},
    reply,
};
use crate::sources::{
    Absence, Reading,
    grpc::{GrpcCallError, GrpcConnection, NOT_FOUND, UNIMPLEMENTED, UnaryCall},
    retry::Retry,
};

const LIST: &str = "/tpu.monitoring.runtime.RuntimeMetricService/ListSupportedMetrics";
const GET: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";
/// The interval between two requests of the list: a program may add metrics.
const LIST_AGAIN: Duration = Duration::from_secs(30);
/// Unknown names that are reported.
const MOST_UNKNOWN: usize = 16;

/// A metric that the service lists and we know.
struct RequestedMetric {
    metric: &'static Descriptor,
    /// What the service calls it.
    named: &'static OriginName,
    call: UnaryCall,
    /// What was refused or not answered is asked again later.
    retry: Retry,
    /// The error of its last request.
    fault: Option<String>,
    /// Whether an answer had a value.
    had_value: bool,
    /// When the first of the last answers came, all without a value.
    empty_since: Option<Timestamp>,
}

/// One service.
pub(super) struct RuntimeClient {
    address: Address,
    connection: Option<GrpcConnection>,
    retry: Retry,
    fault: Option<String>,
    list: UnaryCall,
    listed: Option<Instant>,
    /// When the first of the last lists came, all empty.
    list_empty_since: Option<Timestamp>,
    requested: Vec<RequestedMetric>,
    unknown: Vec<String>,
    interpreter: Interpreter,
    first_values: FirstValues,
    /// Whether no other endpoint of the host gave its devices when it last gave samples.
    pub(super) speaks_for_itself: bool,
}

impl RuntimeClient {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            connection: None,
            retry: Retry::default(),
            fault: None,
            list: UnaryCall::new(LIST, &ListSupportedMetricsRequest::default()),
            listed: None,
            list_empty_since: None,
            requested: Vec::new(),
            unknown: Vec::new(),
            interpreter: Interpreter::default(),
            first_values: FirstValues::default(),
            speaks_for_itself: true,
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Whose it is. Another workload than before, or another attempt, is another process: nothing known of the old one
    /// holds.
    pub(super) fn set_workload(&mut self, workload: Option<Arc<Workload>>, own: CoreMap, host: CoreMap) {
        if self.interpreter.is_other_workload(workload.as_ref()) {
            let list = self.list.clone();
            *self = Self { list, interpreter: Interpreter::new(workload), ..Self::new(self.address.clone()) };
        } else {
            self.interpreter.set_workload(workload);
        }
        self.interpreter.set_cores(own, host);
    }

    /// The processes behind it, and since when the youngest of them is known.
    pub(super) fn set_processes(&mut self, processes: &[ProcessKey], since: Option<Timestamp>) {
        self.first_values.set_processes(processes, since);
    }

    /// The last distributions of the workload's own series that `reading` lacks: they still count in a sum over several
    /// processes, which must not fall because one of them did not answer.
    pub(super) fn silent(&self, reading: &Reading, at: Timestamp) -> Vec<Sample> {
        let distributions = self.interpreter.distributions().filter(|(metric, labels, _)| {
            let is_it = |sample: &Sample| {
                std::ptr::eq::<Descriptor>(&*sample.metric, *metric) && sample.labels == **labels
            };
            !reading.samples.iter().any(is_it)
        });
        let sample = |(metric, labels, last): (&'static Descriptor, &model::label::Labels, &Arc<_>)| Sample {
            metric: metric.into(),
            labels: labels.clone(),
            value: SampleValue::Distribution(Arc::clone(last)),
            origin: Origin::Runtime,
            at,
            workload: self.interpreter.workload().cloned(),
        };
        distributions.map(sample).collect()
    }

    /// Reads everything that it has.
    pub(super) async fn read(&mut self, at: Timestamp) -> Reading {
        let now = Instant::now();
        let mut reading = Reading::default();
        match self.prepare(now, at).await {
            Err(why) => {
                self.connection = None;
                self.retry.failed(now);
                debug!(address = %self.address, why, "not read, tried again later");
                self.fault = Some(why);
            }
            Ok(false) => {}
            Ok(true) => {
                self.retry.succeeded();
                self.fault = None;
                self.values(now, at, &mut reading).await;
            }
        }
        self.add_absences(&mut reading.absent);
        reading
    }

    /// Connects if the next try is due, and requests the list of metrics; false before the next try.
    async fn prepare(&mut self, now: Instant, at: Timestamp) -> Result<bool, String> {
        if self.connection.as_ref().is_none_or(GrpcConnection::is_broken) {
            self.connection = None;
            if !self.retry.due(now) {
                return Ok(false);
            }
            self.connection =
                Some(GrpcConnection::open(&self.address).await.map_err(|error| error.to_string())?);
            self.listed = None;
            self.interpreter.forget_devices();
        }
        if self.listed.is_none_or(|listed| now.duration_since(listed) >= LIST_AGAIN) {
            self.refresh(now, at).await?;
        }
        Ok(true)
    }

    /// Requests the list. An empty list is requested again at the next tick.
    async fn refresh(&mut self, now: Instant, at: Timestamp) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let reply = connection.all(&[&self.list]).await.pop().unwrap_or(Err(GrpcCallError::Deadline));
        let names = match reply {
            Ok(reply) => reply::names(&reply).map_err(|error| error.to_string())?,
            // This libtpu has no list: every name is tried, and missing metrics are requested again later.
            Err(GrpcCallError::Status { code: UNIMPLEMENTED, .. }) => known_names(),
            Err(error) => return Err(unreached(&error)),
        };
        self.listed = (!names.is_empty()).then_some(now);
        self.list_empty_since = names.is_empty().then(|| self.list_empty_since.unwrap_or(at));
        self.adopt(&names);
        let (known, unknown) = (self.requested.len(), self.unknown.len());
        debug!(address = %self.address, known, unknown, "list of metrics received");
        Ok(())
    }

    fn adopt(&mut self, names: &[String]) {
        self.requested.retain(|asked| names.iter().any(|name| name == asked.named.name));
        self.unknown.clear();
        for name in names {
            let Some((metric, named)) = catalog::by_origin(Origin::Runtime, name) else {
                self.unknown.push(clean(name, LABEL));
                continue;
            };
            if let Some(asked) = self.requested.iter_mut().find(|asked| asked.named.name == named.name) {
                asked.retry.succeeded();
                continue;
            }
            let request = MetricRequest { metric_name: name.clone(), ..MetricRequest::default() };
            self.requested.push(RequestedMetric {
                metric,
                named,
                call: UnaryCall::new(GET, &request),
                retry: Retry::default(),
                fault: None,
                had_value: false,
                empty_since: None,
            });
        }
        self.unknown.truncate(MOST_UNKNOWN);
    }

    /// Requests all metrics at the same time.
    async fn values(&mut self, now: Instant, at: Timestamp, reading: &mut Reading) {
        let Some(connection) = &mut self.connection else { return };
        let due: Vec<&mut RequestedMetric> =
            self.requested.iter_mut().filter(|asked| asked.retry.due(now)).collect();
        let calls: Vec<&UnaryCall> = due.iter().map(|asked| &asked.call).collect();
        let replies = connection.all(&calls).await;
        let mut decoded = Vec::with_capacity(due.len());
        for (asked, reply) in due.into_iter().zip(replies) {
            if let Some(found) = asked.judge(now, reply) {
                self.interpreter.learn(asked.metric, &found);
                decoded.push((asked, found));
            }
        }
        for (asked, found) in decoded {
            let is_empty = found.good.is_empty() && found.bad == 0;
            let Interpreted { samples, fault } =
                self.interpreter.samples(asked.metric, asked.named.scale, found, at);
            let empty = asked.observe_empty(is_empty, at);
            asked.fault = fault.or(empty);
            reading.samples.extend(samples);
        }
        if self.first_values.remove_zeros(&mut reading.samples, at) {
            let why = self.first_values.why();
            for asked in self.requested.iter_mut().filter(|asked| FirstValues::concerns(asked.metric)) {
                asked.fault = Some(why.to_owned());
            }
        }
    }

    fn add_absences(&self, absent: &mut Vec<Absence>) {
        let mut add = |why: String| absent.push(Absence::of_endpoint(&self.address, why));
        if let Some(why) = &self.fault {
            return add(why.clone());
        }
        if self.requested.is_empty() {
            add(match self.list_empty_since {
                Some(since) => {
                    format!("its list of metrics is empty, as seen since {}", whole_seconds(since))
                }
                None => "its list of metrics has only names that are unknown to this release".to_owned(),
            });
        }
        if !self.unknown.is_empty() {
            let why = format!("unknown to this release: {}", self.unknown.join(", "));
            absent.push(Absence::partial(format!("further metrics of {}", self.address), why));
        }
        for asked in &self.requested {
            if let Some(why) = &asked.fault {
                absent.push(Absence {
                    what: format!("{} of {}", asked.named.name, self.address),
                    metric: Some(&*asked.metric.name),
                    partial: true,
                    ..Absence::of_endpoint(&self.address, why.clone())
                });
            }
        }
    }
}

impl RequestedMetric {
    /// Takes whether the answer had no value; says since when that is so.
    fn observe_empty(&mut self, is_empty: bool, at: Timestamp) -> Option<String> {
        if !is_empty {
            (self.had_value, self.empty_since) = (true, None);
            return None;
        }
        let since = whole_seconds(*self.empty_since.get_or_insert(at));
        Some(if self.had_value {
            format!("it is listed, and its answers have had no value since {since}")
        } else {
            format!("it is listed, and its answers have no value, as seen since {since}")
        })
    }

    /// Takes one reply, or its failure as this metric's fault alone.
    fn judge(&mut self, now: Instant, reply: Result<Bytes, GrpcCallError>) -> Option<reply::SeriesOfMetric> {
        match reply.map(|reply| reply::series(&reply)) {
            Ok(Ok(found)) => {
                self.retry.succeeded();
                return Some(found);
            }
            Ok(Err(error)) => self.fault = Some(error.to_string()),
            Err(GrpcCallError::Status { code: NOT_FOUND, .. }) => {
                self.fault = Some("this workload's libtpu does not have it".to_owned());
                self.retry.rest(now + LIST_AGAIN);
                return None;
            }
            Err(GrpcCallError::Status { code: UNIMPLEMENTED, .. }) => {
                self.fault = Some("this workload's libtpu is too old: it has no GetRuntimeMetric".to_owned());
                self.retry.rest(now + LIST_AGAIN);
                return None;
            }
            Err(error) => self.fault = Some(error.to_string()),
        }
        self.retry.failed(now);
        None
    }
}

/// Every name that some libtpu has.
fn known_names() -> Vec<String> {
    catalog::of_origin(Origin::Runtime).map(|(_, named)| named.name.to_owned()).collect()
}

/// A time as reasons have it.
fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp(at.0 - at.0.rem_euclid(1_000_000_000))
}

/// The reason why a call to an endpoint returned nothing, and what to check.
fn unreached(error: &GrpcCallError) -> String {
    match error {
        GrpcCallError::Broken(_) | GrpcCallError::NotGrpc(_) => {
            format!("{error}: it may be another service than libtpu's, or the workload has just ended")
        }
        _ => error.to_string(),
    }
}
