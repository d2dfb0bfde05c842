//! Attempts are kept, found and bounded.

use std::collections::BTreeMap;

use model::{job::JobKind, time::ManualClock};
use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Folder {
    _state: tempfile::TempDir,
    clock: Arc<ManualClock>,
    attempts: JobAttempts,
    start: Instant,
}

impl Folder {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(NOW));
        let db = Arc::new(StateDb::new(state.path(), clock.clone()));
        let mut attempts = JobAttempts::new(db, clock.clone());
        attempts.is_synchronised = || true;
        Self { _state: state, clock, attempts, start: Instant::now() }
    }

    fn put(&self, stored: StoredAttempt) {
        self.attempts.change(&stored.key.clone(), |all| all.push(stored)).unwrap();
    }

    fn ids(&self, query: AttemptQuery<'_>) -> Vec<String> {
        let listed = self.attempts.list(query, 100).unwrap();
        listed.into_iter().map(|stored| format!("{}#{}", stored.key.id, stored.attempt)).collect()
    }

    fn set(&self, wall: Timestamp) {
        self.clock.step(wall.0 - self.clock.now().0);
    }

    /// Prunes `passed` after the start, by both clocks.
    fn prune(&self, passed: Duration, max_age: Duration, max_attempts: usize) -> usize {
        self.set(NOW.plus(passed));
        let limits = AttemptLimits { max_age: Some(max_age), max_attempts };
        self.attempts.prune(limits, self.start + passed).unwrap()
    }
}

fn attempt(id: &str, attempt: u32, last: Timestamp) -> StoredAttempt {
    StoredAttempt {
        key: JobKey { kind: JobKind::Slurm, uid: 1000, id: id.into(), ..JobKey::default() },
        attempt,
        is_open: false,
        start: Some(last),
        last_event: last,
        name: None,
        other_id: None,
        facts: "{}".into(),
    }
}

#[test]
fn a_change_leaves_what_it_was_given() {
    let folder = Folder::new();
    assert!(folder.ids(AttemptQuery::All).is_empty());
    folder.put(attempt("7", 0, NOW));
    folder.put(attempt("7", 1, NOW.plus(DAY)));
    let key = attempt("7", 0, NOW).key;
    let moved = JobKey { cluster: "a".into(), ..key.clone() };
    folder
        .attempts
        .change(&key, |all| {
            for one in all.iter_mut() {
                one.key.clone_from(&moved);
                one.is_open = one.attempt == 1;
            }
        })
        .unwrap();
    let all = folder.attempts.of_job(&key).unwrap();
    assert!(all.iter().all(|one| one.key == moved));
    assert_eq!(folder.ids(AttemptQuery::All), ["7#1", "7#0"]);
    assert_eq!(folder.ids(AttemptQuery::Open), ["7#1"]);
    folder.attempts.change(&key, |all| all.retain(|one| one.is_open)).unwrap();
    assert_eq!(folder.ids(AttemptQuery::All), ["7#1"]);
}

#[test]
fn a_job_is_found_by_each_of_its_names() {
    let folder = Folder::new();
    folder.put(StoredAttempt {
        name: Some("train".into()),
        other_id: Some("6_1".into()),
        ..attempt("7", 0, NOW)
    });
    folder.put(StoredAttempt { name: Some("7".into()), ..attempt("8", 0, NOW) });
    for (name, wanted) in [("train", &["7#0"][..]), ("6_1", &["7#0"]), ("7", &["8#0", "7#0"]), ("x", &[])] {
        assert_eq!(folder.ids(AttemptQuery::Named(name)), wanted, "{name}");
    }
}

#[test]
fn age_and_number_bound_what_has_ended_and_never_what_runs() {
    let folder = Folder::new();
    folder.put(StoredAttempt { is_open: true, ..attempt("400 days", 0, NOW) });
    for number in 0..5 {
        let last = NOW.plus(DAY * number);
        folder.put(attempt("7", number, last));
    }
    assert_eq!(folder.prune(DAY * 5, DAY * 90, 100), 0);
    assert_eq!(folder.prune(DAY * 5, DAY * 90, 4), 2);
    assert_eq!(folder.ids(AttemptQuery::All), ["7#4", "7#3", "7#2", "400 days#0"]);
    assert_eq!(folder.prune(DAY * 400, DAY * 90, 100), 3);
    assert_eq!(folder.ids(AttemptQuery::All), ["400 days#0"]);
}

#[test]
fn one_users_jobs_do_not_push_out_those_of_others() {
    let folder = Folder::new();
    for number in 0..3 {
        let stored = attempt("7", number, NOW);
        folder.put(StoredAttempt { key: JobKey { uid: 5, ..stored.key.clone() }, ..stored });
    }
    for number in 0..20 {
        folder.put(attempt("8", number, NOW.plus(DAY)));
    }
    folder.put(StoredAttempt { is_open: true, ..attempt("9", 0, NOW) });
    assert_eq!(folder.attempts.prune_number(8).unwrap(), 16);
    let kept = folder.ids(AttemptQuery::All);
    assert_eq!(kept, ["8#19", "8#18", "8#17", "8#16", "9#0", "7#2", "7#1", "7#0"]);
    assert_eq!((folder.attempts.open_of(1000).unwrap(), folder.attempts.open_of(5).unwrap()), (1, 0));
}

/// How many attempts each user has.
fn by_user(all: &[StoredAttempt]) -> BTreeMap<u32, usize> {
    let mut users = BTreeMap::new();
    for stored in all {
        *users.entry(stored.key.uid).or_default() += 1;
    }
    users
}

/// Whether nobody who lost an attempt has fewer left than another one, but for attempts that run.
fn is_fair(before: &BTreeMap<u32, usize>, kept: &[StoredAttempt], open: &BTreeMap<u32, usize>) -> bool {
    let after = by_user(kept);
    let has = |of: &BTreeMap<u32, usize>, uid: &u32| of.get(uid).copied().unwrap_or(0);
    let losers = before.iter().filter(|(uid, count)| has(&after, uid) < **count);
    losers
        .map(|(uid, _)| has(&after, uid))
        .all(|left| after.iter().all(|(other, count)| *count <= left + 1 || *count <= has(open, other)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Whoever registers most loses first, by the limit of the host and by that of an answer.
    #[test]
    fn a_limit_is_shared_among_the_users(
        told in prop::collection::vec((0_u32..4, 0_u64..50, prop::bool::weighted(0.1)), 1..40),
        flood in 0_u32..60,
        limit in 1_usize..30,
    ) {
        let folder = Folder::new();
        let of = |uid, at: u64, number, is_open| {
            let stored = attempt("7", number, NOW.plus(Duration::from_secs(at)));
            StoredAttempt { key: JobKey { uid, ..stored.key.clone() }, is_open, ..stored }
        };
        for (number, (uid, at, is_open)) in (0..).zip(&told) {
            folder.put(of(*uid, *at, number, *is_open));
        }
        for number in 0..flood {
            // All of them later than those of others.
            folder.put(of(9, 100, number, false));
        }
        let all = folder.attempts.list(AttemptQuery::All, usize::MAX).unwrap();
        let (before, open) = (by_user(&all), by_user(&folder.attempts.list(AttemptQuery::Open, usize::MAX).unwrap()));
        let listed = folder.attempts.list(AttemptQuery::All, limit).unwrap();
        prop_assert_eq!(listed.len(), limit.min(all.len()));
        prop_assert!(is_fair(&before, &listed, &BTreeMap::new()), "{listed:?}");
        folder.attempts.prune_number(limit).unwrap();
        let kept = folder.attempts.list(AttemptQuery::All, usize::MAX).unwrap();
        prop_assert!(kept.len() <= limit + open.values().sum::<usize>());
        prop_assert!(is_fair(&before, &kept, &open), "{kept:?}");
        prop_assert_eq!(by_user(&folder.attempts.list(AttemptQuery::Open, usize::MAX).unwrap()), open);
    }
}

#[test]
fn a_clock_that_steps_makes_nothing_old() {
    let folder = Folder::new();
    folder.put(attempt("7", 0, NOW));
    let limits = AttemptLimits { max_age: Some(DAY), max_attempts: 100 };
    for wall in [NOW, NOW.plus(DAY * 400), NOW] {
        folder.set(wall);
        assert_eq!(folder.attempts.prune(limits, folder.start).unwrap(), 0);
    }
    assert_eq!(folder.prune(DAY * 3, DAY, 100), 1, "three days later, by both clocks");
}
