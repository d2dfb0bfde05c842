//! Session folders: where the parts of a session lie, what they are called, and the manifest beside them.
//!
//! ```text
//! <logdir>/plugins/profile/<session>/<host>.xplane.pb     one part: the trace of one process
//!                                    manifest.json        written last, by tpuscope only
//! <logdir>/plugins/.tpuscope/…                            parts that are still being written
//! ```
//!
//! XProf shows every folder below `plugins/profile` as a session, empty or hidden ones too. So nothing
//! unfinished may ever lie there: a part is written elsewhere on the same file system and moved in whole.
//! Reading is liberal (anyone's folder, with a manifest or without), writing is strict.
//! Must never choose a root folder itself or follow a name that came from outside.

mod context;
mod id;
mod manifest;
mod name;
mod read;
mod reserve;
mod staging;
mod write;

#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

pub use context::{PartLosses, SessionContext, SessionUser};
pub use id::{BadSessionId, SessionId};
pub use manifest::{
    AtStep, ClockOffset, GapEntry, HostEntry, LossEntry, MANIFEST_VERSION, Manifest, Missing, PartEntry,
    PartJob, PartSteps, Tool, TracerLevels, Window,
};
pub use name::{HostName, NameError, PartName, SessionName};
pub use read::{Fault, FaultKind, PartFile, Session, claim_path, parse_manifest, resolve};
pub use staging::remove_abandoned;
pub use write::{FinishedSession, PartFacts, PartWriter, SessionWriter};

/// The ending of a part's file name: XProf opens what ends so, and nothing else.
pub const PART_SUFFIX: &str = ".xplane.pb";

/// The manifest's file name.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The folder of all sessions of a logdir.
pub fn sessions_folder(logdir: &Path) -> PathBuf {
    logdir.join("plugins").join("profile")
}

/// What can go wrong with a session folder.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Nothing is there.
    #[error("{} does not exist", .0.display())]
    NotFound(PathBuf),
    /// A pipe, a device, a socket.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// The folder is there, but holds no trace.
    #[error("{} holds no session: no *.xplane.pb in it, nor below plugins/profile", .0.display())]
    NoSessions(PathBuf),
    /// The session, or the part, already exists.
    #[error("{} already exists", .0.display())]
    Exists(PathBuf),
    /// What is written there would go somewhere else.
    #[error("{} is a link: what is written there would go somewhere else", .0.display())]
    Link(PathBuf),
    /// Parts are moved in whole, which no two file systems allow.
    #[error("{} lies on another file system than the folder that it is in", .0.display())]
    Elsewhere(PathBuf),
    /// Another writer has the name.
    #[error("session {0} is being written")]
    Running(SessionName),
    /// A session without a part is no session.
    #[error("session {0} has no part: nothing is written")]
    NoParts(SessionName),
    /// An I/O error.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SessionError {
    /// The operating system's reason, where it was one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

/// Turns an I/O error into a [`SessionError`] that says what was being done to which path.
fn failed<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SessionError + use<'a> {
    move |source| SessionError::Io { doing, path: path.to_owned(), source }
}
