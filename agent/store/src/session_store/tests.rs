//! The store on a real folder: sessions begin, finish, age and go; what a dead agent left; what is opened when.

use std::{collections::BTreeMap, io::Write, os::unix::fs::symlink, process::Command};

use model::{
    time::{ManualClock, SystemClock},
    unit,
};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tempfile::TempDir;
use xprof::session::{
    HostEntry, MANIFEST_FILE, MANIFEST_VERSION, Manifest, Missing, PartEntry, PartFacts, PartJob, PartName,
    Tool,
};

use super::*;
use crate::{
    ChosenDestination,
    settings::{MaxSize, MinFree},
};

fn name(text: &str) -> SessionName {
    text.parse().unwrap()
}

fn opened(state: &TempDir, limits: Settings) -> SessionStore {
    let store = SessionStore::open(state.path(), limits, Arc::new(SystemClock)).unwrap();
    store.fill().unwrap();
    store
}

fn of_size(bytes: u64) -> Settings {
    Settings { max_size: MaxSize::Size(unit::Bytes::new(bytes)), ..Settings::default() }
}

fn all(store: &SessionStore) -> Vec<StoredSession> {
    store.list(usize::MAX, |_| true).unwrap()
}

/// A session with one part, and its entry for the manifest.
type Written = (StagedSession, PartEntry);

fn write(store: &SessionStore, session: &str, bytes: usize) -> Written {
    let staged = store.begin(name(session), SessionOwners::of([7])).unwrap();
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
        at_step: None,
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
    all(store).iter().map(|session| session.name.to_string()).collect()
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
    let staged = store.begin(name("a"), SessionOwners::of([7])).unwrap();
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
    drop(store.begin(name("a"), SessionOwners::of([7])).unwrap());
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
    let staged = store.begin(name("dead"), SessionOwners::of([7])).unwrap();
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
    drop(store);
    let store = opened(&state, Settings::default());
    assert_eq!(names(&store), ["kept"]);
    assert!(!state.path().join("sessions/plugins/.tpuscope").exists());
    assert_eq!(owner_files(&state), 1);
    assert!(!store.removed().exists());
}

#[test]
fn the_oldest_goes_first_when_a_limit_is_set() {
    let state = TempDir::new().unwrap();
    let limits = of_size(4000);
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
    let limits = of_size(4000);
    let store = opened(&state, limits.clone());
    for (session, created) in [("new", 20), ("old", 10)] {
        finish(&store, write(&store, session, 1000), created);
    }
    // A copy or a restore gives the files other times.
    let folder = store.folder(&name("new")).display().to_string();
    let files = [&folder, &format!("{folder}/manifest.json")];
    let touched = Command::new("touch").args(["-d", "2001-01-01"]).args(files).status();
    assert!(touched.unwrap().success());
    drop(store);
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
    drop(store);
    let limits = of_size(2000);
    let again = SessionStore::open(state.path(), limits, Arc::new(SystemClock)).unwrap();
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
    let limits = of_size(1 << 30);
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
    assert_eq!(all(&store).len(), count + 1);
    seen
}

#[test]
fn finishing_a_session_opens_none_of_the_others() {
    assert_eq!(opened_at_finish(1), BTreeMap::new());
    assert_eq!(opened_at_finish(50), BTreeMap::new());
}

/// The state directory of 0.1: folders and owners, no database.
fn of_0_1(sessions: &[(&str, i64)]) -> TempDir {
    let state = TempDir::new().unwrap();
    let store = opened(&state, of_size(0));
    for (session, created) in sessions {
        finish(&store, write(&store, session, 1000), *created);
    }
    drop(store);
    fs::remove_file(state.path().join("state.db")).unwrap();
    state
}

#[test]
fn a_state_directory_of_an_older_version_is_read() {
    let state = of_0_1(&[("b", 20), ("a", 30)]);
    let text = fs::read_to_string(state.path().join("sessions/owners/a.json")).unwrap();
    assert_eq!(text, r#"{"uids":[7]}"#);
    let store = opened(&state, Settings::default());
    let sessions = all(&store);
    assert_eq!(names(&store), ["b", "a"]);
    assert_eq!(sessions[0].created, Some(Timestamp(20_000_000_000)));
    assert!(sessions.iter().all(|session| session.owners.uids == [7]));
}

#[test]
fn a_lost_or_damaged_catalog_takes_a_session_from_no_owner_and_gives_it_to_nobody() {
    type Damage = fn(&Path);
    let lost: Damage = |file| fs::remove_file(file).unwrap();
    let zeroed: Damage = |file| fs::write(file, vec![0; 9000]).unwrap();
    for damage in [lost, zeroed] {
        let state = TempDir::new().unwrap();
        let store = opened(&state, Settings::default());
        for session in ["mine", "hidden"] {
            finish(&store, write(&store, session, 10), 5);
        }
        fs::write(state.path().join("sessions/owners/hidden.json"), "damaged").unwrap();
        drop(store);
        damage(&state.path().join("state.db"));
        let store = opened(&state, Settings::default());
        let own = store.list(usize::MAX, |key| key.owners.uids == [7]).unwrap();
        assert_eq!(own.iter().map(|session| session.name.as_str()).collect::<Vec<_>>(), ["mine"]);
        assert_eq!(store.get(&name("hidden")).unwrap().stored.owners, SessionOwners::default());
        assert_eq!(names(&store), ["hidden", "mine"]);
    }
}

#[test]
fn a_catalog_that_is_damaged_while_it_is_used_is_made_again() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    for session in ["a", "b"] {
        finish(&store, write(&store, session, 10), 5);
    }
    let file = state.path().join("state.db");
    // All is in the file, nothing in the log beside it, and the connection has to read it again.
    store
        .state()
        .read(|connection| connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA shrink_memory"))
        .unwrap();
    let damaged = fs::File::options().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&damaged, &vec![0xff; 60_000], 4096).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    let moved = fs::read_dir(state.path()).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("state.db.damaged-")
    });
    assert_eq!(moved.count(), 1);
}

#[test]
fn a_start_opens_no_folder_that_the_catalog_knows() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    for session in ["a", "b"] {
        finish(&store, write(&store, session, 10), 5);
    }
    let profile = sessions_folder(&store.logdir);
    drop(store);
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    for session in ["a", "b"] {
        inotify.add_watch(&profile.join(session), AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ACCESS).unwrap();
    }
    let store = opened(&state, Settings::default());
    assert_eq!(names(&store), ["a", "b"]);
    assert!(inotify.read_events().is_err(), "nothing was opened");
    // The watch works.
    fs::copy(profile.join("a/manifest.json"), state.path().join("copy")).unwrap();
    assert!(!inotify.read_events().unwrap().is_empty());
}

#[test]
fn a_host_without_sessions_has_no_database() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    assert_eq!(names(&store), [""; 0]);
    store.retain().unwrap();
    store.measure_free().unwrap();
    assert!(matches!(store.get(&name("a")), Err(StoreError::NotFound(_))));
    drop(store.begin(name("a"), SessionOwners::default()).unwrap());
    assert!(!state.path().join("state.db").exists());
}

#[test]
fn what_is_pinned_stays_and_what_was_uploaded_goes_first() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, of_size(0));
    for (session, created) in [("pinned", 10), ("old", 20), ("there", 30), ("waits", 40)] {
        finish(&store, write(&store, session, 1000), created);
    }
    store.set_pinned(&name("pinned"), true).unwrap();
    store.set_upload(&name("there"), UploadState::Uploaded, Timestamp(50)).unwrap();
    store.set_upload(&name("waits"), UploadState::Pending, Timestamp(50)).unwrap();
    assert!(matches!(store.set_pinned(&name("none"), true), Err(StoreError::NotFound(_))));
    let none = store.set_upload(&name("none"), UploadState::Uploaded, Timestamp(0));
    assert!(matches!(none, Err(StoreError::NotFound(_))));
    assert_eq!(store.parts(&name("there")).unwrap().len(), 1);
    let size = all(&store)[0].bytes;
    store.set_limits(of_size(3 * size));
    let planned: Vec<_> = store.removals().unwrap().into_iter().map(|removal| removal.name).collect();
    assert_eq!((planned, names(&store).len()), (vec![name("there")], 4));
    assert_eq!(store.retain().unwrap().len(), 1);
    assert_eq!(names(&store), ["pinned", "old", "waits"]);
    store.set_limits(of_size(1));
    store.retain().unwrap();
    assert_eq!(names(&store), ["pinned"]);
    assert!(store.get(&name("pinned")).unwrap().stored.pinned);
    store.set_pinned(&name("pinned"), false).unwrap();
    store.retain().unwrap();
    assert_eq!(names(&store), [""; 0]);
}

#[test]
fn a_disk_that_is_not_free_enough_takes_no_session_and_gives_back_what_was_uploaded() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    for session in ["here", "there"] {
        finish(&store, write(&store, session, 1000), 10);
    }
    store.set_upload(&name("there"), UploadState::Uploaded, Timestamp(50)).unwrap();
    let never = MinFree::Size(unit::Bytes::new(1 << 60));
    store.set_limits(Settings { min_free: never, ..Settings::default() });
    let refused = store.begin(name("new"), SessionOwners::default());
    assert!(matches!(refused, Err(StoreError::LowDisk { .. })), "{refused:?}");
    assert_eq!(names(&store), ["here"]);
    store.set_limits(Settings { min_free: MinFree::Size(unit::Bytes::new(0)), ..Settings::default() });
    assert!(store.begin(name("new"), SessionOwners::default()).is_ok());
}

fn at(state: &TempDir, limits: Settings, clock: &Arc<ManualClock>) -> SessionStore {
    let clock = Arc::clone(clock);
    let mut store = SessionStore::open(state.path(), limits, clock).unwrap();
    store.is_synchronised = || true;
    store
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn the_default_limit_of_a_new_version_removes_nothing_for_a_week() {
    let state = of_0_1(&[("a", 20), ("b", 30)]);
    let clock = Arc::new(ManualClock::at(Timestamp(1_800_000_000_000_000_000)));
    let limit = |store: &SessionStore| store.limits_in_force(clock.now()).unwrap().max_size;
    let store = at(&state, Settings::default(), &clock);
    store.fill().unwrap();
    assert_eq!(limit(&store), None);
    // A limit that a setting names is not new.
    store.set_limits(of_size(5));
    assert_eq!(limit(&store), Some(5));
    drop(store);
    clock.advance(6 * DAY);
    let store = at(&state, Settings::default(), &clock);
    store.fill().unwrap();
    assert_eq!(limit(&store), None);
    clock.advance(2 * DAY);
    assert!(limit(&store).is_some());
    // A host that began with this version has its limit at once.
    let state = TempDir::new().unwrap();
    let store = at(&state, Settings::default(), &clock);
    store.fill().unwrap();
    finish(&store, write(&store, "a", 10), 10);
    assert!(limit(&store).is_some());
    drop(store);
    let store = at(&state, Settings::default(), &clock);
    store.fill().unwrap();
    assert!(limit(&store).is_some());
}

#[test]
fn nothing_goes_by_age_while_the_clock_is_wrong() {
    let state = TempDir::new().unwrap();
    let clock = Arc::new(ManualClock::at(Timestamp(1_800_000_000_000_000_000)));
    let limits = Settings { max_age: unit::Duration::from_secs(3600), ..Settings::default() };
    let mut store = at(&state, limits.clone(), &clock);
    store.fill().unwrap();
    finish(&store, write(&store, "a", 10), 1_800_000_000);
    store.retain().unwrap();
    store.is_synchronised = || false;
    assert_eq!(store.limits_in_force(clock.now()).unwrap().max_age, None);
    assert_eq!(store.why_no_age(), Some("the clock is not synchronised"));
    store.is_synchronised = || true;
    assert_eq!(store.why_no_age(), None);
    assert!(store.limits_in_force(clock.now()).unwrap().max_age.is_some());
    // The monotonic clock stays where it is: this is a step.
    clock.advance(2 * DAY);
    assert_eq!(store.retain().unwrap(), []);
    assert!(store.why_no_age().unwrap().contains("stepped"));
    drop(store);
    let store = at(&state, limits, &clock);
    store.fill().unwrap();
    assert_eq!(store.retain().unwrap(), []);
    assert_eq!(names(&store), ["a"]);
    clock.advance(DAY);
    assert_eq!(store.removals().unwrap().len(), 1);
}

/// An XSpace with one plane, `p`.
const TRACE: &[u8] = &[0x0a, 3, 0x12, 1, b'p'];

/// What an agent leaves that is killed between the first part of a session and its manifest.
fn orphan(store: &SessionStore, session: &str, content: &[u8]) {
    let job =
        PartJob { kind: "slurm".into(), id: "42".into(), attempt: None, name: None, user: None, rank: None };
    let owners = SessionOwners {
        user: Some("ann".into()),
        job: Some(Box::new(job)),
        destination: Some(ChosenDestination { name: "bucket".into(), url: None }),
        ..SessionOwners::of([7])
    };
    let staged = store.begin(name(session), owners).unwrap();
    let mut part = staged.writer.part(&"h".parse().unwrap()).unwrap();
    part.write_all(content).unwrap();
    part.commit(PartFacts::default()).unwrap();
}

#[test]
fn a_job_with_a_long_text_does_not_hide_whose_its_session_is() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    let id = "x".repeat(1 << 20);
    let job = PartJob { kind: "slurm".into(), id, attempt: None, name: None, user: None, rank: None };
    let owners = SessionOwners { job: Some(Box::new(job)), ..SessionOwners::of([7]) };
    let _staged = store.begin(name("s"), owners).unwrap();
    assert_eq!(store.staging.owners(&name("s")), SessionOwners::of([7]));
}

#[test]
fn what_a_dead_agent_did_not_finish_is_finished() {
    let state = TempDir::new().unwrap();
    let store = opened(&state, Settings::default());
    orphan(&store, "whole", TRACE);
    orphan(&store, "damaged", b"no trace");
    // One that somebody put there is left as it is.
    let foreign = store.folder(&name("foreign"));
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("h.xplane.pb"), TRACE).unwrap();
    drop(store);
    let store = opened(&state, Settings::default());
    let sessions = all(&store);
    let of = |text: &str| sessions.iter().find(|session| session.name == name(text)).unwrap();
    let whole = of("whole");
    assert!(whole.id.is_some() && whole.created.is_some() && whole.partial, "{whole:?}");
    assert_eq!((whole.owners.uids.as_slice(), whole.parts, whole.warnings.len()), (&[7][..], 1, 1));
    assert!(whole.warnings[0].contains("the agent ended before"), "{whole:?}");
    let opened = store.get(&name("whole")).unwrap();
    let entry = &opened.session.manifest.unwrap().hosts[0].parts[0];
    assert_eq!((entry.planes, entry.sha256.len(), entry.size), (1, 64, 5));
    // As far as it was noted whose it is: a destination has folders for users and jobs.
    assert_eq!((entry.uid, entry.user.as_deref()), (Some(7), Some("ann")));
    assert_eq!(entry.job.as_ref().map(|job| job.id.as_str()), Some("42"));
    for unfinished in ["damaged", "foreign"] {
        assert!(of(unfinished).warnings[0].contains("never finished"), "{unfinished}");
        assert!(!store.folder(&name(unfinished)).join(MANIFEST_FILE).exists());
    }
}
