//! The parts of several hosts on their way to one folder, and the manifest of all of them.

use std::{collections::BTreeSet, fs, path::Path};

use fakes::{
    command::run,
    fake_gcs::{BUCKET, FakeGcs, GcsEffect, GcsFault},
    fake_profiler::{FakeProfiler, Mode, trace},
    wait::{LIMIT, wait_with},
};
use proto::tpuscope::v1::{ReserveHost, SessionManifest};
use tonic::Code;

use super::{AHEAD, LONG_MS, connect, nothing_is_kept};
use crate::{
    host_capture::caller::{AgentConnection, ID, reserve},
    profiler_agent::Agent,
};

/// An agent of a host with one profiler.
struct Host {
    agent: Agent,
    profiler: FakeProfiler,
}

impl Host {
    fn start(name: &str, settings: &str) -> Self {
        let profiler = FakeProfiler::start(Mode::Trace(trace()));
        Self { agent: Agent::start_as(name, &[profiler.target()], settings), profiler }
    }

    /// Waits until its upload of a session is in this state.
    fn upload(&self, session: &str, state: &str) -> serde_json::Value {
        let uploads = || self.agent.ask(&["uploads", "list", "--json"]).json()["uploads"].clone();
        wait_with(
            &format!("{session} to be {state}"),
            LIMIT,
            || format!("{}\n{}", uploads(), self.agent.log()),
            || {
                let uploads = uploads();
                let found = uploads.as_array()?.iter().find(|upload| upload["session"] == session)?;
                (found["state"] == state).then(|| found.clone())
            },
        )
    }
}

/// The settings of a destination `bucket` at the double.
fn bucket(gcs: &FakeGcs, url: &str, more: &str) -> String {
    let key = gcs.credentials_file();
    format!("[[destination]]\nname = 'bucket'\nurl = '{url}'\ncredentials = '{}'\n{more}\n", key.display())
}

fn reserve_parts(session: &str, destination: &str) -> ReserveHost {
    let mut reserve = ReserveHost { parts_only: true, ..reserve(session, 10) };
    reserve.capture.as_mut().unwrap().destination = destination.to_owned();
    reserve
}

/// Captures a session on all hosts. Returns the URL of the parts and the manifest of all.
fn capture(hosts: &[&Host], session: &str, destination: &str) -> (String, SessionManifest) {
    let callers = hosts.iter().map(|host| connect(&host.agent).reserve(reserve_parts(session, destination)));
    let mut callers: Vec<_> = callers.collect();
    let urls: BTreeSet<String> = callers.iter_mut().map(|caller| caller.ready().destination_url).collect();
    assert_eq!(urls.len(), 1, "{urls:?}");
    for caller in &callers {
        caller.start_in(AHEAD);
    }
    let mut manifests = callers.iter_mut().map(|caller| {
        caller.started();
        let finished = caller.finished();
        assert_eq!(finished.failure, None);
        finished.manifest.unwrap()
    });
    let first = manifests.next().unwrap();
    let whole = manifests.fold(first, |mut whole, manifest| {
        whole.hosts.extend(manifest.hosts);
        whole
    });
    (urls.into_iter().next().unwrap(), whole)
}

#[test]
fn the_parts_of_all_hosts_lie_in_one_folder_of_a_bucket_and_the_manifest_comes_last() {
    let gcs = FakeGcs::start();
    let settings = bucket(&gcs, &format!("gs://{BUCKET}/x/{{job}}"), "");
    let (a, b) = (Host::start("a", &settings), Host::start("b", &settings));
    let (url, manifest) = capture(&[&a, &b], "both", "bucket");
    assert_eq!(url, format!("gs://{BUCKET}/x/_none"));
    for host in [&a, &b] {
        assert_eq!(host.upload("both", "done")["url"].as_str(), Some(url.as_str()));
    }
    let parts = ["x/_none/plugins/profile/both/a.xplane.pb", "x/_none/plugins/profile/both/b.xplane.pb"];
    let names = || gcs.objects().into_keys().collect::<Vec<_>>();
    assert_eq!(names(), ["x/_none/.tpuscope/both", parts[0], parts[1]]);
    assert_eq!(gcs.objects()["x/_none/.tpuscope/both"].content(), ID.as_bytes());

    let put = |host: &Host, manifest: &SessionManifest| {
        connect(&host.agent).put_manifest("bucket", manifest.clone())
    };
    let refused = |change: &dyn Fn(&mut SessionManifest), code: Code, says: &str| {
        let mut changed = manifest.clone();
        change(&mut changed);
        let status = put(&a, &changed).unwrap_err();
        assert!(status.code() == code && status.message().contains(says), "{status:?}");
    };
    let bad = Code::FailedPrecondition;
    refused(
        &|manifest| manifest.hosts[1].parts[0].file = "c.xplane.pb".to_owned(),
        bad,
        "c.xplane.pb is not there",
    );
    refused(&|manifest| manifest.hosts[1].parts[0].size += 1, bad, "b.xplane.pb has");
    refused(&|manifest| manifest.id = Some("f".repeat(32)), bad, "is not of the session both");
    let elsewhere = "../other/b.xplane.pb".to_owned();
    refused(
        &|manifest| manifest.hosts[1].parts[0].file.clone_from(&elsewhere),
        Code::InvalidArgument,
        "no part",
    );
    refused(&|manifest| manifest.session = "none".to_owned(), Code::NotFound, "none");
    assert_eq!(names().len(), 3, "nothing was written");

    assert_eq!(put(&a, &manifest).unwrap(), url);
    let object = "x/_none/plugins/profile/both/manifest.json";
    let text: serde_json::Value = serde_json::from_slice(&gcs.objects()[object].content()).unwrap();
    assert_eq!((&text["id"], text["hosts"].as_array().unwrap().len()), (&ID.into(), 2), "{text}");
    // An equal one is as good, also from another host, and another one never takes its place.
    assert_eq!(put(&b, &manifest).unwrap(), url);
    refused(
        &|manifest| manifest.warnings.push("w".to_owned()),
        bad,
        "another manifest of session both is there",
    );
    let manifests: Vec<_> = gcs
        .requests()
        .into_iter()
        .filter(|request| request.made_object() && request.object == object)
        .collect();
    assert_eq!(manifests.len(), 1);
    assert!(a.agent.log().contains("manifest of several hosts put"), "{}", a.agent.log());
}

#[test]
fn a_manifest_waits_for_the_slowest_host() {
    let gcs = FakeGcs::start();
    // What is sent to the bucket for b is not there before the fault is over.
    gcs.fault(
        GcsFault::new(GcsEffect::Status(503, fakes::fake_gcs::Moment::BeforeCommit))
            .on("PUT")
            .containing("/b.xplane")
            .times(1000),
    );
    let settings = bucket(&gcs, &format!("gs://{BUCKET}/x"), "");
    let (a, b) = (Host::start("a", &settings), Host::start("b", &settings));
    let (url, manifest) = capture(&[&a, &b], "both", "bucket");
    a.upload("both", "done");
    let early = connect(&a.agent).put_manifest("bucket", manifest.clone()).unwrap_err();
    assert!(early.message().contains("b.xplane.pb is not there"), "{early:?}");
    gcs.clear_faults();
    assert_eq!(b.agent.ask(&["uploads", "retry", "both"]).code, Some(0));
    b.upload("both", "done");
    assert_eq!(connect(&a.agent).put_manifest("bucket", manifest).unwrap(), url);
}

#[test]
fn a_folder_takes_the_parts_of_all_hosts_and_is_a_session() {
    let there = tempfile::tempdir().unwrap();
    let settings = format!("[[destination]]\nname = 'folder'\nurl = 'file://{}'\n", there.path().display());
    let (a, b) = (Host::start("a", &settings), Host::start("b", &settings));
    let (url, mut manifest) = capture(&[&a, &b], "both", "folder");
    a.upload("both", "done");
    b.upload("both", "done");
    // As long as that of a thousand hosts.
    manifest.warnings = vec!["w".repeat(1000); 1000];
    assert_eq!(connect(&b.agent).put_manifest("folder", manifest.clone()).unwrap(), url);
    assert_eq!(connect(&a.agent).put_manifest("folder", manifest).unwrap(), url);
    let session = there.path().join("plugins/profile/both").display().to_string();
    let listed = run(Path::new("/"), &["sessions", "list", &there.path().display().to_string(), "--json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let both = &listed.json()["sessions"][0];
    assert_eq!((&both["session"], &both["parts"]), (&"both".into(), &2.into()), "{both} in {session}");
}

#[test]
fn a_destination_with_a_folder_for_each_host_takes_no_session_of_several() {
    let gcs = FakeGcs::start();
    let settings = bucket(&gcs, &format!("gs://{BUCKET}/{{host}}"), "upload = 'always'");
    let host = Host::start("a", &settings);
    let refused = connect(&host.agent).reserve(reserve_parts("s", "bucket")).next().unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("destination bucket: the URL contains {host}"), "{refused:?}");
    let unknown = connect(&host.agent).reserve(reserve_parts("s", "other")).next().unwrap_err();
    assert!(unknown.message().contains("no destination `other`; those there are: bucket"), "{unknown:?}");
    assert_eq!(
        host.profiler.seen().profiles.len() + host.profiler.seen().terminated.len(),
        0,
        "not even asked"
    );
    nothing_is_kept(&host.agent);
    // A session that goes there by itself is whole: no other host writes to its folder.
    capture(&[&host], "s", "");
    host.upload("s", "done");
    let objects: Vec<_> = gcs.objects().into_keys().collect();
    let folder = "a/plugins/profile/s";
    assert_eq!(
        objects,
        ["a/.tpuscope/s".to_owned(), format!("{folder}/a.xplane.pb"), format!("{folder}/manifest.json")]
    );
}

#[test]
fn a_name_that_another_session_has_is_refused_before_the_window_and_never_mixed() {
    let gcs = FakeGcs::start();
    let host = Host::start("a", &bucket(&gcs, &format!("gs://{BUCKET}/x"), ""));
    gcs.put("x/.tpuscope/taken", b"another");
    let failure = connect(&host.agent).reserve(reserve_parts("taken", "bucket")).failed();
    assert_eq!((failure.kind.as_str(), failure.reason.as_str()), ("conflict", "session_exists"));
    assert!(
        failure.message.contains("another session has the name taken at the destination bucket"),
        "{failure:?}"
    );
    assert_eq!(host.profiler.seen().terminated.len(), 0, "not even asked");
    nothing_is_kept(&host.agent);

    // Taken in the meantime: the session is kept, and its upload fails.
    let mut caller = connect(&host.agent).reserve(reserve_parts("s", "bucket"));
    caller.ready();
    gcs.put("x/.tpuscope/s", b"another");
    caller.start_in(AHEAD);
    caller.started();
    let manifest = caller.finished().manifest.unwrap();
    let failed = host.upload("s", "failed");
    assert_eq!(failed["failure"]["class"], "taken", "{failed}");
    let refused = connect(&host.agent).put_manifest("bucket", manifest).unwrap_err();
    assert!(refused.message().contains("the name s there is not this session's"), "{refused:?}");
    assert_eq!(gcs.objects().len(), 2);
    // It holds no other upload.
    capture(&[&host], "other", "bucket");
    host.upload("other", "done");
}

#[test]
fn parts_stay_parts_and_a_hosts_own_session_stays_that_when_the_state_is_lost() {
    let gcs = FakeGcs::start();
    gcs.fault(
        GcsFault::new(GcsEffect::Status(503, fakes::fake_gcs::Moment::BeforeCommit)).on("PUT").times(1000),
    );
    let mut host = Host::start("a", &bucket(&gcs, &format!("gs://{BUCKET}/x"), "upload = 'always'"));
    // To the destination for every session, and to the same one because it was named.
    capture(&[&host], "s", "");
    capture(&[&host], "t", "bucket");
    host.agent.signal(nix::sys::signal::Signal::SIGKILL);
    host.agent.end();
    let state = host.agent.home.path().join("state");
    for entry in fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap().to_str().unwrap().starts_with("state.db") {
            fs::remove_file(entry).unwrap();
        }
    }
    gcs.clear_faults();
    host.agent.restart();
    host.upload("s", "done");
    host.upload("t", "done");
    let objects: Vec<_> = gcs.objects().into_keys().collect();
    let wanted = [
        "x/.tpuscope/s-a",
        "x/.tpuscope/t",
        "x/plugins/profile/s-a/a.xplane.pb",
        "x/plugins/profile/s-a/manifest.json",
        "x/plugins/profile/t/a.xplane.pb",
    ];
    assert_eq!(objects, wanted);
}

#[test]
fn a_manifest_needs_the_rights_of_an_upload_and_a_reservation_those_of_a_capture() {
    const NOBODY: u32 = 65534;
    let gcs = FakeGcs::start();
    let host = Host::start("a", &bucket(&gcs, &format!("gs://{BUCKET}/x"), "allow = 'admin'"));
    let nobody = || AgentConnection::as_user(host.agent.home.path(), NOBODY);
    let refused = nobody().reserve(reserve_parts("s", "bucket")).next().unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert!(refused.message().contains("only administrators may name the destination bucket"), "{refused:?}");
    let failure = nobody().reserve(reserve_parts("s", "")).failed();
    assert_eq!((failure.kind.as_str(), failure.reason.as_str()), ("denied", "not_permitted"));
    assert_eq!(host.profiler.seen().terminated.len() + gcs.requests().len(), 0, "nobody was asked");
    let (_, manifest) = capture(&[&host], "s", "bucket");
    host.upload("s", "done");
    let refused = nobody().put_manifest("bucket", manifest.clone()).unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused:?}");
    connect(&host.agent).put_manifest("bucket", manifest).unwrap();
}

#[test]
fn the_manifest_of_one_host_is_not_sent_for_that_of_all() {
    let gcs = FakeGcs::start();
    let host = Host::start("a", &bucket(&gcs, &format!("gs://{BUCKET}/x"), ""));
    let mut whole = reserve("s", LONG_MS);
    whole.capture.as_mut().unwrap().destination = "bucket".to_owned();
    let refused = connect(&host.agent).reserve(whole).next().unwrap_err();
    assert!(refused.message().contains("a destination needs `parts_only`"), "{refused:?}");
}
