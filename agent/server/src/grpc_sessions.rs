//! The gRPC service `tpuscope.v1.Sessions`: the stored sessions, each for the users who own its processes.

use std::{collections::BTreeSet, io, path::Path, pin::Pin, sync::Arc};

use model::time::Clock;
use proto::tpuscope::v1::{
    FetchSessionRequest, FilePiece, ImportPiece, ImportSessionReply, ListSessionsReply, ListSessionsRequest,
    PinSessionReply, PinSessionRequest, PruneSessionsReply, PruneSessionsRequest, PrunedSession,
    ReadSessionReply, ReadSessionRequest, RemoveSessionReply, RemoveSessionRequest, SessionFault,
    SessionFile, SessionSummary, ShowSessionReply, ShowSessionRequest, sessions_server,
};
use sessions::{FailureReason, capture_runner::Caller};
use store::{
    AsyncStore, OpenedSession, Removal, SessionKey, SessionStore, StateError, StoreError, StoredSession,
    UploadState,
    uploads::{UploadPhase, UploadStatus, Uploads},
};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt},
    sync::mpsc,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{debug, info, warn};
use xprof::session::{Fault, MANIFEST_FILE, PartFile, SessionName};

use super::{
    access::Scope, connections::ConnectInfo, protocol, session_grants::SessionGrants,
    session_imports::Imports, session_messages, upload_messages,
};

/// The size of one piece of a file.
const PIECE_BYTES: usize = 128 << 10;
/// Pieces that wait for a slow reader.
const PIECE_QUEUE: usize = 4;
/// The largest range that one call reads.
const MAX_RANGE: u32 = 1 << 20;

/// The service.
#[derive(Clone)]
pub struct GrpcSessions {
    store: AsyncStore,
    uploads: Uploads,
    grants: Arc<SessionGrants>,
    imports: Imports,
}

impl GrpcSessions {
    /// The sessions of `store`, and where they are uploaded to. A part that a user takes in has at most `max_part` bytes.
    pub fn new(store: AsyncStore, uploads: Uploads, clock: Arc<dyn Clock>, max_part: u64) -> Self {
        let grants = Arc::<SessionGrants>::default();
        let imports = Imports::new(store.clone(), clock, Arc::clone(&grants), max_part);
        Self { store, uploads, grants, imports }
    }

    pub(super) fn uploads(&self) -> Uploads {
        self.uploads.clone()
    }

    pub(super) fn grants(&self) -> Arc<SessionGrants> {
        self.grants.clone()
    }

    fn covers(&self, scope: &Scope, stored: &StoredSession) -> bool {
        scope.covers_users(&stored.owners.uids) || self.grants.has(scope, &stored.name, stored.created)
    }

    /// The name of a session that `scope` includes; else `NOT_FOUND`.
    pub(super) async fn permitted_name(&self, scope: &Scope, id: &str) -> Result<SessionName, Status> {
        Ok(self.permitted(scope, id).await?.stored.name)
    }

    /// The names of all sessions that `scope` includes.
    pub(super) async fn permitted_names(&self, scope: &Scope) -> Result<BTreeSet<String>, Status> {
        let permitted = self.permit(scope);
        let listed = self.store.call(move |store| store.list(usize::MAX, permitted)).await;
        let listed = listed.map_err(|error| refused(&error))?;
        Ok(listed.into_iter().map(|stored| stored.name.to_string()).collect())
    }

    /// Drops the uploads of a session that is removed. Returns them.
    async fn give_up_uploads(&self, session: SessionName) -> Vec<UploadStatus> {
        let (uploads, name) = (self.uploads.clone(), session.clone());
        let dropped = tokio::task::spawn_blocking(move || {
            let mut of_session = uploads.of_session(&name)?;
            of_session.retain(|upload| !matches!(upload.phase, UploadPhase::Done { .. }));
            let numbers: Vec<i64> = of_session.iter().map(|upload| upload.number).collect();
            uploads.remove(&numbers).map(|()| of_session)
        });
        let dropped = match dropped.await {
            Ok(Ok(dropped)) => dropped,
            // Each ends by itself when it finds that the session is gone.
            Ok(Err(error)) => {
                warn!(%session, %error, "the uploads of a session that was removed are not dropped yet");
                Vec::new()
            }
            Err(error) => {
                warn!(%session, %error, "the uploads of a session that was removed are not dropped yet");
                Vec::new()
            }
        };
        for UploadStatus { destination, .. } in &dropped {
            info!(%session, destination, "upload dropped: its session was removed");
        }
        dropped
    }

    /// Whether `scope` includes a session.
    fn permit(&self, scope: &Scope) -> impl Fn(&SessionKey) -> bool + Send + use<> {
        let (scope, grants) = (scope.clone(), self.grants());
        move |key| scope.covers_users(&key.owners.uids) || grants.has(&scope, &key.name, key.created)
    }

    /// The session of this name. `NOT_FOUND` if `scope` does not include it.
    async fn permitted(&self, scope: &Scope, id: &str) -> Result<OpenedSession, Status> {
        let name: SessionName =
            id.parse().map_err(|error| Status::invalid_argument(format!("session: {error}")))?;
        let wanted = name.clone();
        let opened = self.store.call(move |store| store.get(&wanted)).await;
        let opened = opened.map_err(|error| refused(&error))?;
        if self.covers(scope, &opened.stored) {
            Ok(opened)
        } else {
            Err(refused(&StoreError::NotFound(name)))
        }
    }
}

type Pieces = Pin<Box<dyn Stream<Item = Result<FilePiece, Status>> + Send>>;
type ImportReplies = Pin<Box<dyn Stream<Item = Result<ImportSessionReply, Status>> + Send>>;

#[tonic::async_trait]
impl sessions_server::Sessions for GrpcSessions {
    type FetchStream = Pieces;
    type ImportStream = ImportReplies;

    async fn list(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsReply>, Status> {
        let scope = scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let limit = usize::try_from(request.get_ref().limit).ok().filter(|&limit| limit > 0);
        let (permitted, uploads) = (self.permit(&scope), self.uploads());
        let list = move |store: &SessionStore| {
            let listed = store.list(limit.unwrap_or(usize::MAX), permitted)?;
            listed.iter().map(|stored| Ok(with_uploads(stored, &uploads)?)).collect::<Result<_, StoreError>>()
        };
        let sessions = self.store.call(list).await.map_err(|error| refused(&error))?;
        Ok(Response::new(ListSessionsReply { peer: Some(protocol::agent()), sessions }))
    }

    async fn show(&self, request: Request<ShowSessionRequest>) -> Result<Response<ShowSessionReply>, Status> {
        let scope = scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let opened = self.permitted(&scope, &request.get_ref().id).await?;
        let (stored, uploads) = (opened.stored.clone(), self.uploads());
        let session = self.store.call(move |_| Ok(with_uploads(&stored, &uploads)?)).await;
        let manifest_json = opened.session.manifest.as_ref().map(serde_json::to_string).transpose();
        Ok(Response::new(ShowSessionReply {
            peer: Some(protocol::agent()),
            session: Some(session.map_err(|error| refused(&error))?),
            manifest_json: manifest_json
                .map_err(|error| Status::internal(error.to_string()))?
                .unwrap_or_default(),
            files: opened.session.parts.iter().map(session_file).collect(),
            faults: opened.session.faults.iter().map(session_fault).collect(),
            manifest: opened.session.manifest.map(session_messages::manifest),
        }))
    }

    async fn read(&self, request: Request<ReadSessionRequest>) -> Result<Response<ReadSessionReply>, Status> {
        let scope = scope(&request)?;
        let request = request.into_inner();
        protocol::check(request.peer.as_ref())?;
        let opened = self.permitted(&scope, &request.id).await?;
        // Only what the session lists is opened: a name from outside never becomes a path.
        let part = opened.session.parts.iter().find(|part| file_name(&part.path) == request.file);
        let missing = || Status::not_found(format!("session {} has no such part", opened.stored.name));
        let part = part.ok_or_else(missing)?;
        // Beyond its end there is nothing, and a system may refuse to go there.
        let left = u32::try_from(part.size.saturating_sub(request.offset)).unwrap_or(u32::MAX);
        let offset = request.offset.min(part.size);
        match read_range(&part.path, offset, request.length.min(left).min(MAX_RANGE)).await {
            Ok(data) => Ok(Response::new(ReadSessionReply { peer: Some(protocol::agent()), data })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(refused(&StoreError::NotFound(opened.stored.name)))
            }
            Err(error) => Err(unreadable(&error)),
        }
    }

    async fn fetch(&self, request: Request<FetchSessionRequest>) -> Result<Response<Pieces>, Status> {
        let scope = scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let opened = self.permitted(&scope, &request.get_ref().id).await?;
        let (pieces, queue) = mpsc::channel(PIECE_QUEUE);
        tokio::spawn(async move {
            if let Err(error) = send_files(&opened, &pieces).await {
                let status = match error.kind() {
                    io::ErrorKind::NotFound => refused(&StoreError::NotFound(opened.stored.name)),
                    _ => unreadable(&error),
                };
                // The reader may have closed the stream.
                let _ = pieces.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(queue))))
    }

    async fn remove(
        &self,
        request: Request<RemoveSessionRequest>,
    ) -> Result<Response<RemoveSessionReply>, Status> {
        let scope = scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let name = self.permitted(&scope, &request.get_ref().id).await?.stored.name;
        let (removed, Caller { uid, pid, remote }) = (name.clone(), caller(&request));
        let freed = self.store.call(move |store| store.remove(&name)).await;
        let freed = freed.map_err(|error| refused(&error))?;
        let remote = remote.as_deref();
        info!(session = %removed, uid, pid, remote, freed_bytes = freed, "session removed on request");
        let given_up = self.give_up_uploads(removed).await.iter().map(upload_messages::status).collect();
        let peer = Some(protocol::agent());
        Ok(Response::new(RemoveSessionReply { peer, freed_bytes: freed, uploads: given_up }))
    }

    async fn pin(&self, request: Request<PinSessionRequest>) -> Result<Response<PinSessionReply>, Status> {
        let scope = scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let name = self.permitted(&scope, &request.get_ref().id).await?.stored.name;
        let (session, pinned) = (name.clone(), request.get_ref().pinned);
        let Caller { uid, pid, remote } = caller(&request);
        let set = self.store.call(move |store| store.set_pinned(&name, pinned)).await;
        set.map_err(|error| refused(&error))?;
        // Not info: a user can do this as often as they like.
        let remote = remote.as_deref();
        debug!(%session, uid, pid, remote, pinned, "a pin of a session was changed on request");
        Ok(Response::new(PinSessionReply { peer: Some(protocol::agent()) }))
    }

    async fn prune(
        &self,
        request: Request<PruneSessionsRequest>,
    ) -> Result<Response<PruneSessionsReply>, Status> {
        // The auth layer lets administrators pass only.
        scope(&request)?;
        protocol::check(request.get_ref().peer.as_ref())?;
        let dry_run = request.get_ref().dry_run;
        let Caller { uid, pid, remote } = caller(&request);
        let prune = move |store: &SessionStore| if dry_run { store.removals() } else { store.retain() };
        let removals = self.store.call(prune).await.map_err(|error| refused(&error))?;
        if !dry_run {
            let (remote, sessions) = (remote.as_deref(), removals.len());
            info!(uid, pid, remote, sessions, "the limits of the store were applied on request");
        }
        let sessions = removals.iter().map(pruned).collect();
        let age_not_applied = self.store.call(|store| Ok(store.why_no_age())).await;
        let age_not_applied =
            age_not_applied.map_err(|error| refused(&error))?.unwrap_or_default().to_owned();
        Ok(Response::new(PruneSessionsReply { peer: Some(protocol::agent()), sessions, age_not_applied }))
    }

    async fn import(
        &self,
        request: Request<Streaming<ImportPiece>>,
    ) -> Result<Response<ImportReplies>, Status> {
        let (scope, caller) = (scope(&request)?, caller(&request));
        let reply = self.imports.start(request.into_inner(), scope, caller)?;
        Ok(Response::new(Box::pin(ReceiverStream::new(reply))))
    }
}

/// The scope that the auth layer added to the request.
///
/// # Errors
/// `PERMISSION_DENIED` if there is none.
pub(super) fn scope<T>(request: &Request<T>) -> Result<Scope, Status> {
    let scope = request.extensions().get::<Scope>().cloned();
    scope.ok_or_else(|| Status::permission_denied("the call did not pass the authorization layer"))
}

/// The caller of the request, for the log.
pub(super) fn caller<T>(request: &Request<T>) -> Caller {
    caller_of(request.extensions().get::<ConnectInfo>())
}

/// The caller at the other end of a connection, for the log.
pub(super) fn caller_of(info: Option<&ConnectInfo>) -> Caller {
    match info {
        Some(ConnectInfo::Unix(peer)) => {
            Caller { uid: Some(peer.uid()), pid: peer.pid(), ..Caller::default() }
        }
        Some(ConnectInfo::Remote(peer)) => {
            Caller { remote: Some(peer.to_string().into()), ..Caller::default() }
        }
        Some(ConnectInfo::Loopback(peer)) => Caller { uid: peer.uid(), pid: peer.pid(), ..Caller::default() },
        Some(ConnectInfo::Tcp) | None => Caller::default(),
    }
}

pub(super) fn summary(stored: &StoredSession) -> SessionSummary {
    SessionSummary {
        id: stored.name.to_string(),
        path: stored.folder.display().to_string(),
        created_unix_ns: stored.created.map(|created| created.0),
        bytes: stored.bytes,
        parts: u32::try_from(stored.parts).unwrap_or(u32::MAX),
        partial: stored.partial,
        warnings: stored.warnings.clone(),
        context: Some(session_messages::context(stored.context.clone())),
        pinned: stored.pinned,
        upload: upload_name(stored.upload).to_owned(),
        uploads: Vec::new(),
    }
}

/// The session, and where it is uploaded to. Blocks.
fn with_uploads(stored: &StoredSession, uploads: &Uploads) -> Result<SessionSummary, StateError> {
    let found = match stored.upload {
        UploadState::Local => Vec::new(),
        UploadState::Pending | UploadState::Uploaded => uploads.of_session(&stored.name)?,
    };
    Ok(SessionSummary { uploads: found.iter().map(upload_messages::status).collect(), ..summary(stored) })
}

/// The name of the state in messages and JSON.
fn upload_name(upload: UploadState) -> &'static str {
    match upload {
        UploadState::Local => "local",
        UploadState::Pending => "pending",
        UploadState::Uploaded => "uploaded",
    }
}

fn pruned(removal: &Removal) -> PrunedSession {
    PrunedSession {
        id: removal.name.to_string(),
        bytes: removal.bytes,
        limit: removal.reason.setting().to_owned(),
        upload: upload_name(removal.upload).to_owned(),
    }
}

fn session_file(part: &PartFile) -> SessionFile {
    SessionFile { file: file_name(&part.path), size: part.size }
}

fn session_fault(fault: &Fault) -> SessionFault {
    let of_manifest = fault.of_manifest();
    SessionFault { file: fault.file.clone(), why: fault.kind.to_string(), of_manifest }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn unreadable(error: &io::Error) -> Status {
    Status::data_loss(format!("cannot read the session: {error}"))
}

async fn read_range(path: &Path, offset: u64, length: u32) -> io::Result<Vec<u8>> {
    let mut file = File::open(path).await?;
    file.seek(io::SeekFrom::Start(offset)).await?;
    let mut data = Vec::with_capacity(length as usize);
    file.take(u64::from(length)).read_to_end(&mut data).await?;
    Ok(data)
}

pub(super) fn refused(error: &StoreError) -> Status {
    match error {
        StoreError::NotFound(_) => Status::not_found(error.to_string()),
        StoreError::BeingWritten(_) => Status::aborted(error.to_string()),
        StoreError::LowDisk { .. } | StoreError::State(StateError::Full { .. }) => {
            session_messages::refusal(Code::ResourceExhausted, FailureReason::NoSpace, &error.to_string())
        }
        StoreError::Panicked(_) | StoreError::Session(_) | StoreError::State(_) => {
            Status::internal(error.to_string())
        }
    }
}

async fn send_files(
    opened: &OpenedSession,
    pieces: &mpsc::Sender<Result<FilePiece, Status>>,
) -> io::Result<()> {
    let folder = &opened.session.folder;
    let parts = opened.session.parts.iter().map(|part| part.path.clone());
    // The manifest comes last: a reader that has it has all parts.
    for path in parts.chain(opened.session.manifest.is_some().then(|| folder.join(MANIFEST_FILE))) {
        let name = file_name(&path);
        let mut file = File::open(&path).await?;
        let mut offset = 0;
        loop {
            let mut data = Vec::with_capacity(PIECE_BYTES);
            let read = (&mut file).take(PIECE_BYTES as u64).read_to_end(&mut data).await?;
            if read == 0 && offset > 0 {
                break;
            }
            let piece = FilePiece { file: name.clone(), offset, data };
            if pieces.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
            offset += read as u64;
            if read == 0 {
                break;
            }
        }
    }
    Ok(())
}
