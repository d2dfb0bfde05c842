//! The gRPC service `tpuscope.v1.Uploads`: sessions on their way to destinations, each for the users whose session it is.

use std::collections::BTreeSet;

use proto::tpuscope::v1::{
    ChangeUploadsReply, ChangeUploadsRequest, CheckDestinationsReply, CheckDestinationsRequest,
    ListUploadsReply, ListUploadsRequest, PutManifestReply, PutManifestRequest, uploads_server,
};
use sessions::{FailureReason, capture_runner::Caller};
use store::{
    StateError,
    destinations::{Destination, target::FailureClass},
    uploads::{self, PutManifestError, UploadChoice, UploadPhase, UploadStatus, Uploads},
};
use tonic::{Code, Request, Response, Status};
use tracing::info;

use super::{
    access::Scope,
    grpc_captures::{unknown_destination, upload_choice},
    grpc_sessions::{self, GrpcSessions},
    protocol, session_messages, upload_messages,
};

/// The service.
pub struct GrpcUploads {
    uploads: Uploads,
    sessions: GrpcSessions,
}

impl GrpcUploads {
    /// The uploads of the sessions that `sessions` serves.
    pub fn new(sessions: &GrpcSessions) -> Self {
        Self { uploads: sessions.uploads(), sessions: sessions.clone() }
    }

    /// The uploads that the caller may see: of one session, or all with an empty name.
    async fn permitted(&self, scope: &Scope, session: &str) -> Result<Vec<UploadStatus>, Status> {
        if !session.is_empty() {
            let name = self.sessions.permitted_name(scope, session).await?;
            return self.call(move |uploads| uploads.of_session(&name)).await;
        }
        let mut all = self.call(Uploads::list).await?;
        if *scope != Scope::All {
            let names: BTreeSet<String> = self.sessions.permitted_names(scope).await?;
            all.retain(|upload| names.contains(&upload.session));
        }
        Ok(all)
    }

    /// Those of the caller's uploads that a request is about and that are not done.
    async fn wanted(
        &self,
        scope: &Scope,
        request: &ChangeUploadsRequest,
    ) -> Result<Vec<UploadStatus>, Status> {
        let mut wanted = self.permitted(scope, &request.session).await?;
        wanted.retain(|upload| {
            let there = request.destination.is_empty() || upload.destination == request.destination;
            there && !matches!(upload.phase, UploadPhase::Done { .. })
        });
        // Uploads to a destination that was taken out of the settings can be dropped.
        let (settings, name) = (self.uploads.settings(), &request.destination);
        if wanted.is_empty() && !name.is_empty() && settings.destinations.find(name).is_none() {
            return Err(unknown_destination(&settings.destinations, name));
        }
        Ok(wanted)
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Uploads) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Status> {
        let uploads = self.uploads.clone();
        let called = tokio::task::spawn_blocking(move || call(&uploads)).await;
        let called = called.map_err(|error| Status::internal(format!("the uploads failed: {error}")))?;
        called.map_err(|error| grpc_sessions::refused(&error.into()))
    }
}

/// A manifest that was not put.
fn refused(error: &PutManifestError) -> Status {
    use PutManifestError as E;
    let (code, reason) = match error {
        E::NoUpload { .. } => (Code::NotFound, None),
        E::OtherSession(_) | E::Unclaimed(_) | E::OtherManifest(_) => {
            (Code::FailedPrecondition, Some(FailureReason::SessionExists))
        }
        E::Parts(_) | E::PartName(_) | E::Twice(_) => (Code::InvalidArgument, Some(FailureReason::Invalid)),
        E::Missing(_) | E::Size { .. } | E::Checksum(_) => {
            (Code::FailedPrecondition, Some(FailureReason::PartNotThere))
        }
        E::Transfer(error) => match error.class() {
            FailureClass::Denied
            | FailureClass::Refused
            | FailureClass::Credentials
            | FailureClass::CredentialsFile => (Code::PermissionDenied, None),
            FailureClass::Timeout => (Code::DeadlineExceeded, None),
            FailureClass::NoSpace => (Code::ResourceExhausted, None),
            FailureClass::Unreachable
            | FailureClass::Tls
            | FailureClass::Server
            | FailureClass::Throttled => (Code::Unavailable, None),
            _ => (Code::Internal, None),
        },
    };
    match reason {
        Some(reason) => session_messages::refusal(code, reason, &error.to_string()),
        None => Status::new(code, error.to_string()),
    }
}

fn numbers(uploads: &[UploadStatus]) -> Vec<i64> {
    uploads.iter().map(|upload| upload.number).collect()
}

fn changed(uploads: &[UploadStatus]) -> Response<ChangeUploadsReply> {
    let uploads = uploads.iter().map(upload_messages::status).collect();
    Response::new(ChangeUploadsReply { peer: Some(protocol::agent()), uploads })
}

#[tonic::async_trait]
impl uploads_server::Uploads for GrpcUploads {
    async fn put_manifest(
        &self,
        request: Request<PutManifestRequest>,
    ) -> Result<Response<PutManifestReply>, Status> {
        let (scope, caller) = (grpc_sessions::scope(&request)?, grpc_sessions::caller(&request));
        let PutManifestRequest { peer, destination, manifest } = request.into_inner();
        protocol::check(peer.as_ref())?;
        let message = manifest.ok_or_else(|| Status::invalid_argument("the request has no `manifest`"))?;
        let manifest = session_messages::manifest_of(message);
        let manifest = manifest.map_err(|error| Status::invalid_argument(error.to_string()))?;
        // As an upload of this host's part there.
        let session = self.sessions.permitted_name(&scope, &manifest.session).await?;
        let choice = upload_choice(&self.uploads.settings().destinations, &destination, &scope)?;
        let UploadChoice::To(destination) = choice else {
            return Err(Status::invalid_argument("the request names no destination"));
        };
        let put = self.uploads.put_manifest(destination.as_str(), &session, &manifest).await;
        let url = put.map_err(|error| refused(&error))?;
        let (Caller { uid, pid, remote }, hosts) = (caller, manifest.hosts.len());
        let remote = remote.as_deref();
        info!(%session, %destination, uid, pid, remote, hosts, "manifest of several hosts put");
        Ok(Response::new(PutManifestReply { peer: Some(protocol::agent()), url: url.to_string() }))
    }

    async fn list(&self, request: Request<ListUploadsRequest>) -> Result<Response<ListUploadsReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let uploads = self.permitted(&scope, &request.get_ref().session).await?;
        let uploads = uploads.iter().map(upload_messages::status).collect();
        Ok(Response::new(ListUploadsReply { peer: Some(protocol::agent()), uploads }))
    }

    async fn retry(
        &self,
        request: Request<ChangeUploadsRequest>,
    ) -> Result<Response<ChangeUploadsReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let wanted = self.wanted(&scope, request.get_ref()).await?;
        let numbers = numbers(&wanted);
        self.call(move |uploads| uploads.retry(&numbers)).await?;
        Ok(changed(&wanted))
    }

    async fn drop(
        &self,
        request: Request<ChangeUploadsRequest>,
    ) -> Result<Response<ChangeUploadsReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        let caller = grpc_sessions::caller(&request);
        protocol::check(request.get_ref().peer.as_ref())?;
        let wanted = self.wanted(&scope, request.get_ref()).await?;
        let numbers = numbers(&wanted);
        self.call(move |uploads| uploads.remove(&numbers)).await?;
        for UploadStatus { session, destination, .. } in &wanted {
            let (uid, pid, remote) = (caller.uid, caller.pid, caller.remote.as_deref());
            info!(session, destination, uid, pid, remote, "upload dropped on request");
        }
        Ok(changed(&wanted))
    }

    async fn check(
        &self,
        request: Request<CheckDestinationsRequest>,
    ) -> Result<Response<CheckDestinationsReply>, Status> {
        let scope = grpc_sessions::scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        if scope != Scope::All {
            return Err(Status::permission_denied("only administrators may check the destinations"));
        }
        let name = &request.get_ref().destination;
        let settings = self.uploads.settings();
        let all = settings.destinations.0.iter().cloned();
        let wanted: Vec<Destination> =
            all.filter(|each| name.is_empty() || each.name.as_str() == name).collect();
        if wanted.is_empty() && !name.is_empty() {
            return Err(Status::not_found("the agent's settings have no destination of this name"));
        }
        let idle = settings.upload.idle_timeout.get();
        let checked = uploads::check_destinations(wanted, idle).await.map_err(Status::internal)?;
        let destinations = checked.into_iter().map(upload_messages::check).collect();
        Ok(Response::new(CheckDestinationsReply { peer: Some(protocol::agent()), destinations }))
    }
}
