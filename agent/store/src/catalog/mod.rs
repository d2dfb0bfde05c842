//! The catalog: what is known of all sessions, in the database of the agent.
//!
//! The folders are the truth: what is known of a session is replaced when its folder is read again. A session that the
//! database cannot take, because the disk is full, is remembered until it can.

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
use rows::Totals;

/// A session as it is put into the catalog.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) session: StoredSession,
    pub(crate) parts: Vec<StoredPart>,
    pub(crate) priority: SessionPriority,
}

impl Entry {
    fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        rows::insert(connection, &self.session, &self.parts, self.priority)
    }
}

/// The catalog.
#[derive(Debug)]
pub(crate) struct Catalog {
    db: Arc<StateDb>,
    /// The folder of all sessions.
    sessions: PathBuf,
    /// What the database could not take.
    unsaved: Mutex<BTreeMap<SessionName, Entry>>,
}

impl Catalog {
    pub(crate) fn new(db: Arc<StateDb>, sessions: &Path) -> Self {
        Self { db, sessions: sessions.to_owned(), unsaved: Mutex::default() }
    }

    /// Adds a session that was just stored. It is on the disk already, so that a database that refuses is no failure.
    pub(crate) fn add(&self, entry: Entry) {
        match self.db.write_durable(|transaction| entry.insert(transaction)) {
            Ok(()) => drop(self.unsaved().remove(&entry.session.name)),
            Err(error) => {
                warn!(session = %entry.session.name, %error, "the catalog could not take a session; it is tried again");
                self.unsaved().insert(entry.session.name.clone(), entry);
            }
        }
        self.measure();
    }

    /// Adds sessions that were read from their folders.
    pub(crate) fn add_read(&self, entries: &[Entry]) -> Result<(), StateError> {
        let all =
            |transaction: &Transaction<'_>| entries.iter().try_for_each(|entry| entry.insert(transaction));
        self.db.write(all)?;
        self.measure();
        Ok(())
    }

    /// Tries again what the database could not take.
    pub(crate) fn save_again(&self) {
        let entries: Vec<Entry> = self.unsaved().values().cloned().collect();
        if !entries.is_empty() && self.add_read(&entries).is_ok() {
            self.unsaved().retain(|name, _| !entries.iter().any(|entry| entry.session.name == *name));
        }
    }

    /// Forgets sessions.
    pub(crate) fn remove(&self, names: &[SessionName]) -> Result<(), StateError> {
        self.unsaved().retain(|name, _| !names.contains(name));
        // Without a database there is nothing to forget, and none is to be made.
        if self.db.read(|_| Ok(()))?.is_some() {
            let remove = |transaction: &Transaction<'_>| {
                names.iter().try_for_each(|name| rows::remove(transaction, name))
            };
            self.db.write(remove)?;
        }
        self.measure();
        Ok(())
    }

    /// What is known of a session.
    pub(crate) fn get(&self, name: &SessionName) -> Result<Option<StoredSession>, StateError> {
        let unsaved = self.unsaved().get(name).map(|entry| entry.session.clone());
        match unsaved {
            Some(session) => Ok(Some(session)),
            None => {
                let found = self.db.read(|connection| rows::get(connection, &self.sessions, name))?;
                Ok(found.flatten())
            }
        }
    }

    /// The newest `limit` sessions for which `permitted` holds, oldest first.
    pub(crate) fn list(
        &self,
        limit: usize,
        permitted: impl Fn(&SessionKey) -> bool,
    ) -> Result<Vec<StoredSession>, StateError> {
        let read = |connection: &Connection| rows::list(connection, &self.sessions, limit, &permitted);
        let mut listed = self.db.read(read)?.unwrap_or_default();
        let unsaved = self.unsaved();
        if !unsaved.is_empty() {
            let key = |session: &StoredSession| SessionKey {
                name: session.name.clone(),
                created: session.created,
                owners: session.owners.clone(),
            };
            listed.retain(|session| !unsaved.contains_key(&session.name));
            let others = unsaved.values().map(|entry| &entry.session);
            listed.extend(others.filter(|session| permitted(&key(session))).cloned());
            listed.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
            listed.drain(..listed.len().saturating_sub(limit));
        }
        Ok(listed)
    }

    /// The names of all sessions.
    pub(crate) fn names(&self) -> Result<BTreeSet<SessionName>, StateError> {
        let mut names: BTreeSet<_> = self.db.read(rows::names)?.unwrap_or_default().into_iter().collect();
        names.extend(self.unsaved().keys().cloned());
        Ok(names)
    }

    /// Count and bytes of the sessions in the database.
    pub(crate) fn totals(&self) -> Result<Totals, StateError> {
        Ok(self.db.read(rows::totals)?.unwrap_or_default())
    }

    /// Sets the agent's own metrics.
    fn measure(&self) {
        if let Ok(totals) = self.totals() {
            own_metrics::stored(totals);
        }
    }

    fn unsaved(&self) -> MutexGuard<'_, BTreeMap<SessionName, Entry>> {
        // Every change is one insertion or removal.
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
