//! Snapshots over several hosts: each host's own past, as one session.

use std::{fs, os::unix::net::UnixListener, path::Path, thread};

use fakes::{
    command::Ended,
    fake_agent::FakeAgent,
    fake_proc::FakeProcess,
    fake_profiler::{FakeProfiler, Mode, trace_of},
    jax_job::JaxJob,
    wait::{LIMIT, wait_with},
};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Cluster, hosts, list, text, why};
use crate::{profiler_agent::Agent, schema::Schema};

/// An agent that records the one process of its procfs, which is of this job and has this profiler.
fn recording(host: &str, job: &str, profiler: &str, recorder: &str) -> Agent {
    let settings = format!(
        "[workload]\nprobe = 'listeners'\nscan_interval = '250ms'\n[sampler]\ninterval = '250ms'\n\
         [recorder]\nevery = '5s'\n{recorder}"
    );
    let agent = Agent::start_as(host, &[], &settings);
    let process = FakeProcess::new(100, 10).environment(&[("TPUSCOPE_JOB_ID", job)]);
    let process = process.descriptor(4, "/dev/accel0").descriptor(6, "socket:[900]");
    process.listeners(&[(profiler, 0, 900)]).write(&agent.home.path().join("proc"));
    agent
}

/// When the fakes' traces were recorded, as they say.
const OF_FAKES: [&str; 4] = ["--from", "2027-01-15T07:59:00Z", "--until", "2027-01-15T08:01:00Z"];
const FAKE: &str = "mode = 'on'\nwindow = '100ms'\nmax_window = '100ms'\n";

impl Cluster {
    fn snapshot(&self, hosts: &str, arguments: &[&str]) -> Ended {
        self.start_command("snapshot", &[], hosts, arguments).end()
    }

    /// Waits until so many windows are kept on each of these hosts.
    fn has_windows(&self, hosts: &[&str], count: usize) {
        for host in hosts {
            let agent = self.agent(host);
            let evidence = || format!("{}\n{}", agent.ask(&["recorder", "status"]).stdout, agent.log());
            wait_with("windows", LIMIT, evidence, || {
                let timeline = agent.ask(&["recorder", "timeline", "--json"]).json();
                let processes = list(&timeline, "processes").iter();
                let kept: usize = processes.map(|process| list(process, "segments").len()).sum();
                (kept >= count).then_some(())
            });
        }
    }
}

fn nanoseconds(time: &Value) -> i128 {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    time.as_nanosecond()
}

#[test]
fn the_past_of_two_jobs_is_one_session_that_is_aligned_by_step() {
    let jobs = thread::scope(|scope| {
        let start = |_| scope.spawn(|| JaxJob::new().step_ms(100).number_by_clock().start());
        [0, 1].map(start).map(|job| job.join().unwrap())
    });
    let mut cluster = Cluster::new();
    for (host, job) in ["a", "b"].into_iter().zip(&jobs) {
        let windows = "mode = 'on'\nwindow = '1s'\nmax_window = '1s'\n";
        cluster.add(host, recording(&format!("vm-{host}"), "train", &job.target(), windows));
    }
    cluster.has_windows(&["a", "b"], 2);
    let arguments = ["--last", "10m", "--job", "train", "--session", "past", "--json"];
    let ended = cluster.snapshot("a,b", &arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    assert_eq!(report["complete"], true, "{report}");
    let manifest = cluster.manifest("past");
    assert_eq!(hosts(&manifest), (vec!["vm-a".into(), "vm-b".into()], vec![]));
    let asked = &manifest["window"];
    assert_eq!(nanoseconds(&asked["stop"]) - nanoseconds(&asked["start"]), 600_000_000_000);
    let windows = list(&manifest, "hosts").iter().map(|host| {
        let (clock, part) = (&host["clock"], &list(host, "parts")[0]);
        // One machine: the clocks are one.
        let (offset, bound) = (clock["offset_ns"].as_i64().unwrap(), clock["bound_ns"].as_u64().unwrap());
        assert!(offset.unsigned_abs() <= bound && bound < 1_000_000_000, "{clock}");
        assert_eq!(part["job"]["id"], "train");
        let begins = list(part, "recorded").iter().map(|window| nanoseconds(&window["start"]));
        begins.collect::<Vec<i128>>()
    });
    let windows: Vec<Vec<i128>> = windows.collect();
    // A window that only one of them had kept when it was asked is no window of both.
    let common = windows[0]
        .iter()
        .filter(|begin| windows[1].iter().any(|other| (other - *begin).abs() < 2_500_000_000));
    assert!(common.count() + 1 >= windows[0].len(), "hosts of a job have the same windows: {windows:?}");
    // The steps are compared by their numbers, on one time line.
    let shown = fakes::command::run(&cluster.out(), &["sessions", "show", "plugins/profile/past", "--json"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let shown = shown.json();
    assert_eq!((&shown["alignment"]["by"], list(&shown, "jobs").len()), (&"step_num".into(), 0), "{shown}");
    let offset = &list(&shown["alignment"], "offsets")[1];
    assert_eq!(offset["host"], "vm-b");
    let apart = offset["offset_ps"].as_i64().unwrap();
    assert!(apart.abs() < 100_000_000_000, "less than a step: {offset}");
    assert!(shown["step_time"]["count"].as_u64().unwrap() > 5, "{shown}");
    // Each agent has its part as a session of the same id.
    for host in ["a", "b"] {
        assert_eq!(cluster.agent(host).sessions(), ["past"]);
    }
}

#[test]
fn hosts_without_a_past_are_missing_with_their_reasons() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(1 << 20, 1)));
    let mut cluster = Cluster::new();
    cluster.add("a", recording("vm-a", "train", &profiler.target(), FAKE));
    cluster.add("off", recording("vm-off", "train", &profiler.target(), ""));
    cluster.add("other", Agent::start_as("vm-other", &[], ""));
    let mut dead = Agent::start_as("vm-dead", &[], "");
    dead.signal(Signal::SIGKILL);
    dead.end();
    cluster.add("dead", dead);
    let _old = FakeAgent::default().start(&cluster.folder.path().join("sockets/old"));
    cluster.has_windows(&["a"], 1);
    let all = "a,off,other,dead,old";
    let arguments = [&OF_FAKES[..], &["--job", "train", "--session", "some", "--json"]].concat();
    let ended = cluster.snapshot(all, &arguments);
    ended.failed(18, "the session lacks 4 hosts");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    let manifest = cluster.manifest("some");
    let (kept, missing) = hosts(&manifest);
    assert_eq!((kept, missing.len()), (vec!["vm-a".to_owned()], 4));
    for (host, says) in [
        ("off", "recorder.mode is off"),
        ("other", "no process of yours on this host has the job `train`"),
        ("dead", "no process listens on"),
        ("old", "does not know snapshots over several hosts (capability host_snapshot)"),
    ] {
        assert!(why(&manifest, host).contains(says), "{host}: {manifest}");
    }
    // Nothing is kept with too few hosts, and no agent makes a part.
    let few = [&arguments[..], &["--min-hosts", "2"]].concat();
    let few: Vec<&str> = few.iter().map(|word| if *word == "some" { "few" } else { word }).collect();
    let ended = cluster.snapshot("a,off", &few);
    let report = ended.failed(14, "1 of 2 hosts left, and 2 must have a trace").json();
    Schema::open("capture").admits(&report);
    let missing = &report["hosts"][0]["missing"];
    assert_eq!((text(missing, "kind"), &report["hosts"][0]["clock"]), ("not_kept".into(), &Value::Null));
    assert!(
        text(missing, "reason").starts_with("the host did not fail, and no session was made"),
        "{missing}"
    );
    assert!(!cluster.session("few").exists());
    assert_eq!(cluster.agent("a").sessions(), ["some"]);
    cluster.snapshot("a,off", &["--min-hosts", "3"]).failed(2, "--min-hosts 3 is more than the 2 hosts");
    cluster.snapshot("a", &["--socket", "/x"]).failed(2, "--socket is the agent of this host");
}

#[test]
fn each_host_is_asked_in_its_own_clock() {
    let mut cluster = Cluster::new();
    let ahead_ns = 3_600_000_000_000;
    let capabilities = ["clock", "host_snapshot"].map(str::to_owned).to_vec();
    let fake = FakeAgent { ahead_ns, capabilities, ..FakeAgent::default() };
    let fake = fake.start(&cluster.folder.path().join("sockets/fast"));
    let from: jiff::Timestamp = "2027-01-31T12:00:00Z".parse().unwrap();
    let arguments = ["--from", "2027-01-31T12:00:00Z", "--until", "2027-01-31T12:01:00Z"];
    cluster.snapshot("fast", &arguments).failed(14, "nothing was recorded");
    let off = i128::from(fake.start_given()) - from.as_nanosecond() - i128::from(ahead_ns);
    assert!(off.abs() < 1_000_000_000, "{off}");
    cluster.agents.clear();
}

#[test]
fn a_host_that_dies_while_it_makes_its_part_is_missing_and_the_others_are_kept() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(1 << 20, 1)));
    let mut cluster = Cluster::new();
    cluster.add("a", recording("vm-a", "train", &profiler.target(), FAKE));
    let capabilities = ["clock", "host_snapshot"].map(str::to_owned).to_vec();
    // Its clock is another one, as that of a host without a time service.
    let dying =
        FakeAgent { capabilities, ahead_ns: -10_000_000_000, dies_in_snapshot: true, ..FakeAgent::default() };
    let _dying = dying.start(&cluster.folder.path().join("sockets/dying"));
    cluster.has_windows(&["a"], 1);
    let arguments = [&OF_FAKES[..], &["--session", "half", "--json"]].concat();
    let ended = cluster.snapshot("dying,a", &arguments);
    let report = ended.failed(18, "the session lacks 1 host").json();
    Schema::open("capture").admits(&report);
    let missing = &report["hosts"][0]["missing"];
    assert_eq!(text(missing, "kind"), "lost", "{missing}");
    assert!(text(missing, "remedy").contains("`tpuscope sessions fetch half --output DIR`"), "{missing}");
    let manifest = cluster.manifest("half");
    assert_eq!(hosts(&manifest), (vec!["vm-a".to_owned()], vec!["dying".to_owned()]));
}

#[test]
fn agents_upload_their_parts_of_the_past_and_one_manifest_names_all() {
    let profilers = [1, 2].map(|seed| FakeProfiler::start(Mode::Trace(trace_of(1 << 20, seed))));
    let bucket = tempfile::tempdir().unwrap();
    let to = |folder: &Path| {
        let url = format!("file://{}/{{job}}", folder.display());
        format!("{FAKE}[[destination]]\nname = 'shared'\nurl = '{url}'\n")
    };
    fs::create_dir(bucket.path().join("train")).unwrap();
    let mut cluster = Cluster::new();
    for (host, profiler) in ["a", "b"].into_iter().zip(&profilers) {
        let settings = to(bucket.path());
        cluster.add(host, recording(&format!("vm-{host}"), "train", &profiler.target(), &settings));
    }
    cluster.has_windows(&["a", "b"], 1);
    let arguments = [&OF_FAKES[..], &["--session", "up", "--to", "shared", "--json"]].concat();
    let ended = cluster.snapshot("a,b", &arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let there = bucket.path().join("train/plugins/profile/up");
    assert!(text(&ended.json(), "folder").ends_with("/train/plugins/profile/up"), "{ended:?}");
    let manifest: Value = serde_json::from_slice(&fs::read(there.join("manifest.json")).unwrap()).unwrap();
    Schema::open("manifest").admits(&manifest);
    assert_eq!(hosts(&manifest), (vec!["vm-a".into(), "vm-b".into()], vec![]));
    cluster.kept_nothing();
    // The name is taken there now, and no host makes a part of it.
    cluster.agent("a").ask(&["sessions", "rm", "up"]);
    let ended = cluster.snapshot("a", &arguments);
    ended.failed(7, "another session has the name up at the destination shared");
    assert!(cluster.agent("a").sessions().is_empty());
}

#[test]
fn a_snapshot_that_is_cancelled_leaves_no_session() {
    let profiler = FakeProfiler::start(Mode::Trace(trace_of(1 << 20, 1)));
    let mut cluster = Cluster::new();
    cluster.add("a", recording("vm-a", "train", &profiler.target(), FAKE));
    // It answers nothing: the others wait for it.
    let silent = UnixListener::bind(cluster.folder.path().join("sockets/silent")).unwrap();
    cluster.has_windows(&["a"], 1);
    let arguments = [&OF_FAKES[..], &["--session", "never", "--host-timeout", "60s", "--json"]].concat();
    let mut waiting = cluster.start_command("snapshot", &[], "a,silent", &arguments);
    let _asked = silent.accept().unwrap();
    assert!(waiting.alive());
    let ended = waiting.signal_and_end(Signal::SIGINT);
    let report = ended.failed(130, "the snapshot was cancelled before an agent had made its part").json();
    assert!(ended.stderr.contains("`tpuscope sessions fetch never`"), "{ended:?}");
    let missing = |host: usize| &report["hosts"][host]["missing"];
    assert_eq!([0, 1].map(|host| text(missing(host), "kind")), ["not_kept", "not_kept"], "{report}");
    assert!(text(missing(1), "reason").ends_with("it had not answered yet"), "{report}");
    cluster.kept_nothing();
    assert!(cluster.agent("a").sessions().is_empty());
}
