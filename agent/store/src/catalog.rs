//! What is known of the sessions of the store: in memory, by name and by age.
//!
//! No I/O. The folders are the truth: what is known of a session is replaced when the session is read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use model::time::Timestamp;
use xprof::session::{Manifest, Session, SessionContext, SessionName};

use super::{SessionOwners, own_metrics};

/// A session that is kept, as the catalog knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its name.
    pub name: SessionName,
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
            folder: session.folder.clone(),
            owners,
            created: manifest.and_then(created),
            bytes: parts + manifest_bytes,
            parts: session.parts.len(),
            partial: !session.faults.is_empty()
                || manifest.is_none_or(|manifest| !manifest.missing.is_empty()),
            warnings: warnings(session),
            context: manifest.map(SessionContext::of).unwrap_or_default(),
        }
    }

    /// Its place in the order of age. A session of unknown age is older than all others.
    fn age_key(&self) -> (Option<Timestamp>, SessionName) {
        (self.created, self.name.clone())
    }
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
    let parts = manifest.hosts.iter().flat_map(|host| {
        let of_parts = host
            .parts
            .iter()
            .flat_map(|part| part.warnings.iter().map(|text| format!("{}: {text}", part.file)));
        host.warnings.iter().cloned().chain(of_parts)
    });
    faults.chain(manifest.warnings.iter().cloned()).chain(parts).collect()
}

/// The catalog.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    sessions: BTreeMap<SessionName, StoredSession>,
    by_age: BTreeSet<(Option<Timestamp>, SessionName)>,
    bytes: u64,
}

impl Catalog {
    /// Adds a session, or replaces what was known of it.
    pub(crate) fn insert(&mut self, session: StoredSession) {
        self.remove(&session.name);
        self.bytes += session.bytes;
        self.by_age.insert(session.age_key());
        self.sessions.insert(session.name.clone(), session);
        own_metrics::stored(self.sessions.len(), self.bytes);
    }

    /// Forgets a session.
    pub(crate) fn remove(&mut self, name: &SessionName) -> Option<StoredSession> {
        let session = self.sessions.remove(name)?;
        self.bytes -= session.bytes;
        self.by_age.remove(&session.age_key());
        own_metrics::stored(self.sessions.len(), self.bytes);
        Some(session)
    }

    /// Whether the session is known.
    pub(crate) fn contains(&self, name: &SessionName) -> bool {
        self.sessions.contains_key(name)
    }

    /// The names of all sessions.
    pub(crate) fn names(&self) -> impl Iterator<Item = &SessionName> {
        self.sessions.keys()
    }

    /// All sessions, oldest first; those of unknown age before the others.
    pub(crate) fn oldest_first(&self) -> impl Iterator<Item = &StoredSession> {
        self.by_age.iter().filter_map(|(_, name)| self.sessions.get(name))
    }

    /// Bytes of all sessions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn stored(name: &str, created: Option<i64>, bytes: u64) -> StoredSession {
        StoredSession {
            name: name.parse().unwrap(),
            folder: name.into(),
            owners: SessionOwners::default(),
            created: created.map(Timestamp),
            bytes,
            parts: 1,
            partial: false,
            warnings: Vec::new(),
            context: SessionContext::default(),
        }
    }

    #[test]
    fn sessions_are_in_order_of_age_and_counted_once() {
        let mut catalog = Catalog::default();
        for session in [stored("c", Some(1), 5), stored("a", Some(2), 6), stored("x", None, 7)] {
            catalog.insert(session);
        }
        let names = |catalog: &Catalog| -> Vec<String> {
            catalog.oldest_first().map(|session| session.name.to_string()).collect()
        };
        assert_eq!((names(&catalog), catalog.bytes()), (vec!["x".into(), "c".into(), "a".into()], 18));
        catalog.insert(stored("c", Some(3), 1));
        assert_eq!((names(&catalog), catalog.bytes()), (vec!["x".into(), "a".into(), "c".into()], 14));
        assert!(catalog.remove(&"x".parse().unwrap()).is_some());
        assert!(catalog.remove(&"x".parse().unwrap()).is_none());
        assert_eq!((names(&catalog), catalog.bytes()), (vec!["a".into(), "c".into()], 7));
    }
}
