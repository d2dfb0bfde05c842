//! What lasts: the sessions of this host, the past that the recorder keeps, the attempts of its jobs, the marks of programs, and the
//! lock of the state directory.
//!
//! Must never show or remove a session that is still being written, or take a path from a caller. A session that a dead
//! agent left without a manifest is finished, as partial.

#![forbid(unsafe_code)]

mod catalog;
pub mod destinations;
mod import;
pub mod job_attempts;
pub mod ledgers;
pub mod lock;
pub mod marks;
pub mod open_folder;
pub mod own_metrics;
pub mod own_thread;
mod retention;
pub mod segments;
mod session_store;
pub mod settings;
mod staging;
pub mod state;
mod stored_session;
pub mod uploads;

use std::{path::PathBuf, sync::Arc};

use model::unit::Bytes;
use thiserror::Error;
use tokio::sync::Semaphore;
use xprof::session::{SessionError, SessionName};

pub use catalog::SessionKey;
pub use import::{AnnouncedFile, ImportError, SessionImport};
pub use retention::{Removal, RemovalReason};
pub use session_store::{OpenedSession, SessionStore};
pub use staging::{ChosenDestination, SessionOwners, StagedSession};
pub use state::StateError;
pub use stored_session::{SessionPriority, StoredPart, StoredSession, UploadState};

/// Why the store cannot do it.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A session of this name is being written.
    #[error("a session named {0} is being written")]
    BeingWritten(SessionName),
    /// No such session.
    #[error("there is no session {0}")]
    NotFound(SessionName),
    /// Less of the disk is free than `store.min_free` says.
    #[error("the disk of {} has {} free, and store.min_free keeps {}", .folder.display(), .free.rounded(), .needed.rounded())]
    LowDisk {
        /// Path of the store.
        folder: PathBuf,
        /// Free bytes.
        free: Bytes,
        /// The limit in bytes.
        needed: Bytes,
    },
    /// The database of the agent cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The call panicked.
    #[error("the store failed: {0}")]
    Panicked(String),
    /// The files refuse.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// The most calls of the store that block at the same time: a disk that hangs must not take all threads that may block.
const MAX_CALLS: usize = 8;

/// The store for tasks that must not block: each call runs on a thread for that.
#[derive(Debug, Clone)]
pub struct AsyncStore {
    store: Arc<SessionStore>,
    calls: Arc<Semaphore>,
}

impl AsyncStore {
    /// Calls of `store`.
    pub fn new(store: SessionStore) -> Self {
        Self { store: Arc::new(store), calls: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    /// Makes one call, when fewer than 8 others run.
    ///
    /// # Errors
    /// The call's own, or that it panicked.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&SessionStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let panicked = |error: &dyn ToString| StoreError::Panicked(error.to_string());
        let permit = Arc::clone(&self.calls).acquire_owned().await.map_err(|error| panicked(&error))?;
        let store = Arc::clone(&self.store);
        let called = tokio::task::spawn_blocking(move || {
            let result = call(&store);
            drop(permit);
            result
        });
        called.await.map_err(|error| panicked(&error))?
    }
}
