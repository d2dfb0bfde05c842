//! The gRPC service `tpuscope.v1.Captures`: profiles the workloads that the caller may profile.

use std::{pin::Pin, sync::Arc, time::Duration};

use ::sessions::{
    CaptureError, FailureReason,
    capture_runner::{CaptureJob, CaptureRunner, RunningCapture, SessionUse},
    spec::{CaptureParams, Levels},
    target::{self, Permission, Targets},
};
use host::discovery::Discovery;
use model::{snapshot::HostSnapshot, time::Timestamp, workload::Owner};
use proto::tpuscope::v1::{
    CaptureEvent, CaptureFinished, CaptureRequest, HostCaptureEvent, HostCaptureRequest, capture_event,
    captures_server,
};
use store::{
    destinations::{Allow, Destinations, NO_DESTINATION},
    uploads::{UploadChoice, Uploads},
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};
use xprof::session::HostName;

use super::{
    access::Scope,
    capture_events::{EVENT_QUEUE, finished, listener},
    grpc_sessions::{self, GrpcSessions},
    host_captures::HostCall,
    protocol,
    session_grants::SessionGrants,
    session_messages,
};

/// The longest wait for the first scan of the host.
pub(super) const FIRST_SCAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait for another scan.
pub(super) const RESCAN_TIMEOUT: Duration = Duration::from_secs(3);

/// The service.
#[derive(Clone)]
pub struct GrpcCaptures {
    pub(super) captures: Arc<CaptureRunner>,
    discovery: Discovery,
    pub(super) host: HostName,
    pub(super) grants: Arc<SessionGrants>,
    pub(super) uploads: Uploads,
}

impl GrpcCaptures {
    /// Captures of the workloads that `discovery` finds. The parts are named after `host`. `sessions` serves the results.
    pub fn new(
        captures: Arc<CaptureRunner>,
        discovery: Discovery,
        host: HostName,
        sessions: &GrpcSessions,
    ) -> Self {
        Self { captures, discovery, host, grants: sessions.grants(), uploads: sessions.uploads() }
    }

    /// The host as it was found last.
    pub(super) fn host_snapshot(&self) -> HostSnapshot {
        self.discovery.snapshot().borrow().clone()
    }

    /// The first scan may not be finished. Without it no workload is known.
    pub(super) async fn first_scan(&self) {
        let _ = tokio::time::timeout(FIRST_SCAN_TIMEOUT, self.discovery.first_scan()).await;
    }

    /// Scans the host again: a workload may have started after the last scan.
    pub(super) async fn scan_again(&self) {
        self.discovery.scan_now(RESCAN_TIMEOUT).await;
    }

    /// The requested workloads. If some are missing, the host is scanned again: they may have started after the last
    /// scan.
    pub(super) async fn targets(&self, scope: &Scope, request: &CaptureRequest) -> Targets {
        self.first_scan().await;
        let found = self.found(scope, &request.pids);
        let wanted = request.pids.len().max(usize::try_from(request.min_processes).unwrap_or(0)).max(1);
        if found.targets.len() >= wanted {
            return found;
        }
        self.scan_again().await;
        self.found(scope, &request.pids)
    }

    fn found(&self, scope: &Scope, pids: &[u32]) -> Targets {
        let snapshot = self.host_snapshot();
        let may =
            |owner: Option<&Owner>| permission(scope, owner.map(|owner| (owner.uid, owner.pid_namespace)));
        target::of_workloads(&snapshot.workloads, &snapshot.chips, &self.host, pids, may)
    }
}

type HostEvents = Pin<Box<dyn Stream<Item = Result<HostCaptureEvent, Status>> + Send>>;
type Events = Pin<Box<dyn Stream<Item = Result<CaptureEvent, Status>> + Send>>;

#[tonic::async_trait]
impl captures_server::Captures for GrpcCaptures {
    type CaptureStream = Events;
    type CaptureOnHostStream = HostEvents;

    async fn capture_on_host(
        &self,
        request: Request<Streaming<HostCaptureRequest>>,
    ) -> Result<Response<HostEvents>, Status> {
        let (scope, caller) = (grpc_sessions::scope(&request)?, grpc_sessions::caller(&request));
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        let call = HostCall::new(self.clone(), request.into_inner(), events, scope, caller);
        // A task of its own: it frees the profilers even if the caller is gone.
        tokio::spawn(call.serve());
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }

    async fn capture(&self, request: Request<CaptureRequest>) -> Result<Response<Events>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let caller = grpc_sessions::caller(&request);
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let session = match request.session.as_str() {
            "" => None,
            name => {
                Some(name.parse().map_err(|error| Status::invalid_argument(format!("session: {error}")))?)
            }
        };
        let upload = upload_choice(&self.uploads.settings().destinations, &request.destination, &scope)?;
        let targets = self.targets(&scope, &request).await;
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        let job = CaptureJob {
            params: params(&request),
            session,
            targets,
            upload,
            listener: listener(events.clone(), |event| event),
            caller,
            enough: CancellationToken::new(),
            share: None,
            session_use: SessionUse::Kept,
        };
        let RunningCapture { cancel, result } = match self.captures.start(job).await {
            Ok(running) => running,
            Err(error) => return refusal(&error),
        };
        let grants = self.grants.clone();
        tokio::spawn(async move {
            let result = result
                .await
                .unwrap_or_else(|_| Err(CaptureError::Panicked("the agent's log has the reason".to_owned())));
            if let Ok(done) = &result {
                grants.add(&scope, &done.stored.name, done.stored.created);
            }
            // The caller may have closed the stream.
            let _ = events.send(Ok(finished(result))).await;
        });
        // A caller that closes the stream drops `cancel`, which ends the capture.
        let stream = ReceiverStream::new(queue).map(move |event| {
            let _ = &cancel;
            event
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// The refusal of a destination that the settings do not have.
pub(super) fn unknown_destination(destinations: &Destinations, wanted: &str) -> Status {
    let names: Vec<&str> = destinations.0.iter().map(|each| each.name.as_str()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let wanted = wanted.chars().take(40).flat_map(char::escape_debug).collect::<String>();
    let text = format!("the agent's settings have no destination `{wanted}`; those there are: {names}");
    session_messages::refusal(Code::InvalidArgument, FailureReason::UnknownDestination, &text)
}

/// Where a capture's session is uploaded to, if the caller may choose it.
pub(super) fn upload_choice(
    destinations: &Destinations,
    wanted: &str,
    scope: &Scope,
) -> Result<UploadChoice, Status> {
    match wanted {
        "" => return Ok(UploadChoice::Always),
        NO_DESTINATION => return Ok(UploadChoice::Nowhere),
        _ => {}
    }
    let found = destinations.find(wanted).ok_or_else(|| unknown_destination(destinations, wanted))?;
    if found.allow == Allow::Admin && *scope != Scope::All {
        return Err(Status::permission_denied(format!(
            "only administrators may name the destination {wanted} (its setting `allow`)"
        )));
    }
    Ok(UploadChoice::To(found.name.clone()))
}

/// A capture that did not start. A fault of the request is the call's error, anything else the only event.
fn refusal(error: &CaptureError) -> Result<Response<Events>, Status> {
    if let CaptureError::Spec(_) = error {
        return Err(session_messages::status(error));
    }
    let finished = CaptureFinished { failure: Some(session_messages::failure(error)), ..Default::default() };
    let only = tokio_stream::once(Ok(CaptureEvent { event: Some(capture_event::Event::Finished(finished)) }));
    Ok(Response::new(Box::pin(only)))
}

/// Whether a caller may profile a process of this user in this pid namespace; `None`: one that is not known.
fn permission(scope: &Scope, process: Option<(u32, Option<u64>)>) -> Permission {
    match (scope, process) {
        (Scope::All, _) => Permission::Granted,
        (_, Some((uid, namespace))) if scope.covers_process(uid, namespace) => Permission::Granted,
        (Scope::UserInNamespace { uid: own, .. }, Some((uid, _))) if *own == uid => Permission::Elsewhere,
        _ => Permission::NotYours,
    }
}

/// The parameters in a request.
pub(super) fn params(request: &CaptureRequest) -> CaptureParams {
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
        at_step: request.at_step,
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::access::tests::foreign;

    #[test]
    fn a_process_of_the_caller_in_another_namespace_is_no_process_of_another_user() {
        let container = Scope::UserInNamespace { uid: 5, pid_namespace: foreign(7) };
        assert_eq!(permission(&container, Some((5, Some(7)))), Permission::Granted);
        assert_eq!(permission(&container, Some((5, None))), Permission::Elsewhere);
        assert_eq!(permission(&container, Some((6, Some(7)))), Permission::NotYours);
        assert_eq!(permission(&Scope::User(5), Some((6, None))), Permission::NotYours);
        assert_eq!(permission(&Scope::User(5), None), Permission::NotYours);
        assert_eq!(permission(&Scope::All, None), Permission::Granted);
    }

    #[test]
    fn a_caller_chooses_among_the_destinations_that_are_for_it() {
        let of = |name: &str, allow: &str| {
            let fields = serde_json::json!({ "name": name, "url": "gs://bucket/x", "allow": allow });
            serde_json::from_value(fields).unwrap()
        };
        let destinations = Destinations(vec![of("all", "owner"), of("ops", "admin")]);
        let choose = |wanted: &str, scope: &Scope| {
            upload_choice(&destinations, wanted, scope).map_err(|status| status.code())
        };
        let (admin, user) = (Scope::All, Scope::User(7));
        assert_eq!(choose("", &user), Ok(UploadChoice::Always));
        assert_eq!(choose("none", &user), Ok(UploadChoice::Nowhere));
        assert_eq!(choose("all", &user), Ok(UploadChoice::To("all".parse().unwrap())));
        assert_eq!(choose("ops", &user), Err(Code::PermissionDenied));
        assert_eq!(choose("ops", &admin), Ok(UploadChoice::To("ops".parse().unwrap())));
        for unknown in ["gs://other/x", "file:///etc", "../all", "ALL"] {
            assert_eq!(choose(unknown, &admin), Err(Code::InvalidArgument), "{unknown}");
        }
    }
}
