//! The folder to which a command copies the parts of many hosts, on a disk that is full or of which it is killed at any change.

use std::{fs, path::Path};

use fakes::{
    command::{Ended, run},
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    fault_disk::FaultDisk,
    small_disk::SmallDisk,
    wait::until,
};
use serde_json::Value;

use super::{Cluster, text};
use crate::schema::Schema;

/// The most changes that a capture may make.
const MOST_CHANGES: u64 = 200;

fn two_hosts(fakes: &[FakeProfiler; 2]) -> Cluster {
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])])
}

/// What `sessions list` says of each session below a folder: its name, and whether it is complete.
fn listed(out: &Path) -> Vec<(String, bool)> {
    let ended = run(out, &["sessions", "list", ".", "--json"]);
    if ended.code == Some(5) {
        return Vec::new();
    }
    let sessions = ended.json()["sessions"].as_array().unwrap().clone();
    sessions.iter().map(|one| (text(one, "session"), one["complete"] == true)).collect()
}

#[test]
fn a_command_that_is_killed_at_any_change_leaves_a_whole_session_or_none() {
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let cluster = two_hosts(&fakes);
    let disk = FaultDisk::new();
    let (out, variables) = (disk.path(), disk.environment());
    let output = out.display().to_string();
    let mut whole = Vec::new();
    let mut unkept = Vec::new();
    let changes = (1..MOST_CHANGES).find(|change| {
        let session = format!("s{change:03}");
        disk.kill(*change);
        let arguments = ["--duration", "10ms", "--session", &session, "--output", &output];
        let ended: Ended = cluster.start_command("capture", &variables, "a,b", &arguments).end();
        assert!(matches!(ended.code, None | Some(0)), "{change}: {ended:?}");
        let folder = out.join("plugins/profile").join(&session);
        let files = fs::read_dir(&folder).map(Iterator::count).unwrap_or_default();
        assert!([0, 3].contains(&files), "{change}: {files} files after {:?}", disk.failed());
        if files == 3 {
            whole.push((session, true));
        } else {
            unkept.push(session);
        };
        ended.code == Some(0)
    });
    disk.clear();
    assert!(changes.is_some_and(|changes| changes > 10), "{changes:?}");
    assert_eq!(listed(&out), whole);
    // Neither a copy of what the agents keep nor another capture is disturbed.
    let kept: Vec<&String> =
        unkept.iter().filter(|session| cluster.agent("a").sessions().contains(session)).collect();
    let last = kept.last().expect("it was killed after the hosts had recorded");
    let fetched = cluster.read("fetch", last, "a,b", &["--output", &output]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    let next = cluster.capture("a,b", &["--duration", "10ms", "--session", "next", "--output", &output]);
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(listed(&out).iter().all(|(_, complete)| *complete), "{:?}", listed(&out));
}

#[test]
fn a_full_disk_here_costs_no_host_its_part() {
    let large = FakeProfiler::start(Mode::Trace(trace_of(8 << 20, 1)));
    let fakes = [large, FakeProfiler::start(Mode::Trace(trace()))];
    let cluster = two_hosts(&fakes);
    let disk = SmallDisk::new();
    let output = disk.path().display().to_string();
    let arguments = ["--duration", "10ms", "--session", "s", "--output", &output, "--json"];
    let ended = cluster.capture("a,b", &arguments);
    ended.failed(17, "No space left on device");
    assert!(ended.stderr.contains("`tpuscope sessions fetch s`"), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let hosts: Vec<Value> = report["hosts"].as_array().unwrap().clone();
    assert_eq!(hosts.iter().map(|host| text(host, "host")).collect::<Vec<_>>(), ["a", "b"]);
    for host in ["a", "b"] {
        until("the session to be kept", || cluster.agent(host).sessions() == ["s"]);
    }
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "nothing is left here");
    let fetched = cluster.read("fetch", "s", "a,b", &["--output", "there"]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
}
