//! Captures that end before their session is whole: what is left, here, with the agents and at a destination, and that the next
//! capture is not disturbed.

use std::{
    fs,
    os::unix::net::UnixListener,
    path::Path,
    time::{Duration, Instant},
};

use fakes::{
    command::{RunningCommand, run, start},
    fake_agent::FakeAgent,
    fake_profiler::{FakeProfiler, Mode, trace},
    jax_job::JaxJob,
    profiler_probe::capture_in_window,
    wait::until,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{Cluster, hosts, killed::LEASE, text, why};
use crate::profiler_agent::Agent;

/// The parts that are staged below a folder for sessions.
fn staged(out: &Path) -> usize {
    let folders = fs::read_dir(out.join("plugins/.tpuscope")).map(Iterator::flatten).into_iter().flatten();
    let parts =
        folders.flat_map(|folder| fs::read_dir(folder.path()).map(Iterator::flatten).into_iter().flatten());
    parts.filter(|part| part.file_name().to_string_lossy().ends_with(".part")).count()
}

fn sessions(out: &Path) -> usize {
    fs::read_dir(out.join("plugins/profile")).map(Iterator::count).unwrap_or_default()
}

#[test]
fn a_coordinator_that_is_killed_while_it_copies_leaves_no_session() {
    let job = JaxJob::new().start();
    let cluster = Cluster::of(&[("a", &[job.target()])]);
    // Its part takes for ever.
    let slow = FakeAgent { pause: Duration::from_secs(60), ..FakeAgent::default() };
    let _slow = slow.start(&cluster.folder.path().join("sockets/slow"));
    let arguments = ["--duration", "100ms", "--session", "half", "--host-timeout", "120s"];
    let capture = cluster.start("a,slow", &arguments);
    until("the copies", || staged(&cluster.out()) > 0);
    let begin = Instant::now();
    capture.signal_and_end(Signal::SIGKILL);
    let agent = cluster.agent("a");
    until("the profiler to be free", || agent.ask(&["capture", "--duration", "10ms"]).code != Some(13));
    assert!(begin.elapsed() < LEASE);
    assert_eq!(sessions(&cluster.out()), 0);
    let listed = run(&cluster.out(), &["sessions", "list", "."]);
    assert_ne!(listed.code, Some(0), "{listed:?}");
    // Not here, and not with the agent, which has the session of the dead one.
    let next = cluster.capture("a", &["--duration", "500ms"]);
    assert_eq!((next.code, sessions(&cluster.out())), (Some(0), 1), "{next:?}");
    assert!(agent.sessions().contains(&"half".to_owned()));
}

/// Two agents with a destination in this folder.
fn with_destination(fakes: &[FakeProfiler; 2], folder: &Path) -> Cluster {
    let settings = format!("[[destination]]\nname = 'shared'\nurl = 'file://{}'\n", folder.display());
    let mut cluster = Cluster::new();
    for (host, fake) in ["a", "b"].into_iter().zip(fakes) {
        cluster.add(host, Agent::start_as(&format!("vm-{host}"), &[fake.target()], &settings));
    }
    cluster
}

#[test]
fn what_a_coordinator_leaves_at_a_destination_is_called_unfinished() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let parent = tempfile::tempdir().unwrap();
    // Not mounted, as it were: the uploads wait.
    let bucket = parent.path().join("bucket");
    let cluster = with_destination(&fakes, &bucket);
    for (signal, session) in [(Signal::SIGKILL, "killed"), (Signal::SIGINT, "cancelled")] {
        let capture = cluster.start("a,b", &["--duration", "10ms", "--to", "shared", "--session", session]);
        for host in ["a", "b"] {
            until("the session", || cluster.agent(host).sessions().contains(&session.to_owned()));
        }
        let ended = capture.signal_and_end(signal);
        if signal == Signal::SIGINT {
            ended.failed(130, "cancelled after hosts had recorded; no whole session was made");
            let there =
                format!("lies in file://{}/plugins/profile/cancelled without a manifest", bucket.display());
            assert!(ended.stderr.contains(&there), "{ended:?}");
        }
    }
    fs::create_dir(&bucket).unwrap();
    for host in ["a", "b"] {
        // The agents do what they were asked for: each sends its parts.
        let part = bucket.join(format!("plugins/profile/killed/vm-{host}.xplane.pb"));
        until("the parts", || {
            cluster.agent(host).ask(&["uploads", "retry"]);
            part.exists()
        });
    }
    let place = bucket.display().to_string();
    let listed = run(parent.path(), &["sessions", "list", &place, "--json"]).json();
    let killed =
        &listed["sessions"].as_array().unwrap().iter().find(|one| one["session"] == "killed").unwrap();
    assert_eq!(killed["complete"], false, "{listed}");
    let page = run(parent.path(), &["sessions", "list", &place]).stdout;
    let row = page.lines().find(|line| line.starts_with("killed ")).unwrap();
    assert!(row.contains(" unfinished "), "{page}");
    let shown = run(parent.path(), &["sessions", "show", &format!("{place}/plugins/profile/killed")]);
    let said = "the session is unfinished";
    assert!(shown.stdout.contains(said) || shown.stderr.contains(said), "{shown:?}");
    // The next one is whole.
    let next = cluster.capture("a,b", &["--duration", "10ms", "--to", "shared", "--session", "next"]);
    assert_eq!(next.code, Some(0), "{next:?}");
    let page = run(parent.path(), &["sessions", "list", &place]).stdout;
    let row = page.lines().find(|line| line.starts_with("next ")).unwrap();
    assert!(row.contains(" complete"), "{page}");
}

#[test]
fn a_host_that_was_given_up_adds_nothing_to_the_finished_session() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let parent = tempfile::tempdir().unwrap();
    // Not mounted, as it were: the uploads wait.
    let bucket = parent.path().join("bucket");
    let cluster = with_destination(&fakes, &bucket);
    let arguments = ["--duration", "10ms", "--to", "shared", "--session", "late", "--host-timeout", "3s"];
    let capture = cluster.start("a,b", &arguments);
    for host in ["a", "b"] {
        until("the session", || cluster.agent(host).sessions().contains(&"late".to_owned()));
    }
    cluster.agent("b").signal(Signal::SIGSTOP);
    fs::create_dir(&bucket).unwrap();
    let ended = capture.end();
    cluster.agent("b").signal(Signal::SIGCONT);
    ended.failed(18, "the session lacks 1 host");
    assert!(ended.stdout.contains("`tpuscope sessions fetch late --output DIR`"), "{ended:?}");
    let class = || {
        cluster.agent("b").ask(&["uploads", "retry"]);
        let uploads = cluster.agent("b").ask(&["uploads", "list", "--json"]).json();
        uploads["uploads"][0]["failure"]["class"].clone()
    };
    until("the upload to be refused", || class() == "too_late");
    let mut there: Vec<_> = fs::read_dir(bucket.join("plugins/profile/late"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, ["manifest.json", "vm-a.xplane.pb"]);
    // What it keeps can be had.
    let fetched = cluster.read("fetch", "late", "a,b", &["--output", "there"]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
}

#[test]
fn sessions_without_a_name_of_one_second_do_not_collide() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace()))];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    for _ in 0..3 {
        let (first, second) =
            (cluster.start("a", &["--duration", "10ms"]), cluster.start("b", &["--duration", "10ms"]));
        for ended in [first.end(), second.end(), cluster.capture("a,b", &["--duration", "10ms"])] {
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }
    assert_eq!(sessions(&cluster.out()), 9);
    assert_eq!((cluster.agent("a").sessions().len(), cluster.agent("b").sessions().len()), (6, 6));
}

/// A capture by another program, in its window.
fn foreign(target: &str) -> (RunningCommand, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["capture", "--target", target, "--duration", "10s"];
    let running = capture_in_window(&[target.to_owned()], || start(folder.path(), &arguments));
    (running, folder)
}

#[test]
fn a_profiler_that_another_program_uses_is_waited_for_too() {
    let jobs = [JaxJob::new().start(), JaxJob::new().start()];
    let targets = [jobs[0].target(), jobs[1].target()];
    let cluster = Cluster::of(&[("a", &targets[..1]), ("b", &targets[1..])]);
    let (other, _folder) = foreign(&targets[1]);
    let at_once = cluster.capture("a,b", &["--duration", "300ms", "--session", "half"]);
    at_once.failed(18, "the session lacks 1 host");
    assert!(why(&cluster.manifest("half"), "b").contains("in use"), "{at_once:?}");
    let arguments = ["--duration", "300ms", "--session", "whole", "--wait", "100s"];
    let waiting = cluster.capture("a,b", &arguments);
    assert_eq!(waiting.code, Some(0), "{waiting:?}");
    let (there, missing) = hosts(&cluster.manifest("whole"));
    assert_eq!((there.len(), missing.len()), (2, 0));
    // Nothing of the attempts before is left.
    assert!(cluster.agent("a").staged().is_empty());
    assert_eq!(cluster.agent("a").sessions(), ["half", "whole"]);
    // It was left alone.
    let other = other.end();
    assert_eq!(other.code, Some(0), "{other:?}");
}

#[test]
fn an_agent_that_is_stopped_in_the_window_is_named_as_that() {
    let fakes = [FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Silent)];
    let profilers = fakes.each_ref().map(|fake| [fake.target()]);
    let mut cluster = Cluster::of(&[("a", &profilers[0]), ("b", &profilers[1])]);
    let capture = cluster.start("a,b", &["--duration", "10ms", "--session", "half", "--json"]);
    until("the window", || !fakes[1].seen().profiles.is_empty());
    cluster.agent_mut("b").signal(Signal::SIGTERM);
    let ended = capture.end();
    ended.failed(18, "the session lacks 1 host");
    let missing = &ended.json()["hosts"][1]["missing"];
    assert_eq!(text(missing, "kind"), "agent_stopped", "{missing}");
    assert!(text(missing, "remedy").contains("start the agent there"), "{missing}");
}

#[test]
fn hosts_with_their_reasons_are_in_the_answer_of_a_capture_that_kept_nothing() {
    let cluster = Cluster::of(&[("idle", &[])]);
    let ended = cluster.capture("idle,none", &["--duration", "10ms", "--json"]);
    assert_eq!(ended.code, Some(19), "{ended:?}");
    assert!(!ended.stderr.contains("--target"), "{ended:?}");
    let report = ended.json();
    crate::schema::Schema::open("capture").admits(&report);
    let kinds: Vec<String> =
        super::list(&report, "hosts").iter().map(|host| text(&host["missing"], "kind")).collect();
    assert_eq!(kinds, ["no_target", "no_agent"]);
}

#[test]
fn an_output_that_cannot_be_a_folder_is_refused_before_any_host_is_asked() {
    let cluster = Cluster::of(&[]);
    let listener = UnixListener::bind(cluster.folder.path().join("sockets/a")).unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::write(cluster.out().join("file"), "").unwrap();
    for output in ["file", "file/", "file/below", "./file/below/that"] {
        let ended = cluster.capture("a", &["--output", output, "--json"]);
        assert_eq!(text(&ended.failed(7, "is not a folder").json()["hosts"][0], "host"), "a");
    }
    let nowhere = cluster.capture("a", &["--output", "/proc", "--json"]);
    let report = nowhere.failed(5, "cannot create").json();
    assert!(nowhere.stderr.contains("no folder can be created there"), "{nowhere:?}");
    assert_eq!(text(&report["hosts"][0]["missing"], "kind"), "not_kept", "{report}");
    assert!(listener.accept().is_err(), "nobody was asked");
    // A folder that is not there yet is made, with those above it.
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let cluster = Cluster::of(&[("a", &[fake.target()])]);
    let ended = cluster.capture("a", &["--duration", "10ms", "--session", "s", "--output", "new/below/"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(cluster.out().join("new/below/plugins/profile/s/manifest.json").exists());
    let again = cluster.capture("a", &["--session", "s", "--output", "new/below/", "--json"]);
    let report = again.failed(7, "already exists").json();
    crate::schema::Schema::open("capture").admits(&report);
    let host = &report["hosts"][0];
    assert_eq!((text(host, "host"), text(&host["missing"], "kind")), ("a".into(), "not_kept".into()));
    assert!(text(&host["missing"], "reason").contains("it was not asked"), "{host}");
}

#[test]
fn a_start_at_once_blames_nobody() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let cluster = Cluster::of(&[("a", &[fake.target()])]);
    let ended = cluster.capture("a", &["--duration", "10ms", "--session", "now", "--start-in", "0s"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let warnings = cluster.manifest("now")["warnings"].to_string();
    assert!(!warnings.contains("asked for"), "{warnings}");
}
