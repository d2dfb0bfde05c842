//! The sessions of this host: a logdir that XProf opens as it is, with whose they are beside it.
//!
//! ```text
//! <state>/state.db                               see `state` and `catalog`
//!         sessions/plugins/profile/<session>/…   0640, as `xprof::session` writes them
//!                  owners/<session>.json         see `staging`
//!                  removed/<session>.<n>/        on its way out
//! ```
//!
//! [`Staging`] has what is being written, [`Catalog`] what is known, [`retention`] decides what goes. The folders are
//! compared with the catalog in the background; until then nothing is removed for the limits.
//! All calls block. Must never read a session that has nothing to do with the call.

mod comparison;
mod orphans;
mod retain;

use std::{
    fmt, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use model::time::{Clock, Timestamp};
use xprof::session::{
    FinishedSession, Session, SessionError, SessionName, remove_abandoned, sessions_folder,
};

use super::{
    SessionKey, SessionOwners, SessionPriority, StagedSession, StoreError, StoredSession, UploadState,
    catalog::{Catalog, CatalogEntry, rows},
    settings::Settings,
    staging::Staging,
    state::{StateDb, StateError},
    stored_session::{StoredPart, parts_of},
};
use comparison::Compared;
use retain::Retention;

/// The store; one agent at a time has it.
pub struct SessionStore {
    logdir: PathBuf,
    clock: Arc<dyn Clock>,
    db: Arc<StateDb>,
    limits: Mutex<Settings>,
    staging: Staging,
    catalog: Catalog,
    /// Held by the one who compares the folders with the catalog.
    compared: Mutex<Compared>,
    retention: Mutex<Retention>,
    /// Whether the clock of the host is synchronised.
    is_synchronised: fn() -> bool,
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("logdir", &self.logdir).finish_non_exhaustive()
    }
}

/// A session with its files.
#[derive(Debug, Clone)]
pub struct OpenedSession {
    /// As the catalog knows it.
    pub stored: StoredSession,
    /// Its files and its manifest.
    pub session: Session,
}

impl SessionStore {
    /// The store below the state directory. The caller holds the directory's lock, so whatever is half done in it is a
    /// dead agent's, and is removed. [`SessionStore::fill`] has to follow.
    ///
    /// # Errors
    /// If the disk refuses, or a newer program wrote the state.
    pub fn open(state: &Path, limits: Settings, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let logdir = state.join("sessions");
        create_folder(&logdir)?;
        remove_abandoned(&logdir, clock.now().into(), Duration::ZERO)?;
        let db = Arc::new(StateDb::new(state, Arc::clone(&clock)));
        db.open_existing()?;
        let catalog = Catalog::new(Arc::clone(&db), &sessions_folder(&logdir));
        let staging = Staging::new(&logdir);
        Ok(Self {
            logdir,
            clock,
            db,
            limits: Mutex::new(limits),
            staging,
            catalog,
            compared: Mutex::default(),
            retention: Mutex::default(),
            is_synchronised: tpu_sys::kernel_clock::is_synchronised,
        })
    }

    /// The database of the agent.
    pub fn state(&self) -> &Arc<StateDb> {
        &self.db
    }

    /// Clears away what a dead agent had removed by half, and compares the catalog with the disk.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn fill(&self) -> Result<(), StoreError> {
        remove_tree(&self.removed())?;
        match self.db.check() {
            // It was moved aside: the folders are read again.
            Ok(()) | Err(StateError::Damaged { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.compare_first()
    }

    /// Replaces the limits. They apply when the next session is finished.
    pub fn set_limits(&self, limits: Settings) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Begins a session.
    ///
    /// # Errors
    /// If the name is taken, the disk refuses, or less of it is free than the limits say.
    pub fn begin(&self, name: SessionName, owners: SessionOwners) -> Result<StagedSession, StoreError> {
        self.check_free()?;
        self.staging.begin(name, owners)
    }

    /// The session is whole, its manifest written: shows it, then removes what the limits say.
    pub fn finish(&self, staged: StagedSession, finished: &FinishedSession, now: Timestamp) -> StoredSession {
        self.finish_as(staged, finished, SessionPriority::Asked, now)
    }

    pub(crate) fn finish_as(
        &self,
        staged: StagedSession,
        finished: &FinishedSession,
        priority: SessionPriority,
        now: Timestamp,
    ) -> StoredSession {
        let name = staged.writer.name().clone();
        let owners = staged.owners.clone();
        let session = Session::finished(finished);
        let manifest_bytes = finished.bytes.saturating_sub(finished.manifest.parts_bytes());
        let stored = StoredSession::of(name.clone(), &session, manifest_bytes, owners);
        let parts = parts_of(&session);
        self.catalog.add(CatalogEntry { session: stored.clone(), parts, priority, found: false });
        // Not before: a comparison would take it for one that was found.
        drop(staged);
        self.finished(name, now);
        stored
    }

    /// The newest `limit` sessions for which `permitted` holds and that are not being written, oldest first.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn list(
        &self,
        limit: usize,
        permitted: impl Fn(&SessionKey) -> bool,
    ) -> Result<Vec<StoredSession>, StoreError> {
        self.compare_if_changed()?;
        match self.catalog.list(limit, &permitted) {
            Err(StateError::Damaged { .. }) => {
                self.compare()?;
                Ok(self.catalog.list(limit, &permitted)?)
            }
            listed => Ok(listed?),
        }
    }

    /// One session, read from the disk.
    ///
    /// # Errors
    /// If there is none, or the disk refuses.
    pub fn get(&self, name: &SessionName) -> Result<OpenedSession, StoreError> {
        if self.staging.is_writing(name) {
            return Err(StoreError::BeingWritten(name.clone()));
        }
        // What is on the disk can be read without the catalog.
        let known = self.catalog.get(name).ok().flatten();
        let Some(mut opened) = self.read(name)? else {
            if known.is_some() {
                self.catalog.remove(std::slice::from_ref(name))?;
            }
            return Err(StoreError::NotFound(name.clone()));
        };
        if let Some(known) = &known {
            let same = (&known.id, known.created) == (&opened.stored.id, opened.stored.created);
            if same {
                opened.stored.pinned = known.pinned;
                opened.stored.upload = known.upload;
            }
        }
        if known.as_ref() != Some(&opened.stored) {
            self.catalog.add(opened.entry());
        }
        Ok(opened)
    }

    /// The parts of a session as the catalog has them, by name.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn parts(&self, name: &SessionName) -> Result<Vec<StoredPart>, StoreError> {
        Ok(self.db.read(|connection| rows::parts(connection, name))?.unwrap_or_default())
    }

    /// Removes a session and says how many bytes that freed.
    ///
    /// # Errors
    /// If there is none, it is being written, or the disk refuses.
    pub fn remove(&self, name: &SessionName) -> Result<u64, StoreError> {
        let bytes = self.get(name)?.stored.bytes;
        self.remove_folder(name)?;
        Ok(bytes)
    }

    /// Whether retention keeps the session.
    ///
    /// # Errors
    /// If there is none, or the database refuses.
    pub fn set_pinned(&self, name: &SessionName, pinned: bool) -> Result<(), StoreError> {
        self.get(name)?;
        let set = self.db.write_durable(|transaction| rows::set_pinned(transaction, name, pinned))?;
        if set { Ok(()) } else { Err(StoreError::NotFound(name.clone())) }
    }

    /// Whether the session waits for an upload or was uploaded, since `at`.
    ///
    /// # Errors
    /// If there is none, or the database refuses.
    pub fn set_upload(
        &self,
        name: &SessionName,
        upload: UploadState,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let set = self.db.write_durable(|transaction| rows::set_upload(transaction, name, upload, at))?;
        if set { Ok(()) } else { Err(StoreError::NotFound(name.clone())) }
    }

    fn remove_folder(&self, name: &SessionName) -> Result<(), StoreError> {
        if self.staging.is_writing(name) {
            return Err(StoreError::BeingWritten(name.clone()));
        }
        // Removed by a rename first, so that it is never visible in part.
        create_folder(&self.removed())?;
        let away = self.removed().join(format!("{name}.{:08x}", fastrand::u32(..)));
        let folder = self.folder(name);
        match fs::rename(&folder, &away) {
            // Another process removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed.map_err(failed("remove", &folder))?,
        }
        remove_tree(&away)?;
        self.staging.forget_owners(name);
        // Last: on a full disk the database has the room that was just made.
        Ok(self.catalog.remove(std::slice::from_ref(name))?)
    }

    fn limits(&self) -> Settings {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn folder(&self, name: &SessionName) -> PathBuf {
        sessions_folder(&self.logdir).join(name.as_str())
    }

    fn removed(&self) -> PathBuf {
        self.logdir.join("removed")
    }
}

impl OpenedSession {
    fn entry(&self) -> CatalogEntry {
        let (session, parts) = (self.stored.clone(), parts_of(&self.session));
        CatalogEntry { session, parts, priority: SessionPriority::default(), found: true }
    }
}

/// Whether a folder is there itself, not behind a link.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

pub(crate) fn create_folder(path: &Path) -> Result<(), SessionError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(path).map_err(failed("create", path))
}

fn remove_tree(path: &Path) -> Result<(), SessionError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", path)),
    }
}

pub(crate) fn failed<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> SessionError + use<'a> {
    move |source| SessionError::Io { doing, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
