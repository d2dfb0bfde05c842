//! Ledgers in a real database.

use std::sync::Arc;

use model::{
    job::{JobKey, JobKind},
    time::{ManualClock, Timestamp},
};

use super::*;

const NOW: i64 = 1_800_000_000;

fn ledgers(folder: &tempfile::TempDir) -> Ledgers {
    let clock = Arc::new(ManualClock::at(Timestamp(0)));
    Ledgers::new(Arc::new(StateDb::new(folder.path(), clock)))
}

fn of(id: &str, uid: u32, first: i64, end: i64) -> KeptLedger {
    let key = JobKey { kind: JobKind::Slurm, id: id.into(), uid, ..JobKey::default() };
    KeptLedger { key, name: "train".into(), first, end, state: format!("{{\"uid\":{uid}}}") }
}

fn by_second(hour: u64, bytes: usize) -> KeptHour {
    KeptHour { hour, step: HourStep::Second, content: vec![1; bytes] }
}

/// The limits, with one byte as an hour by the minute.
fn prune(ledgers: &Ledgers) {
    ledgers.prune(Timestamp(NOW * 1_000_000_000), |_| Some(vec![60])).unwrap();
}

#[test]
fn a_ledger_is_that_of_its_job_and_user_and_the_newest_state_counts() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = ledgers(&folder);
    assert_eq!(ledgers.list().unwrap(), []);
    prune(&ledgers);
    assert!(!folder.path().join("state.db").exists(), "an agent with nothing to keep has no database");
    let (mine, theirs) = (of("7", 1000, NOW - 100, NOW), of("7", 1001, NOW - 100, NOW - 1));
    ledgers.keep(&[(mine.clone(), vec![by_second(0, 3)]), (theirs.clone(), vec![])]).unwrap();
    let newer = KeptLedger { end: NOW + 10, ..mine.clone() };
    ledgers.keep(&[(newer.clone(), vec![by_second(0, 5), by_second(1, 2)])]).unwrap();
    assert_eq!(ledgers.find(&mine.key).unwrap(), Some(newer));
    assert_eq!(ledgers.find(&theirs.key).unwrap(), Some(theirs.clone()));
    assert_eq!(ledgers.find(&JobKey { cluster: "b".into(), ..mine.key.clone() }).unwrap(), None);
    let ids: Vec<_> = ledgers.list().unwrap().into_iter().map(|ledger| ledger.key.uid).collect();
    assert_eq!(ids, [1000, 1001]);
    assert_eq!(ledgers.hours(&mine.key, 0, 9).unwrap(), [by_second(0, 5), by_second(1, 2)]);
    assert_eq!(ledgers.hours(&mine.key, 1, 1).unwrap(), [by_second(1, 2)]);
    assert_eq!(ledgers.hours(&theirs.key, 0, 9).unwrap(), []);
    ledgers.forget(&mine.key).unwrap();
    assert_eq!(ledgers.hours(&mine.key, 0, 9).unwrap(), []);
    assert_eq!(ledgers.list().unwrap(), [KeptLedger { state: String::new(), ..theirs }]);
}

#[test]
fn hours_get_shorter_and_go_with_age_and_so_do_ledgers() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = ledgers(&folder);
    let day = 24 * 3600;
    // 31 days until now, and one that ended 31 days ago.
    let long = of("long", 1, NOW - 31 * day, NOW);
    let hours = [0, 23, 24 * 28, 24 * 29 - 1, 24 * 29, 24 * 31 - 1];
    ledgers.keep(&[(long.clone(), hours.map(|hour| by_second(hour, 9)).to_vec())]).unwrap();
    ledgers.keep(&[(of("old", 1, NOW - 40 * day, NOW - 31 * day), vec![by_second(0, 9)])]).unwrap();
    prune(&ledgers);
    let kept: Vec<_> = ledgers
        .hours(&long.key, 0, u64::MAX)
        .unwrap()
        .into_iter()
        .map(|hour| (hour.hour, hour.step))
        .collect();
    let (minute, second) = (HourStep::Minute, HourStep::Second);
    assert_eq!(kept, [(24 * 28, minute), (24 * 29 - 1, minute), (24 * 29, second), (24 * 31 - 1, second)]);
    assert_eq!(ledgers.list().unwrap().len(), 1);
}

#[test]
fn the_oldest_of_the_user_with_most_go_beyond_the_number_and_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = ledgers(&folder);
    let many: Vec<_> =
        (0..5000).map(|n| (of(&n.to_string(), 1, NOW - 10_000 + n, NOW - 5000 + n), vec![])).collect();
    ledgers.keep(&many).unwrap();
    // Older than all of those.
    let quiet = of("quiet", 2, NOW - 3 * 24 * 3600, NOW - 24 * 3600);
    ledgers.keep(&[(quiet.clone(), vec![by_second(30, 8 << 20)])]).unwrap();
    prune(&ledgers);
    let left = ledgers.list().unwrap();
    assert_eq!((left.len(), left[0].key.id.as_str()), (4096, "4999"));
    assert_eq!((left[4094].key.id.as_str(), left[4095].key.id.as_str()), ("905", "quiet"));
    // Twelve hours of 8 MiB and that of the other user: eight have room.
    let long = of("long", 1, NOW - 12 * 3600, NOW);
    ledgers.keep(&[(long.clone(), (0..12).map(|hour| by_second(hour, 8 << 20)).collect())]).unwrap();
    prune(&ledgers);
    let kept: Vec<_> = ledgers.hours(&long.key, 0, 99).unwrap().into_iter().map(|hour| hour.hour).collect();
    assert_eq!(kept, (5..12).collect::<Vec<_>>());
    assert_eq!(ledgers.hours(&quiet.key, 0, 99).unwrap().len(), 1);
}
