//! `tpuscope capture` and what profilers, callers and disks do wrong: one clear line, the right exit code,
//! nothing visible, the profiler free.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    time::Duration,
};

use fakes::{
    command::{Ended, run},
    fake_host::FakeHost,
    fake_proc::FakeProcess,
    fake_profiler::{FakeProfiler, Mode, trace},
    jax_job::free_port,
    small_disk::SmallDisk,
    wait::until,
};
use model::device::Generation;
use proto::tensorflow::profiler::{XPlane, XSpace};
use serde_json::Value;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn capture(folder: &Path, target: &str, more: &[&str]) -> Ended {
    let mut arguments = vec!["capture", "--target", target, "--duration", "100ms"];
    arguments.extend(more);
    run(folder, &arguments)
}

/// No file of a session, staged or not, is left.
fn nothing_left(folder: &Path) {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.is_dir(), "{} is left", path.display());
            open.push(path);
        }
    }
    let sessions = folder.join("plugins/profile");
    assert!(
        !sessions.exists() || fs::read_dir(sessions).unwrap().next().is_none(),
        "an empty session is left"
    );
}

/// A capture of a fake in this mode fails so, leaves nothing, and the fake's session is over.
fn bad(mode: Mode, code: i32, says: &str, more: &[&str]) -> Ended {
    let folder = folder();
    let fake = FakeProfiler::start(mode.clone());
    let ended = capture(folder.path(), &fake.target(), more);
    ended.failed(code, says);
    nothing_left(folder.path());
    let declines =
        [Mode::Busy, Mode::AlreadyExists, Mode::HalfThenGone, Mode::Exhausted, Mode::Unserializable];
    if !declines.contains(&mode) {
        until("the session is over", || fake.seen().all_freed());
    }
    ended
}

/// What is known of the process behind `--target` on this host decides what a trace of the host only means.
#[test]
fn a_trace_without_devices_is_judged_by_the_process_behind_the_target() {
    let (mut host, fake) = (FakeHost::with(Generation::V6e, 1), FakeProfiler::start(Mode::Trace(trace())));
    let folder = folder();
    let captured = |host: &FakeHost, session: &str| {
        let config = host.config("").display().to_string();
        let ended = capture(folder.path(), &fake.target(), &["--session", session, "--config", &config]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let manifest = fs::read(folder.path().join("plugins/profile").join(session).join("manifest.json"));
        let manifest: Value = serde_json::from_slice(&manifest.unwrap()).unwrap();
        manifest["hosts"][0]["parts"][0].clone()
    };
    // The listener is this test, which holds no chip.
    let none = captured(&host, "none")["warnings"].to_string();
    assert!(!none.contains("no device plane"), "{none}");
    let procfs = host.root().join("proc");
    fs::create_dir(&procfs).unwrap();
    host.set_procfs(&procfs);
    let unknown = captured(&host, "unknown")["warnings"].to_string();
    assert!(unknown.contains("it is not known whether the process holds chips"), "{unknown}");
    let job = FakeProcess::new(100, 10).environment(&[]).descriptor(4, "/dev/vfio/10");
    job.descriptor(6, "socket:[900]").listeners(&[(&fake.target(), 0, 900)]).write(&procfs);
    let held = captured(&host, "held");
    let warnings = held["warnings"].to_string();
    assert!(
        warnings.contains(
            "no device plane for the 1 chip of the process: nothing ran there, or it was not recorded"
        ),
        "{warnings}"
    );
    assert_eq!(held["pid"], 100);
}

#[test]
fn a_sound_answer_is_kept_with_a_manifest() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let ended = capture(folder.path(), &fake.target(), &["--session", "s-1", "--json"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let report = ended.json();
    assert_eq!((&report["session"], &report["complete"]), (&"s-1".into(), &true.into()));
    let part = &report["parts"][0];
    assert_eq!(
        (part["planes"].as_u64(), part["lines"].as_u64(), part["events"].as_u64()),
        (Some(2), Some(1), Some(50))
    );
    let session = folder.path().join("plugins/profile/s-1");
    let bytes = fs::read(session.join(part["file"].as_str().unwrap())).unwrap();
    assert_eq!(prost::Message::decode(&bytes[..]), Ok(trace()), "the file is the XSpace, byte for byte");
    let read = xprof::session::Session::open(&session).unwrap().unwrap();
    assert_eq!((read.parts.len(), read.faults.len()), (1, 0));
    let mode = |name: &str| fs::metadata(session.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("manifest.json"), mode(part["file"].as_str().unwrap())), (0o640, 0o640));
    let request = &fake.seen().profiles[0];
    let options = request.opts.as_ref().unwrap();
    assert_eq!((request.duration_ms, options.duration_ms), (100, 100));
    assert!(request.emit_xspace && request.repository_root.is_empty() && options.repository_path.is_empty());
}

#[test]
fn what_speaks_no_http2_is_no_profiler() {
    bad(Mode::Garbage, 12, "not a profiler", &[]);
    bad(Mode::RawZeros, 12, "not a profiler", &[]);
    bad(Mode::HttpOne, 12, "not a profiler", &[]);
    bad(Mode::Close, 12, "not a profiler", &[]);
    bad(Mode::OtherService, 12, "does not know tensorflow.ProfilerService", &[]);
}

#[test]
fn answers_that_are_no_answers_are_refused() {
    bad(Mode::Zeros, 12, "more than one message", &[]);
    bad(Mode::Compressed, 12, "compressed", &[]);
    bad(Mode::HalfMessage, 8, "cut short", &[]);
    bad(Mode::HalfThenGone, 10, "connection broke", &[]);
    bad(Mode::ZeroTrace, 8, "damaged at byte 0", &[]);
    bad(Mode::BrokenNesting, 8, "damaged at byte", &[]);
    bad(Mode::HugePrefix, 16, "4294967295 bytes, the limit is", &[]);
    bad(Mode::Endless, 16, "the limit is 1048576", &["--set", "capture.max_size=1MiB"]);
    bad(Mode::Reset, 10, "it ended the call", &[]);
}

#[test]
fn declined_and_empty_are_told_apart() {
    bad(Mode::Busy, 13, "Another profiling session active", &[]);
    bad(Mode::AlreadyExists, 13, "continuous profiling is already running", &[]);
    bad(Mode::Empty, 14, "the trace is empty", &[]);
    let idle = XSpace {
        planes: vec![XPlane { name: "/host:CPU".into(), ..Default::default() }],
        ..Default::default()
    };
    bad(Mode::Trace(idle), 14, "the trace is empty", &[]);
}

#[test]
fn a_trace_that_cannot_be_sent_needs_a_shorter_window() {
    for (mode, says) in [
        (Mode::Trace(XSpace::default()), "the answer has 0 bytes of a trace"),
        (Mode::NoBytes, "the answer has 0 bytes of a trace"),
        (Mode::Exhausted, "gRPC code 8): Sent message larger than max"),
        (Mode::Unserializable, "gRPC code 13): Failed to serialize message"),
    ] {
        let ended = bad(mode, 8, says, &[]);
        assert!(ended.stderr.contains("2 GiB: use a shorter --duration"), "{ended:?}");
    }
}

#[test]
fn deadlines_hold() {
    for (mode, more) in [
        (Mode::Hang, &["--set", "capture.probe_timeout=300ms"][..]),
        (Mode::Hang, &["--timeout", "300ms"]),
        (Mode::Silent, &["--timeout", "300ms"]),
        (Mode::Drip, &["--timeout", "1500ms"]),
        (Mode::TimeIsUp, &[]),
    ] {
        bad(mode, 15, "no complete answer within", more);
    }
}

#[test]
fn a_pipe_gets_a_line_now_and_then() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Silent);
    let ended = capture(folder.path(), &fake.target(), &["--timeout", "11s"]);
    assert_eq!(ended.code, Some(15), "{ended:?}");
    let first = ended.stderr.lines().next().unwrap();
    assert!(first.contains("waiting for the traces of 1 process, "), "{ended:?}");
}

#[test]
fn a_long_window_is_warned_of_before_it_begins() {
    let folder = folder();
    let port = free_port();
    let target = format!("127.0.0.1:{port}");
    let ended = run(folder.path(), &["capture", "--target", &target, "--duration", "31s"]);
    assert_eq!(ended.code, Some(11), "{ended:?}");
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines[0].starts_with("tpuscope: warning: a window over 30 s"), "{ended:?}");
    assert!(lines[1].contains("is closed"), "{ended:?}");
}

#[test]
fn an_endless_answer_is_cut_at_the_deadline_in_little_memory() {
    bad(Mode::Endless, 15, "no complete answer", &["--timeout", "1s"]);
}

#[test]
fn nothing_there_is_said_so() {
    let folder = folder();
    let port = free_port();
    let says = format!("127.0.0.1:{port}: port {port} is closed: nothing listens on it");
    capture(folder.path(), &format!("127.0.0.1:{port}"), &[]).failed(11, &says);
    capture(folder.path(), "no-such-host.invalid:9012", &[]).failed(10, "unreachable");
    let full = FullListener::new();
    let ended = capture(folder.path(), &full.target(), &["--set", "capture.connect_timeout=200ms"]);
    ended.failed(10, "no answer within 200 ms");
    nothing_left(folder.path());
}

/// Answers no further connection attempt, as a host that drops them.
struct FullListener {
    listener: std::net::TcpListener,
    _waiting: Vec<std::net::TcpStream>,
}

impl FullListener {
    fn new() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let at = listener.local_addr().unwrap();
        let connect = || std::net::TcpStream::connect_timeout(&at, Duration::from_millis(100)).ok();
        Self { _waiting: std::iter::from_fn(connect).take(50).collect(), listener }
    }

    fn target(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }
}

#[test]
fn bad_arguments_are_refused_before_anybody_is_asked() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let long = "x".repeat(300);
    for session in ["a/b", "..", "../x", "", &long, "a b", ".hidden"] {
        let ended = capture(folder.path(), &fake.target(), &["--session", session]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("name") && ended.stderr.len() < 400, "{ended:?}");
    }
    for more in [
        &["--duration", "2"][..],
        &["--duration", "0s"],
        &["--duration", "9h"],
        &["--duration", "1900us"],
        &["--timeout", "0s"],
        &["--python-tracer-level", "7"],
        &["--option", "novalue"],
        &["--option", "Bad-Name=1"],
        &["--option", "tpu_trace_mod=TRACE_COMPUTE"],
        &["--option", "tpu_power_trace_level=3"],
        &["--option", "host_tracer_level=3"],
        &["--target", "nonsense"],
        &["--start-at", "tomorrow"],
        &["--start-at", "2020-01-01T00:00:00Z"],
        &["--min-processes", "0"],
        &["--session", "a\nb"],
        &["--target", "a\nb\u{1b}[31m"],
    ] {
        let mut arguments = vec!["capture", "--target", "127.0.0.1:1"];
        arguments.extend(more);
        let ended = run(folder.path(), &arguments);
        assert_eq!(ended.code, Some(2), "{more:?}: {ended:?}");
        assert!(!ended.stderr.contains("a\nb") && !ended.stderr.contains('\u{1b}'), "{ended:?}");
    }
    assert_eq!(fake.seen().profiles.len(), 0);
    nothing_left(folder.path());
}

#[test]
fn a_reader_that_went_away_is_no_fault_and_a_full_one_is_one_line() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let target = fake.target();
    let capture = ["capture", "--target", &target, "--duration", "100ms"];
    let json = [&capture[..], &["--json"]].concat();
    for (at, arguments) in [&capture[..], &json, &["version"], &["version", "--json"]].iter().enumerate() {
        // Two sessions of one second would differ anyhow, but a name is clearer.
        let session = format!("s{at}");
        let mut arguments = arguments.to_vec();
        if arguments[0] == "capture" {
            arguments.extend(["--session", &session]);
        }
        let (reader, writer) = nix::unistd::pipe().unwrap();
        drop(reader);
        let to = |file: std::process::Stdio, arguments: &[&str]| {
            let mut command = std::process::Command::new(fakes::harness::tpuscope());
            let output = command.current_dir(folder.path()).args(arguments).stdout(file).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        assert_eq!(to(writer.into(), &arguments), (Some(0), String::new()), "{arguments:?}");
        arguments.retain(|&argument| argument != session && argument != "--session");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, says) = to(full.into(), &arguments);
        assert_eq!((code, says.lines().count()), (Some(17), 2), "{arguments:?}: {says}");
        assert!(says.contains("No space left"), "{says}");
    }
}

#[test]
fn a_terminal_that_ends_ends_the_capture() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Silent);
    let capture = ["capture", "--target", &fake.target(), "--duration", "60s"];
    let capture = fakes::command::start(folder.path(), &capture);
    until("it is in its window", || !fake.seen().profiles.is_empty());
    let ended = capture.signal_and_end(nix::sys::signal::Signal::SIGHUP);
    ended.failed(130, "cancelled");
    nothing_left(folder.path());
    until("the session is over", || fake.seen().all_freed());
}

#[test]
fn a_session_that_exists_is_left_alone() {
    let folder = folder();
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let first = capture(folder.path(), &fake.target(), &["--session", "s"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    capture(folder.path(), &fake.target(), &["--session", "s"]).failed(7, "already exists");
    assert_eq!(fake.seen().profiles.len(), 1);
}

#[test]
fn two_captures_of_one_second_are_two_sessions() {
    let folder = folder();
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let starts = |more: &[&str]| {
        fakes.each_ref().map(|fake| {
            let target = fake.target();
            let arguments = [&["capture", "--target", &target, "--duration", "10ms"], more].concat();
            fakes::command::start(folder.path(), &arguments)
        })
    };
    for ended in starts(&[]).map(fakes::command::RunningCommand::end) {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let sessions = fs::read_dir(folder.path().join("plugins/profile")).unwrap();
    for session in sessions.map(|session| session.unwrap().path()) {
        assert_eq!(
            fs::read_dir(&session).unwrap().count(),
            2,
            "{}: a part and a manifest",
            session.display()
        );
    }
    assert_eq!(fs::read_dir(folder.path().join("plugins/profile")).unwrap().count(), 2);
    // A name that was asked for is one session's.
    let mut ended = starts(&["--session", "one"]).map(fakes::command::RunningCommand::end);
    ended.sort_by_key(|ended| ended.code);
    assert_eq!(ended[0].code, Some(0), "{ended:?}");
    ended[1].failed(7, "one");
    assert!(!folder.path().join("plugins/.tpuscope").exists());
}

#[test]
fn a_dead_target_is_named_and_does_not_pass_as_success() {
    let folder = folder();
    let good = FakeProfiler::start(Mode::Trace(trace()));
    let silent = FakeProfiler::start(Mode::Silent);
    let dead = format!("127.0.0.1:{}", free_port());
    let more = ["--target", &silent.target(), "--target", &dead, "--timeout", "500ms", "--json"];
    let ended = capture(folder.path(), &good.target(), &more);
    ended.failed(18, "the session lacks 2 parts");
    let report = ended.json();
    assert_eq!((report["parts"].as_array().unwrap().len(), &report["complete"]), (1, &false.into()));
    let kinds: Vec<_> =
        report["failures"].as_array().unwrap().iter().map(|failure| failure["kind"].clone()).collect();
    assert_eq!(kinds, ["timeout", "not_listening"]);
    assert!(report["missing"][1]["why"].as_str().unwrap().contains("nothing listens"));
    let folder = folder.path().join(report["folder"].as_str().unwrap());
    let session = xprof::session::Session::open(&folder).unwrap().unwrap();
    assert_eq!(session.manifest.unwrap().missing.len(), 2);
    until("the silent one is free", || silent.seen().all_freed());
    // The windows line up: who is asked together starts together, in the future.
    let starts =
        [&good, &silent].map(|fake| fake.seen().profiles[0].opts.as_ref().unwrap().start_timestamp_ns);
    assert!(starts[0] > 0 && starts[0] == starts[1]);
}

#[test]
fn too_few_processes_keep_nothing() {
    let folder = folder();
    let good = FakeProfiler::start(Mode::Trace(trace()));
    let dead = format!("127.0.0.1:{}", free_port());
    let ended = capture(folder.path(), &good.target(), &["--target", &dead, "--min-processes", "2"]);
    ended.failed(11, "at least 2 must");
    assert_eq!(good.seen().profiles.len(), 0, "nobody is profiled in vain");
    capture(folder.path(), &good.target(), &["--min-processes", "3"]).failed(19, "3 are needed");
    let other = FakeProfiler::start(Mode::OtherService);
    let targets = ["--target", &dead, "--target", &dead];
    let ended = capture(folder.path(), &other.target(), &targets);
    ended.failed(12, "at least 1 must");
    for remedy in ["name the port of jax.profiler.start_server", "; call jax.profiler.start_server(PORT)"] {
        assert_eq!(ended.stderr.matches(remedy).count(), 1, "each remedy once: {}", ended.stderr);
    }
    let port = good.target().replace("127.0.0.1", "localhost");
    let ended = capture(folder.path(), &good.target(), &["--target", &port, "--min-processes", "2"]);
    ended.failed(19, "is the same profiler as");
    assert_eq!(good.seen().profiles.len(), 0);
    nothing_left(folder.path());
}

#[test]
fn a_profiler_under_two_names_is_one_part_and_nothing_is_missing() {
    let folder = folder();
    let good = FakeProfiler::start(Mode::Trace(trace()));
    let second = good.target().replace("127.0.0.1", "localhost");
    let ended = capture(folder.path(), &good.target(), &["--target", &second, "--json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = ended.json();
    assert_eq!((report["parts"].as_array().unwrap().len(), &report["complete"]), (1, &true.into()));
    let note =
        format!("{second} is the same profiler as {}: the session has one part of both", good.target());
    assert_eq!(report["warnings"], serde_json::json!([note]));
    assert_eq!((&report["missing"], good.seen().profiles.len()), (&serde_json::json!([]), 1));
}

#[test]
fn sessions_on_another_disk_are_found_before_the_window() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let (folder, disk) = (folder(), SmallDisk::new());
    fs::create_dir(folder.path().join("plugins")).unwrap();
    symlink(disk.path(), folder.path().join("plugins/profile")).unwrap();
    capture(folder.path(), &fake.target(), &[]).failed(4, "plugins/profile lies on another file system");
    assert_eq!(fake.seen().profiles.len(), 0);
}

#[test]
fn an_output_folder_that_cannot_be_written_is_found_before_the_window() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let folder = folder();
    fs::write(folder.path().join("file"), "").unwrap();
    for file in ["file", "file/deeper"] {
        capture(folder.path(), &fake.target(), &["--output", file]).failed(7, "file is not a folder");
    }
    // A file system that takes no folders stops root too.
    let ended = capture(folder.path(), &fake.target(), &["--output", "/proc/tpuscope"]);
    assert!(ended.code == Some(5) && ended.stderr.contains("cannot create"), "{ended:?}");
    assert!(ended.stderr.contains("no folder can be created there"), "{ended:?}");
    assert_eq!(fake.seen().profiles.len(), 0);
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let fake = FakeProfiler::start(Mode::Trace(trace()));
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (_binary, mut command) = as_nobody(&folder);
    command
        .args(["capture", "--target", &fake.target(), "--duration", "100ms", "--output"])
        .arg(folder.path());
    fakes::command::start_as(command).end().failed(4, "Permission denied");
    assert_eq!(fake.seen().profiles.len(), 0);
    nothing_left(folder.path());
}

/// `tpuscope` as a user who owns nothing here, and the folder that it lies in. Tests that run as root become
/// nobody; for others the folder loses its write permission.
fn as_nobody(folder: &TempDir) -> (TempDir, std::process::Command) {
    use std::os::unix::process::CommandExt;
    // The build folder may lie where nobody may look: the binary goes where everybody may.
    let place = self::folder();
    let binary = place.path().join("tpuscope");
    fakes::harness::copy_program(&fakes::harness::tpuscope(), &binary);
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(&binary);
    command.current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(65534).gid(65534);
    } else {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    }
    (place, command)
}

#[test]
fn a_full_disk_leaves_nothing_and_frees_the_profiler() {
    let disk = SmallDisk::new();
    let mut big = trace();
    big.planes[0].lines[0].name = "x".repeat(4 << 20);
    let fake = FakeProfiler::start(Mode::Trace(big));
    let output = disk.path().to_str().unwrap().to_owned();
    capture(disk.path(), &fake.target(), &["--output", &output]).failed(17, "the disk is full");
    nothing_left(disk.path());
    until("the session is over", || fake.seen().all_freed());
    // There is room again for one that fits.
    let small = FakeProfiler::start(Mode::Trace(trace()));
    assert_eq!(capture(disk.path(), &small.target(), &["--output", &output]).code, Some(0));
}
