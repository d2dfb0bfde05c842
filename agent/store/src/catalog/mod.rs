//! The catalog: what is known of all sessions, in the database of the agent.
//!
//! The folders are the truth: what is known of a session is replaced when its folder is read again. A session that the
//! database cannot take or forget, because the disk is full, is remembered until it can.

pub(crate) mod rows;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, Transaction};
use tracing::warn;
use xprof::session::SessionName;

use crate::{
    StoredSession, own_metrics,
    state::{StateDb, StateError},
    stored_session::{SessionPriority, StoredPart},
};
pub use rows::SessionKey;
use rows::StoreTotals;

/// A session as it is put into the catalog.
#[derive(Debug, Clone)]
pub(crate) struct CatalogEntry {
    pub(crate) session: StoredSession,
    pub(crate) parts: Vec<StoredPart>,
    pub(crate) priority: SessionPriority,
    /// Whether it was found in its folder, and nobody said where it goes.
    pub(crate) found: bool,
}

impl CatalogEntry {
    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        rows::insert(connection, &self.session, &self.parts, self.priority, self.found)
    }
}

/// The catalog.
#[derive(Debug)]
pub(crate) struct Catalog {
    db: Arc<StateDb>,
    /// The folder of all sessions.
    sessions: PathBuf,
    unsaved: Mutex<Unsaved>,
}

/// What the database could not be told.
#[derive(Debug, Default)]
struct Unsaved {
    added: BTreeMap<SessionName, CatalogEntry>,
    removed: BTreeSet<SessionName>,
}

impl Catalog {
    pub(crate) fn new(db: Arc<StateDb>, sessions: &Path) -> Self {
        Self { db, sessions: sessions.to_owned(), unsaved: Mutex::default() }
    }

    /// Adds a session that was just stored. It is on the disk already, so that a database that refuses is no failure.
    pub(crate) fn add(&self, entry: CatalogEntry) {
        let name = entry.session.name.clone();
        let saved = self.db.write_durable(|transaction| entry.insert(transaction));
        let mut unsaved = self.unsaved();
        unsaved.removed.remove(&name);
        match saved {
            Ok(()) => drop(unsaved.added.remove(&name)),
            Err(error) => {
                warn!(session = %name, %error, "the catalog could not take a session; it is tried again");
                unsaved.added.insert(name, entry);
            }
        }
        drop(unsaved);
        self.measure();
    }

    /// Adds sessions that were read from their folders.
    pub(crate) fn add_read(&self, entries: &[CatalogEntry]) -> Result<(), StateError> {
        let all =
            |transaction: &Transaction<'_>| entries.iter().try_for_each(|entry| entry.insert(transaction));
        self.db.write(all)?;
        let mut unsaved = self.unsaved();
        for entry in entries {
            unsaved.removed.remove(&entry.session.name);
        }
        drop(unsaved);
        self.measure();
        Ok(())
    }

    /// Tries again what the database could not be told. Returns whether it knows all now.
    pub(crate) fn save_again(&self) -> bool {
        let (added, removed) = {
            let unsaved = self.unsaved();
            (unsaved.added.clone(), unsaved.removed.clone())
        };
        if added.is_empty() && removed.is_empty() {
            return true;
        }
        let all = |transaction: &Transaction<'_>| {
            removed.iter().try_for_each(|name| rows::remove(transaction, name))?;
            added.values().try_for_each(|entry| entry.insert(transaction))
        };
        if self.db.write(all).is_err() {
            return false;
        }
        let mut unsaved = self.unsaved();
        unsaved.added.retain(|name, _| !added.contains_key(name));
        unsaved.removed.retain(|name| !removed.contains(name));
        let is_saved = unsaved.added.is_empty() && unsaved.removed.is_empty();
        drop(unsaved);
        self.measure();
        is_saved
    }

    /// Forgets sessions whose folder is gone.
    pub(crate) fn remove(&self, names: &[SessionName]) -> Result<(), StateError> {
        self.unsaved().added.retain(|name, _| !names.contains(name));
        // Without a database there is nothing to forget, and none is to be made.
        if self.db.read(|_| Ok(()))?.is_some() {
            let remove = |transaction: &Transaction<'_>| {
                names.iter().try_for_each(|name| rows::remove(transaction, name))
            };
            match self.db.write(remove) {
                // A full disk has to give room even if the database cannot be told.
                Err(StateError::Full { .. }) => self.unsaved().removed.extend(names.iter().cloned()),
                removed => removed?,
            }
        }
        self.measure();
        Ok(())
    }

    /// What is known of a session.
    pub(crate) fn get(&self, name: &SessionName) -> Result<Option<StoredSession>, StateError> {
        {
            let unsaved = self.unsaved();
            if unsaved.removed.contains(name) {
                return Ok(None);
            }
            if let Some(entry) = unsaved.added.get(name) {
                return Ok(Some(entry.session.clone()));
            }
        }
        let found = self.db.read(|connection| rows::get(connection, &self.sessions, name))?;
        Ok(found.flatten())
    }

    /// The newest `limit` sessions for which `permitted` holds, oldest first.
    pub(crate) fn list(
        &self,
        limit: usize,
        permitted: impl Fn(&SessionKey) -> bool,
    ) -> Result<Vec<StoredSession>, StateError> {
        let unsaved = self.unsaved();
        let saved = |key: &SessionKey| {
            !unsaved.removed.contains(&key.name) && !unsaved.added.contains_key(&key.name) && permitted(key)
        };
        let read = |connection: &Connection| rows::list(connection, &self.sessions, limit, saved);
        let mut listed = self.db.read(read)?.unwrap_or_default();
        if !unsaved.added.is_empty() {
            let key = |session: &StoredSession| SessionKey {
                name: session.name.clone(),
                created: session.created,
                owners: session.owners.clone(),
            };
            let others = unsaved.added.values().map(|entry| &entry.session);
            listed.extend(others.filter(|session| permitted(&key(session))).cloned());
            listed.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
            listed.drain(..listed.len().saturating_sub(limit));
        }
        Ok(listed)
    }

    /// The names of all sessions.
    pub(crate) fn names(&self) -> Result<BTreeSet<SessionName>, StateError> {
        let mut names: BTreeSet<_> = self.db.read(rows::names)?.unwrap_or_default().into_iter().collect();
        let unsaved = self.unsaved();
        names.retain(|name| !unsaved.removed.contains(name));
        names.extend(unsaved.added.keys().cloned());
        Ok(names)
    }

    /// Count and bytes of the sessions in the database.
    pub(crate) fn totals(&self) -> Result<StoreTotals, StateError> {
        Ok(self.db.read(rows::totals)?.unwrap_or_default())
    }

    /// Sets the agent's own metrics.
    fn measure(&self) {
        if let Ok(totals) = self.totals() {
            own_metrics::stored(totals);
        }
    }

    fn unsaved(&self) -> MutexGuard<'_, Unsaved> {
        // Every change is one insertion or removal.
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
