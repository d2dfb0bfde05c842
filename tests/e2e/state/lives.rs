//! One state directory and several agents: older ones, killed ones, newer ones, and a database that was damaged.

use std::{fs, os::unix::fs::FileExt};

use rusqlite::Connection;
use serde_json::Value;

use super::*;

#[test]
fn what_an_older_version_left_is_there_and_not_removed() {
    let mut host = StatefulHost::new();
    host.start("");
    for session in ["one", "two"] {
        host.capture(session);
    }
    let before = host.listed();
    host.stop();
    // What 0.1 left: folders and owners, manifests without an id, no database.
    fs::remove_file(host.database()).unwrap();
    for session in ["one", "two"] {
        let path = host.folder(session).join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(manifest["id"].as_str().unwrap().len(), 32);
        manifest.as_object_mut().unwrap().remove("id").unwrap();
        fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
        let owners = fs::read_to_string(host.state.join(format!("sessions/owners/{session}.json"))).unwrap();
        assert!(owners.starts_with(r#"{"uids":["#), "{owners}");
    }
    host.start("");
    until("the sessions", || host.sessions() == ["one", "two"]);
    let after = host.listed();
    for (before, after) in before.iter().zip(&after) {
        for key in ["session", "created", "parts", "complete", "context", "pinned", "upload"] {
            assert_eq!(before[key], after[key], "{key}");
        }
    }
    assert!(host.log().contains("this version bounds the sessions (store.max_size)"), "{}", host.log());
    // The warning is for the first start.
    host.stop();
    let log = host.log();
    host.start("");
    assert_eq!(host.sessions(), ["one", "two"]);
    assert!(!host.log()[log.len()..].contains("this version bounds"), "{}", host.log());
}

#[test]
fn a_host_without_sessions_has_no_database() {
    let mut host = StatefulHost::new();
    host.start("");
    host.done(&["sessions", "list"]);
    host.done(&["sessions", "prune"]);
    host.ask(&["sessions", "show", "none"]).failed(5, "no session none");
    host.ask(&["sessions", "pin", "none"]).failed(5, "no session none");
    assert!(!host.database().exists());
    host.capture("one");
    assert!(host.database().exists());
}

#[test]
fn what_was_reported_is_there_after_a_kill() {
    let mut host = StatefulHost::new();
    for life in 0..3 {
        host.start("");
        assert_eq!(host.sessions().len(), life);
        host.capture(&format!("s{life}"));
        host.done(&["sessions", "pin", &format!("s{life}")]);
        host.kill();
    }
    host.start("");
    let listed = host.listed();
    assert_eq!(host.sessions(), ["s0", "s1", "s2"]);
    assert!(listed.iter().all(|session| session["pinned"] == true && session["complete"] == true));
    assert_eq!(host.moved(), [""; 0].map(PathBuf::from), "a kill is no damage: {}", host.log());
}

#[test]
fn a_damaged_database_is_moved_aside_with_one_warning_and_made_again() {
    let truncate = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2 + 7).unwrap();
    };
    let zero = |path: &Path| {
        let length = fs::metadata(path).unwrap().len();
        fs::write(path, vec![0; usize::try_from(length).unwrap()]).unwrap();
    };
    // All but the first page, which says what the file is.
    let scribble = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
        file.write_all_at(&vec![0xa5; length - 4096], 4096).unwrap();
    };
    let damages: [&dyn Fn(&Path); 3] = [&truncate, &zero, &scribble];
    for (n, damage) in damages.into_iter().enumerate() {
        let mut host = StatefulHost::new();
        host.start("");
        for session in ["one", "two"] {
            host.capture(session);
        }
        host.stop();
        damage(&host.database());
        let damaged = fs::read(host.database()).unwrap();
        host.start("");
        until("the sessions", || host.sessions() == ["one", "two"]);
        let moved = host.moved();
        assert_eq!(moved.len(), 1, "{n}: {}", host.log());
        assert_eq!(fs::read(&moved[0]).unwrap(), damaged, "{n}");
        assert_eq!(host.log().matches("the state is damaged").count(), 1, "{n}: {}", host.log());
        // It is whole again.
        host.capture("three");
        host.stop();
        host.start("");
        assert_eq!(host.sessions(), ["one", "two", "three"]);
        assert_eq!(host.moved().len(), 1, "{n}");
    }
}

#[test]
fn a_database_of_a_newer_version_is_used_or_left_as_it_is() {
    let mut host = StatefulHost::new();
    host.start("");
    host.capture("one");
    host.stop();
    let newer = |min_reader: u32| {
        let connection = Connection::open(host.database()).unwrap();
        connection.pragma_update(None, "user_version", 1000).unwrap();
        connection.execute("UPDATE meta SET value = ?1 WHERE key = 'min_reader'", [min_reader]).unwrap();
    };
    newer(1);
    let path = host.database();
    host.start("");
    host.capture("two");
    assert_eq!(host.sessions(), ["one", "two"]);
    host.stop();
    let connection = Connection::open(&path).unwrap();
    connection.execute("UPDATE meta SET value = 1000 WHERE key = 'min_reader'", []).unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();
    assert_eq!(host.start_in_vain(""), 8, "{}", host.log());
    let log = host.log();
    assert!(log.contains("was written by a newer tpuscope"), "{log}");
    assert!(log.contains("install the newer version again, or set agent.state_dir"), "{log}");
    assert_eq!((fs::read(&path).unwrap(), host.moved().len()), (before, 0));
}

#[test]
fn a_second_agent_does_not_touch_the_state_of_the_first() {
    let mut host = StatefulHost::new();
    host.start("");
    host.capture("one");
    let first = host.agent.take();
    assert_eq!(host.start_in_vain(""), 7, "{}", host.log());
    assert!(host.log().contains("already uses the state directory"), "{}", host.log());
    host.agent = first;
    assert_eq!(host.sessions(), ["one"]);
    // Nor does another program that opens its database.
    let other = Connection::open(host.database()).unwrap();
    assert!(other.execute("DELETE FROM sessions", []).is_err());
    drop(other);
    host.capture("two");
    host.stop();
    let other = Connection::open(host.database()).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(host.start_in_vain(""), 7, "{}", host.log());
    assert!(host.log().contains("another program uses"), "{}", host.log());
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    host.start("");
    assert_eq!(host.sessions(), ["one", "two"]);
}
