//! A bucket as the destination, at the double.

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::trace,
};

use super::{LARGE, UploadHost, trace_of};

#[test]
fn a_session_arrives_whole_and_verified_with_the_manifest_last() {
    for (size, trace) in [("small", trace()), ("large", trace_of(LARGE))] {
        let gcs = FakeGcs::start();
        let host = UploadHost::with_bucket(&gcs, trace, "");
        let ended = host.capture("s", &["--to", "bucket", "--wait-upload", "--json"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{size}: {ended:?}");
        let upload = &ended.json()["uploads"][0];
        assert_eq!((&upload["state"], &upload["unverified_files"]), (&"done".into(), &0.into()), "{upload}");
        host.is_whole(&gcs, "s", "x/plugins/profile/s/");
        assert!(gcs.objects().contains_key("x/.tpuscope/s"));
        assert_eq!(gcs.open_uploads(), [""; 0]);
        let made: Vec<_> = gcs.requests().into_iter().filter(|request| request.made_object()).collect();
        let names: Vec<_> = made.iter().map(|request| request.object.rsplit('/').next().unwrap()).collect();
        assert_eq!((names.len(), names[0], names[2]), (3, "s", "manifest.json"), "{names:?}");
    }
}

#[test]
fn a_write_that_was_done_although_its_answer_says_otherwise_is_not_done_again() {
    let gcs = FakeGcs::start();
    for containing in [".tpuscope/s", "xplane.pb", "manifest.json"] {
        gcs.fault(
            GcsFault::new(GcsEffect::Status(503, Moment::AfterCommit)).on("PUT").containing(containing),
        );
    }
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    let ended = host.capture("s", &["--to", "bucket", "--wait-upload"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    host.is_whole(&gcs, "s", "x/plugins/profile/s/");
    let made = gcs.requests().into_iter().filter(|request| request.made_object()).count();
    assert_eq!(made, 3);
}

#[test]
fn without_the_checksum_of_the_bucket_a_file_is_unverified() {
    let gcs = FakeGcs::start();
    gcs.fault(GcsFault::new(GcsEffect::NoHash).on("HEAD").times(100));
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("s", &["--to", "bucket", "--wait-upload"]).code, Some(0));
    let listed = host.agent.ask(&["uploads", "list"]);
    assert!(listed.stdout.contains("there (2 unverified)"), "{listed:?}");
}

#[test]
fn credentials_that_are_refused_are_said() {
    let gcs = FakeGcs::start();
    gcs.require_tokens();
    // Its key file says that there are no tokens.
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    let ended = host.capture("s", &["--to", "bucket", "--wait-upload=1s"]);
    assert_eq!(ended.code, Some(20), "{ended:?}");
    assert!(ended.stderr.contains("401") && ended.stderr.contains("service account"), "{ended:?}");
}

#[test]
fn an_object_that_is_not_as_it_was_sent_is_sent_again_and_given_up_at_last() {
    let gcs = FakeGcs::start();
    gcs.fault(GcsFault::new(GcsEffect::WrongCrc).on("HEAD").containing("xplane.pb").times(1));
    let host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("a", &["--to", "bucket", "--wait-upload"]).code, Some(0));
    host.is_whole(&gcs, "a", "x/plugins/profile/a/");
    gcs.fault(GcsFault::new(GcsEffect::WrongSize).on("HEAD").containing("xplane.pb").times(100));
    let ended = host.capture("b", &["--to", "bucket", "--wait-upload"]);
    ended.failed(20, "has failed: ");
    assert!(!gcs.objects().contains_key("x/plugins/profile/b/manifest.json"), "it is not visible");
    gcs.clear_faults();
    assert_eq!(host.agent.ask(&["uploads", "retry", "b"]).code, Some(0));
    host.until_upload("the upload", |upload| upload["session"] == "b" && upload["state"] == "done");
    host.is_whole(&gcs, "b", "x/plugins/profile/b/");
}
