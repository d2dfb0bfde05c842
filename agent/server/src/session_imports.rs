//! Sessions that users hand to the store, piece by piece. One at a time: a session that is being taken in has open files.
//!
//! Must never wait without a deadline, or touch a file on the thread that waits.

use std::{sync::Arc, time::Duration};

use model::time::Clock;
use proto::tpuscope::v1::{
    FilePiece, ImportAnnouncement, ImportPiece, ImportSessionReply, SessionFile, import_piece::Content,
};
use sessions::{FailureReason, capture_runner::Caller};
use store::{
    AnnouncedFile, AsyncStore, ImportError, SessionImport, SessionOwners, SessionStore, StoredSession,
    uploads::UploadChoice,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tonic::{Code, Status, Streaming};
use tracing::{debug, info};
use xprof::session::SessionName;

use super::{
    access::Scope,
    grpc_sessions::{refused, summary},
    protocol,
    session_grants::SessionGrants,
    session_messages,
};

/// The longest wait for the next piece.
const IDLE: Duration = Duration::from_secs(30);

/// Takes in sessions.
#[derive(Debug, Clone)]
pub(crate) struct Imports {
    store: AsyncStore,
    clock: ClockHandle,
    grants: Arc<SessionGrants>,
    max_part: u64,
    permits: Arc<Semaphore>,
}

#[derive(Clone)]
struct ClockHandle(Arc<dyn Clock>);

impl std::fmt::Debug for ClockHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

type Pieces = Streaming<ImportPiece>;

impl Imports {
    pub(crate) fn new(
        store: AsyncStore,
        clock: Arc<dyn Clock>,
        grants: Arc<SessionGrants>,
        max_part: u64,
    ) -> Self {
        let (clock, permits) = (ClockHandle(clock), Arc::new(Semaphore::new(1)));
        Self { store, clock, grants, max_part, permits }
    }

    /// Takes in the session that `pieces` bring. The reply comes at the end.
    ///
    /// # Errors
    /// If another one is being taken in.
    pub(crate) fn start(
        &self,
        pieces: Pieces,
        scope: Scope,
        caller: Caller,
    ) -> Result<mpsc::Receiver<Result<ImportSessionReply, Status>>, Status> {
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| Status::aborted("another session is being taken in"))?;
        let (reply, replies) = mpsc::channel(1);
        let this = self.clone();
        // A task of its own: it cleans up even if the caller is gone.
        tokio::spawn(async move {
            let taken = this.take(pieces, &scope, caller).await;
            drop(permit);
            // The caller may be gone.
            let _ = reply.send(taken).await;
        });
        Ok(replies)
    }

    async fn take(
        &self,
        mut pieces: Pieces,
        scope: &Scope,
        caller: Caller,
    ) -> Result<ImportSessionReply, Status> {
        let Some(Content::Announcement(announcement)) = next(&mut pieces).await? else {
            return Err(Status::invalid_argument("the first message announces the files"));
        };
        protocol::check(announcement.peer.as_ref())?;
        let mut import = self.begin(announcement, caller.uid).await?;
        let (name, Caller { uid, pid, remote }) = (import.name().clone(), caller);
        let remote = remote.as_deref();
        debug!(session = %name, uid, pid, remote, "a session is taken in");
        loop {
            let piece = match next(&mut pieces).await {
                Ok(Some(Content::Piece(piece))) => piece,
                Ok(None) => break,
                other => {
                    self.discard(import).await;
                    other?;
                    return Err(Status::invalid_argument("only the first message announces the files"));
                }
            };
            import = self.piece(import, piece).await?;
        }
        let stored = self.finish(import).await?;
        self.grants.add(scope, &stored.name, stored.created);
        info!(session = %name, uid, pid, remote, bytes = stored.bytes, "session taken in");
        Ok(ImportSessionReply { peer: Some(protocol::agent()), session: Some(summary(&stored)) })
    }

    async fn begin(
        &self,
        announcement: ImportAnnouncement,
        uid: Option<u32>,
    ) -> Result<SessionImport, Status> {
        let name: SessionName =
            announcement.id.parse().map_err(|error| Status::invalid_argument(format!("session: {error}")))?;
        let files =
            announcement.files.into_iter().map(|SessionFile { file, size }| AnnouncedFile { file, size });
        let files: Vec<_> = files.collect();
        // Without a known user it is the administrators'.
        let owners = SessionOwners::of(uid).going_to(&UploadChoice::Nowhere);
        let max_part = self.max_part;
        self.call(move |store| store.begin_import(name, owners, &files, max_part)).await
    }

    /// What cannot be taken is dropped on a thread that may block.
    async fn piece(&self, mut import: SessionImport, piece: FilePiece) -> Result<SessionImport, Status> {
        let FilePiece { file, offset, data } = piece;
        self.call(move |_| import.take(&file, offset, &data).map(|()| import)).await
    }

    async fn finish(&self, import: SessionImport) -> Result<StoredSession, Status> {
        let now = self.clock.0.now();
        self.call(move |store| store.finish_import(import, now)).await
    }

    async fn discard(&self, import: SessionImport) {
        // If the store does not answer, the next agent clears it away.
        let drop_it = move |_: &SessionStore| {
            drop(import);
            Ok(())
        };
        let _ = self.call(drop_it).await;
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&SessionStore) -> Result<T, ImportError> + Send + 'static,
    ) -> Result<T, Status> {
        // Its own errors are those of the store, which the import has too.
        let called = self.store.call(move |store| Ok(call(store))).await;
        called.map_err(|error| refused(&error))?.map_err(|error| status(&error))
    }
}

async fn next(pieces: &mut Pieces) -> Result<Option<Content>, Status> {
    match timeout(IDLE, pieces.message()).await {
        Ok(Ok(Some(ImportPiece { content: None }))) => Err(Status::invalid_argument("an empty message")),
        Ok(Ok(piece)) => Ok(piece.and_then(|piece| piece.content)),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(Status::deadline_exceeded(format!("no piece came within {} s", IDLE.as_secs()))),
    }
}

/// The refusal, with its reason.
fn status(error: &ImportError) -> Status {
    let (code, reason) = match error {
        ImportError::Store(error) => (refused(error).code(), FailureReason::of_store(error)),
        ImportError::NoRoom { .. } => (Code::ResourceExhausted, FailureReason::NoSpace),
        ImportError::TooLarge { .. } | ImportError::TooManyParts(_) => {
            (Code::OutOfRange, FailureReason::TooLarge)
        }
        ImportError::Empty(_) => (Code::FailedPrecondition, FailureReason::EmptyTrace),
        ImportError::Damaged { .. } | ImportError::Mismatch(_) | ImportError::Manifest(_) => {
            (Code::FailedPrecondition, FailureReason::Damaged)
        }
        ImportError::FileName { .. }
        | ImportError::Twice(_)
        | ImportError::NoParts
        | ImportError::Protocol(_) => (Code::InvalidArgument, FailureReason::Invalid),
    };
    session_messages::refusal(code, reason, &error.to_string())
}
