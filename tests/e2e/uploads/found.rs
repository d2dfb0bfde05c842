//! Sessions that an agent finds, or that have the name of an earlier one.

use std::fs;

use fakes::{fake_gcs::FakeGcs, wait::until};

use super::{
    agent::{Setup, UploadAgent, made_once},
    faults::{profilers, setup},
};

#[test]
fn after_the_state_is_lost_uploads_are_found_again_and_not_repeated() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let mut agent = UploadAgent::start(&server, setup(&profilers));
    let local = agent.ask(&["capture", "--session", "local", "--duration", "10ms", "--to", "none"]);
    assert_eq!(local.code, Some(0), "{local:?}");
    agent.capture("one");
    agent.reaches("one", "done");
    let copied = agent.state().join("sessions/plugins/profile/one").display().to_string();
    let imported = agent.ask(&["sessions", "import", &copied, "--name", "imported"]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    agent.kill();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        // Not each of them is there at every time.
        let _ = fs::remove_file(agent.state().join(file));
    }
    agent.restart();
    agent.reaches("one", "done");
    agent.arrives(&server, "one");
    made_once(&server);
    // What stays here by its user's word does so without the state too; both are decided before `one`.
    let listed = agent.ask(&["uploads", "list", "--json"]).json();
    let named =
        |name: &str| listed["uploads"].as_array().unwrap().iter().any(|upload| upload["session"] == name);
    assert!(named("one") && !named("local") && !named("imported"), "{listed}");
    assert!(server.objects().keys().all(|name| !name.contains("local") && !name.contains("imported")));
}

#[test]
fn a_session_that_nobody_noted_goes_where_every_session_goes() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let mut agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    agent.reaches("one", "done");
    agent.kill();
    // As an agent leaves it that dies before it notes the session.
    let sessions = agent.state().join("sessions");
    let (from, to) = (sessions.join("plugins/profile/one"), sessions.join("plugins/profile/two"));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        let text = fs::read(file.path()).unwrap();
        let is_manifest = file.file_name() == "manifest.json";
        let text = if is_manifest { renamed(&text) } else { text };
        fs::write(to.join(file.file_name()), text).unwrap();
    }
    agent.restart();
    agent.reaches("two", "done");
    agent.arrives(&server, "two");
    made_once(&server);
}

#[test]
fn a_session_whose_agent_died_before_it_noted_the_upload_goes_where_it_was_asked_to_go() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let there = tempfile::tempdir().unwrap();
    let asked = format!("[[destination]]\nname = 'asked'\nurl = 'file://{}'\n", there.path().display());
    let mut agent = UploadAgent::start(&server, Setup { settings: asked, ..setup(&profilers) });
    let captured = agent.ask(&["capture", "--session", "one", "--duration", "1ms", "--to", "asked"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let manifest = there.path().join("plugins/profile/one/manifest.json");
    until("the first upload", || manifest.exists());
    agent.kill();
    // As an agent leaves it that dies before it notes where the session goes.
    fs::remove_dir_all(there.path().join("plugins")).unwrap();
    fs::remove_dir_all(there.path().join(".tpuscope")).unwrap();
    for file in ["state.db", "state.db-wal", "state.db-shm"] {
        // Not each of them is there at every time.
        let _ = fs::remove_file(agent.state().join(file));
    }
    agent.restart();
    until("the upload that was asked for", || manifest.exists());
    assert!(agent.log().contains("the catalog is made again"), "{}", agent.log());
}

/// The manifest of `one` as that of `two`.
fn renamed(manifest: &[u8]) -> Vec<u8> {
    let mut manifest: serde_json::Value = serde_json::from_slice(manifest).unwrap();
    manifest["session"] = "two".into();
    manifest["id"] = "0123456789abcdef0123456789abcdef".into();
    manifest.to_string().into_bytes()
}

#[test]
fn a_session_that_was_never_finished_is_finished_and_goes_there_too() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let mut agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    agent.reaches("one", "done");
    agent.kill();
    // As an agent leaves it that dies between the first part and the manifest.
    let sessions = agent.state().join("sessions");
    let (from, to) = (sessions.join("plugins/profile/one"), sessions.join("plugins/profile/two"));
    fs::create_dir(&to).unwrap();
    let parts = fs::read_dir(&from).unwrap().map(|file| file.unwrap().path());
    let part = parts.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap();
    fs::copy(&part, to.join(part.file_name().unwrap())).unwrap();
    fs::copy(sessions.join("owners/one.json"), sessions.join("owners/two.json")).unwrap();
    agent.restart();
    agent.reaches("two", "done");
    agent.arrives(&server, "two");
    made_once(&server);
}

#[test]
fn a_second_session_of_a_name_is_uploaded_too() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    let first = agent.reaches("one", "done");
    assert_eq!(first["name_there"], "one");
    let before = server.objects();
    assert_eq!(agent.ask(&["sessions", "rm", "one"]).code, Some(0));
    agent.capture("one");
    let second = agent.reaches("one", "done");
    let name = second["name_there"].as_str().unwrap().to_owned();
    assert_ne!(name, "one", "that name is the first session's there");
    agent.arrives_as(&server, "one", &name);
    made_once(&server);
    assert!(before.iter().all(|(name, object)| server.objects()[name].generation == object.generation));
}
