//! Which sessions have to go: a pure decision over what there is, the limits, and the time.
//!
//! ```text
//! for their age   those older than max_age that do not wait for an upload, oldest first
//! for room        uploaded ones, oldest first; then, only for max_size and when no uploaded one is left, the others:
//!                 the least precious first, then the oldest
//! ```
//!
//! Must never let a pinned session go, or one that was not uploaded for the free disk: others may be filling it.

pub(crate) mod clock_trust;

use std::{collections::BTreeSet, time::Duration};

use model::time::Timestamp;
use xprof::session::SessionName;

use super::UploadState;

/// A session that may go: it is not pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) name: SessionName,
    pub(crate) created: Option<Timestamp>,
    pub(crate) bytes: u64,
    pub(crate) upload: UploadState,
}

/// The limits in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// Bytes of all sessions.
    pub(crate) max_size: Option<u64>,
    /// Age of a session; `None` also while the clock is not trusted.
    pub(crate) max_age: Option<Duration>,
    /// Bytes that the disk lacks to be free enough.
    pub(crate) lacking: u64,
}

/// Why a session goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalReason {
    /// It is older than `store.max_age`.
    Age,
    /// The sessions are larger than `store.max_size`.
    Size,
    /// The disk has less free than `store.min_free`.
    Free,
}

impl RemovalReason {
    /// The setting that it is about.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Age => "store.max_age",
            Self::Size => "store.max_size",
            Self::Free => "store.min_free",
        }
    }
}

/// A session that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its name.
    pub name: SessionName,
    /// Its bytes.
    pub bytes: u64,
    /// Why it goes.
    pub reason: RemovalReason,
    /// Whether it lies elsewhere too.
    pub upload: UploadState,
}

/// Which sessions go. It is asked about the candidates of one order after the other, and each answer says whether to
/// ask about the next one of that order: it costs what it removes.
#[derive(Debug)]
pub(crate) struct Plan {
    limits: Limits,
    now: Timestamp,
    /// Bytes of the sessions that stay.
    left: u64,
    freed: u64,
    stay: BTreeSet<SessionName>,
    chosen: BTreeSet<SessionName>,
    /// What goes, in the order of its removal.
    pub(crate) removals: Vec<Removal>,
}

impl Plan {
    /// Nothing chosen of sessions with `bytes` together; `stay` are not removed.
    pub(crate) fn new(limits: Limits, now: Timestamp, bytes: u64, stay: BTreeSet<SessionName>) -> Self {
        let chosen = BTreeSet::new();
        Self { limits, now, left: bytes, freed: 0, stay, chosen, removals: Vec::new() }
    }

    /// The oldest sessions that do not wait for an upload, and whose age is known.
    pub(crate) fn oldest(&mut self, candidate: Candidate) -> bool {
        let (Some(max_age), Some(created)) = (self.limits.max_age, candidate.created) else { return false };
        let too_old = created.age(self.now) > max_age;
        if too_old {
            self.choose(candidate, RemovalReason::Age);
        }
        too_old
    }

    /// The sessions that were uploaded, oldest first.
    pub(crate) fn uploaded(&mut self, candidate: Candidate) -> bool {
        let reason = if self.is_over_size() {
            RemovalReason::Size
        } else if self.freed < self.limits.lacking {
            RemovalReason::Free
        } else {
            return false;
        };
        self.choose(candidate, reason);
        true
    }

    /// The sessions that were not uploaded, the least precious first. Asked after all that were uploaded.
    pub(crate) fn unsent(&mut self, candidate: Candidate) -> bool {
        if !self.is_over_size() {
            return false;
        }
        self.choose(candidate, RemovalReason::Size);
        true
    }

    fn is_over_size(&self) -> bool {
        self.limits.max_size.is_some_and(|max| self.left > max)
    }

    fn choose(&mut self, candidate: Candidate, reason: RemovalReason) {
        let Candidate { name, bytes, upload, .. } = candidate;
        if self.stay.contains(&name) || !self.chosen.insert(name.clone()) {
            return;
        }
        self.left = self.left.saturating_sub(bytes);
        self.freed = self.freed.saturating_add(bytes);
        self.removals.push(Removal { name, bytes, reason, upload });
    }
}

#[cfg(test)]
mod tests;
