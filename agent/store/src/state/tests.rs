//! The database on a real folder: made late, read again, damaged in several ways.

use std::{fs, os::unix::fs::PermissionsExt};

use model::time::{ManualClock, Timestamp};
use tempfile::TempDir;

use super::{
    migrations::{meta, set_meta},
    *,
};

fn database(folder: &TempDir) -> StateDb {
    StateDb::new(folder.path(), Arc::new(ManualClock::at(Timestamp(0))))
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A database whose table `meta` has `rows` rows, without a write-ahead log.
fn filled(folder: &TempDir, rows: usize) -> PathBuf {
    let state = database(folder);
    let fill = |transaction: &Transaction<'_>| {
        (0..rows).try_for_each(|n| set_meta(transaction, &format!("key {n}"), "x".repeat(100)))
    };
    state.write_durable(fill).unwrap();
    drop(state);
    assert_eq!(names(folder), [FILE]);
    folder.path().join(FILE)
}

fn key(state: &StateDb, key: &str) -> Result<Option<Option<String>>, StateError> {
    state.read(|connection| meta(connection, key))
}

#[test]
fn it_is_made_by_the_first_write() {
    let folder = TempDir::new().unwrap();
    let state = database(&folder);
    state.open_existing().unwrap();
    state.check().unwrap();
    assert_eq!(key(&state, "a").unwrap(), None);
    assert_eq!(names(&folder), [""; 0]);
    state.write(|transaction| set_meta(transaction, "a", "b")).unwrap();
    assert_eq!(key(&state, "a").unwrap(), Some(Some("b".to_owned())));
    // No file is mapped into memory.
    assert_eq!(names(&folder), [FILE, "state.db-wal"]);
    for file in names(&folder) {
        let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
    }
    drop(state);
    assert_eq!(key(&database(&folder), "a").unwrap(), Some(Some("b".to_owned())));
}

#[test]
fn a_change_that_fails_or_panics_is_not_made() {
    let folder = TempDir::new().unwrap();
    let state = database(&folder);
    let failed = state.write(|transaction| {
        set_meta(transaction, "a", "b")?;
        transaction.execute("no such statement", [])
    });
    assert!(matches!(failed, Err(StateError::Sqlite { .. })), "{failed:?}");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        state.write(|transaction| -> rusqlite::Result<()> {
            set_meta(transaction, "a", "b")?;
            std::panic::resume_unwind(Box::new("x"))
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(key(&state, "a").unwrap(), Some(None));
    state.write_durable(|transaction| set_meta(transaction, "a", "c")).unwrap();
    assert_eq!(key(&state, "a").unwrap(), Some(Some("c".to_owned())));
}

#[test]
#[expect(clippy::mem_forget, reason = "after kill -9 nothing is closed")]
fn what_was_committed_is_there_after_a_kill() {
    let folder = TempDir::new().unwrap();
    let state = database(&folder);
    state.write_durable(|transaction| set_meta(transaction, "a", "b")).unwrap();
    let copy = TempDir::new().unwrap();
    for file in names(&folder) {
        fs::copy(folder.path().join(&file), copy.path().join(&file)).unwrap();
    }
    std::mem::forget(state);
    assert_eq!(key(&database(&copy), "a").unwrap(), Some(Some("b".to_owned())));
}

#[test]
fn a_damaged_database_is_moved_aside_and_a_new_one_begins() {
    let truncated = |bytes: Vec<u8>| bytes[..bytes.len() / 2 + 100].to_vec();
    let zeroed = |bytes: Vec<u8>| vec![0; bytes.len()];
    let zeroed_behind_the_first_page = |bytes: Vec<u8>| {
        let mut bytes = bytes;
        bytes[4096..].fill(0);
        bytes
    };
    let text = |_| b"this is no database, but it is longer than its header".to_vec();
    let damages: [&dyn Fn(Vec<u8>) -> Vec<u8>; 4] =
        [&truncated, &zeroed, &zeroed_behind_the_first_page, &text];
    for (n, damage) in damages.into_iter().enumerate() {
        let folder = TempDir::new().unwrap();
        let file = filled(&folder, 500);
        let damaged = damage(fs::read(&file).unwrap());
        fs::write(&file, &damaged).unwrap();
        let state = database(&folder);
        let found = state.open_existing().and_then(|()| state.check());
        // Some are found when they are opened, the others by the check.
        let moved = "state.db.damaged-19700101T000000Z".to_owned();
        match found {
            Ok(()) => {}
            Err(StateError::Damaged { moved, .. }) => assert!(moved.exists(), "{n}"),
            Err(error) => panic!("{n}: {error}"),
        }
        assert_eq!(fs::read(folder.path().join(moved)).unwrap(), damaged, "{n}");
        assert!(!file.exists(), "{n}");
        assert_eq!(key(&state, "key 1").unwrap(), None, "{n}");
        state.write(|transaction| set_meta(transaction, "key 1", "new")).unwrap();
        assert_eq!(key(&state, "key 1").unwrap(), Some(Some("new".to_owned())), "{n}");
    }
}

#[test]
fn an_empty_file_is_a_new_database() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join(FILE), "").unwrap();
    let state = database(&folder);
    state.open_existing().unwrap();
    assert_eq!(key(&state, "a").unwrap(), Some(None));
    assert_eq!(names(&folder), [FILE, "state.db-wal"]);
}

#[test]
fn a_newer_database_is_used_where_it_may_be_and_left_alone_where_not() {
    let folder = TempDir::new().unwrap();
    let file = filled(&folder, 1);
    let newer = |min_reader: u32| {
        let connection = Connection::open(&file).unwrap();
        connection.pragma_update(None, "user_version", 1000).unwrap();
        set_meta(&connection, "min_reader", min_reader).unwrap();
    };
    newer(migrations::known());
    let state = database(&folder);
    state.write(|transaction| set_meta(transaction, "a", "b")).unwrap();
    drop(state);
    newer(migrations::known() + 1);
    let before = fs::read(&file).unwrap();
    let state = database(&folder);
    let error = state.open_existing().unwrap_err();
    assert!(
        matches!(error, StateError::Newer { min_reader, known, .. } if min_reader == known + 1),
        "{error}"
    );
    assert!(matches!(state.write(|_| Ok(())), Err(StateError::Newer { .. })));
    drop(state);
    assert_eq!((fs::read(&file).unwrap(), names(&folder)), (before, vec![FILE.to_owned()]));
}

#[test]
fn a_full_disk_is_not_damage() {
    let folder = TempDir::new().unwrap();
    filled(&folder, 1);
    let state = database(&folder);
    // SQLite reports the limit as it does a full disk.
    state.read(|connection| connection.pragma_update(None, "max_page_count", 1)).unwrap();
    let full = state.write(|transaction| {
        (0..500).try_for_each(|n| set_meta(transaction, &format!("new {n}"), "x".repeat(100)))
    });
    assert!(matches!(full, Err(StateError::Full { .. })), "{full:?}");
    assert!(key(&state, "key 0").unwrap().is_some_and(|value| value.is_some()));
    assert!(names(&folder).iter().all(|name| !name.contains("damaged")));
}

#[test]
fn another_program_that_has_the_file_is_named_as_such() {
    let folder = TempDir::new().unwrap();
    let file = filled(&folder, 1);
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let state = database(&folder);
    let opened = state.open_existing();
    assert!(matches!(opened, Err(StateError::InUse { .. })), "{opened:?}");
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    state.open_existing().unwrap();
}

#[test]
fn a_link_and_a_folder_are_refused_and_stay() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("precious");
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, folder.path().join(FILE)).unwrap();
    let refused = database(&folder).write(|_| Ok(()));
    assert!(
        refused.unwrap_err().to_string().ends_with("has to be a file and is a link, which is not followed")
    );
    assert_eq!(fs::read(&target).unwrap(), b"");
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join(FILE)).unwrap();
    let refused = database(&folder).open_existing();
    assert!(refused.unwrap_err().to_string().ends_with("has to be a file and is a directory"));
}

#[test]
fn sqlite_is_built_without_the_parts_that_nothing_uses() {
    let connection = Connection::open_in_memory().unwrap();
    let mut options = connection.prepare("PRAGMA compile_options").unwrap();
    let options = options.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let options: Vec<_> = options.map(Result::unwrap).collect();
    // From .cargo/config.toml, which cargo reads when it is run in the workspace.
    assert!(options.iter().any(|option| option == "OMIT_LOAD_EXTENSION"), "{options:?}");
    assert!(!options.iter().any(|option| option.contains("FTS") || option.contains("RTREE")), "{options:?}");
}
