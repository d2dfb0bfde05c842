//! Which sessions have to go: a pure function of what there is, the limits, and the time.

use model::time::Timestamp;
use xprof::session::SessionName;

use super::{StoredSession, settings::Settings};

/// The sessions to remove, oldest first. `sessions` are those that may go, in that order; `bytes` is what all take.
///
/// Stops at the first session that may stay, so that it costs what it removes.
pub(crate) fn to_remove<'a>(
    sessions: impl Iterator<Item = &'a StoredSession>,
    bytes: u64,
    limits: &Settings,
    now: Timestamp,
) -> Vec<SessionName> {
    let (max_size, max_age) = (limits.max_size.get(), limits.max_age.get());
    let mut left = bytes;
    let mut removed = Vec::new();
    for session in sessions {
        let too_much = max_size > 0 && left > max_size;
        let too_old = !max_age.is_zero() && session.created.is_some_and(|created| created.age(now) > max_age);
        if too_much || too_old {
            left = left.saturating_sub(session.bytes);
            removed.push(session.name.clone());
        } else if session.created.is_some() {
            // All that follow are younger.
            break;
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use model::unit::{Bytes, Duration};

    use super::*;
    use crate::catalog::tests::stored;

    const S: i64 = 1_000_000_000;

    fn removed(sessions: &[StoredSession], max_size: u64, max_age_secs: u64) -> Vec<String> {
        let limits = Settings { max_size: Bytes::new(max_size), max_age: Duration::from_secs(max_age_secs) };
        let bytes = sessions.iter().map(|session| session.bytes).sum();
        let names = to_remove(sessions.iter(), bytes, &limits, Timestamp(100 * S));
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_oldest_go_until_the_rest_fits() {
        let sessions = [stored("c", Some(1), 10), stored("a", Some(2), 10), stored("b", Some(3), 10)];
        assert_eq!(removed(&sessions, 0, 0), [""; 0]);
        assert_eq!(removed(&sessions, 30, 0), [""; 0]);
        assert_eq!(removed(&sessions, 29, 0), ["c"]);
        assert_eq!(removed(&sessions, 5, 0), ["c", "a", "b"]);
    }

    #[test]
    fn what_is_too_old_goes_and_an_unknown_age_is_not_old() {
        let sessions =
            [stored("x", None, 10), stored("old", Some(39 * S), 10), stored("new", Some(41 * S), 10)];
        assert_eq!(removed(&sessions, 0, 60), ["old"]);
        assert_eq!(removed(&sessions, 20, 0), ["x"]);
        assert_eq!(removed(&sessions, 10, 60), ["x", "old"]);
        // A clock that was set back makes nothing old.
        assert_eq!(removed(&[stored("future", Some(500 * S), 10)], 0, 60), [""; 0]);
    }

    #[test]
    fn only_what_goes_and_one_more_is_looked_at() {
        let sessions: Vec<_> = (0..10_000).map(|n| stored(&format!("s{n}"), Some(n), 10)).collect();
        let mut looked = 0;
        let limits = Settings { max_size: Bytes::new(99_980), ..Settings::default() };
        let counted = sessions.iter().inspect(|_| looked += 1);
        assert_eq!(to_remove(counted, 100_000, &limits, Timestamp(0)).len(), 2);
        assert_eq!(looked, 3);
    }
}
