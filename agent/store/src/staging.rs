//! The sessions that are being written, and whose they are.
//!
//! ```text
//! <state>/sessions/plugins/.tpuscope/…    parts that are being written, as `xprof::session` stages them
//!                  owners/<session>.json  whose a session is, written before its first part
//! ```
//!
//! Must never remove what a living writer has.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use xprof::session::{PartJob, SessionError, SessionName, SessionWriter, sessions_folder};

use super::{
    StoreError,
    destinations::{DestinationName, UploadUrl},
    session_store::{create_folder, failed},
    uploads::UploadChoice,
};

/// The longest file that says whose a session is.
const MAX_OWNERS: u64 = 64 << 10;

/// Whose a session is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionOwners {
    /// The users of the processes in it.
    pub uids: Vec<u32>,
    /// It is not uploaded unless someone asks for it: kept here, so that a lost state sends nothing against a user's word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays_here: bool,
    /// It is one host's share of a session over several hosts, whose parts alone are uploaded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parts_only: bool,
    /// The user of all processes in it; `None` if it is not known or there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The job of all processes in it; `None` if they have none or several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<PartJob>>,
    /// The destination that its capture named: kept here, so that an agent that ends before it notes the upload forgets
    /// nothing that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<ChosenDestination>,
}

/// A destination that a capture named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenDestination {
    /// The destination's name.
    pub name: String,
    /// The URL on which all hosts of a session agreed; `None` for a session of one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl SessionOwners {
    /// These users.
    pub fn of(uids: impl IntoIterator<Item = u32>) -> Self {
        Self { uids: uids.into_iter().collect(), ..Self::default() }
    }

    /// The same, of a session that goes where `choice` says.
    #[must_use]
    pub fn going_to(self, choice: &UploadChoice) -> Self {
        let chosen = |name: &DestinationName, url: Option<&UploadUrl>| ChosenDestination {
            name: name.to_string(),
            url: url.map(ToString::to_string),
        };
        let destination = match choice {
            UploadChoice::To(name) => Some(chosen(name, None)),
            UploadChoice::Parts(Some(agreed)) => Some(chosen(&agreed.name, Some(&agreed.url))),
            UploadChoice::Always | UploadChoice::Nowhere | UploadChoice::Parts(None) => None,
        };
        Self {
            stays_here: *choice == UploadChoice::Nowhere,
            parts_only: matches!(choice, UploadChoice::Parts(_)),
            destination,
            ..self
        }
    }
}

/// A session that is being written. Dropped without being finished, it leaves what its writer has published.
#[derive(Debug)]
pub struct StagedSession {
    /// Writes the files of the session.
    pub writer: Arc<SessionWriter>,
    /// Where it will lie.
    pub folder: PathBuf,
    /// Whose it is.
    pub owners: SessionOwners,
    _name: NameGuard,
}

/// The names that are being written below one logdir.
#[derive(Debug, Clone)]
pub(crate) struct Staging {
    logdir: PathBuf,
    names: Arc<Mutex<BTreeSet<SessionName>>>,
}

impl Staging {
    pub(crate) fn new(logdir: &Path) -> Self {
        Self { logdir: logdir.to_owned(), names: Arc::default() }
    }

    /// Begins the session `name`.
    ///
    /// # Errors
    /// If the name is taken, or the disk refuses.
    pub(crate) fn begin(
        &self,
        name: SessionName,
        owners: SessionOwners,
    ) -> Result<StagedSession, StoreError> {
        if !self.names().insert(name.clone()) {
            return Err(StoreError::BeingWritten(name));
        }
        let guard = NameGuard { name: name.clone(), staging: self.clone() };
        let writer = SessionWriter::create(&self.logdir, name.clone())?;
        self.write_owners(&name, &owners)?;
        Ok(StagedSession { folder: writer.folder(), writer: Arc::new(writer), owners, _name: guard })
    }

    /// Whether the session is being written.
    pub(crate) fn is_writing(&self, name: &SessionName) -> bool {
        self.names().contains(name)
    }

    /// The owners of the session: none if the file is missing or damaged. Then only administrators may use it.
    pub(crate) fn owners(&self, name: &SessionName) -> SessionOwners {
        let mut text = Vec::new();
        let read =
            File::open(self.owners_file(name)).and_then(|file| file.take(MAX_OWNERS).read_to_end(&mut text));
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Whether it was noted whose the session is: an agent began it.
    pub(crate) fn has_owners(&self, name: &SessionName) -> bool {
        self.owners_file(name).is_file()
    }

    /// Forgets whose the session is, unless its name is being written.
    pub(crate) fn forget_owners(&self, name: &SessionName) {
        let names = self.names();
        if !names.contains(name) {
            // Only untidy when it stays: the next start clears it away.
            let _ = fs::remove_file(self.owners_file(name));
        }
    }

    /// Removes the owner files of sessions that never came to be. `there` are the sessions that are.
    pub(crate) fn forget_ownerless(&self, there: &BTreeSet<SessionName>) -> Result<(), SessionError> {
        let folder = self.logdir.join("owners");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed("list", &folder))?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            let Some(name): Option<SessionName> = name else { continue };
            if !there.contains(&name) && !self.folder(&name).is_dir() {
                self.forget_owners(&name);
            }
        }
        Ok(())
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<SessionName>> {
        // A set of names is whole even if a holder panicked.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, name: &SessionName) -> PathBuf {
        sessions_folder(&self.logdir).join(name.as_str())
    }

    fn owners_file(&self, name: &SessionName) -> PathBuf {
        self.logdir.join("owners").join(format!("{name}.json"))
    }

    fn write_owners(&self, name: &SessionName, owners: &SessionOwners) -> Result<(), SessionError> {
        let path = self.owners_file(name);
        create_folder(&self.logdir.join("owners"))?;
        let text = |owners| serde_json::to_vec(owners).expect("numbers and texts only");
        let mut text_of = text(owners);
        if text_of.len() as u64 > MAX_OWNERS {
            // A process chooses the text of its job: it must not hide whose the session is.
            text_of = text(&SessionOwners { user: None, job: None, ..owners.clone() });
        }
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o640).open(&path);
        let written = file.and_then(|mut file| file.write_all(&text_of).and_then(|()| file.sync_all()));
        written.map_err(failed("write", &path))
    }
}

/// Ends the writing of a session; one that never came to be has no owners either.
#[derive(Debug)]
struct NameGuard {
    name: SessionName,
    staging: Staging,
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        let there = self.staging.folder(&self.name).is_dir();
        self.staging.names().remove(&self.name);
        if !there {
            self.staging.forget_owners(&self.name);
        }
    }
}
