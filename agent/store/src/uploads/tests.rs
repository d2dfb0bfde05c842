//! The whole of it, with a folder as the destination.

use std::{fs, io::Write, path::PathBuf};

use model::{
    time::{ManualClock, Timestamp},
    unit::Bytes,
};
use tempfile::TempDir;
use xprof::session::{HostEntry, MANIFEST_VERSION, PartFacts, PartName, SessionId, SessionWriter, Tool};

use super::{file::PART_BYTES, *};
use crate::{
    SessionOwners,
    destinations::{UploadWhen, target::FailureClass},
};

struct Host {
    dir: TempDir,
    uploads: Uploads,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("there")).unwrap();
        let uploads =
            uploads(&dir, UploadSettings { destinations: destinations(&dir), ..UploadSettings::default() });
        Self { dir, uploads }
    }

    fn session(&self, name: &str, size: u64) -> Manifest {
        let writer = SessionWriter::create(self.dir.path(), name.parse().unwrap()).unwrap();
        let mut part = writer.part(&"h".parse::<PartName>().unwrap()).unwrap();
        let data: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        part.write_all(&data).unwrap();
        let parts = vec![part.commit(PartFacts::default()).unwrap()];
        let host = HostEntry { host: "h".to_owned(), clock: None, parts, warnings: Vec::new() };
        let manifest = serde_json::json!({
            "version": MANIFEST_VERSION, "session": name, "tool": Tool::this(), "hosts": [],
        });
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        writer.finish(Manifest { id: SessionId::random(), hosts: vec![host], ..manifest }).unwrap().manifest
    }

    fn to(&self, manifest: &Manifest, destination: &str) -> UploadStatus {
        let choice = UploadChoice::To(destination.parse().unwrap());
        let (mut added, saved) = self.uploads.add(manifest, &choice, SessionPriority::Asked);
        saved.unwrap();
        added.pop().unwrap()
    }

    /// Works until nothing can be sent.
    async fn work(&self) {
        let stop = CancellationToken::new();
        stop.cancel();
        self.uploads.run(stop).await.unwrap();
    }

    fn state(&self, session: &str) -> UploadStatus {
        self.uploads.of_session(&session.parse().unwrap()).unwrap().pop().unwrap()
    }

    fn there(&self, path: &str) -> PathBuf {
        self.dir.path().join("there").join(path)
    }
}

fn destinations(dir: &TempDir) -> Destinations {
    let of = |name: &str, folder: &str| {
        let url = format!("file://{}/{folder}", dir.path().display());
        serde_json::from_value(serde_json::json!({ "name": name, "url": url })).unwrap()
    };
    Destinations(vec![of("here", "there"), of("missing", "not-mounted")])
}

fn uploads(dir: &TempDir, settings: UploadSettings) -> Uploads {
    let clock = Arc::new(ManualClock::at(Timestamp(1_000_000_000)));
    let db = Arc::new(StateDb::new(dir.path(), clock.clone()));
    let uploads = Uploads::new(db, dir.path(), "h".parse().unwrap(), settings, clock);
    uploads.load().unwrap();
    uploads
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

#[tokio::test]
async fn a_session_arrives_whole_and_verified() {
    let host = Host::new();
    for (name, size) in [("small", 1000), ("large", 2 * PART_BYTES + 5)] {
        let manifest = host.session(name, size);
        host.to(&manifest, "here");
        host.work().await;
        let status = host.state(name);
        assert!(matches!(status.phase, UploadPhase::Done { unverified: 0, .. }), "{status:?}");
        assert_eq!((status.name_there.as_deref(), status.sent_bytes), (Some(name), status.bytes));
        for file in ["h.xplane.pb", "manifest.json"] {
            let path = format!("plugins/profile/{name}/{file}");
            assert!(same(&host.there(&path), &host.dir.path().join(&path)), "{path}");
        }
        assert_eq!(
            fs::read_to_string(host.there(".tpuscope").join(name)).unwrap(),
            manifest.id.unwrap().to_string()
        );
    }
    assert_eq!(fs::read_dir(host.there(".tpuscope/.incoming")).unwrap().count(), 0);
    assert_eq!(host.uploads.unfinished(), []);
}

#[tokio::test]
async fn no_part_comes_after_the_manifest_of_all_hosts() {
    let host = Host::new();
    let url: UploadUrl = format!("file://{}", host.there("").display()).parse().unwrap();
    let agreed = PartsDestination { name: "here".parse().unwrap(), url };
    let choice = UploadChoice::Parts(Some(agreed));
    for (name, size) in [("small", 1000), ("large", 2 * PART_BYTES)] {
        let manifest = host.session(name, size);
        host.uploads.add(&manifest, &choice, SessionPriority::Asked).1.unwrap();
        // The capture did not wait for this host.
        let folder = host.there("plugins/profile").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("manifest.json"), "{}").unwrap();
        host.work().await;
        let state = host.state(name);
        assert_eq!((state.phase, state.failure.unwrap().class), (UploadPhase::Failed, FailureClass::TooLate));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "{name}");
        // Until somebody takes the manifest away.
        fs::remove_file(folder.join("manifest.json")).unwrap();
        host.uploads.retry(&[state.number]).unwrap();
        host.work().await;
        assert!(matches!(host.state(name).phase, UploadPhase::Done { .. }), "{name}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "the part alone");
    }
    assert_eq!(fs::read_dir(host.there(".tpuscope/.incoming")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_upload_outlives_the_agent() {
    let host = Host::new();
    let manifest = host.session("s", PART_BYTES + 1);
    host.to(&manifest, "missing");
    host.work().await;
    let failed = host.state("s");
    assert_eq!((failed.phase, failed.failure.unwrap().class.as_str()), (UploadPhase::Waiting, "not_found"));
    let Host { dir, uploads: old } = host;
    drop(old);
    let settings = UploadSettings { destinations: destinations(&dir), ..UploadSettings::default() };
    let host = Host { uploads: uploads(&dir, settings), dir };
    fs::create_dir(host.dir.path().join("not-mounted")).unwrap();
    host.work().await;
    assert!(matches!(host.state("s").phase, UploadPhase::Done { .. }));
}

#[tokio::test]
async fn the_uploads_of_some_sessions_go_first_also_after_a_restart() {
    let host = Host::new();
    for session in ["a", "b", "c"] {
        host.to(&host.session(session, 10), "missing");
    }
    let first = BTreeSet::from(["b".to_owned(), "none".to_owned()]);
    assert_eq!(host.uploads.go_first(&first).unwrap(), 1);
    assert_eq!(host.uploads.go_first(&first).unwrap(), 0, "it does already");
    let Host { dir, uploads: old } = host;
    drop(old);
    let settings = UploadSettings { destinations: destinations(&dir), ..UploadSettings::default() };
    let host = Host { uploads: uploads(&dir, settings), dir };
    let priorities = ["a", "b", "c"].map(|session| host.state(session).priority);
    assert_eq!(priorities, [SessionPriority::Asked, SessionPriority::Triggered, SessionPriority::Asked]);
    let next = host.uploads.0.live().queue.due(Instant::now());
    assert_eq!(next, Next::Start(host.state("b").number));
}

#[tokio::test]
async fn what_waits_behind_a_destination_that_fails_says_why() {
    let host = Host::new();
    for session in ["a", "b", "c"] {
        host.to(&host.session(session, 10), "missing");
    }
    host.to(&host.session("other", 10), "here");
    host.work().await;
    let class = |session: &str| host.state(session).failure.map(|failure| failure.class);
    assert!(host.uploads.unfinished().iter().any(|status| status.failure.is_none()), "one was not tried");
    for session in ["a", "b", "c"] {
        assert_eq!(
            (host.state(session).phase, class(session)),
            (UploadPhase::Waiting, Some(FailureClass::NotFound))
        );
    }
    assert_eq!(class("other"), None);
    // After a success nothing waits because of the failure.
    fs::create_dir(host.dir.path().join("not-mounted")).unwrap();
    host.uploads.retry(&[]).unwrap();
    host.work().await;
    host.to(&host.session("d", 10), "missing");
    assert_eq!(class("d"), None);
}

#[tokio::test]
async fn a_corrected_url_is_used_by_what_waits() {
    let host = Host::new();
    let manifest = host.session("s", 10);
    host.to(&manifest, "missing");
    host.work().await;
    let mut corrected = destinations(&host.dir);
    corrected.0[1].url = corrected.0[0].url.clone();
    host.uploads.set_settings(UploadSettings { destinations: corrected, ..UploadSettings::default() });
    host.work().await;
    let status = host.state("s");
    assert!(matches!(status.phase, UploadPhase::Done { .. }) && status.url.ends_with("/there"), "{status:?}");
}

#[tokio::test]
async fn an_upload_that_the_state_cannot_note_is_seen_to_be_done() {
    let host = Host::new();
    let manifest = host.session("s", 10);
    host.to(&manifest, "here");
    host.work().await;
    // As on a full disk: no upload can be noted.
    let refuse = "CREATE TRIGGER full BEFORE INSERT ON uploads BEGIN SELECT RAISE(ABORT, 'full'); END";
    host.uploads.0.db.write(|change| change.execute_batch(refuse)).unwrap();
    let unnoted = host.session("unnoted", 10);
    let choice = UploadChoice::To("here".parse().unwrap());
    let (added, saved) = host.uploads.add(&unnoted, &choice, SessionPriority::Asked);
    assert!(saved.is_err());
    host.work().await;
    let status = host.state("unnoted");
    assert_eq!(status.number, added[0].number);
    assert!(matches!(status.phase, UploadPhase::Done { unverified: 0, .. }), "{status:?}");
    assert_eq!((host.uploads.unfinished(), host.uploads.list().unwrap().len()), (vec![], 2));
    host.uploads.remove(&[status.number]).unwrap();
    assert_eq!(host.uploads.of_session(&"unnoted".parse().unwrap()).unwrap(), []);
}

#[tokio::test]
async fn another_sessions_files_are_never_touched() {
    let host = Host::new();
    fs::create_dir(host.there(".tpuscope")).unwrap();
    fs::write(host.there(".tpuscope/s"), "another").unwrap();
    host.to(&host.session("s", 10), "here");
    host.work().await;
    let status = host.state("s");
    assert_eq!(status.name_there.as_deref(), Some("s-h"));
    assert!(
        host.there("plugins/profile/s-h/manifest.json").exists() && !host.there("plugins/profile/s").exists()
    );
}

#[tokio::test]
async fn a_session_may_have_any_name() {
    let host = Host::new();
    for name in ["incoming", "check-0123456789abcdef", "plugins", "a.json", "_check"] {
        // One in parts too: they are written aside.
        host.to(&host.session(name, PART_BYTES + 1), "here");
    }
    host.work().await;
    let phases: Vec<_> = host.uploads.list().unwrap().into_iter().map(|status| status.phase).collect();
    assert!(phases.iter().all(|phase| matches!(phase, UploadPhase::Done { .. })), "{phases:?}");
}

#[tokio::test]
async fn where_a_session_goes() {
    let host = Host::new();
    let mut with_always = destinations(&host.dir);
    with_always.0[0].upload = UploadWhen::Always;
    let settings = settings::Settings { max_rate: Bytes::new(0), ..settings::Settings::default() };
    host.uploads.set_settings(UploadSettings { destinations: with_always, upload: settings });
    let manifest = host.session("s", 10);
    let names = |choice: UploadChoice| {
        let (added, saved) = host.uploads.add(&manifest, &choice, SessionPriority::Asked);
        saved.unwrap();
        added.into_iter().map(|status| status.destination).collect::<Vec<_>>()
    };
    assert_eq!(names(UploadChoice::Nowhere), [""; 0]);
    assert_eq!(names(UploadChoice::Always), ["here"]);
    // Once to each destination.
    assert_eq!(names(UploadChoice::To("missing".parse().unwrap())), ["missing"]);
    assert_eq!(host.uploads.list().unwrap().len(), 2);
}

#[tokio::test]
async fn a_session_whose_agent_died_before_it_noted_the_upload_goes_where_its_capture_said() {
    let host = Host::new();
    let manifest = host.session("s", 10);
    let owners = |choice: &UploadChoice| SessionOwners::of([7]).going_to(choice);
    let found = |owners: &SessionOwners| {
        fs::create_dir_all(host.dir.path().join("owners")).unwrap();
        fs::write(host.dir.path().join("owners/s.json"), serde_json::to_vec(owners).unwrap()).unwrap();
        let mut found = host.uploads.0.derived("s");
        found.retain(|status| !status.derived);
        found.into_iter().map(|status| (status.destination, status.url, status.priority)).collect::<Vec<_>>()
    };
    let url = |folder: &str| format!("file://{}/{folder}", host.dir.path().display());
    let name: DestinationName = "missing".parse().unwrap();
    assert_eq!(found(&owners(&UploadChoice::Always)), []);
    assert_eq!(found(&owners(&UploadChoice::Nowhere)), []);
    let asked = |folder| vec![("missing".to_owned(), url(folder), SessionPriority::Asked)];
    assert_eq!(found(&owners(&UploadChoice::To(name.clone()))), asked("not-mounted"));
    let agreed = PartsDestination { name, url: url("agreed").parse().unwrap() };
    assert_eq!(found(&owners(&UploadChoice::Parts(Some(agreed)))), asked("agreed"));
    // One that the settings do not have any more.
    assert_eq!(found(&owners(&UploadChoice::To("gone".parse().unwrap()))), []);
    assert!(manifest.id.is_some());
}

#[tokio::test]
async fn a_session_that_is_gone_and_an_upload_that_is_dropped_end() {
    let host = Host::new();
    host.to(&host.session("gone", 10), "here");
    fs::remove_dir_all(host.dir.path().join("plugins/profile/gone")).unwrap();
    let dropped = host.to(&host.session("dropped", 10), "here");
    host.uploads.remove(&[dropped.number]).unwrap();
    host.work().await;
    assert_eq!(host.uploads.list().unwrap(), []);
    assert!(!host.there("plugins").exists());
}

#[tokio::test]
async fn parts_of_an_upload_that_was_dropped_are_removed() {
    let host = Host::new();
    let incoming = || fs::read_dir(host.there(".tpuscope/.incoming")).unwrap().count();
    // Everything can be sent, and nothing completed.
    fs::write(host.there("plugins"), "").unwrap();
    let upload = host.to(&host.session("s", PART_BYTES + 1), "here");
    host.work().await;
    let waiting = host.state("s");
    assert_eq!((waiting.phase, incoming()), (UploadPhase::Waiting, 1), "{waiting:?}");
    host.uploads.remove(&[upload.number]).unwrap();
    host.work().await;
    assert_eq!(incoming(), 0);
}

#[test]
fn whatever_page_of_the_state_is_damaged_the_uploads_load() {
    let host = Host::new();
    host.to(&host.session("s", 3), "missing");
    let Host { dir, uploads: made } = host;
    drop(made);
    let file = dir.path().join("state.db");
    let whole = fs::read(&file).unwrap();
    let page = 4096;
    assert!(whole.len() > 3 * page, "{}", whole.len());
    for at in (0..whole.len()).step_by(page) {
        let mut damaged = whole.clone();
        damaged[at..at + page].fill(0xa5);
        fs::write(&file, damaged).unwrap();
        for log in ["state.db-wal", "state.db-shm"] {
            // Not each of them is there at every time.
            let _ = fs::remove_file(dir.path().join(log));
        }
        let again = uploads(&dir, UploadSettings::default());
        again.load().unwrap();
        assert!(again.list().unwrap().len() <= 1);
    }
}
