//! The gRPC service `tpuscope.v1.Recorder`: the past of the workloads, each for the user who owns it.

use std::{pin::Pin, sync::Arc};

use ::sessions::{
    CaptureError, FailureReason,
    capture_runner::{SessionUse, StoredCapture},
    recorder::{ChoiceRefused, ChoiceRequest, Recorder, SnapshotJob, Strategy, WantedPast},
};
use host::discovery::Discovery;
use model::{time::Timestamp, workload::Owner};
use proto::tpuscope::v1::{
    RecorderStatusReply, RecorderStatusRequest, RecorderTimelineReply, RecorderTimelineRequest,
    SetRecorderRequest, SnapshotEvent, SnapshotPlan, SnapshotProgress, SnapshotRequest, recorder_server,
    snapshot_event,
};
use store::{
    StateError,
    destinations::NO_DESTINATION,
    segments::{RecordedProcess, SegmentQuery},
    uploads::{UploadChoice, Uploads},
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use xprof::session::{HostName, SessionId, SessionName};

use super::{
    access::Scope,
    capture_events::{self, EVENT_QUEUE},
    grpc_captures::{FIRST_SCAN_TIMEOUT, RESCAN_TIMEOUT, upload_choice},
    grpc_sessions::{self, GrpcSessions},
    parts_upload::{check_name, parts_upload},
    protocol, recorder_messages,
    session_grants::SessionGrants,
    session_messages,
};

/// The service.
pub struct GrpcRecorder {
    recorder: Arc<Recorder>,
    discovery: Discovery,
    host: HostName,
    uploads: Uploads,
    grants: Arc<SessionGrants>,
}

impl GrpcRecorder {
    /// The past that `recorder` keeps of the workloads that `discovery` finds on `host`. `sessions` serves its snapshots.
    pub fn new(
        recorder: Arc<Recorder>,
        discovery: Discovery,
        host: HostName,
        sessions: &GrpcSessions,
    ) -> Self {
        Self { recorder, discovery, host, uploads: sessions.uploads(), grants: sessions.grants() }
    }

    /// What a host of a snapshot over several hosts has, and where its parts go.
    async fn plan(
        &self,
        snapshot: &CheckedSnapshot,
        request: &SnapshotRequest,
        scope: &Scope,
    ) -> Result<(u32, UploadChoice), PlanRefused> {
        let parts = self.recorder.snapshot_parts(&snapshot.past).await?;
        let settings = self.uploads.settings();
        let (destinations, at) = (&settings.destinations, snapshot.past.to);
        let upload = parts_upload(destinations, &request.destination, scope, at, &parts)?;
        if let (UploadChoice::Parts(Some(agreed)), (Some(session), Some(id))) =
            (&upload, (&snapshot.session, &snapshot.id))
        {
            check_name(&self.uploads, session, id, agreed).await?;
        }
        Ok((u32::try_from(parts.len()).unwrap_or(u32::MAX), upload))
    }

    async fn status_of(&self, scope: &Scope, job: &str) -> Result<RecorderStatusReply, Status> {
        let job = (!job.is_empty()).then_some(job);
        let status = self.recorder.status(job, may_switch(scope), may_read(scope)).await;
        Ok(recorder_messages::status(&status.map_err(|error| failed(&error))?))
    }
}

/// A request for a snapshot, checked.
struct CheckedSnapshot {
    past: WantedPast,
    session: Option<SessionName>,
    /// Of a session over several hosts.
    id: Option<SessionId>,
}

/// Why a host has no part in a snapshot over several hosts.
enum PlanRefused {
    Request(Status),
    Past(CaptureError),
}

impl From<Status> for PlanRefused {
    fn from(status: Status) -> Self {
        Self::Request(status)
    }
}

impl From<CaptureError> for PlanRefused {
    fn from(error: CaptureError) -> Self {
        Self::Past(error)
    }
}

fn checked(request: &SnapshotRequest, scope: &Scope) -> Result<CheckedSnapshot, Status> {
    let invalid = |what: String| Status::invalid_argument(what);
    protocol::check(request.peer.as_ref())?;
    if request.from_unix_ns >= request.to_unix_ns {
        return Err(Status::invalid_argument("the time that is wanted ends before it begins"));
    }
    let session = match request.session.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|error| invalid(format!("session: {error}")))?),
    };
    let id = match request.session_id.as_str() {
        "" => None,
        id => Some(id.parse().map_err(|error| invalid(format!("session_id: {error}")))?),
    };
    if id.is_some() && session.is_none() {
        return Err(Status::invalid_argument("a host of a session over several hosts needs its name"));
    }
    let uploads = !matches!(request.destination.as_str(), "" | NO_DESTINATION);
    if id.is_some() && uploads != request.parts_only {
        return Err(Status::invalid_argument(
            "one host's manifest is not the session's: a destination needs `parts_only`, and it a destination",
        ));
    }
    let past = WantedPast {
        from: Timestamp(request.from_unix_ns),
        to: Timestamp(request.to_unix_ns),
        job: (!request.job.is_empty()).then(|| request.job.clone()),
        may_read: Box::new(may_read(scope)),
    };
    Ok(CheckedSnapshot { past, session, id })
}

/// Whether the caller may switch the recorder for a process, and see whether it is recorded.
pub(super) fn may_switch(scope: &Scope) -> impl Fn(&Owner) -> bool + Send + Sync + use<> {
    let scope = scope.clone();
    move |owner| scope.covers_process(owner.uid, owner.pid_namespace)
}

/// Whether the caller may read what was recorded of a process: as for sessions.
pub(super) fn may_read(scope: &Scope) -> impl Fn(&RecordedProcess) -> bool + Send + Sync + use<> {
    let scope = scope.clone();
    move |process| scope.covers_users(&[process.uid])
}

/// The answer to a call for which the database of the agent fails.
pub(super) fn failed(error: &StateError) -> Status {
    match error {
        StateError::Full { .. } => {
            session_messages::refusal(Code::ResourceExhausted, FailureReason::NoSpace, &error.to_string())
        }
        _ => Status::internal(error.to_string()),
    }
}

pub(super) fn not_chosen(error: &ChoiceRefused) -> Status {
    match error {
        ChoiceRefused::Strategy(..) => session_messages::refusal(
            Code::FailedPrecondition,
            FailureReason::StrategyRefused,
            &error.to_string(),
        ),
        ChoiceRefused::NoJob(_) => Status::not_found(error.to_string()),
        ChoiceRefused::State(error) => failed(error),
        ChoiceRefused::Panicked(_) => Status::internal(error.to_string()),
    }
}

type SnapshotEvents = Pin<Box<dyn Stream<Item = Result<SnapshotEvent, Status>> + Send>>;

#[tonic::async_trait]
impl recorder_server::Recorder for GrpcRecorder {
    type SnapshotStream = SnapshotEvents;

    async fn set(
        &self,
        request: Request<SetRecorderRequest>,
    ) -> Result<Response<RecorderStatusReply>, Status> {
        let (scope, caller) = (grpc_sessions::scope(&request)?, grpc_sessions::caller(&request));
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let strategy = match request.strategy.as_str() {
            "" => None,
            name => {
                Some(name.parse::<Strategy>().map_err(|error| Status::invalid_argument(error.to_string()))?)
            }
        };
        let choice = ChoiceRequest {
            job: (!request.job.is_empty()).then_some(request.job.as_str()),
            is_on: request.on,
            strategy,
            may: &may_switch(&scope),
            caller,
        };
        // The first scan may not be finished. Without it no workload is known.
        let _ = tokio::time::timeout(FIRST_SCAN_TIMEOUT, self.discovery.first_scan()).await;
        let mut chosen = self.recorder.choose(&choice).await;
        if let Err(ChoiceRefused::NoJob(_)) = chosen {
            // It may have started after the last scan.
            self.discovery.scan_now(RESCAN_TIMEOUT).await;
            chosen = self.recorder.choose(&choice).await;
        }
        chosen.map_err(|error| not_chosen(&error))?;
        Ok(Response::new(self.status_of(&scope, &request.job).await?))
    }

    async fn status(
        &self,
        request: Request<RecorderStatusRequest>,
    ) -> Result<Response<RecorderStatusReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        Ok(Response::new(self.status_of(&scope, &request.get_ref().job).await?))
    }

    async fn timeline(
        &self,
        request: Request<RecorderTimelineRequest>,
    ) -> Result<Response<RecorderTimelineReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let query = SegmentQuery {
            from: request.from_unix_ns.map(Timestamp),
            to: request.to_unix_ns.map(Timestamp),
            job: (!request.job.is_empty()).then_some(request.job),
        };
        let past = self.recorder.timeline(query, may_read(&scope)).await;
        let (segments, gaps) = past.map_err(|error| failed(&error))?;
        let processes = recorder_messages::timeline(&segments, &gaps);
        Ok(Response::new(RecorderTimelineReply { peer: Some(protocol::agent()), processes }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<SnapshotEvents>, Status> {
        let (scope, caller) = (grpc_sessions::scope(&request)?, grpc_sessions::caller(&request));
        let request = request.into_inner();
        let snapshot = checked(&request, &scope)?;
        // The first scan may not be finished. Without it no job is known.
        let _ = tokio::time::timeout(FIRST_SCAN_TIMEOUT, self.discovery.first_scan()).await;
        let upload = match snapshot.id {
            None => upload_choice(&self.uploads.settings().destinations, &request.destination, &scope)?,
            Some(_) => match self.plan(&snapshot, &request, &scope).await {
                Ok((_, upload)) => upload,
                Err(PlanRefused::Request(status)) => return Err(status),
                Err(PlanRefused::Past(error)) => return Ok(Response::new(only(finished(Err(error))))),
            },
        };
        let CheckedSnapshot { past, session, id } = snapshot;
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        let cancel = CancellationToken::new();
        let progress = events.clone();
        let job = SnapshotJob {
            past,
            session,
            id,
            upload,
            progress: Arc::new(move |done_bytes, bytes| {
                let event = snapshot_event::Event::Progress(SnapshotProgress { done_bytes, bytes });
                // Full or closed: the caller does not read. The snapshot goes on.
                let _ = progress.try_send(Ok(SnapshotEvent { event: Some(event) }));
            }),
            caller,
            cancel: cancel.clone(),
            session_use: SessionUse::Kept,
        };
        let (recorder, grants) = (Arc::clone(&self.recorder), Arc::clone(&self.grants));
        tokio::spawn(async move {
            let result = recorder.snapshot(job).await;
            if let Ok(done) = &result {
                grants.add(&scope, &done.stored.name, done.stored.created);
            }
            // The caller may have closed the stream.
            let _ = events.send(Ok(finished(result))).await;
        });
        // A caller that closes the stream drops the guard, which ends the snapshot.
        let guard = cancel.drop_guard();
        let stream = ReceiverStream::new(queue).map(move |event| {
            let _ = &guard;
            event
        });
        Ok(Response::new(Box::pin(stream)))
    }
    async fn plan_snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<SnapshotPlan>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let request = request.into_inner();
        let snapshot = checked(&request, &scope)?;
        if snapshot.id.is_none() {
            return Err(Status::invalid_argument("a plan is for a host of several: set `session_id`"));
        }
        let _ = tokio::time::timeout(FIRST_SCAN_TIMEOUT, self.discovery.first_scan()).await;
        self.recorder.take_rings(&snapshot.past).await;
        let plan = SnapshotPlan {
            peer: Some(protocol::agent()),
            host: self.host.to_string(),
            ..SnapshotPlan::default()
        };
        Ok(Response::new(match self.plan(&snapshot, &request, &scope).await {
            Ok((processes, upload)) => {
                let destination_url = match upload {
                    UploadChoice::Parts(Some(agreed)) => agreed.url.to_string(),
                    _ => String::new(),
                };
                SnapshotPlan { processes, destination_url, ..plan }
            }
            Err(PlanRefused::Request(status)) => return Err(status),
            Err(PlanRefused::Past(error)) => {
                SnapshotPlan { failure: Some(session_messages::failure(&error)), ..plan }
            }
        }))
    }
}

/// The last event.
fn finished(result: Result<StoredCapture, CaptureError>) -> SnapshotEvent {
    let finished = snapshot_event::Event::Finished(capture_events::outcome(result));
    SnapshotEvent { event: Some(finished) }
}

/// A stream of one event.
fn only(event: SnapshotEvent) -> SnapshotEvents {
    Box::pin(tokio_stream::once(Ok(event)))
}
