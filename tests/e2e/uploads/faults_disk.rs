//! Uploads of an agent whose disk is full.

use std::{fs::File, io::Write, path::Path};

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::{FakeProfiler, Mode, trace},
    small_disk::SmallDisk,
    wait::until,
};

use super::{
    agent::{Setup, UploadAgent, made_once},
    faults::setup,
};

/// Fills the disk that `folder` is on to its last byte.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("else")).unwrap();
    while file.write(&[1; 512]).is_ok_and(|written| written > 0) {}
}

fn on_small_disk(server: &FakeGcs, disk: &SmallDisk, profiler: &FakeProfiler) -> UploadAgent {
    let state = Some(disk.path().join("state"));
    UploadAgent::start(server, Setup { state, ..setup(std::slice::from_ref(profiler)) })
}

#[test]
fn a_disk_that_is_full_during_an_upload_does_not_stop_it_nor_repeat_it() {
    let (server, disk) = (FakeGcs::start(), SmallDisk::new());
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    server.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).always());
    let mut agent = on_small_disk(&server, &disk, &profiler);
    agent.capture("one");
    until("a first attempt", || !server.requests().is_empty());
    fill(disk.path());
    server.clear_faults();
    agent.arrives(&server, "one");
    assert!(agent.alive(), "{}", agent.log());
    // What it could not note is found again in the bucket.
    agent.kill();
    std::fs::remove_file(disk.path().join("else")).unwrap();
    agent.restart();
    agent.reaches("one", "done");
    made_once(&server);
}

#[test]
fn a_capture_that_finds_no_room_leaves_nothing_in_the_bucket() {
    let (server, disk) = (FakeGcs::start(), SmallDisk::new());
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let agent = on_small_disk(&server, &disk, &profiler);
    agent.capture("before");
    agent.arrives(&server, "before");
    agent.reaches("before", "done");
    fill(disk.path());
    let refused = agent.ask(&["capture", "--session", "full", "--duration", "1ms"]);
    assert_eq!(refused.code, Some(17), "{refused:?}");
    std::fs::remove_file(disk.path().join("else")).unwrap();
    agent.capture("after");
    agent.arrives(&server, "after");
    agent.reaches("after", "done");
    made_once(&server);
    assert!(!server.objects().keys().any(|name| name.contains("full")), "{:?}", server.objects().keys());
}
