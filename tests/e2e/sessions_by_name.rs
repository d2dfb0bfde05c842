//! Sessions of the agent that are named, not copied: read over its socket, with whose they are and how they were recorded.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};

use crate::schema::Schema;
use fakes::{
    command::{Ended, run, start_as},
    fake_host::FakeHost,
    fake_profiler::{FakeProfiler, Mode, trace},
    harness::tpuscope,
    jax_job::JaxJob,
    running_agent::{Home, RunningAgent},
};
use nix::sys::signal::Signal;
use proto::{
    tensorflow::profiler::{XEvent, XEventMetadata, XLine, XPlane, XSpace, x_event::Data},
    tpuscope::v1::{Peer, ReadSessionRequest, sessions_client::SessionsClient},
};
use serde_json::Value;
use tonic::{Code, transport::Endpoint};

use super::profiler_agent::Agent;

/// An agent with one session, and a copy of it.
fn with_session(name: &str) -> (Agent, tempfile::TempDir) {
    let fakes = [(); 2].map(|()| FakeProfiler::start(Mode::Trace(trace())));
    let agent = Agent::start(&[fakes[0].target(), fakes[1].target()]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display().to_string();
    let captured = agent.ask(&["capture", "--session", name, "--duration", "10ms", "--output", &out]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    (agent, folder)
}

/// The files in a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
        .collect()
}

#[test]
fn a_session_is_shown_and_exported_by_its_name_as_from_its_files() {
    let (agent, folder) = with_session("one");
    let copy = folder.path().join("plugins/profile/one").display().to_string();
    let by_name = agent.ask(&["sessions", "show", "one", "--json"]);
    assert_eq!((by_name.code, by_name.stderr.as_str()), (Some(0), ""), "{by_name:?}");
    Schema::open("sessions-show").admits(&by_name.json());
    assert_eq!(by_name.json(), run(folder.path(), &["sessions", "show", &copy, "--json"]).json());
    for (format, file) in [("perfetto", "one.json"), ("csv", "tables")] {
        let export = |what: &str, out: &str| {
            let out = folder.path().join(out).display().to_string();
            let ended = agent.ask(&["sessions", "export", what, "--format", format, "-o", &out]);
            assert_eq!(ended.code, Some(0), "{ended:?}");
        };
        export("one", &format!("a-{file}"));
        export(&copy, &format!("b-{file}"));
    }
    for file in ["one.json", "tables/steps.csv", "tables/operations.csv"] {
        let read = |which| fs::read(folder.path().join(format!("{which}-{file}"))).unwrap();
        assert_eq!(read("a"), read("b"), "{file}");
    }
    agent.ask(&["sessions", "fetch", "./one"]).failed(5, "./one does not exist");
    let copied = folder.path().join("copied").display().to_string();
    let fetched = agent.ask(&["sessions", "fetch", &copy, "-o", &copied, "--json"]);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    Schema::open("sessions-fetch").admits(&fetched.json());
    assert_eq!(files(&folder.path().join("copied/plugins/profile/one")), files(Path::new(&copy)));
    let merge = agent.ask(&["sessions", "merge", "one", "-o", "/dev/null"]);
    merge.failed(2, "session one has 2 parts");
}

/// The list says that events are missing, not only that there is a warning.
#[test]
fn a_session_that_lost_events_is_listed_so() {
    let mut lossy = trace();
    let mut core = XPlane { name: "/device:TPU:0".into(), ..Default::default() };
    let dropped = XEventMetadata { id: 1, name: "Trace Buffers Dropped".into(), ..Default::default() };
    core.event_metadata.insert(1, dropped);
    // Nine runs of a program, of which two have no operation.
    let program = XEventMetadata { id: 2, name: "jit_f(1)".into(), ..Default::default() };
    let operation = XEventMetadata { id: 3, name: "fusion.1".into(), ..Default::default() };
    core.event_metadata.extend([(2, program), (3, operation)]);
    let event = |metadata_id: i64, run: i64| XEvent {
        metadata_id,
        data: Some(Data::OffsetPs(run * 100_000_000_000)),
        duration_ps: 90_000_000_000,
        ..Default::default()
    };
    for (name, id, runs) in [("XLA Modules", 2, 0..9), ("XLA Ops", 3, 0..7)] {
        let events = runs.map(|run| event(id, run)).collect();
        core.lines.push(XLine { name: name.into(), events, ..Default::default() });
    }
    let mark = XEvent { metadata_id: 1, data: Some(Data::OffsetPs(1_000_000)), ..Default::default() };
    core.lines.push(XLine { name: "XLA TraceMe".into(), events: vec![mark], ..Default::default() });
    lossy.planes.push(core);
    let fakes = [trace(), lossy].map(|trace| FakeProfiler::start(Mode::Trace(trace)));
    let agent = Agent::start(&[fakes[0].target(), fakes[1].target()]);
    let captured = agent.ask(&["capture", "--session", "one", "--duration", "10ms", "--json"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let loss = |part: &Value| part["losses"].as_array().cloned().unwrap_or_default();
    let losses = |report: &Value, parts: &str| -> Vec<Value> {
        report[parts].as_array().unwrap().iter().flat_map(loss).collect()
    };
    let operations = serde_json::json!(
        { "kind": "missing_operations", "certain": true, "plane": "/device:TPU:0", "count": 2 }
    );
    let found = losses(&captured.json(), "parts");
    assert_eq!(
        found.iter().map(|loss| loss["kind"].clone()).collect::<Vec<_>>(),
        ["dropped_buffers", "missing_operations"]
    );
    assert_eq!(found[1], operations);
    assert!(captured.json()["parts"].to_string().contains("2 of 9 program runs have no operations"));
    let shown = agent.ask(&["sessions", "show", "one", "--json"]).json();
    let kinds: Vec<_> = losses(&shown, "hosts").into_iter().map(|loss| loss["kind"].clone()).collect();
    assert_eq!(kinds, ["dropped_buffers", "missing_operations"]);
    let list = agent.ask(&["sessions", "list"]).stdout;
    assert!(list.contains("complete, events lost"), "{list}");
    let list = agent.ask(&["sessions", "list", "--json"]).json();
    Schema::open("sessions-list").admits(&list);
    let session = &list["sessions"][0];
    assert_eq!(session["losses"], serde_json::json!({ "certain": 2, "possible": 0 }));
    assert_eq!(session["context"]["losses"].as_array().unwrap().len(), 1, "{session}");
}

#[test]
fn a_session_that_is_not_there_has_neighbours_and_a_path_is_hinted_at() {
    let (mut agent, folder) = with_session("baseline-1");
    let missing = agent.ask(&["sessions", "show", "baseline-2"]);
    missing.failed(5, "the agent has no session baseline-2");
    assert!(missing.stderr.contains("did you mean baseline-1?"), "{missing:?}");
    agent.ask(&["sessions", "show", "a b"]).failed(2, "a path contains `/`");
    fs::create_dir(agent.home.path().join("run")).unwrap();
    let hinted = agent.ask(&["sessions", "export", "run", "--format", "csv", "-o", "out"]);
    assert!(hinted.failed(5, "no session run").stderr.contains("write `./run`"), "{hinted:?}");
    // What rotted in the store is named as it is on a disk.
    let kept = agent.home.path().join("state/sessions/plugins/profile/baseline-1");
    let part = fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path());
    let part = part.filter(|path| path.extension().is_some_and(|end| end == "pb")).last().unwrap();
    fs::write(&part, b"").unwrap();
    let partial = agent.ask(&["sessions", "show", "baseline-1"]);
    assert_eq!(partial.code, Some(18), "{partial:?}");
    assert!(partial.stdout.contains("is empty (0 bytes)"), "{partial:?}");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.end(), Some(0));
    let gone = agent.ask(&["sessions", "show", "baseline-1"]);
    gone.failed(6, "session baseline-1: no agent");
    assert!(gone.stderr.contains("start the agent"), "{gone:?}");
    drop(folder);
}

#[test]
fn another_user_does_not_learn_that_a_session_is_there() {
    let (agent, _copy) = with_session("secret");
    assert!(nix::unistd::geteuid().is_root(), "only root can become somebody else");
    let place = tempfile::tempdir().unwrap();
    let binary = place.path().join("tpuscope");
    fakes::harness::copy_program(&tpuscope(), &binary);
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    open(place.path());
    open(agent.home.path());
    fs::set_permissions(agent.home.path().join("agent.sock"), fs::Permissions::from_mode(0o666)).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.uid(65534).gid(65534).current_dir("/").args(agent.arguments(arguments));
        start_as(command).end()
    };
    let shown = as_nobody(&["sessions", "show", "secret"]);
    shown.failed(5, "the agent has no session secret");
    assert!(shown.stderr.contains("no session that you may read"), "{shown:?}");
    let unknown = as_nobody(&["sessions", "show", "secrex"]);
    assert_eq!(unknown.stderr.replace("secrex", "secret"), shown.stderr, "the same answer");
}

#[test]
fn only_parts_are_read_and_ranges_are_bounded() {
    let fake = FakeProfiler::start(Mode::Trace(large()));
    let agent = Agent::start(&[fake.target()]);
    let captured = agent.ask(&["capture", "--session", "large", "--duration", "10ms", "--json"]);
    assert_eq!(captured.code, Some(0), "{captured:?}");
    let part = &captured.json()["parts"][0];
    let (file, size) = (part["file"].as_str().unwrap().to_owned(), part["size"].as_u64().unwrap());
    assert!(size > 2 << 20, "{size}");
    let kept = agent.home.path().join("state/sessions/plugins/profile/large").join(&file);
    let socket = agent.home.path().join("agent.sock").display().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect().await.unwrap();
        let mut sessions = SessionsClient::new(channel);
        let mut read = async |id: &str, file: &str, offset: u64, length: u32| {
            let peer = Some(Peer { protocol: 1, ..Peer::default() });
            let request = ReadSessionRequest { peer, id: id.into(), file: file.into(), offset, length };
            sessions.read(request).await.map(|reply| reply.into_inner().data).map_err(|status| status.code())
        };
        let whole = fs::read(&kept).unwrap();
        assert_eq!(read("large", &file, 7, 9).await.as_deref(), Ok(&whole[7..16]));
        assert_eq!(read("large", &file, size - 3, 9).await.as_deref(), Ok(&whole[whole.len() - 3..]));
        assert_eq!(read("large", &file, 5, u32::MAX).await.as_deref(), Ok(&whole[5..5 + (1 << 20)]));
        for offset in [size, u64::MAX] {
            assert_eq!(read("large", &file, offset, 9).await.as_deref(), Ok(&[][..]));
        }
        for other in ["manifest.json", "../../../owners/large.json", "/etc/passwd", "", "."] {
            assert_eq!(read("large", other, 0, 9).await, Err(Code::NotFound), "{other}");
        }
        assert_eq!(read("small", &file, 0, 9).await, Err(Code::NotFound));
        assert_eq!(read("../large", &file, 0, 9).await, Err(Code::InvalidArgument));
    });
    let shown = agent.ask(&["sessions", "show", "large", "--json"]);
    assert_eq!((shown.code, &shown.json()["session"]), (Some(0), &"large".into()), "{shown:?}");
}

/// A trace of more than one range.
fn large() -> XSpace {
    let mut space = trace();
    let line = &mut space.planes[0].lines[0];
    line.events = line.events.iter().cycle().take(200_000).cloned().collect();
    space
}

#[test]
fn a_real_job_is_known_by_job_user_options_and_versions() {
    let job = JaxJob::new().variable("SLURM_JOB_ID", "77").variable("SLURM_JOB_NAME", "train").start();
    let settings = "[workload]\ndiscover = 'any'\nprobe = 'listeners'\n";
    let (home, host) = (Home::new(), FakeHost::new());
    let mut command = home.command(&host.config(settings));
    // Names and times are in UTC, wherever the host is.
    command.env("TZ", "JST-9");
    let agent = RunningAgent::ready(home, command);
    let socket = agent.home().socket().display().to_string();
    let ask = |arguments: &[&str]| -> Ended {
        run(agent.home().path(), &[arguments, &["--socket", &socket]].concat())
    };
    let pid = job.pid().to_string();
    let options = ["--option", "tpu_trace_mode=TRACE_COMPUTE", "--host-tracer-level", "1"];
    let captured =
        ask(&[&["capture", "--pid", &pid, "--duration", "300ms", "--json"], &options[..]].concat());
    assert_eq!(captured.code, Some(0), "{captured:?}");
    Schema::open("capture").admits(&captured.json());
    let name = captured.json()["session"].as_str().unwrap().to_owned();
    let shown = ask(&["sessions", "show", &name, "--json"]).json();
    Schema::open("sessions-show").admits(&shown);
    let named = jiff::civil::DateTime::strptime("%Y_%m_%d_%H_%M_%S", &name).unwrap();
    let named = jiff::tz::TimeZone::UTC.to_timestamp(named).unwrap();
    let created: jiff::Timestamp = shown["created"].as_str().unwrap().parse().unwrap();
    assert!(created.duration_since(named).abs() < jiff::SignedDuration::from_mins(30), "{named} {created}");
    let context = &shown["context"];
    assert_eq!((&context["jobs"][0]["kind"], &context["jobs"][0]["id"]), (&"slurm".into(), &"77".into()));
    assert_eq!(context["users"][0]["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!(context["requested_ns"], 300_000_000);
    assert!(context["recorded_ns"].as_u64().unwrap() >= 200_000_000, "{context}");
    assert_eq!(context["tracer_levels"], serde_json::json!({"host": 1, "device": 1, "python": 0}));
    assert_eq!(context["options"], serde_json::json!({"tpu_trace_mode": "TRACE_COMPUTE"}));
    let jaxlib = context["versions"]["jaxlib"][0].as_str().unwrap();
    assert!(jaxlib.starts_with(|c: char| c.is_ascii_digit()), "{context}");
    let listed = ask(&["sessions", "list", "--json"]).json();
    Schema::open("sessions-list").admits(&listed);
    assert_eq!(listed["sessions"][0]["context"], *context);
    let table = ask(&["sessions", "list", "-o", "wide"]).stdout;
    for text in ["slurm 77", "300ms", "1/1/0", "tpu_trace_mode=TRACE_COMPUTE", &format!("jaxlib {jaxlib}")] {
        assert!(table.contains(text), "{table}");
    }
    let text = ask(&["sessions", "show", &name]).stdout;
    assert!(text.contains("job        slurm 77 (train)\n"), "{text}");
}
