//! The sessions of this host: a logdir that XProf opens as it is, with whose they are beside it.
//!
//! ```text
//! <state>/sessions/plugins/profile/<session>/…    0640, as `xprof::session` writes them
//!                  owners/<session>.json          see `staging`
//!                  removed/<session>.<n>/         on its way out
//! ```
//!
//! [`Staging`] has what is being written, [`Catalog`] what is known, [`retention`] decides what goes.
//! The catalog is filled from the disk in the background; until then nothing is removed for the limits.
//! All calls block. Must never read a session that has nothing to do with the call.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::time::Timestamp;
use nix::sys::statvfs::statvfs;
use tracing::{info, warn};
use xprof::session::{
    FinishedSession, MANIFEST_FILE, Session, SessionError, SessionName, remove_abandoned, sessions_folder,
};

use super::{
    SessionOwners, StagedSession, StoreError, StoredSession, catalog::Catalog, retention, settings::Settings,
    staging::Staging,
};

/// The store; one agent at a time has it.
#[derive(Debug)]
pub struct SessionStore {
    logdir: PathBuf,
    limits: Mutex<Settings>,
    staging: Staging,
    state: Mutex<State>,
    /// Held by the one who compares the folders with the catalog.
    comparing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    catalog: Catalog,
    /// Whether the catalog knows all that is on the disk.
    complete: bool,
    /// The last session that was finished before the catalog was complete, and when.
    retention_due: Option<(SessionName, Timestamp)>,
    /// Sessions that cannot be read. The log has each once.
    left_out: BTreeSet<SessionName>,
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
    /// dead agent's, and is removed; `now` is the time of the start. [`SessionStore::fill`] has to follow.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn open(state: &Path, limits: Settings, now: Timestamp) -> Result<Self, StoreError> {
        let logdir = state.join("sessions");
        create_folder(&logdir)?;
        remove_abandoned(&logdir, now.into(), Duration::ZERO)?;
        let staging = Staging::new(&logdir);
        let limits = Mutex::new(limits);
        Ok(Self { logdir, limits, staging, state: Mutex::default(), comparing: Mutex::default() })
    }

    /// Clears away what a dead agent had removed by half, and fills the catalog from the disk.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn fill(&self) -> Result<(), StoreError> {
        self.staging.forget_ownerless()?;
        remove_tree(&self.removed())?;
        self.compare()
    }

    /// Replaces the limits. They apply when the next session is finished.
    pub fn set_limits(&self, limits: Settings) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Measures the free disk, for the agent's own metrics.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn measure_free(&self) -> Result<(), StoreError> {
        let disk = statvfs(&self.logdir)
            .map_err(|error| failed("read the free disk of", &self.logdir)(error.into()))?;
        super::own_metrics::free(disk.blocks_available().saturating_mul(disk.fragment_size()));
        Ok(())
    }

    /// Begins a session.
    ///
    /// # Errors
    /// If the name is taken, or the disk refuses.
    pub fn begin(&self, name: SessionName, owners: SessionOwners) -> Result<StagedSession, StoreError> {
        self.staging.begin(name, owners)
    }

    /// The session is whole, its manifest written: shows it, then removes what the limits say.
    pub fn finish(&self, staged: StagedSession, finished: &FinishedSession, now: Timestamp) -> StoredSession {
        let name = staged.writer.name().clone();
        let owners = staged.owners.clone();
        // Unlocked before it is visible: a visible session may be removed.
        drop(staged);
        let session = Session::finished(finished);
        let manifest_bytes = finished.bytes.saturating_sub(finished.manifest.parts_bytes());
        let stored = StoredSession::of(name.clone(), &session, manifest_bytes, owners);
        let mut state = self.state();
        state.catalog.insert(stored.clone());
        if state.complete {
            drop(state);
            self.retain(&name, now);
        } else {
            state.retention_due = Some((name, now));
        }
        stored
    }

    /// The sessions that are not being written, oldest first.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn list(&self) -> Result<Vec<StoredSession>, StoreError> {
        self.compare()?;
        Ok(self.state().catalog.oldest_first().cloned().collect())
    }

    /// One session, read from the disk.
    ///
    /// # Errors
    /// If there is none, or the disk refuses.
    pub fn get(&self, name: &SessionName) -> Result<OpenedSession, StoreError> {
        if self.staging.is_writing(name) {
            return Err(StoreError::BeingWritten(name.clone()));
        }
        let opened = self.read(name)?;
        match &opened {
            Some(opened) => self.state().catalog.insert(opened.stored.clone()),
            None => drop(self.state().catalog.remove(name)),
        }
        opened.ok_or_else(|| StoreError::NotFound(name.clone()))
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
        self.state().catalog.remove(name);
        remove_tree(&away)?;
        self.staging.forget_owners(name);
        Ok(())
    }

    /// Removes the oldest sessions that the limits have no room for, but not `keep`.
    fn retain(&self, keep: &SessionName, now: Timestamp) {
        let mut stay = BTreeSet::from([keep.clone()]);
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        loop {
            let names = {
                let state = self.state();
                let may_go = state.catalog.oldest_first().filter(|session| !stay.contains(&session.name));
                retention::to_remove(may_go, state.catalog.bytes(), &limits, now)
            };
            if names.is_empty() {
                return;
            }
            for name in names {
                // One that cannot be removed keeps no other from going.
                match self.remove_folder(&name) {
                    Ok(_) => info!(session = %name, "old session removed: the store is over its limits"),
                    Err(error) => {
                        warn!(session = %name, %error, "cannot remove an old session");
                        stay.insert(name);
                    }
                }
            }
        }
    }

    /// Reads the folders that the catalog does not know, and forgets the sessions whose folder is gone.
    fn compare(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.folders()?;
        let unknown: Vec<SessionName> = {
            let mut state = self.state();
            let gone = state.catalog.names().filter(|name| !found.contains(*name)).cloned();
            for name in gone.collect::<Vec<_>>() {
                // It may have been finished after the folders were listed.
                if !is_folder(&self.folder(&name)) {
                    state.catalog.remove(&name);
                }
            }
            state.left_out.retain(|name| found.contains(name));
            found.into_iter().filter(|name| !state.catalog.contains(name)).collect()
        };
        for name in unknown {
            if self.staging.is_writing(&name) {
                continue;
            }
            match self.read(&name) {
                Ok(Some(opened)) => {
                    let mut state = self.state();
                    state.left_out.remove(&name);
                    state.catalog.insert(opened.stored);
                }
                Ok(None) => {}
                // It keeps no other from being shown, or from going when there is no room.
                Err(error) => {
                    if self.state().left_out.insert(name) {
                        warn!(%error, "a session in the store is left out");
                    }
                }
            }
        }
        let due = {
            let mut state = self.state();
            state.complete = true;
            state.retention_due.take()
        };
        if let Some((keep, now)) = due {
            self.retain(&keep, now);
        }
        Ok(())
    }

    /// The names of the folders among the sessions. What has no valid name is not a session of this store.
    fn folders(&self) -> Result<BTreeSet<SessionName>, SessionError> {
        let folder = sessions_folder(&self.logdir);
        match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(failed("list", &folder)(error)),
            Ok(entries) => {
                let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
                Ok(names.collect())
            }
        }
    }

    fn read(&self, name: &SessionName) -> Result<Option<OpenedSession>, StoreError> {
        let folder = self.folder(name);
        // A link is not a session of this store: what it leads to is not ours to give away or to remove.
        if !is_folder(&folder) {
            return Ok(None);
        }
        let Some(session) = Session::open(&folder)? else { return Ok(None) };
        let manifest_bytes = fs::metadata(folder.join(MANIFEST_FILE)).map_or(0, |meta| meta.len());
        let stored = StoredSession::of(name.clone(), &session, manifest_bytes, self.staging.owners(name));
        Ok(Some(OpenedSession { stored, session }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insertion or removal: the catalog is whole even if a holder panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, name: &SessionName) -> PathBuf {
        sessions_folder(&self.logdir).join(name.as_str())
    }

    fn removed(&self) -> PathBuf {
        self.logdir.join("removed")
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
#[path = "session_store_tests.rs"]
mod tests;
