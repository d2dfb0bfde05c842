//! Uploads and the end of the agent.

use std::fs;

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::trace,
    wait::until,
};
use nix::sys::signal::Signal;

use super::{LARGE, UploadHost, trace_of};

#[test]
fn what_waits_goes_on_with_the_next_agent() {
    let gcs = FakeGcs::start();
    gcs.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).times(10_000));
    let mut host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("s", &["--to", "bucket"]).code, Some(0));
    host.until_upload("a failure", |upload| !upload["failure"].is_null());
    host.agent.signal(Signal::SIGTERM);
    assert_eq!(host.agent.end(), Some(0));
    gcs.clear_faults();
    host.agent.restart();
    host.until_upload("the upload", |upload| upload["state"] == "done");
    host.is_whole(&gcs, "s", "x/plugins/profile/s/");
}

#[test]
fn a_killed_agent_sends_no_part_again() {
    let gcs = FakeGcs::start();
    gcs.fault(
        GcsFault::new(GcsEffect::Hang(Moment::BeforeCommit)).on("PUT").containing("partNumber=3").times(1),
    );
    let mut host = UploadHost::with_bucket(&gcs, trace_of(LARGE), "");
    assert_eq!(host.capture("s", &["--to", "bucket"]).code, Some(0));
    host.until_upload("two parts", |upload| upload["sent_bytes"].as_u64().unwrap() >= 16 << 20);
    host.agent.signal(Signal::SIGKILL);
    assert_eq!(host.agent.end(), None);
    host.agent.restart();
    host.until_upload("the upload", |upload| upload["state"] == "done");
    host.is_whole(&gcs, "s", "x/plugins/profile/s/");
    let parts = gcs
        .requests()
        .into_iter()
        .filter(|request| request.committed && request.query.contains_key("partNumber"));
    let mut numbers: Vec<_> = parts.map(|request| request.query["partNumber"].clone()).collect();
    numbers.sort();
    assert_eq!(numbers, ["1", "2", "3"]);
    assert_eq!(gcs.open_uploads(), [""; 0]);
}

#[test]
fn what_fits_is_sent_before_the_agent_ends() {
    let gcs = FakeGcs::start();
    let mut host = UploadHost::with_bucket(&gcs, trace_of(LARGE), "");
    assert_eq!(host.capture("s", &["--to", "bucket"]).code, Some(0));
    host.agent.signal(Signal::SIGTERM);
    assert_eq!(host.agent.end(), Some(0));
    host.is_whole(&gcs, "s", "x/plugins/profile/s/");
}

#[test]
fn what_is_in_the_bucket_is_found_again_after_the_state_is_lost() {
    let gcs = FakeGcs::start();
    let mut host = UploadHost::with_bucket(&gcs, trace(), "");
    assert_eq!(host.capture("sent", &["--to", "bucket", "--wait-upload"]).code, Some(0));
    assert_eq!(host.capture("kept", &["--to", "none"]).code, Some(0));
    let made = |gcs: &FakeGcs| gcs.requests().into_iter().filter(|request| request.made_object()).count();
    let before = made(&gcs);
    host.agent.signal(Signal::SIGKILL);
    assert_eq!(host.agent.end(), None);
    let state = host.agent.home.path().join("state/state.db");
    fs::write(&state, vec![0; 20_000]).unwrap();
    host.agent.restart();
    let found = host.until_upload("the upload of before", |upload| {
        upload["session"] == "sent" && upload["state"] == "done"
    });
    assert_eq!(found["unverified_files"], 0, "{found}");
    until("the rest to be looked for", || host.uploads().len() == 1);
    assert_eq!(made(&gcs), before, "nothing is sent again");
}
