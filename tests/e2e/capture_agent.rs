//! Captures through a running agent: of the workloads that it finds, into its own store.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::schema::Schema;
use fakes::{
    command::{self, run},
    fake_proc::FakeProcess,
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::tpuscope,
    jax_job::{JaxJob, free_port},
    profiler_probe::becomes_free,
    small_disk::SmallDisk,
    wait::until,
};
use nix::sys::signal::Signal;

use super::profiler_agent::Agent;

#[test]
fn two_processes_give_two_parts_in_the_store_and_they_can_be_removed() {
    let (a, b) = (JaxJob::new().start(), JaxJob::new().start());
    let agent = Agent::start(&[a.target(), b.target()]);
    let ended = agent.ask(&["capture", "--session", "both", "--duration", "300ms", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    Schema::open("capture").admits(&report);
    assert_eq!((report["parts"].as_array().unwrap().len(), &report["complete"]), (2, &true.into()));
    assert_eq!(agent.sessions(), ["both"]);
    assert_eq!(
        agent.ask(&["capture", "--session", "both"]).failed(7, "the session name both is taken").code,
        Some(7)
    );
    let shown = agent.ask(&["sessions", "list"]);
    assert!(shown.stdout.contains("both") && shown.stdout.contains("complete"), "{shown:?}");
    Schema::open("sessions-list").admits(&agent.ask(&["sessions", "list", "--json"]).json());
    let removed = agent.ask(&["sessions", "rm", "none", "both", "neither"]);
    removed.failed(5, "there is no session none; there is no session neither");
    assert!(removed.stdout.contains("removed both"), "{removed:?}");
    assert_eq!(agent.sessions(), [""; 0]);
    let uid = nix::unistd::getuid().as_raw();
    let line = |text: &str| {
        let log = agent.log();
        let found = log.lines().find(|line| line.contains(text)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("`{text}` in {log}"))
    };
    let begins = line("capture begins");
    assert!(begins.contains(&format!("uid={uid} pid=")), "{begins}");
    let removed = agent.ask(&["sessions", "rm", "both", "--json"]);
    let removal = line("session removed on request");
    assert!(removal.contains("session=both") && removal.contains(&format!("uid={uid} pid=")), "{removal}");
    removed.failed(5, "there is no session both");
    Schema::open("sessions-rm").admits(&removed.json());
}

#[test]
fn a_session_is_copied_out_of_the_store_whole_or_not_at_all() {
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let agent = Agent::start(&[fakes[0].target(), fakes[1].target()]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let captured =
        agent.ask(&["capture", "--session", "one", "--duration", "10ms", "--output", &out, "--json"]);
    assert_eq!((captured.code, captured.stderr.as_str()), (Some(0), ""), "{captured:?}");
    let copy = folder.path().join("plugins/profile/one");
    assert_eq!(captured.json()["folder"], copy.to_str().unwrap());
    let kept = agent.home.path().join("state/sessions/plugins/profile/one");
    let files = |at: &Path| -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(at).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
            .collect()
    };
    assert_eq!(files(&copy), files(&kept));
    assert_eq!(files(&copy).len(), 3);
    let manifest = serde_json::from_slice(&fs::read(copy.join("manifest.json")).unwrap()).unwrap();
    Schema::open("manifest").admits(&manifest);

    agent.ask(&["sessions", "fetch", "one", "--output", &out]).failed(7, "already exists");
    agent.ask(&["sessions", "fetch", "two", "--output", &out]).failed(5, "there is no session two");
    fs::remove_dir_all(&copy).unwrap();
    let fetched = agent.ask(&["sessions", "fetch", "one", "-o", &out, "--json"]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    Schema::open("sessions-fetch").admits(&fetched.json());
    assert_eq!(files(&copy), files(&kept));

    // A disk with room for every part, and none for the manifest.
    let small = SmallDisk::new();
    let pages: usize = files(&kept)
        .iter()
        .filter(|(name, _)| name.ends_with(".pb"))
        .map(|(_, part)| part.len().div_ceil(4096))
        .sum();
    fs::write(small.path().join("else"), vec![1; (256 - pages) * 4096]).unwrap();
    let full = small.path().display().to_string();
    agent.ask(&["sessions", "fetch", "one", "-o", &full]).failed(17, "manifest.json");
    assert!(!small.path().join("plugins/profile/one").exists());
    fs::remove_file(small.path().join("else")).unwrap();
    assert_eq!(agent.ask(&["sessions", "fetch", "one", "-o", &full]).code, Some(0));

    let manifest = kept.join("manifest.json");
    let text = fs::read(&manifest).unwrap();
    fs::remove_dir_all(&copy).unwrap();
    fs::write(&manifest, "{").unwrap();
    agent.ask(&["sessions", "fetch", "one", "-o", &out]).failed(18, "no readable manifest");
    fs::write(&manifest, text).unwrap();

    // What rotted in the store is not passed on as good.
    fs::remove_dir_all(&copy).unwrap();
    let part = fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path());
    let part = part.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap();
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&part, bytes).unwrap();
    agent.ask(&["sessions", "fetch", "one", "-o", &out]).failed(8, "does not match its manifest");
    fs::remove_file(&part).unwrap();
    agent.ask(&["sessions", "fetch", "one", "-o", &out]).failed(8, "is named by the manifest and missing");
    assert!(!copy.exists());
    assert!(!folder.path().join("plugins/.tpuscope").exists());
}

#[test]
fn copies_without_a_name_do_not_get_in_each_others_way() {
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let agents = fakes.each_ref().map(|fake| Agent::start(&[fake.target()]));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    // Somebody's own session of the name that the check of the folder once took.
    let taken = xprof::session::SessionWriter::create(folder.path(), "check".parse().unwrap()).unwrap();
    for agent in &agents {
        let ended = agent.ask(&["capture", "--duration", "10ms", "--output", &out]);
        // Two agents give two sessions of one second the same name: that is told, and nothing lost.
        assert!(matches!(ended.code, Some(0 | 7)) && !ended.stderr.contains("session check"), "{ended:?}");
    }
    drop(taken);
}

#[test]
fn what_cannot_be_copied_out_is_not_captured_or_stays_in_the_store() {
    let mut big = trace();
    big.planes[0].lines[0].name = "x".repeat(4 << 20);
    let fake = FakeProfiler::start(Mode::Trace(big));
    let agent = Agent::start(&[fake.target()]);
    let disk = SmallDisk::new();
    let (out, file) = (disk.path().display().to_string(), disk.path().join("file"));
    let capture =
        |out: &str| agent.ask(&["capture", "--session", "one", "--duration", "10ms", "--output", out]);
    fs::write(&file, "").unwrap();
    capture(&file.display().to_string()).failed(7, "is not a folder");
    let there = disk.path().join("plugins/profile/one");
    fs::create_dir_all(&there).unwrap();
    capture(&out).failed(7, "already exists");
    assert_eq!((fake.seen().profiles.len(), agent.sessions().len()), (0, 0));
    fs::remove_dir(&there).unwrap();
    let ended = capture(&out);
    ended.failed(17, "No space left");
    assert!(ended.stderr.contains("tpuscope sessions fetch one --output DIR"), "{ended:?}");
    assert!(!there.exists());
    assert_eq!(agent.sessions(), ["one"]);
}

#[test]
fn a_job_that_has_just_started_is_looked_for() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start_with(&[], "[workload]\nprobe = 'listeners'\nscan_interval = '1h'\n");
    agent.ask(&["capture", "--duration", "10ms"]).failed(19, "no workload process");
    let job = FakeProcess::new(100, 10).environment(&[]).descriptor(4, "/dev/accel0");
    let job = job.descriptor(6, "socket:[900]").listeners(&[(&fake.target(), 0, 900)]);
    job.write(&agent.home.path().join("proc"));
    let ended = agent.ask(&["capture", "--duration", "10ms"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(fake.seen().profiles.len(), 1);
}

#[test]
fn an_agent_that_is_stopped_or_killed_in_mid_window_leaves_the_profiler_free() {
    let job = JaxJob::new().start();
    let mut agent = Agent::start(&[job.target()]);
    for (signal, code) in [(Signal::SIGTERM, Some(0)), (Signal::SIGKILL, None)] {
        let capture = agent.in_mid_window(&job.target());
        agent.signal(signal);
        assert_eq!(agent.end(), code, "{}", agent.log());
        let ended = capture.end();
        if signal == Signal::SIGKILL {
            ended.failed(6, "the agent ended during the capture");
        } else {
            ended.failed(6, "the agent was stopped during the capture");
        }
        becomes_free(&job.target());
        agent = agent.again(&[job.target()]);
        assert_eq!(agent.sessions(), [""; 0]);
        assert_eq!(agent.staged(), [""; 0].map(PathBuf::from), "the next agent clears away what was staged");
    }
    let ended = agent.ask(&["capture", "--duration", "200ms"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn an_agent_that_hangs_is_given_up() {
    let fake = FakeProfiler::start(Mode::Silent);
    let agent = Agent::start(&[fake.target()]);
    let capture = command::start(agent.home.path(), &agent.arguments(&["capture", "--duration", "60s"]));
    until("the window", || !fake.seen().profiles.is_empty());
    agent.signal(Signal::SIGSTOP);
    capture.end().failed(6, "does not answer");
}

#[test]
fn hanging_up_ends_the_capture_and_frees_the_profiler() {
    let job = JaxJob::new().start();
    let agent = Agent::start(&[job.target()]);
    for (signal, code) in [(Signal::SIGINT, Some(130)), (Signal::SIGKILL, None)] {
        let capture = agent.in_mid_window(&job.target());
        // One capture has the profiler: a second one through the same agent hears by whom.
        agent.ask(&["capture", "--duration", "100ms"]).failed(13, "another capture of this agent");
        if signal == Signal::SIGKILL {
            let names = fs::read_dir(agent.home.path().join("state/sessions/owners")).unwrap();
            let running = names.last().unwrap().unwrap().path();
            let running = running.file_stem().unwrap().to_str().unwrap();
            agent.ask(&["sessions", "rm", running]).failed(7, "being written");
        }
        assert_eq!(capture.signal_and_end(signal).code, code);
        becomes_free(&job.target());
        assert_eq!(agent.sessions(), [""; 0]);
    }
}

#[test]
fn a_job_of_another_user_is_denied_not_missing() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    assert!(nix::unistd::geteuid().is_root(), "only root can become somebody else");
    let place = tempfile::tempdir().unwrap();
    let binary = place.path().join("tpuscope");
    fakes::harness::copy_program(&tpuscope(), &binary);
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    open(place.path());
    open(agent.home.path());
    fs::set_permissions(agent.home.path().join("agent.sock"), fs::Permissions::from_mode(0o666)).unwrap();
    let mut command = Command::new(&binary);
    command.uid(65534).gid(65534).current_dir("/").args(agent.arguments(&["capture", "--duration", "100ms"]));
    let ended = command::start_as(command).end();
    ended.failed(4, "not yours");
    assert!(ended.stderr.contains("api.admin_group"), "{ended:?}");
    assert_eq!(fake.seen().profiles.len(), 0);
}

#[test]
fn bad_profilers_and_bad_names_leave_the_agent_up_and_nothing_kept() {
    for (mode, code, more) in [
        (Mode::Garbage, 12, &[][..]),
        (Mode::Zeros, 12, &[]),
        (Mode::HalfMessage, 8, &[]),
        (Mode::Drip, 15, &["--timeout", "1s"]),
        (Mode::Endless, 15, &["--timeout", "1s"]),
        (Mode::Empty, 14, &[]),
        (Mode::Busy, 13, &[]),
    ] {
        let fake = FakeProfiler::start(mode.clone());
        let mut agent = Agent::start(&[fake.target()]);
        let arguments = ["capture", "--duration", "100ms"].iter().chain(more).copied().collect::<Vec<_>>();
        agent.ask(&arguments).failed(code, &fake.target());
        assert_eq!(agent.sessions(), [""; 0]);
        until("nothing to be staged", || agent.staged().is_empty());
        if mode != Mode::Busy {
            until("the session to be over", || fake.seen().all_freed());
        }
        assert!(matches!(agent.child.try_wait(), Ok(None)), "the agent is up: {}", agent.log());
    }
}

#[test]
fn the_agent_takes_no_option_that_is_not_on_its_list() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target()]);
    agent.ask(&["capture", "--option", "max_trace_buffers=9"]).failed(4, "not on the agent's list");
    let wrong = agent.ask(&["capture", "--option", "tpu_trace_mod=TRACE_COMPUTE"]);
    wrong.failed(2, "the nearest is `tpu_trace_mode`");
    agent.ask(&["capture", "--option", "tpu_trace_mode=FAST"]).failed(2, "expected one of TRACE_ONLY_HOST,");
    let long = agent.ask(&["capture", "--duration", "9h"]);
    assert_eq!(long.code, Some(2), "{long:?}");
    assert!(long.stderr.contains("too long: at most 5m"), "{long:?}");
    assert_eq!(fake.seen().profiles.len(), 0);
    let ended = agent.ask(&["capture", "--option", "tpu_trace_mode=TRACE_COMPUTE", "--duration", "10ms"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let options = fake.seen().profiles[0].opts.clone().unwrap();
    assert!(options.advanced_configuration.contains_key("tpu_trace_mode"));
}

#[test]
fn a_dead_workload_is_named_and_no_workload_is_said_so() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent = Agent::start(&[fake.target(), format!("127.0.0.1:{}", free_port())]);
    let ended = agent.ask(&["capture", "--duration", "100ms", "--json"]);
    ended.failed(18, "the session lacks 1 part");
    assert!(ended.json()["missing"][0]["why"].as_str().unwrap().contains("nothing listens"));
    let nobody = Agent::start(&[]);
    // Its procfs shows nobody: the reason and the remedy say so.
    let ended = nobody.ask(&["capture", "--duration", "100ms"]);
    ended.failed(
        19,
        "no workload process was found on this host, but one that cannot be seen may hold a chip",
    );
    assert!(ended.stderr.contains("hides the processes of other users"), "{ended:?}");
    assert!(ended.stderr.contains("docs/discovery.md"), "{ended:?}");
    // The log has who asked, and what became of it.
    let uid = nix::unistd::getuid();
    let lines = |agent: &Agent, text: &str| {
        let log = agent.log();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = lines(&nobody, "capture refused");
    assert!(refused.len() == 1 && refused[0].contains(&format!("uid={uid} pid=")), "{}", nobody.log());
    let kept = lines(&agent, "capture kept");
    assert!(kept.len() == 1 && kept[0].contains(&format!("uid={uid} pid=")), "{}", agent.log());
    let missing = lines(&agent, "a process of the capture has no trace");
    assert!(missing.len() == 1 && missing[0].contains("nothing listens"), "{}", agent.log());
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), &["capture", "--socket", "none.sock"]).failed(6, "no agent");
}

/// The reads of all sources so far, as `status` tells them.
fn reads(agent: &Agent) -> u64 {
    let status = agent.ask(&["status", "--json"]).json();
    let sources = status["sources"].as_array().unwrap();
    sources.iter().map(|source| source["reads"].as_u64().unwrap()).sum()
}

#[test]
fn a_disk_that_hangs_under_a_capture_does_not_stop_the_sampler() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let agent =
        Agent::start_with(&[fake.target()], "[sampler]\ninterval = '250ms'\nidle_interval = '250ms'\n");
    // Whoever opens a pipe to write waits until somebody reads, as a disk that hangs makes everybody wait.
    let owners = agent.home.path().join("state/sessions/owners");
    fs::create_dir_all(&owners).unwrap();
    let pipe = owners.join("slow.json");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let arguments = agent.arguments(&["capture", "--session", "slow", "--duration", "10ms"]);
    let mut capture = command::start(agent.home.path(), &arguments);
    let staged = agent.home.path().join("state/sessions/plugins/.tpuscope/slow.session");
    until("the capture to reach the disk", || staged.is_dir());
    let before = reads(&agent);
    until("the sampler to go on", || reads(&agent) >= before + 5);
    assert!(capture.alive() && fake.seen().profiles.is_empty(), "the capture waits for the disk");
    agent.ask(&["sessions", "rm", "slow"]).failed(7, "being written");
    // The disk is back.
    let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
    // A pipe cannot be synced: the capture ends with one clear line.
    capture.end().failed(1, "slow.json");
    assert_eq!(agent.sessions(), [""; 0]);
}

#[test]
fn a_busy_profiler_is_asked_again_and_its_session_is_never_ended() {
    let fake = FakeProfiler::start(Mode::Busy);
    let agent = Agent::start(&[fake.target()]);
    let asked = || fake.seen().profiles.len();
    // What is known of somebody else's session expires: nobody is refused for ever, and no restart is needed.
    for times in 1..3 {
        until("it to be asked", || {
            let before = asked();
            let ended = agent.ask(&["capture", "--duration", "10ms"]);
            ended.failed(13, "the profiler is in use");
            let from_memory = ended.stderr.contains("as it answered");
            assert_eq!(from_memory, asked() == before, "it says whether it asked: {ended:?}");
            asked() >= times
        });
    }
    assert!(fake.seen().terminated.iter().all(|id| id.starts_with("tpuscope-probe")), "{:?}", fake.seen());
}
