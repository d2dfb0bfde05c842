//! Hosts reached over mutual TLS: certificates of an authority of one's own, who may do what, and what each side says of a
//! certificate that is not accepted.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use cluster::{
    dial::ExpectedPeer,
    identity::{authority::CertificateSubject, role::Role},
};
use fakes::{
    command::{run as run_tpuscope, start_as},
    fake_host::FakeHost,
    fake_profiler::{FakeProfiler, Mode, trace},
    running_agent::Home,
    wait::until,
};
use model::device::Generation;
use nix::sys::signal::Signal;
use proto::tpuscope::v1::{
    CaptureRequest, ListSessionsRequest, PruneSessionsRequest, StatusRequest,
    captures_client::CapturesClient, host_client::HostClient, sessions_client::SessionsClient,
};
use rcgen::SanType;
use tempfile::TempDir;
use tonic::Code;

use super::{
    remote_agent::{
        Authority, RemoteAgent, agent_here, days_ago, named, now, operator, peer, self_signed, without_role,
    },
    row, run, status,
};
use crate::schema::Schema;

#[test]
fn the_status_of_hosts_is_asked_with_certificates() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    for name in ["alice", "bob"] {
        let page = remote.status(&authority.of(name), &[]);
        assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""), "{page:?}");
        assert!(page.stdout.starts_with("1 host; 1 chip\n"), "{page:?}");
    }
    // The folder may be named by the environment; one agent under two names is one host.
    let port = remote.address.port();
    let (list, none) = (format!("127.0.0.1:{port},localhost:{port}"), free_port());
    let mut command = status(&["--hosts", &format!("{list},127.0.0.1:{none}"), "--json"]);
    command.env("TPUSCOPE_TLS_DIR", authority.of("bob"));
    let ended = start_as(command).end();
    assert_eq!(ended.code, Some(18), "{ended:?}");
    let json = ended.json();
    Schema::open("status-hosts").admits(&json);
    let kinds = json["hosts"].as_array().unwrap().iter().map(|host| &host["missing"]["kind"]);
    assert_eq!(
        kinds.map(|kind| kind.as_str().unwrap_or("-")).collect::<Vec<_>>(),
        ["-", "same_agent", "no_connection"]
    );
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_role_decides_what_a_caller_may_do() {
    let authority = Authority::usual();
    authority.certs(&["issue", "ca", "--agent", "other-agent", "--out", "."]);
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (name, read, traces) in [
            ("alice", Ok(()), Ok(())),
            ("bob", Ok(()), Err(Code::PermissionDenied)),
            ("other-agent", Err(Code::PermissionDenied), Err(Code::PermissionDenied)),
        ] {
            let channel = remote.channel(&authority.of(name), ExpectedPeer::NamedAgent).await;
            let asked = HostClient::new(channel.clone()).status(StatusRequest { peer: peer() }).await;
            assert_eq!(asked.map(drop).map_err(|status| status.code()), read, "{name}");
            let mut sessions = SessionsClient::new(channel.clone());
            let listed = sessions.list(ListSessionsRequest { peer: peer(), ..Default::default() }).await;
            assert_eq!(listed.map(drop).map_err(|status| status.code()), traces, "{name}");
            let pruned = sessions.prune(PruneSessionsRequest { peer: peer(), ..Default::default() }).await;
            assert_eq!(pruned.map(drop).map_err(|status| status.code()), traces, "{name}");
        }
    });
    let refused = run_status_as(&remote, &authority.of("other-agent"));
    assert!(refused.contains("your certificate has the role agent"), "{refused}");
}

fn run_status_as(remote: &RemoteAgent, tls_dir: &Path) -> String {
    let page = remote.status(tls_dir, &[]);
    assert_eq!(page.code, Some(18), "{page:?}");
    row(&page.stdout, &remote.address.to_string()).to_owned()
}

/// An agent that calls its host so, with one workload.
struct Worker {
    remote: RemoteAgent,
    _profiler: FakeProfiler,
    _procfs: TempDir,
}

impl Worker {
    fn start(authority: &Authority, name: &str) -> Self {
        let mut host = FakeHost::with(Generation::V6e, 1);
        let (profiler, procfs) = (FakeProfiler::start(Mode::Trace(trace())), tempfile::tempdir().unwrap());
        host.set_procfs(procfs.path());
        let rest = format!(
            "[agent]\nhost = '{name}'\n[[workload.endpoints]]\nkind = 'profiler'\naddress = '{}'\n",
            profiler.target()
        );
        let remote = RemoteAgent::on(host, &(authority.settings("127.0.0.1", "") + &rest));
        Self { remote, _profiler: profiler, _procfs: procfs }
    }
}

#[test]
fn one_window_on_two_hosts_is_recorded_over_certificates() {
    let authority = Authority::usual();
    let workers = ["vm-a", "vm-b"].map(|name| Worker::start(&authority, name));
    let hosts = workers.each_ref().map(|worker| worker.remote.address.to_string()).join(",");
    let out = tempfile::tempdir().unwrap();
    let capture = |name: &str| {
        let folder = authority.of(name).display().to_string();
        let words = ["capture", "--hosts", &hosts, "--tls-dir", &folder, "--duration", "100ms"];
        run_tpuscope(out.path(), &[&words[..], &["--session", "far"]].concat())
    };
    let refused = capture("bob");
    refused.failed(4, "");
    assert!(refused.stderr.contains("the role viewer"), "{refused:?}");
    let ended = capture("alice");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    for part in ["vm-a.xplane.pb", "vm-b.xplane.pb", "manifest.json"] {
        assert!(out.path().join("plugins/profile/far").join(part).exists(), "{part}: {ended:?}");
    }
    for worker in &workers {
        let log = worker.remote.agent.log();
        let line = log.lines().find(|line| line.contains("reserved for a capture over several hosts"));
        assert!(line.is_some_and(|line| line.contains("remote=\"operator alice at 127.0.0.1\"")), "{log}");
    }
}

#[test]
fn each_capture_of_another_host_is_in_the_log_with_who_and_from_where() {
    let authority = Authority::usual();
    let worker = Worker::start(&authority, "vm-a");
    let remote = &worker.remote;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = remote.channel(&authority.of("alice"), ExpectedPeer::NamedAgent).await;
        let request = CaptureRequest {
            peer: peer(),
            duration_ns: 100_000_000,
            session: "far".to_owned(),
            ..Default::default()
        };
        let mut events = CapturesClient::new(channel).capture(request).await.unwrap().into_inner();
        while events.message().await.unwrap().is_some() {}
    });
    let log = remote.agent.log();
    for text in ["capture begins", "capture kept"] {
        let line = log.lines().find(|line| line.contains(text)).unwrap_or_else(|| panic!("{text} in {log}"));
        assert!(line.contains("session=far"), "{line}");
        assert!(line.contains("remote=\"operator alice at 127.0.0.1\""), "{line}");
    }
}

#[test]
fn a_client_that_is_not_accepted_is_told_why_and_so_is_the_log() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let other = Authority::usual();
    // An authority that the agent does not know, while the client knows the agent's.
    let stranger = other.of("alice");
    fs::copy(authority.of("ca/ca.pem"), stranger.join("ca.pem")).unwrap();
    remote.refuses(
        &stranger,
        "own_certificate_unknown",
        "unknown authority",
        "signed by an unknown authority",
    );
    // One that signs itself.
    let itself = authority.of("itself");
    fs::create_dir(&itself).unwrap();
    self_signed(&itself, "tpuscope:role:operator");
    fs::copy(authority.of("ca/ca.pem"), itself.join("ca.pem")).unwrap();
    remote.refuses(&itself, "own_certificate_unknown", "unknown authority", "or by itself");
    // A certificate of the right authority without a role.
    let plain = authority.of("plain");
    let subject = CertificateSubject::Client(Role::Viewer, "dora".parse().unwrap());
    authority.issued_at("plain", &subject, now(), 10);
    without_role(&authority.of("ca"), &plain);
    remote.refuses(&plain, "own_certificate_without_role", "no role there", "its certificate has no role");
    // Its clock says that the certificate is valid; the agent's does not.
    let ended = remote.status(&authority.issued_at("old", &operator(), days_ago(10), 5), &[]);
    ended.failed(8, "old/cert.pem expired at ");
    let early = authority.issued_at("early", &operator(), days_ago(-10), 5);
    remote.status(&early, &[]).failed(8, "early/cert.pem is not valid before ");
    for (name, says) in
        [("old", "its certificate expired at "), ("early", "its certificate is not valid before ")]
    {
        let folder = authority.of(name);
        let said = openssl(remote.address, &folder);
        assert!(said.contains("alert certificate expired"), "{said}");
        until("the reason in the agent's log", || remote.agent.log().contains(says));
    }
}

/// What `openssl s_client` says, with the certificate in this folder.
fn openssl(address: SocketAddr, folder: &Path) -> String {
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-ign_eof", "-alpn", "h2", "-connect", &address.to_string(), "-cert"])
        .arg(folder.join("cert.pem"))
        .arg("-key")
        .arg(folder.join("key.pem"))
        .stdin(std::process::Stdio::piped())
        .output()
        .expect("openssl is installed");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn an_agent_that_is_not_the_one_that_was_meant_is_refused() {
    let authority = Authority::usual();
    let alice = authority.of("alice");
    authority.certs(&["issue", "ca", "--agent", "tpu-7", "--out", "."]);
    let other_name = RemoteAgent::start(&authority.settings("tpu-7", ""));
    other_name.refuses(&alice, "wrong_name", "its certificate is for tpu-7", "");
    // An authority that the client does not know.
    let other = Authority::usual();
    let stranger = RemoteAgent::start(&other.settings("127.0.0.1", ""));
    stranger.refuses(&alice, "unknown_authority", "signed by an unknown authority", "TLS handshake failed");
    let expired = authority.issued_at("old", &agent_here(), days_ago(10), 5);
    let expired = RemoteAgent::start(&authority.settings(expired.file_name().unwrap().to_str().unwrap(), ""));
    expired.refuses(&alice, "certificate_not_valid", "its certificate expired at ", "");
    authority.issued_at("early", &agent_here(), days_ago(-10), 5);
    let early = RemoteAgent::start(&authority.settings("early", ""));
    early.refuses(&alice, "certificate_not_valid", "its certificate is not valid before ", "");
    // A server of the same authority that is no agent.
    authority.issued_at("web", &agent_here(), now(), 5);
    named(&authority.of("ca"), &authority.of("web"), &[SanType::IpAddress([127, 0, 0, 1].into())]);
    let web = RemoteAgent::start(&authority.settings("web", ""));
    web.refuses(&alice, "wrong_role", "its certificate has no role", "");
}

#[test]
fn certificates_of_others_are_allowed_by_name_and_known_by_id() {
    let authority = Authority::usual();
    for (name, uri) in [("server", "spiffe://cluster/agent"), ("client", "spiffe://cluster/ops")] {
        fs::create_dir(authority.of(name)).unwrap();
        named(&authority.of("ca"), &authority.of(name), &[SanType::URI(uri.try_into().unwrap())]);
        fs::copy(authority.of("ca/ca.pem"), authority.of(name).join("ca.pem")).unwrap();
    }
    let allow = "allow = [{ san = 'spiffe://cluster/ops', role = 'viewer' }]";
    let remote = RemoteAgent::start(&authority.settings("server", allow));
    let client = authority.of("client");
    remote.refuses(&client, "wrong_name", "its certificate is for ", "");
    let page = remote.status(&client, &["--peer-id", "spiffe://cluster/agent"]);
    assert_eq!(page.code, Some(0), "{page:?}");
    let other = remote.status(&client, &["--peer-id", "spiffe://cluster/other"]);
    assert!(other.stdout.contains("expected spiffe://cluster/other"), "{other:?}");
    // Not named any more: after a SIGHUP it has no role.
    remote.host.config(&authority.settings("server", ""));
    remote.agent.signal(Signal::SIGHUP);
    until("the new settings", || remote.agent.log().contains("settings reloaded"));
    until("the end of the role", || {
        remote.status(&client, &["--peer-id", "spiffe://cluster/agent"]).code == Some(18)
    });
}

#[test]
fn files_that_cannot_be_used_are_named_on_both_sides() {
    let authority = Authority::usual();
    let agent_key = authority.of("127.0.0.1/key.pem");
    let host = FakeHost::with(Generation::V6e, 1);
    let refused = |settings: &str| {
        let home = Home::new();
        start_as(home.command(&host.config(settings))).end()
    };
    let settings = authority.settings("127.0.0.1", "");
    fs::set_permissions(&agent_key, Permissions::from_mode(0o644)).unwrap();
    refused(&settings).failed(3, "has the mode 0644, with which every user can use the private key");
    let config = host.config(&settings);
    let checked = run_tpuscope(host.root(), &["config", "check", config.to_str().unwrap()]);
    checked.failed(3, "key.pem has the mode 0644");
    fs::set_permissions(&agent_key, Permissions::from_mode(0o600)).unwrap();
    refused(&authority.settings("alice", "")).failed(3, "the certificate has the role operator");
    fs::copy(authority.of("alice/key.pem"), &agent_key).unwrap();
    refused(&settings).failed(3, "does not belong to the certificate");
    refused("[api.remote]\nlisten = '127.0.0.1:0'\n").failed(3, "but not all of api.remote.cert");
    refused("[api.remote]\nlisten = 'tpu-1'\n").failed(3, "api.remote.listen: expected IP:PORT");
    // The other side.
    let alice = authority.of("alice").display().to_string();
    let status = || run(&["--hosts", "127.0.0.1", "--tls-dir", &alice]);
    fs::set_permissions(authority.of("alice/key.pem"), Permissions::from_mode(0o604)).unwrap();
    status().failed(4, "alice/key.pem has the mode 0604");
    fs::remove_file(authority.of("alice/key.pem")).unwrap();
    status().failed(5, "cannot read ");
    run(&["--hosts", "127.0.0.1", "--via", "ssh", "--peer-id", "x"]).failed(2, "--peer-id");
}

#[test]
fn new_files_are_taken_and_broken_ones_change_nothing() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let (alice, here) = (authority.of("alice"), authority.of("127.0.0.1"));
    fs::write(here.join("cert.pem"), "nonsense").unwrap();
    until("the fault in the log", || {
        assert_eq!(remote.status(&alice, &[]).code, Some(0));
        remote.agent.log().contains("the certificate of the remote listener stays as it was")
    });
    // A new authority on both sides: the old certificates are no longer accepted.
    let new = Authority::usual();
    for file in ["key.pem", "cert.pem", "ca.pem"] {
        fs::copy(new.of("127.0.0.1").join(file), here.join(file)).unwrap();
    }
    until("the new files", || remote.status(&new.of("alice"), &[]).code == Some(0));
    assert_eq!(remote.status(&alice, &[]).code, Some(18));
}

#[test]
fn a_certificate_that_is_not_valid_takes_no_valid_ones_place() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    let (alice, here) = (authority.of("alice"), authority.of("127.0.0.1"));
    authority.issued_at("old", &agent_here(), days_ago(10), 5);
    authority.issued_at("early", &agent_here(), days_ago(-10), 5);
    authority.issued_at("next", &agent_here(), now(), 50);
    let put = |name: &str, files: &[&str]| {
        for file in files {
            fs::copy(authority.of(name).join(file), here.join(file)).unwrap();
        }
    };
    let unused = |value: u32| {
        until("the metric", || {
            let page = remote.agent.get("/metrics", "").body;
            page.lines().any(|line| line == format!("tpuscope_remote_files_unused {value}.0"))
        });
    };
    unused(0);
    for (name, files, says) in [
        ("old", &["cert.pem", "key.pem"][..], "cert.pem expired at "),
        ("early", &["cert.pem", "key.pem"], "cert.pem is not valid before "),
        // Without its key.
        ("next", &["cert.pem"], "does not belong to the certificate "),
    ] {
        put(name, files);
        until("the note in the status", || {
            assert_eq!(remote.status(&alice, &[]).code, Some(0), "{name}");
            let notes = remote.agent.status()["notes"].to_string();
            notes.contains("the new files are not used, the earlier ones stay") && notes.contains(says)
        });
        let log = remote.agent.log();
        let line = log.lines().find(|line| line.contains("stays as it was") && line.contains(says));
        assert!(line.is_some(), "{says} in {log}");
        unused(1);
    }
    put("next", &["key.pem"]);
    until("the files to be taken", || {
        assert_eq!(remote.status(&alice, &[]).code, Some(0));
        !remote.agent.status()["notes"].to_string().contains("are not used")
    });
    unused(0);
    assert_eq!(remote.status(&alice, &[]).code, Some(0));
}

#[test]
fn the_end_of_a_certificate_is_told_before() {
    let authority = Authority::usual();
    authority.issued_at("soon", &agent_here(), now(), 12);
    let remote = RemoteAgent::start(&authority.settings("soon", ""));
    let says = "expires in 11 days; replace the file";
    until("the warning in the log", || remote.agent.log().contains(says));
    let notes = remote.agent.status()["notes"].to_string();
    assert!(notes.contains(says) && notes.contains("soon/cert.pem"), "{notes}");
    let page = remote.agent.get("/metrics", "").body;
    let series = "tpuscope_remote_certificate_expiry_timestamp_seconds{file=\"cert\"} ";
    let end = page.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok()).expect(series);
    let left = end - f64::from(u32::try_from(now().as_second()).unwrap());
    assert!((11.0..=12.0).contains(&(left / 86_400.0)), "{left}");
}
