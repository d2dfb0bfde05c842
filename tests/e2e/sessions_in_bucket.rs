//! Sessions in a bucket: read in ranges with the caller's own credentials, never whole on the disk.

use std::{fs, path::Path, process::Command, time::Duration};

use fakes::{
    command::{Ended, run, start_as},
    fake_gcs::{BUCKET, FakeGcs, GcsEffect, GcsFault, Moment},
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::{data, tpuscope},
};
use prost::Message;
use tempfile::TempDir;

use super::profiler_agent::Agent;
use crate::schema::Schema;

/// A bucket with the session `one` of two parts below `runs`, and the same session in a folder.
fn with_session() -> (FakeGcs, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let profilers = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let agent = Agent::start(&[profilers[0].target(), profilers[1].target()]);
    let captured = agent.ask(&["capture", "--session", "one", "--duration", "10ms", "--output", &out]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let bucket = FakeGcs::start();
    for file in fs::read_dir(copy(&folder)).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        bucket.put(&format!("runs/plugins/profile/one/{name}"), &fs::read(&path).unwrap());
    }
    (bucket, folder)
}

fn copy(folder: &TempDir) -> String {
    folder.path().join("plugins/profile/one").display().to_string()
}

/// Runs a command that finds `bucket` with the credentials of its environment.
fn sessions(bucket: &FakeGcs, folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(tpuscope());
    command.arg("sessions").args(arguments).current_dir(folder);
    command.env("GOOGLE_SERVICE_ACCOUNT", bucket.credentials_file()).envs(bucket.metadata_env());
    start_as(command).end()
}

#[test]
fn a_session_in_a_bucket_is_shown_exported_and_copied_as_from_its_files() {
    let (bucket, folder) = with_session();
    let url = format!("gs://{BUCKET}/runs/plugins/profile/one");
    let local = run(folder.path(), &["sessions", "show", &copy(&folder), "--json"]);
    for url in [url.as_str(), &format!("gs://{BUCKET}/runs"), &format!("gs://{BUCKET}/runs/plugins/")] {
        let shown = sessions(&bucket, folder.path(), &["show", url, "--json"]);
        assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""), "{shown:?}");
        Schema::open("sessions-show").admits(&shown.json());
        assert_eq!(shown.json(), local.json(), "{url}");
    }
    for (format, file) in [("perfetto", "one.json"), ("csv", "tables")] {
        for (what, out) in [(url.as_str(), "a"), (&copy(&folder), "b")] {
            let out = format!("{out}-{file}");
            let ended = sessions(&bucket, folder.path(), &["export", what, "--format", format, "-o", &out]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }
    for file in ["one.json", "tables/steps.csv", "tables/operations.csv"] {
        let read = |which| fs::read(folder.path().join(format!("{which}-{file}"))).unwrap();
        assert_eq!(read("a"), read("b"), "{file}");
    }
    let fetched = sessions(&bucket, folder.path(), &["fetch", &url, "-o", "copied", "--json"]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    Schema::open("sessions-fetch").admits(&fetched.json());
    for file in fs::read_dir(copy(&folder)).unwrap() {
        let path = file.unwrap().path();
        let copied = folder.path().join("copied/plugins/profile/one").join(path.file_name().unwrap());
        assert_eq!(fs::read(&copied).unwrap(), fs::read(&path).unwrap(), "{}", path.display());
    }
    assert!(bucket.requests().iter().all(|request| matches!(request.method.as_str(), "GET" | "HEAD")));
}

#[test]
fn sessions_of_a_bucket_and_of_a_folder_are_listed_alike() {
    let (bucket, folder) = with_session();
    let list = |arguments: &[&str]| {
        let all: Vec<&str> = ["list", "--json"].iter().chain(arguments).copied().collect();
        let listed = sessions(&bucket, folder.path(), &all);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        Schema::open("sessions-list").admits(&listed.json());
        listed.json()["sessions"].clone()
    };
    let url = format!("gs://{BUCKET}/runs");
    let (mut there, mut here) = (list(&[&url]), list(&["."]));
    assert_eq!(there[0]["folder"], format!("{url}/plugins/profile/one"));
    for listed in [&mut there, &mut here] {
        listed[0]["folder"].take();
    }
    assert_eq!(there, here);
    assert_eq!((&here[0]["session"], &here[0]["complete"]), (&"one".into(), &true.into()));
    assert!(here[0]["pinned"].is_null() && here[0]["upload"].is_null());
    for name in ["a", "b", "c"] {
        bucket.put(&format!("runs/plugins/profile/{name}/h.xplane.pb"), &trace().encode_to_vec());
    }
    bucket.set_page_size(2);
    // Those of XProf say nothing of their time: they come first.
    let names = |listed: serde_json::Value| -> Vec<String> {
        let names =
            listed.as_array().unwrap().iter().map(|session| session["session"].as_str().unwrap().to_owned());
        names.collect()
    };
    assert_eq!(names(list(&[&url])), ["a", "b", "c", "one"]);
    assert_eq!(names(list(&[&url, "--limit", "2"])), ["c", "one"]);
    sessions(&bucket, folder.path(), &["list", "one"]).failed(2, "takes a path or a URL");
}

#[test]
fn a_trace_in_a_bucket_is_read_in_ranges_and_merged() {
    let bucket = FakeGcs::start();
    let folder = tempfile::tempdir().unwrap();
    let file = data().join("golden/xplane/real_jax_cpu/vm.xplane.pb");
    bucket.put("runs/plugins/profile/one/vm.xplane.pb", &fs::read(&file).unwrap());
    let local = ["sessions", "merge", &file.display().to_string(), "-o", "local.xplane.pb"];
    assert_eq!(run(folder.path(), &local).code, Some(0));
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    for (n, path) in ["runs/plugins/profile/one/vm.xplane.pb", "runs"].iter().enumerate() {
        let (url, out) = (format!("gs://{BUCKET}/{path}"), format!("{n}.xplane.pb"));
        let merged = sessions(&bucket, folder.path(), &["merge", &url, "-o", &out]);
        assert_eq!(merged.code, Some(0), "{merged:?}");
        assert_eq!(read(&out), read("local.xplane.pb"));
    }
    let requests = bucket.requests();
    let mut contents =
        requests.iter().filter(|request| request.method == "GET" && !request.object.is_empty());
    // 206: a range, as it was asked for.
    assert!(
        contents.clone().count() >= 2 && contents.all(|request| request.status == Some(206)),
        "{requests:?}"
    );
}

#[test]
fn what_a_bucket_lacks_or_refuses_is_one_line() {
    let (bucket, folder) = with_session();
    let show = |url: &str| sessions(&bucket, folder.path(), &["show", url]);
    show(&format!("gs://{BUCKET}/none")).failed(5, "holds no session");
    show(&format!("gs://{BUCKET}/runs/plugins/profile/one/none.xplane.pb")).failed(5, "holds no session");
    show("gs://no-such-bucket/runs").failed(5, "cannot read gs://no-such-bucket/runs");
    bucket.deny("storage.objects.list");
    let denied = show(&format!("gs://{BUCKET}/runs"));
    denied.failed(4, "status 403");
    assert!(denied.stderr.contains("roles/storage.objectViewer"), "{denied:?}");
    bucket.allow_all();
    let trace = trace().encode_to_vec();
    for name in ["s1", "s2"] {
        bucket.put(&format!("mine/{name}/h.xplane.pb"), &trace);
    }
    show(&format!("gs://{BUCKET}/mine")).failed(2, "has 2 sessions: s1, s2");
    bucket.put("mine/2026_01_02_03_04_05/h.xplane.pb", &trace);
    show(&format!("gs://{BUCKET}/mine")).failed(2, "has 3 sessions");
    bucket.put("timed/2026_01_02_03_04_05/h.xplane.pb", &trace);
    bucket.put("timed/2026_01_02_03_04_06/h.xplane.pb", &trace);
    let newest = show(&format!("gs://{BUCKET}/timed"));
    assert!(newest.stdout.contains("2026_01_02_03_04_06") && newest.stdout.contains("1 older"), "{newest:?}");
    // The manifest says more than the bucket has.
    let files = fs::read_dir(copy(&folder)).unwrap();
    let manifest =
        files.map(|file| file.unwrap().path()).find(|path| path.ends_with("manifest.json")).unwrap();
    bucket.put("lost/one/manifest.json", &fs::read(manifest).unwrap());
    show(&format!("gs://{BUCKET}/lost/one")).failed(8, "is named by the manifest and missing");
    let fetched =
        sessions(&bucket, folder.path(), &["fetch", &format!("gs://{BUCKET}/lost/one"), "-o", "lost"]);
    assert_ne!(fetched.code, Some(0), "{fetched:?}");
    assert!(!folder.path().join("lost/plugins/profile/one").exists());
}

#[test]
fn a_failure_that_passes_is_not_seen_and_one_that_stays_is() {
    let (bucket, folder) = with_session();
    let url = format!("gs://{BUCKET}/runs/plugins/profile/one");
    bucket.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).on("GET").times(2));
    bucket.fault(GcsFault::new(GcsEffect::CutAnswer).on("GET").containing("xplane"));
    let shown = sessions(&bucket, folder.path(), &["show", &url]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""), "{shown:?}");
    bucket.fault(GcsFault::new(GcsEffect::Status(503, Moment::BeforeCommit)).containing("xplane").always());
    let failed = sessions(&bucket, folder.path(), &["show", &url]);
    failed.failed(10, "status 503");
    bucket.clear_faults();
    bucket.fault(
        GcsFault::new(GcsEffect::Slow(64 << 10, Duration::from_millis(1)))
            .on("GET")
            .containing("xplane")
            .always(),
    );
    assert_eq!(sessions(&bucket, folder.path(), &["show", &url]).code, Some(0));
}
