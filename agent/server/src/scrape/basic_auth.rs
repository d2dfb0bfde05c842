//! Basic authentication with bcrypt hashes: at most two checks at a time, successes cached, failures limited by
//! address.
//!
//! A scraper sends the same password each time, so the costly check runs once. Must never run bcrypt on an async thread,
//! store a password, or reject an address because of the failures of another one.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::failure_limits::FailureLimits;

/// The maximum number of checks at a time.
const CHECKS: usize = 2;
/// The longest wait for the start of a check.
const QUEUE: Duration = Duration::from_secs(5);
/// The maximum number of cached successes.
const MAX_REMEMBERED: usize = 128;
/// The longest header that is decoded.
const MAX_HEADER: usize = 1024;

/// The result of the check of the credentials of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuthOutcome {
    /// They are those of a user in the file.
    Accepted,
    /// No credentials, or wrong ones.
    Refused,
    /// Too many failures of this address, or no free check in time: the credentials were not checked.
    Limited,
}

/// The users of one configuration, the cached successes and the counted failures.
pub(super) struct BasicAuth {
    users: BTreeMap<String, String>,
    /// The hash for the passwords of unknown users: the time of an answer must not show which users exist.
    decoy: String,
    checks: Semaphore,
    state: Mutex<PasswordChecks>,
    salt: [u8; 16],
}

#[derive(Default)]
struct PasswordChecks {
    accepted: HashSet<[u8; 32]>,
    failures: FailureLimits,
}

impl BasicAuth {
    /// `None` without users: then there is no authentication.
    pub(super) fn new(users: &BTreeMap<String, String>) -> Option<Self> {
        let decoy = users.values().next()?.clone();
        let mut salt = [0; 16];
        salt.fill_with(|| fastrand::u8(..));
        Some(Self {
            users: users.clone(),
            decoy,
            checks: Semaphore::new(CHECKS),
            state: Mutex::default(),
            salt,
        })
    }

    /// Checks the `Authorization` header of a request from `address`.
    pub(super) async fn check(&self, header: Option<&str>, address: IpAddr) -> AuthOutcome {
        let Some((user, password)) = header.and_then(credentials) else { return AuthOutcome::Refused };
        let key = self.key(&user, &password);
        let now = Instant::now();
        {
            let mut state = self.state();
            if state.accepted.contains(&key) {
                return AuthOutcome::Accepted;
            }
            if !state.failures.take(address, now) {
                return AuthOutcome::Limited;
            }
        }
        let Ok(Ok(_permit)) = timeout(QUEUE, self.checks.acquire()).await else {
            return AuthOutcome::Limited;
        };
        let known = self.users.get(&user);
        let hash = known.unwrap_or(&self.decoy).clone();
        let checked = tokio::task::spawn_blocking(move || bcrypt::verify(password, &hash));
        let right = matches!(checked.await, Ok(Ok(true))) && known.is_some();
        let mut state = self.state();
        if right {
            state.remember(key);
            state.failures.give_back(address);
            AuthOutcome::Accepted
        } else {
            AuthOutcome::Refused
        }
    }

    /// The key of a user and a password in the cache.
    fn key(&self, user: &str, password: &str) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.salt);
        hash.update((user.len() as u64).to_le_bytes());
        hash.update(user);
        hash.update(password);
        hash.finalize().into()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, PasswordChecks> {
        // Each change is one step, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PasswordChecks {
    fn remember(&mut self, key: [u8; 32]) {
        if self.accepted.len() >= MAX_REMEMBERED {
            self.accepted.clear();
        }
        self.accepted.insert(key);
    }
}

/// User and password of an `Authorization` header.
fn credentials(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || encoded.len() > MAX_HEADER {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure_limits::{FAILURES, REFILL};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn auth() -> BasicAuth {
        let hash = bcrypt::hash("right", 4).unwrap();
        BasicAuth::new(&BTreeMap::from([("prometheus".to_owned(), hash)])).unwrap()
    }

    fn header(user: &str, password: &str) -> String {
        format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_right_password_of_a_known_user_is_accepted() {
        let auth = auth();
        assert_eq!(auth.check(Some(&header("prometheus", "right")), HERE).await, AuthOutcome::Accepted);
        assert_eq!(auth.check(Some(&header("prometheus", "wrong")), HERE).await, AuthOutcome::Refused);
        // The hash for unknown users is a real one: its password must not authenticate an unknown user.
        assert_eq!(auth.check(Some(&header("unknown", "right")), HERE).await, AuthOutcome::Refused);
        for none in [None, Some("Bearer x"), Some("Basic !!!"), Some("Basic"), Some("")] {
            assert_eq!(auth.check(none, HERE).await, AuthOutcome::Refused, "{none:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_address_stop_that_address_alone() {
        let auth = auth();
        for _ in 0..FAILURES {
            assert_eq!(auth.check(Some(&header("prometheus", "wrong")), HERE).await, AuthOutcome::Refused);
        }
        assert_eq!(auth.check(Some(&header("prometheus", "right")), HERE).await, AuthOutcome::Limited);
        assert_eq!(auth.check(Some(&header("prometheus", "right")), THERE).await, AuthOutcome::Accepted);
        // Cached credentials need no check and use no failure.
        assert_eq!(auth.check(Some(&header("prometheus", "right")), HERE).await, AuthOutcome::Accepted);
        tokio::time::advance(REFILL).await;
        assert_eq!(auth.check(Some(&header("prometheus", "wrong")), HERE).await, AuthOutcome::Refused);
        assert_eq!(auth.check(Some(&header("prometheus", "wrong")), HERE).await, AuthOutcome::Limited);
    }

    #[test]
    fn memory_is_bounded() {
        let mut state = PasswordChecks::default();
        for n in 0..5000_u32 {
            state.remember([u8::try_from(n % 256).unwrap(); 32]);
        }
        assert!(state.accepted.len() <= MAX_REMEMBERED);
    }
}
