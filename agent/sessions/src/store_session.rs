//! A session in the agent's store, from its name to its uploads: of a capture or of a snapshot.

use model::time::Timestamp;
use store::{
    AsyncStore, SessionOwners, SessionPriority, SessionStore, StagedSession, StoreError, StoredSession,
    uploads::{UploadChoice, UploadStatus, Uploads},
};
use tracing::warn;
use xprof::session::{FinishedSession, Manifest, SessionError, SessionName};

use crate::{CaptureError, FailureKind};

/// Begins a session; without a name one that is named after the time.
///
/// # Errors
/// If the name is taken, or the store refuses.
pub(crate) async fn begin(
    store: &AsyncStore,
    session: Option<SessionName>,
    owners: SessionOwners,
    now: Timestamp,
) -> Result<StagedSession, CaptureError> {
    let named = session.clone();
    let begin = move |store: &SessionStore| match session {
        Some(name) => store.begin(name, owners),
        None => begin_by_time(store, &owners, now),
    };
    store.call(begin).await.map_err(|error| match named {
        Some(name) if is_taken(&error) => CaptureError::NameTaken(name),
        _ => error.into(),
    })
}

/// Removes what is staged, on a thread that may block.
///
/// # Errors
/// If the store refuses.
pub(crate) async fn remove(store: &AsyncStore, staged: StagedSession) -> Result<(), CaptureError> {
    let remove = move |_: &SessionStore| {
        drop(staged);
        Ok(())
    };
    Ok(store.call(remove).await?)
}

/// Shows a session whose manifest is written, and hands it to the uploads.
///
/// # Errors
/// If the store refuses.
pub(crate) async fn keep(
    store: &AsyncStore,
    queue: Uploads,
    staged: StagedSession,
    finished: FinishedSession,
    upload: UploadChoice,
    now: Timestamp,
) -> Result<(StoredSession, Manifest, Vec<UploadStatus>), CaptureError> {
    let kept = store.call(move |store| {
        // First: a session that is known and has no uploads has none to come.
        let (uploads, saved) = queue.add(&finished.manifest, &upload, SessionPriority::Asked);
        let stored = store.finish(staged, &finished, now);
        if let Err(error) = saved {
            warn!(session = %stored.name, %error, "the uploads of the session are forgotten if the agent ends");
        }
        Ok((stored, finished.manifest, uploads))
    });
    Ok(kept.await?)
}

/// Says where a disk is full that the caller did not name.
pub(crate) fn in_store(error: CaptureError, staged: &StagedSession) -> CaptureError {
    if error.kind() != FailureKind::NoSpace {
        return error;
    }
    CaptureError::StoreFull { folder: staged.folder.clone(), cause: Box::new(error) }
}

/// Whether another session has the name, finished or not.
fn is_taken(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::BeingWritten(_) | StoreError::Session(SessionError::Exists(_) | SessionError::Running(_))
    )
}

/// A session named after the time; a second one of the same second gets a suffix.
fn begin_by_time(
    store: &SessionStore,
    owners: &SessionOwners,
    now: Timestamp,
) -> Result<StagedSession, StoreError> {
    let name = SessionName::of_time(now.into());
    match store.begin(name.clone(), owners.clone()) {
        Err(error) if is_taken(&error) => {
            let name = format!("{name}_{:04x}", fastrand::u16(..)).parse().unwrap_or(name);
            store.begin(name, owners.clone())
        }
        staged => staged,
    }
}
