//! What is written is read back; what others wrote or damaged is read as far as it goes.

#![expect(clippy::disallowed_methods, reason = "the files of these tests have the times of the file system")]

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::Path,
    sync::Barrier,
    thread,
    time::{Duration, SystemTime},
};

use nix::unistd::mkfifo;
use tempfile::TempDir;

use super::*;

fn name(text: &str) -> SessionName {
    text.parse().unwrap()
}

fn part(text: &str) -> PartName {
    text.parse().unwrap()
}

fn write_part(writer: &SessionWriter, host: &str, bytes: &[u8]) -> PartEntry {
    let mut file = writer.part(&part(host)).unwrap();
    file.write_all(bytes).unwrap();
    file.commit(PartFacts::default()).unwrap()
}

fn manifest(entries: Vec<PartEntry>) -> Manifest {
    let hosts = entries
        .into_iter()
        .map(|entry| HostEntry {
            host: "real-host".to_owned(),
            clock: Some(ClockOffset { offset_ns: -5, bound_ns: 9 }),
            parts: vec![entry],
            warnings: vec![],
        })
        .collect();
    Manifest {
        id: "0123456789abcdef0123456789abcdef".parse().ok(),
        version: MANIFEST_VERSION,
        session: "s".to_owned(),
        tool: Tool::this(),
        created: Some("2026-03-04T05:06:07Z".parse().unwrap()),
        window: Window::from_ns(1_700_000_000_000_000_001, 1_700_000_001_000_000_000),
        tracer_levels: Some(TracerLevels { host: 2, device: 1, python: 0 }),
        options: BTreeMap::from([("tpu_trace_mode".to_owned(), "TRACE_COMPUTE".to_owned())]),
        at_step: None,
        hosts,
        missing: vec![],
        warnings: vec![],
    }
}

/// Everything below `logdir/plugins/profile`, relative.
fn visible(logdir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for session in fs::read_dir(sessions_folder(logdir)).into_iter().flatten().flatten() {
        let folder = session.file_name().into_string().unwrap();
        found.push(folder.clone());
        for file in fs::read_dir(session.path()).unwrap().flatten() {
            found.push(format!("{folder}/{}", file.file_name().into_string().unwrap()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_session_that_an_upload_began_is_unfinished_without_its_manifest() {
    assert_eq!(claim_path("a/b/plugins/profile/s"), Some("a/b/.tpuscope/s".to_owned()));
    assert_eq!(claim_path("plugins/profile/s/"), Some(".tpuscope/s".to_owned()));
    for elsewhere in ["s", "profile/s", "xplugins/profile/s", "plugins/profile"] {
        assert_eq!(claim_path(elsewhere), None, "{elsewhere}");
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("plugins/profile/s");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("a.xplane.pb"), b"x").unwrap();
    let unfinished = || Session::open(&folder).unwrap().unwrap().is_unfinished();
    assert!(!unfinished(), "of another program");
    fs::create_dir(root.path().join(".tpuscope")).unwrap();
    fs::write(root.path().join(".tpuscope/s"), b"id").unwrap();
    assert!(unfinished());
    let manifest = r#"{"version": 1, "session": "s", "tool": {"name": "tpuscope", "version": "0"}, "hosts": [], "missing": [], "warnings": []}"#;
    fs::write(folder.join("manifest.json"), manifest).unwrap();
    assert!(!unfinished());
}

#[test]
fn a_session_appears_with_its_first_whole_part_and_reads_back() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let mut first = writer.part(&part("a")).unwrap();
    let mut second = writer.part(&part("b")).unwrap();
    first.write_all(b"12").unwrap();
    second.write_all(b"345").unwrap();
    assert_eq!(visible(root.path()), Vec::<String>::new(), "nothing shows before a part is whole");
    let a = first.commit(PartFacts { events: 7, ..PartFacts::default() }).unwrap();
    assert_eq!(visible(root.path()), ["s", "s/a.xplane.pb"]);
    let b = second.commit(PartFacts::default()).unwrap();
    assert_eq!(visible(root.path()), ["s", "s/a.xplane.pb", "s/b.xplane.pb"]);
    assert_eq!((a.size, a.events, b.size), (2, 7, 3));
    assert_eq!(a.sha256, "6b51d431df5d7f141cbececcf79edf3dd861c3b4069f0b11661a3eefacbba918");

    let finished = writer.finish(manifest(vec![a, b])).unwrap();
    let folder = writer.folder();
    drop(writer);
    assert!(!staging::path(root.path()).exists(), "nothing stays staged");
    let mode = |file: &str| fs::metadata(folder.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("a.xplane.pb"), mode("b.xplane.pb"), mode("manifest.json")), (0o640, 0o640, 0o640));

    let session = Session::open(&folder).unwrap().unwrap();
    assert_eq!(session.name, "s");
    assert_eq!(session.faults, []);
    assert_eq!(session.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(session.parts[0].host, "real-host", "the manifest knows the host");
    let read = session.manifest.unwrap();
    assert_eq!(read, manifest(read.hosts.iter().flat_map(|host| host.parts.clone()).collect()));
    assert_eq!(finished.manifest, read, "what is handed on is what was written");
    assert_eq!((&finished.folder, finished.bytes), (&folder, 5 + size(&folder.join("manifest.json"))));
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn a_whole_session_appears_in_one_step_or_not_at_all() {
    let root = TempDir::new().unwrap();
    let staged = |writer: &SessionWriter, text: &[u8]| {
        let mut part = writer.part(&part(str::from_utf8(text).unwrap())).unwrap();
        part.write_all(text).unwrap();
        part
    };
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    assert!(matches!(writer.publish(vec![], manifest(vec![])), Err(SessionError::NoParts(_))));
    let twice = vec![staged(&writer, b"a"), staged(&writer, b"a")];
    assert!(matches!(writer.publish(twice, manifest(vec![])), Err(SessionError::Exists(_))));
    let both = vec![staged(&writer, b"a"), staged(&writer, b"b")];
    let taken = writer.folder();
    fs::create_dir_all(taken.join("theirs")).unwrap();
    assert!(matches!(writer.publish(both, manifest(vec![])), Err(SessionError::Exists(_))));
    assert_eq!(visible(root.path()), ["s", "s/theirs"], "nothing was added");
    fs::remove_dir(taken.join("theirs")).unwrap();
    let both = vec![staged(&writer, b"a"), staged(&writer, b"b")];
    let finished = writer.publish(both, manifest(vec![])).unwrap();
    assert_eq!(visible(root.path()), ["s", "s/a.xplane.pb", "s/b.xplane.pb", "s/manifest.json"]);
    assert_eq!(fs::read(taken.join("b.xplane.pb")).unwrap(), b"b");
    assert_eq!((finished.folder, finished.bytes), (taken.clone(), size(&taken.join("manifest.json"))));
    drop(writer);
    assert!(!staging::path(root.path()).exists());
}

#[test]
fn writers_that_come_and_go_do_not_disturb_each_other() {
    let root = TempDir::new().unwrap();
    thread::scope(|scope| {
        for writer in 0..4 {
            let root = root.path();
            scope.spawn(move || {
                for round in 0..50 {
                    let writer = SessionWriter::create(root, name(&format!("s{writer}-{round}"))).unwrap();
                    drop(writer.part(&part("a")).unwrap());
                }
            });
        }
    });
    assert!(!root.path().join("plugins").exists());
}

#[test]
fn a_session_is_as_old_as_its_writer_says() {
    let mut told = manifest(vec![]);
    assert_eq!(told.created_at().unwrap().to_string(), "2026-03-04T05:06:07Z");
    told.created = None;
    let text = serde_json::to_value(&told).unwrap();
    assert!(text.get("created").is_none());
    let old: Manifest = serde_json::from_value(text).unwrap();
    assert_eq!(old.created_at(), old.window.map(|window| window.start), "older builds wrote no `created`");
    told.window = None;
    assert_eq!(told.created_at(), None);
}

#[test]
fn an_unfinished_part_leaves_nothing() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let mut file = writer.part(&part("a")).unwrap();
    file.write_all(b"half").unwrap();
    drop(file);
    assert_eq!(visible(root.path()), Vec::<String>::new());
    assert_eq!(fs::read_dir(staging::path(root.path())).unwrap().count(), 1, "the writer's name alone");
    assert!(matches!(writer.finish(manifest(vec![])), Err(SessionError::NoParts(_))));
    assert!(matches!(resolve(root.path()), Err(SessionError::NoSessions(_))));
}

#[test]
fn names_are_not_taken_twice() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let late = writer.part(&part("a")).unwrap();
    write_part(&writer, "a", b"1");
    assert!(matches!(writer.part(&part("a")), Err(SessionError::Exists(_))));
    assert!(matches!(late.commit(PartFacts::default()), Err(SessionError::Exists(_))));
    assert_eq!(fs::read(writer.folder().join("a.xplane.pb")).unwrap(), b"1");
    assert!(matches!(SessionWriter::create(root.path(), name("s")), Err(SessionError::Exists(_))));
    write_part(&SessionWriter::join(root.path(), name("s")), "other-host", b"2");
    assert_eq!(resolve(root.path()).unwrap()[0].parts.len(), 2);
}

#[test]
fn what_is_staged_stays_while_its_writer_lives_however_long() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let part = writer.part(&part("a")).unwrap();
    for older_than in [Duration::ZERO, Duration::from_secs(3600)] {
        assert_eq!(remove_abandoned(root.path(), long_after(), older_than).unwrap(), 0);
    }
    part.commit(PartFacts::default()).unwrap();
    // Of one without a file nobody knows whether he lives: it goes once it is old.
    fs::create_dir(staging::path(root.path()).join("s.b.1.0")).unwrap();
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    assert_eq!(remove_abandoned(root.path(), now + hour / 2, hour).unwrap(), 0);
    assert_eq!(remove_abandoned(root.path(), now + 2 * hour, hour).unwrap(), 1);
    assert_eq!(remove_abandoned(&root.path().join("none"), now, hour).unwrap(), 0);
}

#[test]
fn of_many_who_find_a_dead_holder_one_gets_the_name() {
    let root = TempDir::new().unwrap();
    let left = staging::path(root.path()).join("s.session");
    for _ in 0..20 {
        fs::create_dir_all(&left).unwrap();
        fs::write(left.join("alive"), b"").unwrap();
        let start = Barrier::new(8);
        let taken: Vec<_> = thread::scope(|scope| {
            let take = || {
                start.wait();
                SessionWriter::create(root.path(), name("s"))
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1, "{taken:?}");
        let others = |taken: &&Result<_, _>| matches!(taken, Err(SessionError::Running(_)));
        assert_eq!(taken.iter().filter(others).count(), 7, "{taken:?}");
        drop(taken);
        assert!(!root.path().join("plugins").exists());
    }
}

#[test]
fn what_a_dead_writer_left_goes_before_what_a_living_one_holds() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let living = writer.part(&part("a")).unwrap();
    let dead = staging::path(root.path()).join("s.b.1.0");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("b.part"), b"half").unwrap();
    let (now, second) = (SystemTime::now(), Duration::from_secs(1));
    assert_eq!(remove_abandoned(root.path(), now + second, 3600 * second).unwrap(), 0);
    assert_eq!(remove_abandoned(root.path(), now + 60 * second, 3600 * second).unwrap(), 1);
    assert!(!dead.exists());
    living.commit(PartFacts::default()).unwrap();
}

/// A tree of somebody's, untouched for long.
fn precious(root: &Path) -> PathBuf {
    let tree = root.join("precious");
    fs::create_dir_all(tree.join("project/src")).unwrap();
    fs::write(tree.join("project/file"), b"precious").unwrap();
    tree
}

fn long_after() -> SystemTime {
    SystemTime::now() + Duration::from_secs(24 * 3600)
}

#[test]
fn a_link_in_place_of_the_staging_folder_leads_nowhere() {
    let root = TempDir::new().unwrap();
    let tree = precious(root.path());
    let logdir = root.path().join("logdir");
    fs::create_dir_all(logdir.join("plugins")).unwrap();
    symlink(&tree, staging::path(&logdir)).unwrap();
    assert_eq!(remove_abandoned(&logdir, long_after(), Duration::ZERO).unwrap(), 0);
    assert!(matches!(SessionWriter::create(&logdir, name("s")), Err(SessionError::Link(_))));
    assert!(matches!(SessionWriter::join(&logdir, name("s")).part(&part("a")), Err(SessionError::Link(_))));
    assert_eq!(fs::read(tree.join("project/file")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 1);
}

#[test]
fn only_files_that_a_writer_could_have_staged_are_removed() {
    let root = TempDir::new().unwrap();
    let staging = staging::path(root.path());
    fs::create_dir_all(&staging).unwrap();
    let tree = precious(&staging);
    fs::rename(tree, staging.join("s.a.1.0")).unwrap();
    symlink(root.path(), staging.join("s.b.1.0")).unwrap();
    fs::create_dir(staging.join("s.c.1.0")).unwrap();
    mkfifo(&staging.join("s.c.1.0/c.part"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // A pipe that nobody reads is not waited for; with time it goes as a file does.
    assert_eq!(
        remove_abandoned(root.path(), SystemTime::now() + Duration::from_secs(60), Duration::MAX).unwrap(),
        0
    );
    assert_eq!(remove_abandoned(root.path(), long_after(), Duration::ZERO).unwrap(), 1);
    assert!(staging.join("s.a.1.0/project/src").is_dir() && staging.join("s.b.1.0").is_symlink());
}

#[test]
fn a_folder_that_others_write_to_is_not_cleared() {
    let root = TempDir::new().unwrap();
    let staging = staging::path(root.path());
    fs::create_dir_all(staging.join("s.a.1.0")).unwrap();
    fs::set_permissions(&staging, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(remove_abandoned(root.path(), long_after(), Duration::ZERO).unwrap(), 0);
    fs::set_permissions(&staging, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(remove_abandoned(root.path(), long_after(), Duration::ZERO).unwrap(), 1);
}

#[test]
fn a_read_only_place_is_an_error_that_names_it() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("plugins"), b"a file where a folder should be").unwrap();
    let error = SessionWriter::create(root.path(), name("s")).unwrap_err();
    assert!(error.to_string().starts_with("cannot create "), "{error}");
}

#[test]
fn every_way_to_name_a_session_leads_to_it() {
    let root = TempDir::new().unwrap();
    for session in ["2026_b", "2026_a"] {
        let writer = SessionWriter::create(root.path(), name(session)).unwrap();
        write_part(&writer, "host", b"x");
    }
    let names =
        |path: &Path| resolve(path).unwrap().into_iter().map(|session| session.name).collect::<Vec<_>>();
    let folder = sessions_folder(root.path());
    assert_eq!(names(root.path()), ["2026_a", "2026_b"]);
    assert_eq!(names(&root.path().join("plugins")), ["2026_a", "2026_b"]);
    assert_eq!(names(&folder), ["2026_a", "2026_b"]);
    assert_eq!(names(&folder.join("2026_b")), ["2026_b"]);
    assert_eq!(names(&folder.join("2026_b/host.xplane.pb")), ["host"]);
    assert!(matches!(resolve(&root.path().join("none")), Err(SessionError::NotFound(_))));
}

#[test]
fn foreign_folders_are_read_as_far_as_they_go() {
    let root = TempDir::new().unwrap();
    let at = |file: &str| root.path().join(file);
    fs::write(at("a.xplane.pb"), b"x").unwrap();
    fs::write(at("a_9012.xplane.pb"), b"xy").unwrap();
    fs::write(at("empty.xplane.pb"), b"").unwrap();
    fs::write(at(".hidden.xplane.pb"), b"x").unwrap();
    fs::write(at("b.xplane.pb.part"), b"x").unwrap();
    fs::write(at("ALL_HOSTS.op_stats_v2.pb"), b"x").unwrap();
    fs::create_dir(at("folder.xplane.pb")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("link.xplane.pb")).unwrap();
    fs::write(root.path().join(std::ffi::OsStr::from_bytes(b"c\x1b\xff.xplane.pb")), b"x").unwrap();
    let session = resolve(root.path()).unwrap().remove(0);
    let names: Vec<_> = session.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["a", "a_9012", "c\u{1b}\u{fffd}"]);
    let faults: Vec<_> = session.faults.iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 3, "{faults:?}");
    assert_eq!(faults[0], "empty.xplane.pb is empty (0 bytes)");
    assert_eq!(faults[1], "folder.xplane.pb cannot be read: not a regular file");
    assert!(faults[2].starts_with("link.xplane.pb cannot be read: "));
}

#[test]
fn a_folder_is_held_against_its_manifest() {
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let entries =
        vec![write_part(&writer, "a", b"1"), write_part(&writer, "b", b"22"), write_part(&writer, "c", b"3")];
    let mut told = manifest(entries);
    told.missing.push(Missing { host: "d".to_owned(), process: None, why: "no answer".to_owned() });
    writer.finish(told).unwrap();
    fs::remove_file(writer.folder().join("a.xplane.pb")).unwrap();
    fs::write(writer.folder().join("b.xplane.pb"), b"2").unwrap();
    fs::write(writer.folder().join("c.xplane.pb"), b"").unwrap();
    let session = Session::open(&writer.folder()).unwrap().unwrap();
    let faults: Vec<_> = session.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "c.xplane.pb is empty (0 bytes)",
            "a.xplane.pb is named by the manifest and missing",
            "b.xplane.pb has 1 bytes, the manifest says 2",
            "d was not captured: no answer",
        ]
    );
    assert_eq!(session.parts.len(), 1, "a part of another length is still shown");
}

#[test]
fn a_bad_manifest_does_not_hide_the_parts() {
    let root = TempDir::new().unwrap();
    let file = root.path().join(MANIFEST_FILE);
    fs::write(root.path().join("a.xplane.pb"), b"x").unwrap();
    let fault = |text: &str| {
        fs::write(&file, text).unwrap();
        let session = resolve(root.path()).unwrap().remove(0);
        assert_eq!((session.parts.len(), session.manifest), (1, None));
        session.faults[0].kind.clone()
    };
    assert!(matches!(fault("{"), FaultKind::BadManifest(_)));
    assert!(matches!(fault("{\"version\": 1}"), FaultKind::BadManifest(_)));
    assert_eq!(fault("{\"version\": 2, \"hosts\": 3}"), FaultKind::NewerManifest(2));
    assert_eq!(fault("[]"), FaultKind::BadManifest("it is not a JSON object".to_owned()));
    let text = fault("{\"version\": 1, \"session\": \"s\", \"tool\": [1]}").to_string();
    assert!(!text.contains("struct"), "{text}");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
}

#[test]
fn the_schema_knows_every_field_of_the_manifest() {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas/manifest.schema.json");
    let schema: serde_json::Value = serde_json::from_slice(&fs::read(schema).unwrap()).unwrap();
    let root = TempDir::new().unwrap();
    let writer = SessionWriter::create(root.path(), name("s")).unwrap();
    let mut entry = write_part(&writer, "a", b"1");
    entry.pid = Some(1);
    (entry.command, entry.uid, entry.user) = (Some("python".to_owned()), Some(7), Some("ada".to_owned()));
    entry.versions = BTreeMap::from([("jaxlib".to_owned(), "0.10.2".to_owned())]);
    entry.address = Some("h:1".to_owned());
    entry.late_start_ns = Some(1);
    entry.job = Some(Box::new(PartJob {
        kind: "slurm".into(),
        id: "77".into(),
        attempt: Some(0),
        name: Some("n".into()),
        user: Some("u".into()),
        rank: Some(3),
    }));
    entry.window = Window::from_ns(1, 2);
    entry.losses = vec![LossEntry {
        kind: "few_events".into(),
        certain: false,
        plane: Some("p".into()),
        count: Some(1),
    }];
    entry.recorded = entry.window.into_iter().collect();
    entry.steps = Some(PartSteps { count: 2, median_ns: 1, first: Some(7), last: Some(8) });
    entry.gaps = vec![GapEntry {
        start: jiff::Timestamp::from_second(1).unwrap(),
        stop: jiff::Timestamp::from_second(2).unwrap(),
        why: "w".into(),
    }];
    let mut whole = manifest(vec![entry]);
    whole.at_step = Some(AtStep::of(6, &whole.hosts));
    whole.id = serde_json::from_value("0123456789abcdef0123456789abcdef".into()).unwrap();
    whole.missing.push(Missing { host: "d".into(), process: Some("p".into()), why: "w".into() });
    let (context, json) = (SessionContext::of(&whole), serde_json::to_value(whole).unwrap());
    let keys = |value: &serde_json::Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let properties = |path: &str| keys(&schema.pointer(path).unwrap()["properties"]);
    assert_eq!(keys(&json), properties(""));
    assert_eq!(keys(&json["hosts"][0]), properties("/$defs/host"));
    assert_eq!(keys(&json["hosts"][0]["parts"][0]), properties("/$defs/part"));
    assert_eq!(keys(&json["hosts"][0]["parts"][0]["job"]), properties("/$defs/job"));
    assert_eq!(keys(&json["hosts"][0]["parts"][0]["losses"][0]), properties("/$defs/loss"));
    assert_eq!(keys(&json["hosts"][0]["parts"][0]["gaps"][0]), properties("/$defs/gap"));
    assert_eq!(keys(&json["hosts"][0]["parts"][0]["steps"]), properties("/$defs/part/properties/steps"));
    assert_eq!(keys(&json["at_step"]), properties("/$defs/at_step"));
    assert_eq!(keys(&json["tracer_levels"]), properties("/$defs/tracer_levels"));
    let context = serde_json::to_value(context).unwrap();
    assert_eq!(keys(&context), properties("/$defs/context"));
    let user = schema.pointer("/$defs/context/properties/users/items").unwrap();
    assert_eq!(keys(&context["users"][0]), keys(&user["properties"]));
    assert_eq!(keys(&json["hosts"][0]["clock"]), properties("/$defs/clock"));
    assert_eq!(keys(&json["missing"][0]), properties("/$defs/missing"));
    assert_eq!(keys(&json["window"]), properties("/$defs/window"));
}

#[test]
fn a_name_is_one_writers_until_it_is_dropped() {
    let root = tempfile::tempdir().unwrap();
    let first = SessionWriter::create(root.path(), name("s")).unwrap();
    assert!(matches!(SessionWriter::create(root.path(), name("s")), Err(SessionError::Running(_))));
    SessionWriter::create(root.path(), name("t")).unwrap();
    drop(first);
    SessionWriter::create(root.path(), name("s")).unwrap();
    // A writer that was killed leaves its folder, and a file that nobody locks; or no file, where it was killed as it
    // went.
    let left = root.path().join("plugins/.tpuscope/s.session");
    for file in [true, false] {
        fs::create_dir_all(&left).unwrap();
        if file {
            fs::write(left.join("alive"), "").unwrap();
        }
        drop(SessionWriter::create(root.path(), name("s")).unwrap());
        assert!(!left.exists());
    }
}
