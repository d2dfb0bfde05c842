//! Attempts are kept, found and bounded.

use model::{job::JobKind, time::ManualClock};

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
