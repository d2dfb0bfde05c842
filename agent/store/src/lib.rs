//! What lasts: the sessions of this host, behind a trait, so that a database may stand there one day.
//!
//! Must never show a session that is not whole or still being written, remove one that is, or take a path
//! from a caller.

#![forbid(unsafe_code)]

mod files;
pub mod lock;
pub mod own_metrics;
pub mod settings;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xprof::session::{Session, SessionError, SessionName, SessionWriter};

pub use files::Files;

use model::time::Timestamp;

/// Whose a session is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Owners {
    /// The users of the processes in it.
    pub uids: Vec<u32>,
}

/// A session that is kept.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its name.
    pub name: SessionName,
    /// Its files, and what is wrong with them.
    pub session: Session,
    /// Whose it is; nobody's but the administrators' when empty.
    pub owners: Owners,
    /// When it was finished.
    pub created: Timestamp,
    /// Bytes of all its files.
    pub bytes: u64,
}

impl Stored {
    /// Some of what was asked for is missing, or it was never finished.
    pub fn is_partial(&self) -> bool {
        !self.session.faults.is_empty()
            || self.session.manifest.as_ref().is_none_or(|manifest| !manifest.missing.is_empty())
    }

    /// Everything that a reader should be warned of.
    pub fn warnings(&self) -> Vec<String> {
        let faults = self.session.faults.iter().map(ToString::to_string);
        let Some(manifest) = &self.session.manifest else {
            return std::iter::once("it was never finished: it has no manifest".to_owned())
                .chain(faults)
                .collect();
        };
        let parts = manifest.hosts.iter().flat_map(|host| {
            let of_parts = host
                .parts
                .iter()
                .flat_map(|part| part.warnings.iter().map(|text| format!("{}: {text}", part.file)));
            host.warnings.iter().cloned().chain(of_parts)
        });
        faults.chain(manifest.warnings.iter().cloned()).chain(parts).collect()
    }
}

/// Why the store cannot do it.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A session of this name is being written.
    #[error("a session named {0} is being written")]
    Running(SessionName),
    /// No such session.
    #[error("there is no session {0}")]
    NotFound(SessionName),
    /// The call ended unexpectedly.
    #[error("the store failed: {0}")]
    Crashed(String),
    /// The files refuse.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Keeps sessions. All calls block.
pub trait Store: Send + Sync {
    /// A new session of this name. It is seen once its first part is whole; until the guard is dropped it
    /// cannot be removed.
    ///
    /// # Errors
    /// If the name is taken, or the disk refuses.
    fn begin(&self, name: SessionName, owners: &Owners) -> Result<StagedSession, StoreError>;

    /// The session is whole, its manifest written: shows it, then removes what the limits say.
    ///
    /// # Errors
    /// If the disk refuses; the session stays all the same.
    fn finish(&self, staged: StagedSession, now: Timestamp) -> Result<(), StoreError>;

    /// The sessions that are not being written, oldest first.
    ///
    /// # Errors
    /// If the disk refuses.
    fn list(&self) -> Result<Vec<Stored>, StoreError>;

    /// One session.
    ///
    /// # Errors
    /// If there is none, or the disk refuses.
    fn get(&self, name: &SessionName) -> Result<Stored, StoreError>;

    /// Removes a session and says how many bytes that freed.
    ///
    /// # Errors
    /// If there is none, it is being written, or the disk refuses.
    fn remove(&self, name: &SessionName) -> Result<u64, StoreError>;
}

/// A session that is being written.
pub struct StagedSession {
    /// Writes it.
    pub writer: SessionWriter,
    /// Where it will lie.
    pub folder: PathBuf,
    /// Ends the store's care for it when dropped.
    _guard: Box<dyn Send + Sync>,
}

/// Makes a blocking call of a store where it may block.
///
/// # Errors
/// The call's own, or that it panicked.
pub async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => Err(StoreError::Crashed(error.to_string())),
    }
}
