//! The commands about uploads.

use std::fs;

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::trace,
    wait::until,
};

use super::{UploadHost, folder_destination};
use crate::schema::Schema;

#[test]
fn the_running_agent_checks_its_destinations() {
    let gcs = FakeGcs::start();
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    let config = host.agent.home.path().join("agent.toml").display().to_string();
    let check =
        |more: &[&str]| host.agent.ask(&[&["config", "check", config.as_str(), "--online"], more].concat());
    let good = check(&[]);
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.stdout.contains("write: ok\n  read: ok\n  delete: ok"), "{good:?}");
    assert_eq!(gcs.objects().len(), 0, "nothing is left");
    gcs.deny("storage.objects.delete");
    let kept = check(&["--json"]);
    assert_eq!(kept.code, Some(0), "{kept:?}");
    gcs.deny("storage.objects.create");
    check(&[]).failed(4, "destination bucket: cannot write to gs://traces/x: status 403");
    assert!(check(&[]).stderr.contains("roles/storage.objectUser"));
}

#[test]
fn an_upload_that_waits_can_be_dropped() {
    let gcs = FakeGcs::start();
    gcs.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).times(10_000));
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("s", &["--to", ""]).code, Some(2), "the value of a variable that is not set");
    assert_eq!(host.capture("s", &["--to", "bucket"]).code, Some(0));
    let failed = host.until_upload("a failure", |upload| !upload["failure"].is_null());
    assert_eq!(failed["failure"]["class"], "server", "{failed}");
    let status = host.agent.ask(&["status"]);
    assert!(
        status.stdout.contains("uploads: 1 waits or runs") && status.stdout.contains("failures: server"),
        "{status:?}"
    );
    Schema::open("status").admits(&host.agent.ask(&["status", "--json"]).json());
    assert_eq!(host.agent.ask(&["uploads", "drop", "s"]).stdout, "dropped: s to bucket\n");
    until("the queue to be empty", || host.uploads().is_empty());
    host.agent.ask(&["uploads", "drop", "s"]).failed(5, "no upload of session s waits or has failed");
    assert_eq!(host.files("s").len(), 2, "the session stays");
}

#[test]
fn a_session_that_is_removed_takes_its_upload_with_it() {
    let gcs = FakeGcs::start();
    gcs.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).times(10_000));
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("s", &["--to", "bucket"]).code, Some(0));
    let removed = host.agent.ask(&["sessions", "rm", "s", "nope", "s"]);
    removed.failed(5, "nope");
    assert!(removed.stdout.contains("its upload to bucket is given up"), "{removed:?}");
    assert_eq!(removed.stdout.matches("removed s").count(), 1, "{removed:?}");
    assert!(removed.stderr.contains("`tpuscope sessions list`"), "{removed:?}");
    assert!(host.uploads().is_empty());
    for command in ["retry", "drop"] {
        let none = host.agent.ask(&["uploads", command, "--all"]);
        assert_eq!((none.code, none.stdout.as_str()), (Some(0), "no upload waits or has failed\n"));
        let unknown = host.agent.ask(&["uploads", command, "--all", "--to", "nix"]);
        unknown.failed(2, "no destination `nix`; those there are: bucket");
    }
    let unknown = host.capture("t", &["--to", "nix"]);
    unknown.failed(2, "no destination `nix`");
    assert!(unknown.stderr.contains("[[destination]]"), "{unknown:?}");
    Schema::open("sessions-rm").admits(&host.agent.ask(&["sessions", "rm", "nope", "--json"]).json());
}

#[test]
fn settings_that_the_agent_does_not_have_are_not_checked_by_it() {
    let gcs = FakeGcs::start();
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    let file = host.agent.home.path().join("other.toml");
    let text = "[[destination]]\nname = 'bucket'\nurl = 'gs://other/x'\n[[destination]]\nname = 'more'\nurl = 'gs://bucket'\n";
    fs::write(&file, text).unwrap();
    let check = |more: &[&str]| {
        let file = file.display().to_string();
        host.agent.ask(&[&["config", "check", file.as_str(), "--online"], more].concat())
    };
    let checked = check(&[]);
    checked.failed(18, "what they say of these destinations differs, and was not checked: bucket, more");
    assert!(checked.stderr.contains("systemctl reload tpuscope"), "{checked:?}");
    let json = check(&["--json"]);
    Schema::open("config-check-online").admits(&json.json());
    assert_eq!(json.json()["not_checked"], serde_json::json!(["bucket", "more"]), "{json:?}");
}

#[test]
fn the_uploads_of_others_are_neither_seen_nor_changed() {
    let (_dir, there, settings) = folder_destination();
    fs::remove_dir(&there).unwrap();
    let host = UploadHost::start(trace(), &format!("{settings}allow = 'admin'\n"));
    assert_eq!(host.capture("s", &["--to", "folder"]).code, Some(0));
    let listed = host.ask_as_nobody(&["uploads", "list", "--json"]);
    assert_eq!(listed.json()["uploads"], serde_json::json!([]));
    for command in ["retry", "drop"] {
        host.ask_as_nobody(&["uploads", command, "s"]).failed(5, "there is no session s");
        let none = host.ask_as_nobody(&["uploads", command, "--all"]);
        assert_eq!(none.stdout, "no upload waits or has failed\n");
    }
    host.ask_as_nobody(&["capture", "--to", "folder"])
        .failed(4, "only administrators may name the destination folder");
    let config = host.agent.home.path().join("agent.toml").display().to_string();
    host.ask_as_nobody(&["config", "check", &config, "--online"])
        .failed(4, "only administrators may check the destinations");
    assert_eq!(host.uploads().len(), 1);
}
