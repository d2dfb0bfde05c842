//! The service `tpuscope.v1.Captures`: profiles the workloads that the caller may profile.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::sessions::{
    CaptureError,
    capture::{Event, Listener},
    captures::{CaptureJob, Captures, Done, Running},
    spec::{CaptureParams, Levels},
    target::{self, Targets},
};
use host::discovery::Discovery;
use model::time::Timestamp;
use proto::tpuscope::v1::{
    CaptureEvent, CaptureFinished, CaptureRequest, CaptureStarted, CaptureTarget, PartSummary, TargetEvent,
    capture_event, captures_server, target_event,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};
use xprof::session::{HostName, PartEntry};

use super::{access::Scope, protocol, session_messages, sessions};

/// Events that may wait for a slow reader; bytes received are the first to be left out.
const QUEUE: usize = 1024;
/// The longest that a caller waits for the first look at the host.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// The longest that a caller waits for another look.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// How often the bytes of one target are told.
const PACE: Duration = Duration::from_millis(200);

/// Runs captures for callers.
pub struct Service {
    captures: Arc<Captures>,
    discovery: Discovery,
    host: HostName,
}

impl Service {
    /// Captures of the workloads that `discovery` finds; their parts are named after `host`.
    pub fn new(captures: Arc<Captures>, discovery: Discovery, host: HostName) -> Self {
        Self { captures, discovery, host }
    }

    /// The workloads that were asked for. Before some are said to be missing, the discovery looks again: they may have
    /// started since its last look.
    async fn targets(&self, scope: Scope, request: &CaptureRequest) -> Targets {
        // An agent that has just started has not looked yet. A look that hangs finds nobody.
        let _ = tokio::time::timeout(FIRST_LOOK, self.discovery.first_scan()).await;
        let found = self.found(scope, &request.pids);
        let wanted = request.pids.len().max(usize::try_from(request.min_processes).unwrap_or(0)).max(1);
        if found.targets.len() >= wanted {
            return found;
        }
        self.discovery.scan_now(LOOK_AGAIN).await;
        self.found(scope, &request.pids)
    }

    fn found(&self, scope: Scope, pids: &[u32]) -> Targets {
        let snapshot = self.discovery.snapshot().borrow().clone();
        let may = |uid: Option<u32>| uid.map_or(scope == Scope::All, |uid| scope.covers(uid));
        target::of_workloads(&snapshot.workloads, &snapshot.chips, &self.host, pids, may)
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<CaptureEvent, Status>> + Send>>;

#[tonic::async_trait]
impl captures_server::Captures for Service {
    type CaptureStream = Events;

    async fn capture(&self, request: Request<CaptureRequest>) -> Result<Response<Events>, Status> {
        let scope = sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let session = match request.session.as_str() {
            "" => None,
            name => {
                Some(name.parse().map_err(|error| Status::invalid_argument(format!("session: {error}")))?)
            }
        };
        let targets = self.targets(scope, &request).await;
        let (events, queue) = mpsc::channel(QUEUE);
        let order =
            CaptureJob { params: params(&request), session, targets, listener: listener(events.clone()) };
        let Running { cancel, done } = match self.captures.start(order).await {
            Ok(running) => running,
            Err(error) => return refusal(&error),
        };
        tokio::spawn(async move {
            let result = done
                .await
                .unwrap_or_else(|_| Err(CaptureError::Panicked("the agent's log has the reason".to_owned())));
            // A caller who hung up does not hear the end.
            let _ = events.send(Ok(finished(result))).await;
        });
        // Hanging up drops the stream, and with it what keeps the capture going.
        let stream = ReceiverStream::new(queue).map(move |event| {
            let _ = &cancel;
            event
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// A capture that did not begin: a fault of the request is an error of the call, anything else the whole answer.
fn refusal(error: &CaptureError) -> Result<Response<Events>, Status> {
    if let CaptureError::Spec(_) = error {
        return Err(session_messages::status(error));
    }
    let finished = CaptureFinished { failure: Some(session_messages::failure(error)), ..Default::default() };
    let only = tokio_stream::once(Ok(CaptureEvent { event: Some(capture_event::Event::Finished(finished)) }));
    Ok(Response::new(Box::pin(only)))
}

fn params(request: &CaptureRequest) -> CaptureParams {
    CaptureParams {
        duration: Duration::from_nanos(request.duration_ns),
        levels: Levels {
            host: request.host_tracer_level,
            device: request.device_tracer_level,
            python: request.python_tracer_level,
        },
        advanced: request.advanced.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        start: request.start_unix_ns.map(Timestamp),
        timeout: (request.timeout_ns > 0).then(|| Duration::from_nanos(request.timeout_ns)),
        min_parts: request.min_processes,
    }
}

/// Passes events on without ever waiting.
fn listener(events: mpsc::Sender<Result<CaptureEvent, Status>>) -> Listener {
    let told: Mutex<BTreeMap<usize, Instant>> = Mutex::default();
    Arc::new(move |event| {
        if let Event::Received(index, _) = event {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            let lately = told.get(&index).is_some_and(|at| at.elapsed() < PACE);
            if lately || events.capacity() < QUEUE / 2 {
                return;
            }
            told.insert(index, Instant::now());
        }
        // Full or closed: the caller does not read any more, and misses nothing but the telling.
        let _ = events.try_send(Ok(wire(event)));
    })
}

fn wire(event: Event) -> CaptureEvent {
    let of = |index: usize, event| {
        capture_event::Event::Target(TargetEvent {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            event: Some(event),
        })
    };
    let event = match event {
        Event::Started { session, targets, start } => capture_event::Event::Started(CaptureStarted {
            peer: Some(protocol::own()),
            session: session.to_string(),
            targets: targets.iter().zip(0..).map(|(target, index)| of_target(target, index)).collect(),
            start_unix_ns: start.0,
        }),
        Event::Received(index, bytes) => of(index, target_event::Event::ReceivedBytes(bytes)),
        Event::Part(index, entry) => of(index, target_event::Event::Part(part(entry))),
        Event::Failed(index, error) => {
            of(index, target_event::Event::Failed(session_messages::failure(&error)))
        }
    };
    CaptureEvent { event: Some(event) }
}

fn of_target(target: &target::CaptureTarget, index: u32) -> CaptureTarget {
    CaptureTarget {
        index,
        address: target.at.to_string(),
        pid: target.process.map_or(0, |process| process.pid),
        command: target.command.clone(),
    }
}

fn part(entry: PartEntry) -> PartSummary {
    PartSummary {
        file: entry.file,
        bytes: entry.size,
        planes: entry.planes,
        events: entry.events,
        warnings: entry.warnings,
    }
}

fn finished(result: Result<Done, CaptureError>) -> CaptureEvent {
    let finished = match result {
        Ok(Done { kept, stored }) => {
            let failures: Vec<_> = kept.failures.iter().map(session_messages::failure).collect();
            CaptureFinished {
                session: Some(sessions::summary(&stored)),
                failure: failures.first().cloned(),
                manifest: Some(session_messages::manifest(kept.manifest)),
                failures,
            }
        }
        Err(error) => {
            CaptureFinished { failure: Some(session_messages::failure(&error)), ..Default::default() }
        }
    };
    CaptureEvent { event: Some(capture_event::Event::Finished(finished)) }
}
