//! Sessions of which each agent has a part, read and copied from all of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    command::{Ended, RunningCommand, run, start},
    fake_profiler::{FakeProfiler, Mode, trace, trace_of},
    harness::{peer, workspace},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Cluster, hosts, list, text, why};
use crate::{profiler_agent::Agent, schema::Schema};

impl Cluster {
    /// A command about a session of these hosts, in the folder for sessions.
    fn start_reading(&self, command: &str, session: &str, hosts: &str, more: &[&str]) -> RunningCommand {
        let reach = self.command();
        let arguments = ["sessions", command, session, "--hosts", hosts, "--via-command", &reach];
        start(&self.out(), &[&arguments, more].concat())
    }

    pub(super) fn read(&self, command: &str, session: &str, hosts: &str, more: &[&str]) -> Ended {
        self.start_reading(command, session, hosts, more).end()
    }

    /// What a fetch put into the folder `copied`.
    fn copied(&self, session: &str) -> (PathBuf, Value) {
        let folder = self.out().join("copied/plugins/profile").join(session);
        let manifest: Value =
            serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
        Schema::open("manifest").admits(&manifest);
        (folder, manifest)
    }

    /// Nothing is in the folder `copied`, and nothing is left there of what was tried.
    fn copied_nothing(&self) {
        for below in ["profile", ".tpuscope"] {
            let entries = fs::read_dir(self.out().join("copied/plugins").join(below));
            assert_eq!(entries.map(Iterator::count).unwrap_or_default(), 0, "{below}");
        }
    }

    /// Each host captures its own part of the session, by itself.
    fn capture_alone(&self, session: &str) {
        for (host, agent) in &self.agents {
            let ended = agent.ask(&["capture", "--duration", "10ms", "--session", session]);
            assert_eq!(ended.code, Some(0), "{host}: {ended:?}");
        }
    }
}

const COPIED: [&str; 2] = ["--output", "copied"];

/// What the script of XProf's own loader prints.
fn xprof(script: &str, arguments: &[&Path]) -> Value {
    let script = workspace().join("tests/scripts").join(script);
    let output = Command::new(peer("xprof/bin/python")).arg(script).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("xprof: {error}\n{errors}"))
}

/// The session `name`, which the hosts a and b recorded together and which lies in the folder for sessions, is the same when
/// it is read from their agents; XProf lists each host of it once.
pub(super) fn read_back(cluster: &Cluster, name: &str) {
    let shown = cluster.read("show", name, "a,b", &["--json"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""), "{shown:?}");
    let report = shown.json();
    Schema::open("sessions-show").admits(&report);
    let whole =
        run(&cluster.out(), &["sessions", "show", &format!("plugins/profile/{name}"), "--json"]).json();
    for same in ["step_time", "straggler", "missing", "warnings"] {
        assert_eq!(report[same], whole[same], "{same}");
    }
    // Two jobs, as their step numbers tell: each has a block.
    let files = |report: &Value| -> Vec<String> {
        let jobs = list(report, "jobs").iter().map(|job| &job["report"]);
        let parts = jobs.chain([report]).flat_map(|report| list(report, "hosts"));
        parts.map(|host| text(host, "file")).collect()
    };
    assert_eq!(files(&report), files(&whole));
    assert_eq!((&report["sources"][1]["host"], &report["session"]), (&"b".into(), &name.into()));

    let fetched = cluster.read("fetch", name, "a,b", &[&COPIED[..], &["--json"]].concat());
    assert_eq!((fetched.code, fetched.stderr.as_str()), (Some(0), ""), "{fetched:?}");
    Schema::open("sessions-fetch").admits(&fetched.json());
    let (folder, manifest) = cluster.copied(name);
    let recorded = cluster.manifest(name);
    assert_eq!((hosts(&manifest), &manifest["id"]), (hosts(&recorded), &recorded["id"]));
    for file in files(&report) {
        let copies =
            [folder.join(&file), cluster.session(name).join(&file)].map(|file| fs::read(file).unwrap());
        assert!(copies[0] == copies[1], "{file}");
    }
    // Two folders of one session beside each other: XProf lists each host once, and opens them.
    let listed = xprof("xprof_hosts.py", &[&cluster.out().join("copied")]);
    assert_eq!(listed, json!({ name: ["vm-a", "vm-b"] }));
    let parts: Vec<PathBuf> = files(&report).iter().map(|file| folder.join(file)).collect();
    let parts: Vec<&Path> = parts.iter().map(PathBuf::as_path).collect();
    let opened = xprof("xprof_tools.py", &parts);
    assert_eq!(opened["processes"], json!(["vm-a /host:CPU", "vm-b /host:CPU"]), "{opened}");
}

#[test]
fn what_some_hosts_have_is_read_and_the_others_are_named() {
    let fakes: Vec<FakeProfiler> =
        (0..4).map(|seed| FakeProfiler::start(Mode::Trace(trace_of(3 << 20, seed)))).collect();
    let targets: Vec<String> = fakes.iter().map(FakeProfiler::target).collect();
    // One has two processes, and two have one name for their hosts.
    let mut cluster = Cluster::of(&[("a", &targets[0..2])]);
    for (host, profilers) in [("b", &targets[2..3]), ("c", &targets[3..4])] {
        cluster.add(host, Agent::start_as("localhost", profilers, ""));
    }
    cluster.capture_alone("own");
    cluster.add("d", Agent::start_as("vm-d", &[], ""));
    cluster.name("alias", &cluster.agent("a").home.path().join("agent.sock"));

    let all = "a,alias,b,c,d,none";
    let shown = cluster.read("show", "own", all, &["--json"]);
    assert_eq!(shown.code, Some(18), "{shown:?}");
    let report = shown.json();
    Schema::open("sessions-show").admits(&report);
    let names: Vec<String> = list(&report, "hosts").iter().map(|host| text(host, "host")).collect();
    assert_eq!(names, ["vm-a", "vm-a", "localhost", "c"]);
    let missing: Vec<String> = list(&report, "missing").iter().map(|missing| text(missing, "file")).collect();
    assert_eq!(missing, ["alias", "d", "none"]);
    let page = cluster.read("show", "own", all, &[]).stdout;
    for words in [
        "\nmissing  alias it has the same agent as a",
        "\nmissing  d its agent has no session own",
        "\n- d: `tpuscope sessions list`",
        "\n           own on c\n",
    ] {
        assert!(page.contains(words), "{words} in {page}");
    }

    let fetched = cluster.read("fetch", "own", all, &[&COPIED[..], &["--json"]].concat());
    assert_eq!(fetched.code, Some(18), "{fetched:?}");
    Schema::open("sessions-fetch").admits(&fetched.json());
    let kinds: Vec<String> = list(&fetched.json(), "missing").iter().map(|host| text(host, "kind")).collect();
    assert_eq!(kinds[..2], ["same_agent", "no_session"], "{fetched:?}");
    let (folder, manifest) = cluster.copied("own");
    let (there, missing) = hosts(&manifest);
    assert_eq!(
        (there, missing),
        (
            ["c", "localhost", "vm-a"].map(String::from).to_vec(),
            vec!["alias".into(), "d".into(), "none".into()]
        )
    );
    assert!(why(&manifest, "d").contains("has no session own"), "{manifest}");
    assert_eq!(manifest["id"], Value::Null, "each recorded it by itself");
    let parts: Vec<&Value> = list(&manifest, "hosts").iter().flat_map(|host| list(host, "parts")).collect();
    assert_eq!(parts.len(), 4);
    for part in parts {
        let copy = fs::metadata(folder.join(text(part, "file"))).unwrap();
        assert_eq!(copy.len(), part["size"].as_u64().unwrap());
    }
    // What is copied is read as what the agents have.
    let copy = run(&cluster.out(), &["sessions", "show", folder.to_str().unwrap(), "--json"]).json();
    assert_eq!(list(&copy, "hosts").len(), 4);
    // A second time there is something already.
    cluster.read("fetch", "own", "a,b", &COPIED).failed(7, "already exists");

    cluster
        .read("show", "other", "a,d", &[])
        .failed(5, "no host has a part of session other: a: its agent has no");
    cluster.read("show", "own", "none", &[]).failed(10, "no host gave a part of session own: none: ");
    cluster.read("show", "./own", "a", &[]).failed(2, "asked for one session, by its name");
    cluster.read("fetch", "./own", "a", &[]).failed(2, "asked for one session, by its name");
    cluster.read("show", "own", "a", &["--socket", "x"]).failed(2, "--socket is the agent of this host");
}

#[test]
fn a_part_that_is_not_as_it_was_recorded_is_not_copied() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let cluster = Cluster::of(&[("a", &[fakes[0].target()]), ("b", &[fakes[1].target()])]);
    cluster.capture_alone("own");
    // One byte of it rotted in the store.
    let stored = cluster.agent("b").home.path().join("state/sessions/plugins/profile/own/vm-b.xplane.pb");
    let mut bytes = fs::read(&stored).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&stored, &bytes).unwrap();
    let only = cluster.read("fetch", "own", "b", &COPIED);
    only.failed(8, "no host gave a part of session own: b: vm-b.xplane.pb does not match its manifest");
    cluster.copied_nothing();
    let some = cluster.read("fetch", "own", "a,b", &COPIED);
    assert_eq!(some.code, Some(18), "{some:?}");
    assert!(some.stdout.contains("\nmissing: b: vm-b.xplane.pb does not match its manifest"), "{some:?}");
    let (folder, manifest) = cluster.copied("own");
    assert_eq!(hosts(&manifest), (vec!["vm-a".into()], vec!["b".into()]));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
}

#[test]
fn a_command_that_fails_says_so_in_json_too() {
    let cluster = Cluster::of(&[("a", &[])]);
    let schema = Schema::open("failure");
    let report = |ended: &Ended, code: i32| {
        assert_eq!(ended.code, Some(code), "{ended:?}");
        schema.admits(&ended.json());
        let what = text(&ended.json()["error"], "message");
        assert!(ended.stderr.starts_with(&format!("tpuscope: {what}\n")), "{ended:?}");
    };
    for command in ["show", "fetch"] {
        report(&cluster.read(command, "none", "a", &["--json"]), 5);
        report(&run(&cluster.out(), &["sessions", command, "./none", "--json"]), 5);
        report(&run(&cluster.out(), &["sessions", command, "none", "--socket", "none", "--json"]), 6);
    }
    report(&run(&cluster.out(), &["sessions", "list", "./none", "--json"]), 5);
    report(&run(&cluster.out(), &["sessions", "diff", "./none", "./other", "--json"]), 5);
    report(&run(&cluster.out(), &["sessions", "list", "--hosts", "a,a", "--via", "ssh", "--json"]), 2);
}

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace_of(40 << 20, 1))));
    let cluster = Cluster::of(&[("a", &[fakes[0].target()]), ("b", &[fakes[1].target()])]);
    cluster.capture_alone("own");
    let staged = cluster.out().join("copied/plugins/.tpuscope");
    let copying = cluster.start_reading("fetch", "own", "a,b", &COPIED);
    fakes::wait::until("the copy to begin", || fs::read_dir(&staged).is_ok_and(|staged| staged.count() > 0));
    let ended = copying.signal_and_end(Signal::SIGINT);
    // A fast machine may have been done.
    if ended.code != Some(0) {
        ended.failed(130, "interrupted; nothing was copied");
        cluster.copied_nothing();
    }
}
