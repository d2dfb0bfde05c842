//! Who may do what: tokens with a life, and permissions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// The account of the machine.
pub(super) const ACCOUNT: &str = "tpu-host@project.iam.gserviceaccount.com";

/// What is allowed at the moment.
pub(super) struct GcsAccess {
    /// Whether a call without a token is refused.
    pub(super) tokens_required: bool,
    /// The life of the next token.
    pub(super) life: Duration,
    /// Permissions that the account lacks.
    pub(super) denied: BTreeSet<String>,
    tokens: BTreeMap<String, Instant>,
    given_out: u32,
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No token, an unknown one, or one whose life is over.
    Unauthenticated,
    /// The account lacks this permission.
    Forbidden(String),
}

impl Default for GcsAccess {
    fn default() -> Self {
        Self {
            tokens_required: false,
            life: Duration::from_secs(3599),
            denied: BTreeSet::new(),
            tokens: BTreeMap::new(),
            given_out: 0,
        }
    }
}

impl GcsAccess {
    /// The token of this moment, and how long it lasts. As on a real machine it stays the same while it lasts.
    pub(super) fn token(&mut self, now: Instant) -> (String, Duration) {
        self.tokens.retain(|_, end| *end > now);
        if let Some((token, end)) = self.tokens.iter().max_by_key(|(_, end)| **end) {
            return (token.clone(), end.saturating_duration_since(now));
        }
        self.given_out += 1;
        let token = format!("token-{}", self.given_out);
        self.tokens.insert(token.clone(), now + self.life);
        (token, self.life)
    }

    /// Refuses all tokens given out so far.
    pub(super) fn expire(&mut self) {
        self.tokens.clear();
    }

    /// Checks the `Authorization` header of a call.
    pub(super) fn authenticate(&self, header: Option<&str>, now: Instant) -> Result<(), Refusal> {
        // Clients without a token send an empty one, or no header.
        let token = header.unwrap_or_default().trim_start_matches("Bearer").trim();
        let good = match token {
            "" => !self.tokens_required,
            token => self.tokens.get(token).is_some_and(|end| *end > now),
        };
        if good { Ok(()) } else { Err(Refusal::Unauthenticated) }
    }

    /// Checks a permission.
    pub(super) fn authorize(&self, permission: &str) -> Result<(), Refusal> {
        if self.denied.contains(permission) { Err(Refusal::Forbidden(permission.to_owned())) } else { Ok(()) }
    }
}
