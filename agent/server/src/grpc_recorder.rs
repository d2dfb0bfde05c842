//! The gRPC service `tpuscope.v1.Recorder`: the past of the workloads, each for the user who owns it.

use std::{pin::Pin, sync::Arc};

use ::sessions::{
    FailureReason,
    recorder::{ChoiceRefused, ChoiceRequest, Recorder, SnapshotJob, Strategy},
};
use host::discovery::Discovery;
use model::{time::Timestamp, workload::Owner};
use proto::tpuscope::v1::{
    RecorderStatusReply, RecorderStatusRequest, RecorderTimelineReply, RecorderTimelineRequest,
    SetRecorderRequest, SnapshotEvent, SnapshotProgress, SnapshotRequest, recorder_server, snapshot_event,
};
use store::{
    StateError,
    segments::{RecordedProcess, SegmentQuery},
    uploads::Uploads,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use super::{
    access::Scope,
    capture_events::{self, EVENT_QUEUE},
    grpc_captures::{FIRST_SCAN_TIMEOUT, RESCAN_TIMEOUT, upload_choice},
    grpc_sessions::{self, GrpcSessions},
    protocol, recorder_messages,
    session_grants::SessionGrants,
    session_messages,
};

/// The service.
pub struct GrpcRecorder {
    recorder: Arc<Recorder>,
    discovery: Discovery,
    uploads: Uploads,
    grants: Arc<SessionGrants>,
}

impl GrpcRecorder {
    /// The past that `recorder` keeps of the workloads that `discovery` finds. `sessions` serves its snapshots.
    pub fn new(recorder: Arc<Recorder>, discovery: Discovery, sessions: &GrpcSessions) -> Self {
        Self { recorder, discovery, uploads: sessions.uploads(), grants: sessions.grants() }
    }

    async fn status_of(&self, scope: &Scope, job: &str) -> Result<RecorderStatusReply, Status> {
        let job = (!job.is_empty()).then_some(job);
        let status = self.recorder.status(job, may_switch(scope), may_read(scope)).await;
        Ok(recorder_messages::status(&status.map_err(|error| failed(&error))?))
    }
}

/// Whether the caller may switch the recorder for a process, and see whether it is recorded.
fn may_switch(scope: &Scope) -> impl Fn(&Owner) -> bool + Send + Sync + use<> {
    let scope = scope.clone();
    move |owner| scope.covers_process(owner.uid, owner.pid_namespace)
}

/// Whether the caller may read what was recorded of a process: as for sessions.
fn may_read(scope: &Scope) -> impl Fn(&RecordedProcess) -> bool + Send + Sync + use<> {
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

fn not_chosen(error: &ChoiceRefused) -> Status {
    match error {
        ChoiceRefused::Strategy(..) => Status::invalid_argument(error.to_string()),
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
        protocol::check(request.peer.as_ref())?;
        if request.from_unix_ns >= request.to_unix_ns {
            return Err(Status::invalid_argument("the time that is wanted ends before it begins"));
        }
        let session = match request.session.as_str() {
            "" => None,
            name => {
                Some(name.parse().map_err(|error| Status::invalid_argument(format!("session: {error}")))?)
            }
        };
        let upload = upload_choice(&self.uploads.settings().destinations, &request.destination, &scope)?;
        let (events, queue) = mpsc::channel(EVENT_QUEUE);
        let cancel = CancellationToken::new();
        let progress = events.clone();
        let job = SnapshotJob {
            from: Timestamp(request.from_unix_ns),
            to: Timestamp(request.to_unix_ns),
            job: (!request.job.is_empty()).then_some(request.job),
            session,
            upload,
            may_read: Box::new(may_read(&scope)),
            progress: Arc::new(move |done_bytes, bytes| {
                let event = snapshot_event::Event::Progress(SnapshotProgress { done_bytes, bytes });
                // Full or closed: the caller does not read. The snapshot goes on.
                let _ = progress.try_send(Ok(SnapshotEvent { event: Some(event) }));
            }),
            caller,
            cancel: cancel.clone(),
        };
        let (recorder, grants) = (Arc::clone(&self.recorder), Arc::clone(&self.grants));
        tokio::spawn(async move {
            let result = recorder.snapshot(job).await;
            if let Ok(done) = &result {
                grants.add(&scope, &done.stored.name, done.stored.created);
            }
            // The caller may have closed the stream.
            let finished = snapshot_event::Event::Finished(capture_events::outcome(result));
            let _ = events.send(Ok(SnapshotEvent { event: Some(finished) })).await;
        });
        // A caller that closes the stream drops the guard, which ends the snapshot.
        let guard = cancel.drop_guard();
        let stream = ReceiverStream::new(queue).map(move |event| {
            let _ = &guard;
            event
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
