//! The catalog in a database: order, counts, indexes, and a database that refuses.

use model::time::{ManualClock, Timestamp};
use tempfile::TempDir;
use xprof::session::SessionContext;

use super::*;
use crate::{
    SessionOwners, UploadState,
    catalog::rows::{RemovalOrder, candidates, totals},
};

fn entry(name: &str, created: Option<i64>, bytes: u64) -> CatalogEntry {
    let session = StoredSession {
        name: name.parse().unwrap(),
        id: None,
        folder: Path::new("/sessions").join(name),
        owners: SessionOwners::of([7]),
        created: created.map(Timestamp),
        bytes,
        parts: 2,
        partial: true,
        warnings: vec!["w".to_owned()],
        context: SessionContext { commands: vec!["python".to_owned()], ..SessionContext::default() },
        pinned: false,
        upload: UploadState::Local,
    };
    let part = |file: &str, sha256: Option<&str>| StoredPart {
        file: file.to_owned(),
        size: bytes,
        sha256: sha256.map(ToOwned::to_owned),
    };
    let parts = vec![part("a.xplane.pb", Some("ab")), part("b.xplane.pb", None)];
    CatalogEntry { session, parts, priority: SessionPriority::Asked, found: false }
}

fn catalog(folder: &TempDir) -> Catalog {
    let db = StateDb::new(folder.path(), Arc::new(ManualClock::default()));
    Catalog::new(Arc::new(db), Path::new("/sessions"))
}

fn names(sessions: &[StoredSession]) -> Vec<&str> {
    sessions.iter().map(|session| session.name.as_str()).collect()
}

fn bytes(catalog: &Catalog) -> (u64, u64) {
    let totals = catalog.totals().unwrap();
    (totals.sessions, totals.bytes)
}

#[test]
fn sessions_are_in_order_of_age_and_counted_once() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    assert_eq!((catalog.list(9, |_| true).unwrap(), bytes(&catalog)), (Vec::new(), (0, 0)));
    for (name, created, bytes) in [("c", Some(1), 5), ("a", Some(2), 6), ("x", None, 7)] {
        catalog.add(entry(name, created, bytes));
    }
    let all = || catalog.list(usize::MAX, |_| true).unwrap();
    assert_eq!((names(&all()), bytes(&catalog)), (vec!["x", "c", "a"], (3, 18)));
    catalog.add(entry("c", Some(3), 1));
    assert_eq!((names(&all()), bytes(&catalog)), (vec!["x", "a", "c"], (3, 14)));
    assert_eq!(names(&catalog.list(2, |_| true).unwrap()), ["a", "c"]);
    assert_eq!(names(&catalog.list(1, |key| key.created == Some(Timestamp(2))).unwrap()), ["a"]);
    catalog.remove(&["x".parse().unwrap(), "none".parse().unwrap()]).unwrap();
    assert_eq!((names(&all()), bytes(&catalog)), (vec!["a", "c"], (2, 7)));
    let parts: u64 = catalog
        .db
        .read(|connection| connection.query_row("SELECT count(*) FROM parts", [], |row| row.get(0)))
        .unwrap()
        .unwrap();
    assert_eq!(parts, 4, "the parts of a session go with it");
}

#[test]
fn all_of_a_session_is_read_back() {
    let folder = TempDir::new().unwrap();
    let (catalog, written) = (catalog(&folder), entry("a", Some(5), 6));
    catalog.add(written.clone());
    let name = &written.session.name;
    assert_eq!(catalog.get(name).unwrap().as_ref(), Some(&written.session));
    let parts = catalog.db.read(|connection| rows::parts(connection, name)).unwrap().unwrap();
    assert_eq!(parts, written.parts);
}

#[test]
fn a_pin_and_an_upload_are_those_of_one_session_not_of_its_name() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    let first = entry("a", Some(1), 5);
    let name = first.session.name.clone();
    catalog.add(first.clone());
    let mark = |transaction: &Transaction<'_>| {
        rows::set_pinned(transaction, &name, true)?;
        rows::set_upload(transaction, &name, UploadState::Uploaded, Timestamp(9))
    };
    assert!(catalog.db.write(mark).unwrap());
    let marks = || {
        let session = catalog.get(&name).unwrap().unwrap();
        (session.pinned, session.upload)
    };
    catalog.add(first);
    assert_eq!(marks(), (true, UploadState::Uploaded));
    catalog.add(entry("a", Some(2), 5));
    assert_eq!(marks(), (false, UploadState::Local));
}

#[test]
fn lists_and_candidates_come_from_indexes() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    catalog.add(entry("a", Some(1), 5));
    let plan = |sql: &str| -> String {
        let plan = |connection: &Connection| {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"))?;
            let lines = statement.query_map([], |row| row.get::<_, String>(3))?;
            lines.collect::<rusqlite::Result<Vec<_>>>()
        };
        catalog.db.read(plan).unwrap().unwrap().join("\n")
    };
    for (sql, index) in [
        ("SELECT summary FROM sessions ORDER BY created_ns DESC, name DESC", "sessions_by_age"),
        (
            "SELECT bytes FROM sessions WHERE pinned = 0 AND upload = 2 ORDER BY created_ns, name",
            "uploaded_sessions",
        ),
        (
            "SELECT bytes FROM sessions WHERE pinned = 0 AND upload <> 2 ORDER BY priority, created_ns, name",
            "unsent_sessions",
        ),
        (
            "SELECT bytes FROM sessions WHERE pinned = 0 AND upload <> 1 AND created_ns IS NOT NULL \
             ORDER BY created_ns, name",
            "sessions_by_age",
        ),
    ] {
        let plan = plan(sql);
        assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
}

#[test]
fn candidates_are_in_the_order_of_their_removal_and_no_more_are_read_than_needed() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    for n in 0..20 {
        catalog.add(entry(&format!("s{n:02}"), Some(n), 5));
    }
    let mut precious = entry("clock", Some(99), 5);
    precious.priority = SessionPriority::Periodic;
    catalog.add(precious);
    let mark = |transaction: &Transaction<'_>| {
        for n in [4, 5] {
            let name = format!("s{n:02}").parse().unwrap();
            rows::set_upload(transaction, &name, UploadState::Uploaded, Timestamp(0))?;
        }
        rows::set_pinned(transaction, &"s00".parse().unwrap(), true)?;
        rows::set_upload(transaction, &"s01".parse().unwrap(), UploadState::Pending, Timestamp(0))
    };
    catalog.db.write(mark).unwrap();
    let first = |order, count: usize| -> Vec<String> {
        let mut seen = Vec::new();
        let read = |connection: &Connection| {
            candidates(connection, order, |candidate| {
                seen.push(candidate.name.to_string());
                seen.len() < count
            })
        };
        catalog.db.read(read).unwrap();
        seen
    };
    assert_eq!(first(RemovalOrder::Uploaded, 9), ["s04", "s05"]);
    assert_eq!(first(RemovalOrder::Unsent, 3), ["clock", "s01", "s02"]);
    assert_eq!(first(RemovalOrder::Oldest, 3), ["s02", "s03", "s04"]);
}

#[test]
fn what_the_database_cannot_take_is_listed_and_tried_again() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    catalog.add(entry("a", Some(1), 5));
    let pages = |count: u32| {
        catalog.db.read(|connection| connection.pragma_update(None, "max_page_count", count)).unwrap();
    };
    pages(1);
    let mut large = entry("large", Some(2), 6);
    large.session.warnings = vec!["x".repeat(1 << 20)];
    catalog.add(large);
    let list = || catalog.list(usize::MAX, |key| key.owners.uids == [7]).unwrap();
    let in_database = || catalog.db.read(totals).unwrap().unwrap().sessions;
    assert_eq!((names(&list()), in_database()), (vec!["a", "large"], 1));
    assert_eq!(names(&catalog.list(1, |_| true).unwrap()), ["large"]);
    assert!(catalog.names().unwrap().contains(&"large".parse().unwrap()));
    pages(10_000);
    assert!(catalog.save_again());
    assert_eq!((names(&list()), in_database()), (vec!["a", "large"], 2));
}

#[test]
fn what_the_database_cannot_forget_is_not_listed_and_is_forgotten_later() {
    let folder = TempDir::new().unwrap();
    let catalog = catalog(&folder);
    for name in ["a", "b"] {
        catalog.add(entry(name, Some(1), 5));
    }
    let a = "a".parse().unwrap();
    let list = || catalog.list(usize::MAX, |_| true).unwrap();
    let in_database = || catalog.db.read(totals).unwrap().unwrap().sessions;
    catalog.unsaved().removed.insert("a".parse().unwrap());
    assert_eq!((names(&list()), catalog.get(&a).unwrap(), in_database()), (vec!["b"], None, 2));
    assert!(!catalog.names().unwrap().contains(&a));
    assert!(catalog.save_again());
    assert_eq!((names(&list()), in_database()), (vec!["b"], 1));
    // A new session of the name is not the one that was removed.
    catalog.unsaved().removed.insert("a".parse().unwrap());
    catalog.add(entry("a", Some(2), 5));
    assert_eq!(names(&list()), ["b", "a"]);
}
