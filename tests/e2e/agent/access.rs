//! Who may do what: real users, real namespaces, the real listeners.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use fakes::{
    command::{Ended, start_as},
    fake_host::FakeHost,
    fake_proc::FakeProcess,
    fake_profiler::{FakeProfiler, Mode, Seen, trace},
    harness::tpuscope,
    pid_ns::PidNs,
    running_agent::{Home, RunningAgent},
};
use model::device::Generation;
use proto::tpuscope::v1::{
    CaptureRequest, ListSessionsRequest, Peer, StatusRequest, captures_client::CapturesClient,
    host_client::HostClient, sessions_client::SessionsClient,
};
use tonic::{Code, codegen::http::uri::PathAndQuery, transport::Endpoint};

const NOBODY: u32 = 65534;
const SOMEBODY: u32 = 54321;
/// Whose process the fake procfs shows.
const OWNER: u32 = 1000;

fn peer() -> Option<Peer> {
    Some(Peer { protocol: 1, ..Peer::default() })
}

/// The client, where every user may run it.
struct Client {
    _home: Home,
    binary: PathBuf,
}

impl Client {
    fn new() -> Self {
        let home = Home::new();
        let binary = home.path().join("tpuscope");
        fakes::harness::copy_program(&tpuscope(), &binary);
        Self { _home: home, binary }
    }

    /// Runs it as the user `uid` with the prefix `namespaces`, which starts a command in other namespaces.
    fn run_in(&self, namespaces: &[&str], uid: u32, agent: &RunningAgent, arguments: &[&str]) -> Ended {
        let setpriv = ["setpriv", &format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"];
        let mut words = namespaces.iter().copied().chain(setpriv);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg(&self.binary).args(arguments).arg("--socket").arg(agent.home().socket());
        start_as(command).end()
    }

    fn run_as(&self, uid: u32, agent: &RunningAgent, arguments: &[&str]) -> Ended {
        self.run_in(&[], uid, agent, arguments)
    }
}

#[test]
fn every_user_may_read_measurements() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let client = Client::new();
    for uid in [0, NOBODY, SOMEBODY] {
        let ended = client.run_as(uid, &agent, &["status", "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.json()["ready"], true);
    }
}

/// Holds connections as far as it is let, one line each, until its input ends.
const HOLD: &str = "
import socket, sys
held = []
for _ in range(12):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
    try:
        held[-1].sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    except OSError:
        pass
print('held', flush=True)
sys.stdin.read()
";

#[test]
fn no_user_can_take_all_connections() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[api]\nmax_connections = 8\n");
    let client = Client::new();
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    command.args(["/usr/bin/python3", "-c", HOLD]).arg(agent.home().socket());
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (root, other) = (client.run_as(0, &agent, &["status"]), client.run_as(SOMEBODY, &agent, &["status"]));
    let refused = client.run_as(NOBODY, &agent, &["status"]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(line, "held\n");
    assert_eq!((root.code, other.code), (Some(0), Some(0)), "{root:?} {other:?}");
    refused.failed(6, "the agent closed the connection");
    assert!(agent.log().contains("too many connections"), "{}", agent.log());
}

#[test]
fn the_socket_keeps_out_whom_its_mode_keeps_out() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[api]\nsocket_mode = \"0600\"\n");
    let client = Client::new();
    client.run_as(NOBODY, &agent, &["status"]).failed(4, "no permission to connect to");
    assert_eq!(client.run_as(0, &agent, &["status"]).code, Some(0));
    // A closed folder on the way is named, not the mode of the socket in it.
    let home = agent.home().path();
    fs::set_permissions(home, fs::Permissions::from_mode(0o700)).unwrap();
    let closed = format!("the folder {} is closed to this user", home.display());
    client.run_as(NOBODY, &agent, &["status"]).failed(4, &closed);
}

#[test]
fn the_loopback_is_read_only() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "");
    let address = format!("http://{}", agent.grpc());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel =
            Endpoint::from_shared(address).unwrap().timeout(Duration::from_secs(30)).connect().await.unwrap();
        let status = HostClient::new(channel.clone()).status(StatusRequest { peer: peer() }).await.unwrap();
        assert!(status.into_inner().ready);

        let refused = CapturesClient::new(channel.clone())
            .capture(CaptureRequest { peer: peer(), ..CaptureRequest::default() })
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("Unix socket"), "{refused}");
        let refused = SessionsClient::new(channel.clone())
            .list(ListSessionsRequest { peer: peer(), limit: 0 })
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);

        let mut raw = tonic::client::Grpc::new(channel.clone());
        raw.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<StatusRequest, StatusRequest>::default();
        let path = PathAndQuery::from_static("/tensorflow.ProfilerService/Profile");
        let refused =
            raw.unary(tonic::Request::new(StatusRequest::default()), path, codec).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);

        // A caller from the future, and one that says nothing of itself.
        let mut client = HostClient::new(channel);
        let future = Some(Peer { protocol: 99, ..Peer::default() });
        let refused = client.status(StatusRequest { peer: future }).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let refused = client.status(StatusRequest { peer: None }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    });
}

#[test]
fn nobody_is_kept_out_of_the_loopback_by_those_who_hold_it() {
    let host = FakeHost::new();
    let agent = RunningAgent::start(&host, "[api]\nmax_connections = 4\n");
    let address = format!("http://{}", agent.grpc());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut held = Vec::new();
        // Each has spoken HTTP/2 and got an answer; the first four hold all places.
        for _ in 0..6 {
            let channel = Endpoint::from_shared(address.clone()).unwrap().connect().await.unwrap();
            let answer = HostClient::new(channel.clone()).status(StatusRequest { peer: peer() }).await;
            assert!(answer.is_ok(), "{answer:?}");
            held.push(channel);
        }
    });
}

#[test]
fn a_container_that_mounts_the_socket_has_its_own_workloads_only() {
    let (inside, outside) =
        (FakeProfiler::start(Mode::Trace(trace())), FakeProfiler::start(Mode::Trace(trace())));
    let mut host = FakeHost::with(Generation::V6e, 2);
    let nodes: Vec<_> = host.chips().iter().map(|chip| chip.nodes[0].display().to_string()).collect();
    let procfs = host.root().join("proc");
    fs::create_dir(&procfs).unwrap();
    host.set_procfs(&procfs);
    FakeProcess::new(1, 1).write(&procfs);
    let (container, other) = (PidNs::new(), PidNs::new());
    let owner = |pid: u32, node: &str, profiler: &FakeProfiler| {
        let address = profiler.target();
        let port = address.clone().split_off("127.0.0.1:".len());
        let socket = 700 + u64::from(pid);
        FakeProcess::new(pid, 100)
            .descriptor(7, node)
            .descriptor(8, &format!("socket:[{socket}]"))
            .environment(&[("JAX_PROFILER_PORT", &port)])
            .listeners(&[(&address, OWNER, socket)])
    };
    owner(42, &nodes[0], &inside).link("ns/pid", &format!("pid:[{}]", container.inode())).write(&procfs);
    owner(43, &nodes[1], &outside).write(&procfs);
    let agent = RunningAgent::start(&host, "[sampler]\nsim_chips = 1\n");
    let client = Client::new();
    let capture = |session| ["capture", "--duration", "1ms", "--session", session];

    // Root in the container is not an admin: its uid is not the owner's, wherever the process runs.
    let refused = client.run_in(&container.enter(), 0, &agent, &capture("roots"));
    refused.failed(4, "not yours: 2 processes");
    // Another container has no owner at all, although the uid is the same.
    let refused = client.run_in(&other.enter(), OWNER, &agent, &capture("others"));
    refused.failed(4, "in another pid namespace than you: 2 processes");
    assert_eq!((inside.seen(), outside.seen()), (Seen::default(), Seen::default()), "not even asked");
    // All may read measurements.
    assert_eq!(client.run_in(&container.enter(), NOBODY, &agent, &["status"]).code, Some(0));

    let made = client.run_in(&container.enter(), OWNER, &agent, &capture("mine"));
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_ne!(inside.seen(), Seen::default());
    assert_eq!(outside.seen(), Seen::default(), "the other owner has the same uid");
    let listed = |ended: Ended| ended.json()["sessions"].as_array().unwrap().len();
    let list = ["sessions", "list", "--json"];
    assert_eq!(listed(client.run_in(&container.enter(), OWNER, &agent, &list)), 1);
    assert_eq!(listed(client.run_in(&container.enter(), 0, &agent, &list)), 0);
    assert_eq!(listed(client.run_in(&other.enter(), OWNER, &agent, &list)), 0);
    client.run_in(&other.enter(), OWNER, &agent, &["sessions", "rm", "mine"]).failed(5, "mine");
    assert_eq!(listed(client.run_as(0, &agent, &list)), 1);
    let removed = client.run_in(&container.enter(), OWNER, &agent, &["sessions", "rm", "mine"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
}

#[test]
fn an_agent_in_a_container_serves_its_own_pid_namespace() {
    let host = FakeHost::new();
    let container = PidNs::new();
    let agent = RunningAgent::start_in(&host, "", &container.enter());
    let client = Client::new();
    let list = ["sessions", "list"];
    assert_eq!(client.run_in(&container.enter(), 0, &agent, &list).code, Some(0));
    assert_eq!(client.run_in(&container.enter(), SOMEBODY, &agent, &list).code, Some(0));
    // The host's root is outside of the namespace: the agent cannot tell which process it is.
    client.run_as(0, &agent, &list).failed(4, "cannot tell the pid namespace");
    assert_eq!(client.run_as(0, &agent, &["status"]).code, Some(0));
}

#[test]
fn traces_are_for_root_and_for_the_user_who_owns_the_workload() {
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let (address, port) = (profiler.target(), profiler.target().split_off("127.0.0.1:".len()));
    let mut host = FakeHost::with(Generation::V6e, 1);
    let node = host.chips()[0].nodes[0].display().to_string();
    let procfs = host.root().join("proc");
    fs::create_dir(&procfs).unwrap();
    host.set_procfs(&procfs);
    FakeProcess::new(1, 1).write(&procfs);
    let settings = "[sampler]\nsim_chips = 1\n[workload]\nscan_interval = \"1h\"\n";
    let agent = RunningAgent::start(&host, settings);
    assert_eq!(agent.status()["owners"].as_array().map_or(0, Vec::len), 0, "{}", agent.status());
    // The job comes after the last look: the capture itself makes the agent look again.
    FakeProcess::new(4242, 100)
        .descriptor(7, &node)
        .descriptor(8, "socket:[777]")
        .environment(&[("JAX_PROFILER_PORT", &port)])
        .listeners(&[(&address, OWNER, 777)])
        .write(&procfs);
    let client = Client::new();
    let sessions = |uid| {
        let listed = client.run_as(uid, &agent, &["sessions", "list", "--json"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed.json()["sessions"].as_array().unwrap().len()
    };
    let capture = ["capture", "--duration", "1ms", "--session", "mine"];

    let refused = client.run_as(NOBODY, &agent, &capture);
    refused.failed(4, "left out, because not yours: 1 process");
    assert_eq!(profiler.seen(), Seen::default(), "not even asked");

    let made = client.run_as(OWNER, &agent, &capture);
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!((sessions(OWNER), sessions(0), sessions(NOBODY), sessions(SOMEBODY)), (1, 1, 0, 0));
    let refused = client.run_as(NOBODY, &agent, &capture);
    refused.failed(4, "left out, because not yours: 1 process");
    let refused = client.run_as(NOBODY, &agent, &["sessions", "rm", "mine"]);
    assert!(matches!(refused.code, Some(4 | 5)), "{refused:?}");
    assert_eq!(sessions(0), 1);
    assert_eq!(client.run_as(OWNER, &agent, &["sessions", "rm", "mine"]).code, Some(0));
    assert_eq!(sessions(0), 0);
}

#[test]
fn the_past_is_for_root_and_for_the_user_who_owns_the_workload() {
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let (address, port) = (profiler.target(), profiler.target().split_off("127.0.0.1:".len()));
    let mut host = FakeHost::with(Generation::V6e, 1);
    let node = host.chips()[0].nodes[0].display().to_string();
    let procfs = host.root().join("proc");
    fs::create_dir(&procfs).unwrap();
    host.set_procfs(&procfs);
    FakeProcess::new(1, 1).write(&procfs);
    FakeProcess::new(4242, 100)
        .descriptor(7, &node)
        .descriptor(8, "socket:[777]")
        .environment(&[("JAX_PROFILER_PORT", &port)])
        .listeners(&[(&address, OWNER, 777)])
        .write(&procfs);
    let recorder = "[recorder]\nevery = \"5s\"\nwindow = \"100ms\"\nmax_window = \"100ms\"\n";
    let agent = RunningAgent::start(&host, &format!("[sampler]\nsim_chips = 1\n{recorder}"));
    let client = Client::new();
    let processes = |uid, words: &[&str]| {
        let ended = client.run_as(uid, &agent, words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.json()["processes"].as_array().unwrap().len()
    };
    let (status, timeline) = (["recorder", "status", "--json"], ["recorder", "timeline", "--json"]);
    client.run_as(NOBODY, &agent, &["recorder", "on"]).failed(5, "no workload process of yours");
    assert_eq!(processes(OWNER, &["recorder", "on", "--json"]), 1);
    fakes::wait::until("a window", || processes(OWNER, &timeline) == 1);
    for (uid, count) in [(OWNER, 1), (0, 1), (NOBODY, 0), (SOMEBODY, 0)] {
        assert_eq!((processes(uid, &status), processes(uid, &timeline)), (count, count), "{uid}");
    }
    let snapshot = ["snapshot", "--from", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"];
    let refused = client.run_as(NOBODY, &agent, &snapshot);
    refused.failed(14, "nothing was recorded");
    assert!(!refused.stderr.contains("4242"), "nothing is said of processes of others: {refused:?}");
    client.run_as(NOBODY, &agent, &["recorder", "off"]).failed(5, "no workload process of yours");
    for uid in [OWNER, 0] {
        let made = client.run_as(uid, &agent, &snapshot);
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    // The sessions of the past are their owner's.
    let sessions = |uid| {
        let listed = client.run_as(uid, &agent, &["sessions", "list", "--json"]);
        listed.json()["sessions"].as_array().unwrap().len()
    };
    assert_eq!((sessions(OWNER), sessions(NOBODY)), (2, 0));
    assert_eq!(processes(0, &["recorder", "off", "--json"]), 1);
}
