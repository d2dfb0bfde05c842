//! What is known of one session of the store. No I/O.

use std::{collections::BTreeMap, path::PathBuf};

use model::time::Timestamp;
use xprof::session::{Manifest, Session, SessionContext, SessionId, SessionName};

use super::SessionOwners;

/// A session that is kept, as the catalog knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its name.
    pub name: SessionName,
    /// The id in its manifest.
    pub id: Option<SessionId>,
    /// Its folder.
    pub folder: PathBuf,
    /// Its owners; if empty, only administrators may use it.
    pub owners: SessionOwners,
    /// When it was finished, or when its window began; `None` if its manifest does not say.
    pub created: Option<Timestamp>,
    /// Bytes of its parts and its manifest.
    pub bytes: u64,
    /// The number of its parts.
    pub parts: usize,
    /// Whether something that was asked for is missing, or it was never finished.
    pub partial: bool,
    /// What a reader of it should know.
    pub warnings: Vec<String>,
    /// Whose it is and how it was recorded; empty without a manifest.
    pub context: SessionContext,
    /// Whether retention keeps it.
    pub pinned: bool,
    /// Whether it lies elsewhere too.
    pub upload: UploadState,
}

/// Whether a session lies elsewhere too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UploadState {
    /// It is not to be uploaded.
    #[default]
    Local,
    /// It waits for its upload.
    Pending,
    /// All of it was uploaded.
    Uploaded,
}

/// How precious a session is, when there is no room for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SessionPriority {
    /// One of many, made by the clock.
    Periodic,
    /// A user asked for it.
    #[default]
    Asked,
    /// Something happened, which will not happen again for a second capture.
    Triggered,
}

/// One part of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// Name of its file in the session's folder.
    pub file: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal; `None` without a manifest that has it.
    pub sha256: Option<String>,
}

impl StoredSession {
    /// What is to be known of `session`, whose manifest file has `manifest_bytes`.
    pub(crate) fn of(
        name: SessionName,
        session: &Session,
        manifest_bytes: u64,
        owners: SessionOwners,
    ) -> Self {
        let parts: u64 = session.parts.iter().map(|part| part.size).sum();
        let manifest = session.manifest.as_ref();
        Self {
            name,
            id: manifest.and_then(|manifest| manifest.id.clone()),
            folder: session.folder.clone(),
            // What else was noted when it began is for an agent that has to finish it.
            owners: SessionOwners::of(owners.uids),
            created: manifest.and_then(created),
            bytes: parts + manifest_bytes,
            parts: session.parts.len(),
            partial: !session.faults.is_empty()
                || manifest.is_none_or(|manifest| !manifest.missing.is_empty()),
            warnings: warnings(session),
            context: manifest.map(SessionContext::of).unwrap_or_default(),
            pinned: false,
            upload: UploadState::Local,
        }
    }
}

/// The parts of `session`, with the checksums of its manifest.
pub(crate) fn parts_of(session: &Session) -> Vec<StoredPart> {
    let entries = session.manifest.iter().flat_map(|manifest| &manifest.hosts).flat_map(|host| &host.parts);
    let sums: BTreeMap<&str, &str> =
        entries.map(|entry| (entry.file.as_str(), entry.sha256.as_str())).collect();
    let file = |path: &std::path::Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let part = |file: String, size| StoredPart {
        sha256: sums.get(file.as_str()).map(|&sum| sum.to_owned()),
        file,
        size,
    };
    session.parts.iter().map(|found| part(file(&found.path), found.size)).collect()
}

fn created(manifest: &Manifest) -> Option<Timestamp> {
    i64::try_from(manifest.created_at()?.as_nanosecond()).ok().map(Timestamp)
}

fn warnings(session: &Session) -> Vec<String> {
    let faults = session.faults.iter().map(ToString::to_string);
    let Some(manifest) = &session.manifest else {
        return std::iter::once("it was never finished: it has no manifest".to_owned())
            .chain(faults)
            .collect();
    };
    faults.chain(manifest.all_warnings()).collect()
}
