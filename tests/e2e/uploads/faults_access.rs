//! Uploads of an agent that may not write, has no bucket, or meets others there.

use std::time::Duration;

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault},
    wait::until,
};

use super::{
    agent::{Setup, UploadAgent, made_once},
    faults::{profilers, setup},
};

/// The session waits with a failure of this class, and goes up once `mended` did its work.
fn waits_for(server: &FakeGcs, agent: &UploadAgent, class: &str, says: &str, mended: impl FnOnce()) {
    agent.capture("one");
    until("the failure", || agent.upload("one")["failure"]["class"] == class);
    let failure = agent.upload("one")["failure"].clone();
    assert!(failure["message"].as_str().unwrap().contains(says), "`{says}` in {failure}");
    assert_ne!(failure["remedy"], "", "{failure}");
    assert!(!server.objects().contains_key("runs/plugins/profile/one/manifest.json"));
    mended();
    let retried = agent.ask(&["uploads", "retry", "one"]);
    assert_eq!(retried.code, Some(0), "{retried:?}");
}

#[test]
fn a_bucket_that_does_not_exist_is_named_and_used_once_it_does() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let key = server.credentials_file();
    let agent = UploadAgent::start_at("gs://tracse/runs", &key, setup(&profilers[..1]));
    waits_for(&server, &agent, "not_found", "NoSuchBucket", || server.create_bucket("tracse"));
    agent.reaches("one", "done");
    assert_eq!(server.objects_of("tracse").len(), 3);
    assert!(server.objects().is_empty());
}

#[test]
fn a_permission_that_is_missing_is_said_and_the_session_waits() {
    for permission in ["storage.objects.create", "storage.objects.get"] {
        let (server, profilers) = (FakeGcs::start(), profilers());
        server.deny(permission);
        let agent = UploadAgent::start(&server, setup(&profilers[..1]));
        waits_for(&server, &agent, "denied", "status 403", || server.allow_all());
        agent.arrives(&server, "one");
        made_once(&server);
    }
}

#[test]
fn an_account_that_may_not_remove_objects_can_upload() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.deny("storage.objects.delete");
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    agent.arrives(&server, "one");
    made_once(&server);
}

#[test]
fn a_token_that_expires_in_mid_upload_is_replaced() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.require_tokens();
    let folder = tempfile::tempdir().unwrap();
    // The machine's own account, at the double.
    let key = folder.path().join("endpoint.json");
    std::fs::write(&key, serde_json::json!({ "gcs_base_url": server.url() }).to_string()).unwrap();
    let environment = server.metadata_env().to_vec();
    server.fault(
        GcsFault::new(GcsEffect::Slow(64 << 10, Duration::from_millis(10))).containing("partNumber=2&"),
    );
    let agent = UploadAgent::start_at("gs://traces/runs", &key, Setup { environment, ..setup(&profilers) });
    agent.capture("one");
    until("a part on its way", || {
        server.requests().iter().any(|one| one.query.get("partNumber").is_some_and(|number| number == "2"))
    });
    server.expire_tokens();
    agent.arrives(&server, "one");
    agent.reaches("one", "done");
    made_once(&server);
    assert!(server.requests().iter().any(|one| one.status == Some(401)), "the old token was refused");
    assert!(server.metadata_requests().len() >= 2, "a new one was asked for");
}

#[test]
fn no_credentials_of_the_machine_are_a_failure_that_is_named() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.require_tokens();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("endpoint.json");
    std::fs::write(&key, serde_json::json!({ "gcs_base_url": server.url() }).to_string()).unwrap();
    let environment = server.metadata_env().to_vec();
    let gone = GcsFault::new(GcsEffect::Status(404, fakes::fake_gcs::Moment::BeforeCommit));
    server.fault(gone.containing("/token").always());
    let agent =
        UploadAgent::start_at("gs://traces/runs", &key, Setup { environment, ..setup(&profilers[..1]) });
    waits_for(&server, &agent, "credentials", "404", || server.clear_faults());
    agent.arrives(&server, "one");
}

#[test]
fn without_a_key_file_and_without_a_metadata_server_credentials_are_missing() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("endpoint.json");
    std::fs::write(&key, serde_json::json!({ "gcs_base_url": server.url() }).to_string()).unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let environment = vec![("GCE_METADATA_HOST", nobody.clone()), ("GCE_METADATA_IP", nobody.clone())];
    let setup = Setup { environment, ..setup(&profilers[..1]) };
    let agent = UploadAgent::start_at("gs://traces/runs", &key, setup);
    let says = format!("no key file is named, and no metadata server answers at {nobody}");
    waits_for(&server, &agent, "credentials", &says, || {
        let account = std::fs::read(server.credentials_file()).unwrap();
        std::fs::write(&key, account).unwrap();
    });
    agent.arrives(&server, "one");
}

#[test]
fn a_key_file_that_is_not_there_is_named_until_it_is() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.json");
    let agent = UploadAgent::start_at("gs://traces/runs", &key, setup(&profilers[..1]));
    let says = format!("the credentials file {} does not exist", key.display());
    waits_for(&server, &agent, "credentials_file", &says, || {
        std::fs::copy(server.credentials_file(), &key).unwrap();
    });
    agent.arrives(&server, "one");
}

#[test]
fn a_name_that_another_session_has_there_is_left_alone() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    server.put("runs/.tpuscope/one", b"0123456789abcdef0123456789abcdef");
    server.put("runs/plugins/profile/one/manifest.json", b"of another host");
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.capture("one");
    let upload = agent.reaches("one", "done");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let name = format!("one-{host}");
    assert_eq!(upload["name_there"], name);
    agent.arrives_as(&server, "one", &name);
    assert_eq!(server.objects()["runs/plugins/profile/one/manifest.json"].content(), b"of another host");
    assert_eq!(server.objects().len(), 2 + 4, "the session's claim and three files");
}

#[test]
fn a_second_agent_of_the_same_state_sends_nothing() {
    let (server, profilers) = (FakeGcs::start(), profilers());
    let agent = UploadAgent::start(&server, setup(&profilers));
    agent.second().end().failed(7, "already uses the state directory");
    agent.capture("one");
    agent.arrives(&server, "one");
    agent.reaches("one", "done");
    made_once(&server);
}
