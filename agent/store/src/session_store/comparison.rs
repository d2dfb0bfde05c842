//! Compares the folders with the catalog: folders that the catalog does not know are read, and sessions whose folder is
//! gone are forgotten. What lies in a folder that is known is not looked at.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{MutexGuard, PoisonError},
};

use tracing::warn;
use xprof::session::{MANIFEST_FILE, Session, SessionError, SessionName, sessions_folder};

use super::{OpenedSession, SessionStore, failed, is_folder};
use crate::{
    StoreError, StoredSession,
    catalog::{CatalogEntry, rows},
    state::StateError,
};

/// Sessions that are put into the database at once.
const BATCH: usize = 64;
/// A change is not seen if it follows another within the resolution of the file system's times.
const RESOLUTION_NS: i128 = 1_000_000_000;

/// What the last comparison has seen.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// When the folder of all sessions had last changed. `None`: compare again.
    changed: Option<Changed>,
    /// Sessions that cannot be read. The log has each once.
    left_out: BTreeSet<SessionName>,
}

/// When a folder was changed: its modification time, which a program can set, and the time of its inode.
type Changed = [i64; 4];

impl SessionStore {
    /// The comparison of the start.
    pub(super) fn compare_first(&self) -> Result<(), StoreError> {
        let found = self.folders()?;
        self.staging.forget_ownerless(&found)?;
        let known = self.db.read(rows::totals)?.unwrap_or_default().sessions;
        if known == 0 && !found.is_empty() && !self.db.was_damaged() {
            warn!(
                sessions = found.len(),
                "the state knows none of the sessions that are there: the catalog is made again from their folders, \
                 and pins are lost"
            );
        }
        self.begin_limits(!found.is_empty())?;
        self.compare()?;
        self.catalog_is_complete();
        Ok(())
    }

    /// Compares if a session came or went since the last comparison.
    pub(super) fn compare_if_changed(&self) -> Result<(), StoreError> {
        let seen = self.compared().changed;
        if seen.is_some() && seen == self.changed() { Ok(()) } else { self.compare() }
    }

    /// Compares the folders with the catalog.
    pub(super) fn compare(&self) -> Result<(), StoreError> {
        // One at a time.
        let mut compared = self.compared();
        let changed = self.changed();
        let found = self.folders()?;
        self.catalog.save_again();
        let known = match self.catalog.names() {
            // The next database knows none.
            Err(StateError::Damaged { .. }) => BTreeSet::new(),
            known => known?,
        };
        let gone = known.difference(&found).filter(|name| !is_folder(&self.folder(name)));
        let gone: Vec<SessionName> = gone.cloned().collect();
        if !gone.is_empty() {
            self.catalog.remove(&gone)?;
        }
        compared.left_out.retain(|name| found.contains(name));
        let unknown: Vec<&SessionName> = found.difference(&known).collect();
        for names in unknown.chunks(BATCH) {
            let read = names.iter().filter_map(|name| self.entry_of(name, &mut compared.left_out));
            let entries: Vec<CatalogEntry> = read.collect();
            match self.catalog.add_read(&entries) {
                Ok(()) => {}
                // A disk that is full is no reason to hide a session.
                Err(StateError::Full { .. }) => entries.into_iter().for_each(|entry| self.catalog.add(entry)),
                Err(error) => return Err(error.into()),
            }
        }
        compared.changed = changed.filter(|changed| self.is_settled(changed));
        Ok(())
    }

    /// What is to be put into the catalog of a folder; `None` if it is no session, or is being written.
    fn entry_of(&self, name: &SessionName, left_out: &mut BTreeSet<SessionName>) -> Option<CatalogEntry> {
        if self.staging.is_writing(name) {
            return None;
        }
        let finished = |opened| self.without_orphan(opened);
        match self.read(name).and_then(|opened| opened.map(finished).transpose()) {
            Ok(opened) => {
                left_out.remove(name);
                opened.map(|opened| opened.entry())
            }
            // It keeps no other from being shown, or from going when there is no room.
            Err(error) => {
                if left_out.insert(name.clone()) {
                    warn!(%error, "a session in the store is left out");
                }
                None
            }
        }
    }

    /// Reads a session from its folder.
    pub(super) fn read(&self, name: &SessionName) -> Result<Option<OpenedSession>, StoreError> {
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

    /// When a session last came or went.
    fn changed(&self) -> Option<Changed> {
        changed(&sessions_folder(&self.logdir))
    }

    /// Whether a later change gives the folder other times.
    fn is_settled(&self, [seconds, nanoseconds, ..]: &Changed) -> bool {
        let changed = i128::from(*seconds) * 1_000_000_000 + i128::from(*nanoseconds);
        (i128::from(self.clock.now().0) - changed) > RESOLUTION_NS
    }

    fn compared(&self) -> MutexGuard<'_, Compared> {
        // A comparison that panicked is made again.
        self.compared.lock().unwrap_or_else(|poisoned| {
            let mut compared = PoisonError::into_inner(poisoned);
            compared.changed = None;
            compared
        })
    }
}

fn changed(folder: &Path) -> Option<Changed> {
    let meta = fs::metadata(folder).ok()?;
    Some([meta.ctime(), meta.ctime_nsec(), meta.mtime(), meta.mtime_nsec()])
}
