//! Uploads of an agent whose disk, or whose destination's disk, fails one change at a time.

use std::{collections::BTreeMap, fs, path::Path};

use fakes::{
    fake_gcs::{FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    fault_disk::FaultDisk,
    wait::{until, wait_with},
};
use nix::errno::Errno;

use super::agent::{Setup, UploadAgent, made_once};

/// Waits until the upload of a session to a destination is done. What failed is tried again at once.
fn is_done(agent: &UploadAgent, session: &str, destination: &str) {
    let done = || {
        let uploads = agent.uploads();
        let is_it = |upload: &&serde_json::Value| {
            upload["session"] == session && upload["destination"] == destination
        };
        let upload = uploads.iter().find(is_it)?;
        if !upload["failure"].is_null() && upload["state"] != "done" {
            agent.ask(&["uploads", "retry", session]);
        }
        (upload["state"] == "done").then_some(())
    };
    wait_with(&format!("{session} at {destination}"), super::agent::UPLOAD_LIMIT, || agent.log(), done);
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn whichever_change_fails_in_a_folder_the_session_arrives_whole() {
    let (server, disk) = (FakeGcs::start(), FaultDisk::new());
    // A small trace, and one that is written in parts.
    let profilers =
        [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace_of(9 << 20, 1)))];
    let there = disk.path();
    let folder =
        format!("[[destination]]\nname = 'folder'\nurl = 'file://{}'\nupload = 'always'", there.display());
    let agent = UploadAgent::start(
        &server,
        Setup {
            profilers: profilers.iter().map(FakeProfiler::target).collect(),
            settings: folder,
            environment: disk.environment(),
            ..Setup::default()
        },
    );
    let mut failed = Vec::new();
    for number in 1.. {
        let session = format!("s{number}");
        disk.fail(number..=number, Errno::EIO);
        agent.capture(&session);
        is_done(&agent, &session, "folder");
        let now_failed = disk.failed();
        assert_eq!(
            files(&there.join("plugins/profile").join(&session)),
            agent.files(&session),
            "{now_failed:?}"
        );
        if now_failed.is_empty() {
            break;
        }
        failed.extend(now_failed);
        agent.ask(&["sessions", "rm", &session]);
    }
    for call in ["open", "write", "pwrite", "fsync", "fdatasync", "rename", "mkdir"] {
        assert!(failed.iter().any(|each| each.starts_with(call)), "{call} was not met: {failed:#?}");
    }
}

#[test]
fn whichever_change_of_the_state_fails_during_an_upload_it_arrives_once() {
    let (server, disk) = (FakeGcs::start(), FaultDisk::new());
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let mut agent = UploadAgent::start(
        &server,
        Setup {
            profilers: vec![profiler.target()],
            state: Some(disk.path().join("state")),
            environment: disk.environment(),
            ..Setup::default()
        },
    );
    let mut failed = Vec::new();
    for number in 1.. {
        let session = format!("s{number}");
        // The capture's own changes come before the first attempt that can succeed.
        server.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).always());
        let before = server.requests().len();
        agent.capture(&session);
        until("a first attempt", || server.requests().len() > before);
        disk.fail(number..=number, Errno::EIO);
        server.clear_faults();
        agent.ask(&["uploads", "retry", &session]);
        agent.arrives(&server, &session);
        is_done(&agent, &session, "bucket");
        let now_failed = disk.failed();
        disk.clear();
        assert!(agent.alive(), "{now_failed:?}: {}", agent.log());
        if now_failed.is_empty() {
            break;
        }
        failed.extend(now_failed);
        if number % 4 == 0 {
            // What it could not note is found again in the bucket.
            agent.kill();
            agent.restart();
            agent.reaches(&session, "done");
        }
    }
    made_once(&server);
    assert!(failed.iter().any(|each| each.contains("state.db-wal")), "{failed:#?}");
}
