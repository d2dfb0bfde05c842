//! The store on a real folder: sessions begin, finish, age and go; what a dead agent left; what is opened when.

use std::{collections::BTreeMap, io::Write, os::unix::fs::symlink, process::Command};

use model::{
    time::{Clock, SystemClock},
    unit,
};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tempfile::TempDir;
use xprof::session::{HostEntry, MANIFEST_VERSION, Manifest, Missing, PartEntry, PartFacts, PartName, Tool};

use super::*;

fn name(text: &str) -> SessionName {
    text.parse().unwrap()
}

fn opened(state: &TempDir, limits: Settings) -> SessionStore {
    let store = SessionStore::open(state.path(), limits, SystemClock.now()).unwrap();
    store.fill().unwrap();
    store
}

/// A session with one part, and its entry for the manifest.
type Written = (StagedSession, PartEntry);

fn write(store: &SessionStore, session: &str, bytes: usize) -> Written {
    let staged = store.begin(name(session), SessionOwners { uids: vec![7] }).unwrap();
    let part_name: PartName = "h".parse().unwrap();
    let mut part = staged.writer.part(&part_name).unwrap();
    part.write_all(&vec![1; bytes]).unwrap();
    let entry = part.commit(PartFacts::default()).unwrap();
    (staged, entry)
}

fn manifest(session: &str, created: i128, parts: Vec<PartEntry>) -> Manifest {
    let at = |ns| jiff::Timestamp::from_nanosecond(ns).unwrap();
    Manifest {
        id: None,
        version: MANIFEST_VERSION,
        session: session.to_owned(),
        tool: Tool::this(),
        created: Some(at(created)),
        window: None,
        tracer_levels: None,
        options: BTreeMap::new(),
        hosts: vec![HostEntry {
            host: "h".to_owned(),
            clock: None,
            parts,
            warnings: vec!["of the host".to_owned()],
        }],
        missing: Vec::new(),
        warnings: Vec::new(),
    }
}

/// Finishes a session that was created at `created`, in seconds since the epoch.
fn finish(store: &SessionStore, (staged, entry): Written, created: i64) -> StoredSession {
    let ns = i128::from(created) * 1_000_000_000;
    let manifest = manifest(staged.writer.name().as_str(), ns, vec![entry]);
    let finished = staged.writer.finish(manifest).unwrap();
    store.finish(staged, &finished, Timestamp(created * 1_000_000_000))
}

fn names(store: &SessionStore) -> Vec<String> {
    store.list().unwrap().iter().map(|session| session.name.to_string()).collect()
}

fn owner_files(state: &TempDir) -> usize {
    fs::read_dir(state.path().join("sessions/owners")).unwrap().count()
}

#[test]
fn a_session_is_seen_when_it_is_done_and_gone_when_removed() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    let staged = write(&store, "a", 10);
    assert_eq!(names(&store), [""; 0]);
    let begin = |text| store.begin(name(text), SessionOwners::default());
    assert!(matches!(store.get(&name("a")), Err(StoreError::BeingWritten(_))));
    assert!(matches!(store.remove(&name("a")), Err(StoreError::BeingWritten(_))));
    assert!(matches!(begin("a"), Err(StoreError::BeingWritten(_))));
    finish(&store, staged, 5);
    assert_eq!(names(&store), ["a"]);
    let opened = store.get(&name("a")).unwrap();
    assert_eq!((opened.stored.owners.uids, opened.session.parts.len()), (vec![7], 1));
    assert_eq!(opened.stored.created, Some(Timestamp(5_000_000_000)));
    assert!(matches!(begin("a"), Err(StoreError::Session(_))));
    assert!(store.remove(&name("a")).unwrap() > 10);
    assert!(matches!(store.get(&name("a")), Err(StoreError::NotFound(_))));
    assert_eq!(fs::read_dir(store.removed()).unwrap().count(), 0);
    assert_eq!(owner_files(&state), 0);
}

#[test]
fn what_a_writer_hands_on_is_what_the_disk_says() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    let staged = store.begin(name("a"), SessionOwners { uids: vec![7] }).unwrap();
    let mut part = staged.writer.part(&"h".parse().unwrap()).unwrap();
    part.write_all(b"12345").unwrap();
    let entry = part.commit(PartFacts { warnings: vec!["w".to_owned()], ..PartFacts::default() }).unwrap();
    let mut manifest = manifest("a", 7, vec![entry]);
    let missing = |process: Option<&str>| Missing {
        host: "i".to_owned(),
        process: process.map(ToOwned::to_owned),
        why: "x".to_owned(),
    };
    manifest.missing = vec![missing(None), missing(Some("pid 1"))];
    let finished = staged.writer.finish(manifest).unwrap();
    let stored = store.finish(staged, &finished, Timestamp(0));
    assert!(stored.partial && stored.warnings.len() == 4, "{stored:?}");
    assert_eq!(store.get(&name("a")).unwrap().stored, stored);
}

#[test]
fn a_session_that_was_given_up_leaves_nothing() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    drop(store.begin(name("a"), SessionOwners { uids: vec![7] }).unwrap());
    assert_eq!(owner_files(&state), 0);
    finish(&store, write(&store, "a", 1), 1);
    assert_eq!(names(&store), ["a"]);
}

#[test]
#[expect(clippy::mem_forget, reason = "after kill -9 nothing is dropped")]
fn a_new_agent_clears_away_what_a_dead_one_left() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    finish(&store, write(&store, "kept", 1), 1);
    let staged = store.begin(name("dead"), SessionOwners { uids: vec![7] }).unwrap();
    let writer = std::sync::Arc::clone(&staged.writer);
    std::mem::forget(staged);
    // The kernel has let go of what the dead agent had locked.
    let staged = state.path().join("sessions/plugins/.tpuscope/dead.h.1.0");
    fs::create_dir(&staged).unwrap();
    fs::write(staged.join("h.part"), "half").unwrap();
    let reservation = state.path().join("sessions/plugins/.tpuscope/dead.session");
    fs::remove_dir_all(reservation).unwrap();
    drop(writer);
    fs::create_dir_all(store.removed().join("half.1")).unwrap();
    let store = opened(&state, Settings::default());
    assert_eq!(names(&store), ["kept"]);
    assert_eq!(fs::read_dir(state.path().join("sessions/plugins/.tpuscope")).unwrap().count(), 0);
    assert_eq!(owner_files(&state), 1);
    assert!(!store.removed().exists());
}

#[test]
fn the_oldest_goes_first_when_a_limit_is_set() {
    let state = TempDir::new().unwrap();
    let limits = Settings { max_size: unit::Bytes::new(4000), ..Settings::default() };
    let store = opened(&state, limits);
    // Finished in another order than they were created in.
    for (session, created) in [("a", 20), ("c", 10), ("b", 30)] {
        finish(&store, write(&store, session, 1000), created);
    }
    assert_eq!(names(&store), ["a", "b"]);
    // One that is larger than all room stays: it has just been asked for.
    finish(&store, write(&store, "large", 5000), 40);
    assert_eq!(names(&store), ["large"]);
}

#[test]
fn the_age_of_a_session_is_not_that_of_its_files() {
    let state = TempDir::new().unwrap();
    let limits = Settings { max_size: unit::Bytes::new(4000), ..Settings::default() };
    let store = opened(&state, limits.clone());
    for (session, created) in [("new", 20), ("old", 10)] {
        finish(&store, write(&store, session, 1000), created);
    }
    // A copy or a restore gives the files other times.
    let folder = store.folder(&name("new")).display().to_string();
    let files = [&folder, &format!("{folder}/manifest.json")];
    let touched = Command::new("touch").args(["-d", "2001-01-01"]).args(files).status();
    assert!(touched.unwrap().success());
    let again = opened(&state, limits);
    assert_eq!(names(&again), ["old", "new"]);
    finish(&again, write(&again, "newest", 1000), 30);
    assert_eq!(names(&again), ["new", "newest"]);
}

#[test]
fn limits_wait_until_the_catalog_is_full() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    finish(&store, write(&store, "old", 1000), 10);
    let limits = Settings { max_size: unit::Bytes::new(2000), ..Settings::default() };
    let again = SessionStore::open(state.path(), limits, SystemClock.now()).unwrap();
    finish(&again, write(&again, "new", 1500), 20);
    assert!(again.folder(&name("old")).is_dir());
    again.fill().unwrap();
    assert!(!again.folder(&name("old")).is_dir());
    assert_eq!(names(&again), ["new"]);
}

#[test]
fn files_of_others_are_no_sessions() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    let profile = state.path().join("sessions/plugins/profile");
    fs::create_dir_all(profile.join("..x")).unwrap();
    fs::create_dir_all(profile.join("empty")).unwrap();
    fs::write(profile.join("file"), "x").unwrap();
    finish(&store, write(&store, "kept", 1), 1);
    symlink("kept", profile.join("latest")).unwrap();
    assert_eq!(names(&store), ["kept"]);
    for other in ["file", "latest"] {
        assert!(matches!(store.get(&name(other)), Err(StoreError::NotFound(_))));
        assert!(matches!(store.remove(&name(other)), Err(StoreError::NotFound(_))));
    }
    assert_eq!(names(&store), ["kept"]);
    // What somebody moved away or in is seen at the next look.
    fs::rename(profile.join("kept"), profile.join("moved")).unwrap();
    assert_eq!(names(&store), ["moved"]);
}

/// How often the folders of `count` sessions, and the files in them, are opened while one more is finished.
fn opened_at_finish(count: usize) -> BTreeMap<String, usize> {
    let state = TempDir::new().unwrap();
    let limits = Settings { max_size: unit::Bytes::mib(1024), ..Settings::default() };
    let store = opened(&state, limits);
    for n in 0..count {
        finish(&store, write(&store, &format!("s{n}"), 10), i64::try_from(n).unwrap());
    }
    let (staged, entry) = write(&store, "last", 10);
    let finished = staged.writer.finish(manifest("last", 1, vec![entry])).unwrap();
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    let flags = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ACCESS;
    let profile = sessions_folder(&store.logdir);
    let folders = fs::read_dir(&profile).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(folders.len(), count + 1);
    for folder in folders.iter().chain([&profile, &store.logdir.join("owners")]) {
        inotify.add_watch(folder, flags).unwrap();
    }
    store.finish(staged, &finished, Timestamp(1));
    let mut seen = BTreeMap::new();
    while let Ok(events) = inotify.read_events() {
        for event in events {
            *seen.entry(format!("{:?} {:?}", event.mask, event.name)).or_default() += 1;
        }
    }
    assert_eq!(store.list().unwrap().len(), count + 1);
    seen
}

#[test]
fn finishing_a_session_opens_none_of_the_others() {
    assert_eq!(opened_at_finish(1), BTreeMap::new());
    assert_eq!(opened_at_finish(50), BTreeMap::new());
}
