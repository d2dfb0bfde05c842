//! The sessions that callers of foreign pid namespaces captured, for as long as the agent runs.
//!
//! A namespace's number may be given to another container after a restart, so it is not stored with the session: then
//! only the host's users have it. A grant keeps the namespace's file open, so that its number stays taken.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use model::time::Timestamp;
use xprof::session::SessionName;

use crate::access::Scope;

/// The oldest grants go first when there are more.
const MAX_GRANTS: usize = 256;

/// Which foreign caller captured which session.
#[derive(Debug, Default)]
pub(crate) struct SessionGrants(Mutex<VecDeque<Grant>>);

#[derive(Debug)]
struct Grant {
    scope: Scope,
    session: SessionName,
    /// Another session may get the name after this one is removed.
    created: Option<Timestamp>,
}

impl SessionGrants {
    /// Notes that a caller with this scope captured the session `name`, which was created at `created`.
    pub(crate) fn add(&self, scope: &Scope, name: &SessionName, created: Option<Timestamp>) {
        if !matches!(scope, Scope::UserInNamespace { .. }) {
            return;
        }
        // A list of values is whole even if a writer panicked.
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants.truncate(MAX_GRANTS - 1);
        grants.push_front(Grant { scope: scope.clone(), session: name.clone(), created });
    }

    /// Whether a caller with this scope captured this session.
    pub(crate) fn has(&self, scope: &Scope, name: &SessionName, created: Option<Timestamp>) -> bool {
        let grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |grant: &Grant| grant.scope == *scope && grant.session == *name && grant.created == created;
        grants.iter().any(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::foreign;

    #[test]
    fn a_container_has_the_sessions_that_it_captured() {
        let grants = SessionGrants::default();
        let name: SessionName = "mine".parse().unwrap();
        let of = |uid, inode| Scope::UserInNamespace { uid, pid_namespace: foreign(inode) };
        grants.add(&of(0, 7), &name, Some(Timestamp(1)));
        grants.add(&Scope::User(5), &name, Some(Timestamp(1)));
        assert!(grants.has(&of(0, 7), &name, Some(Timestamp(1))));
        assert!(!grants.has(&of(0, 8), &name, Some(Timestamp(1))), "another container");
        assert!(!grants.has(&of(5, 7), &name, Some(Timestamp(1))), "another user");
        assert!(!grants.has(&of(0, 7), &name, Some(Timestamp(2))), "a later session of this name");
        assert!(!grants.has(&Scope::User(5), &name, Some(Timestamp(1))), "decided by the owners");
        for number in 0..MAX_GRANTS {
            grants.add(&of(0, 7), &format!("s{number}").parse().unwrap(), Some(Timestamp(1)));
        }
        assert!(!grants.has(&of(0, 7), &name, Some(Timestamp(1))), "the oldest went");
    }
}
