//! What is known of an upload, for those who ask.

use std::time::Duration;

use model::time::Timestamp;

use crate::{SessionPriority, destinations::target::FailureClass};

/// How far an upload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadPhase {
    /// It has its turn later.
    Waiting,
    /// It is being sent.
    Running,
    /// Everything is there.
    Done {
        /// Since when.
        at: Timestamp,
        /// Files whose checksum the destination did not say.
        unverified: u32,
    },
    /// It does not go on by itself.
    Failed,
}

impl UploadPhase {
    /// Its name in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done { .. } => "done",
            Self::Failed => "failed",
        }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadFailure {
    /// Its kind.
    pub class: FailureClass,
    /// One line.
    pub message: String,
}

/// One session on its way to one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadStatus {
    /// Its random number in the state.
    pub number: i64,
    /// The session's name here.
    pub session: String,
    /// The destination's name.
    pub destination: String,
    /// The destination's URL for this session; empty if there is none.
    pub url: String,
    /// The id of the session's manifest.
    pub manifest_id: String,
    /// The session's name there, once it is claimed.
    pub name_there: Option<String>,
    /// What goes first.
    pub priority: SessionPriority,
    /// Since when it is known.
    pub queued: Timestamp,
    /// Of all files.
    pub bytes: u64,
    /// Those that are there.
    pub sent_bytes: u64,
    /// How far it is.
    pub phase: UploadPhase,
    /// The session was found without a state: it is only uploaded if it has a name there already.
    pub derived: bool,
    /// What of it is sent.
    pub share: UploadShare,
    /// Why the last attempt failed.
    pub failure: Option<UploadFailure>,
}

/// What of a session is sent, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UploadShare {
    /// All of it.
    #[default]
    Whole,
    /// Its parts alone, into the folder of all hosts of a session over several hosts; the manifest of all is put beside them.
    Parts,
    /// All of it, as one host's session with the name of the host: nobody puts a manifest of all hosts there.
    OfHost,
}

/// All uploads in short.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UploadsSummary {
    /// Destinations in the settings.
    pub destinations: usize,
    /// Uploads that wait or run.
    pub waiting: usize,
    /// Uploads that do not go on by themselves.
    pub failed: usize,
    /// Of those that wait or run.
    pub bytes: u64,
    /// Those of them that are there.
    pub sent_bytes: u64,
    /// Since the oldest of them was queued.
    pub oldest: Option<Duration>,
    /// The classes of their last failures, each once.
    pub failures: Vec<FailureClass>,
}
