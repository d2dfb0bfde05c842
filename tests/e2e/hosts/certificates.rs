//! Hosts reached over mutual TLS: certificates of an authority of one's own, who may do what, and what each side says of a
//! certificate that is not accepted.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cluster::{
    dial::{Dialer, ExpectedPeer, TlsDialer},
    identity::{
        authority::{self, Holder, ValidDays},
        files::IdentityFiles,
        role::Role,
    },
};
use fakes::{
    command::{Ended, run as run_tpuscope, start_as},
    fake_host::FakeHost,
    fake_profiler::{FakeProfiler, Mode, trace},
    running_agent::{Home, RunningAgent},
    wait::until,
};
use jiff::Timestamp;
use model::device::Generation;
use nix::sys::signal::Signal;
use proto::tpuscope::v1::{
    CaptureRequest, ListSessionsRequest, Peer, PruneSessionsRequest, StatusRequest,
    captures_client::CapturesClient, host_client::HostClient, sessions_client::SessionsClient,
};
use rcgen::{CertificateParams, KeyPair, SanType};
use tempfile::TempDir;
use tonic::{Code, transport::Channel};

use super::{row, run, status};
use crate::schema::Schema;

/// Longer than any dial of a test takes.
const LONG: Duration = Duration::from_secs(60);

/// The time of this host.
fn now() -> Timestamp {
    use model::time::{Clock, SystemClock};
    SystemClock.now().into()
}

/// An authority in the folder `ca`, with the certificates that it issued beside it.
pub(super) struct Authority(TempDir);

impl Authority {
    pub(super) fn new() -> Self {
        let authority = Self(tempfile::tempdir().unwrap());
        // Older than the certificates that the tests let expire.
        authority::create(&authority.of("ca"), ValidDays(3650), days_ago(60)).unwrap();
        authority
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Runs `tpuscope certs` in the folder.
    fn certs(&self, words: &[&str]) -> Ended {
        let ended = run_tpuscope(self.folder(), &[&["certs"], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }

    /// The folder of a certificate.
    pub(super) fn of(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Issues one that was valid for some days from this time.
    fn issued_at(&self, name: &str, holder: &Holder, at: Timestamp, days: u16) -> PathBuf {
        authority::issue(&self.of("ca"), &self.of(name), holder, ValidDays(days), at).unwrap();
        self.of(name)
    }

    /// Issues the usual ones: an agent at 127.0.0.1, an operator and a viewer.
    pub(super) fn usual() -> Self {
        let authority = Self::new();
        authority.certs(&["issue", "ca", "--agent", "127.0.0.1", "--also", "localhost", "--out", "."]);
        authority.certs(&["issue", "ca", "--operator", "alice", "--out", "."]);
        authority.certs(&["issue", "ca", "--viewer", "bob", "--out", "."]);
        authority
    }

    /// The settings of an agent with the certificate in this folder.
    pub(super) fn settings(&self, name: &str, rest: &str) -> String {
        let path = self.of(name).display().to_string();
        format!(
            "[api.remote]\nlisten = '127.0.0.1:0'\ncert = '{path}/cert.pem'\nkey = '{path}/key.pem'\nclient_ca = \
             '{path}/ca.pem'\n{rest}\n"
        )
    }
}

/// An agent with a listener for other hosts.
pub(super) struct RemoteAgent {
    pub(super) host: FakeHost,
    pub(super) agent: RunningAgent,
    pub(super) address: SocketAddr,
}

impl RemoteAgent {
    pub(super) fn start(settings: &str) -> Self {
        Self::on(FakeHost::with(Generation::V6e, 1), settings)
    }

    fn on(host: FakeHost, settings: &str) -> Self {
        let agent = RunningAgent::start(&host, settings);
        let address = agent.status()["remote_address"].as_str().unwrap().parse().unwrap();
        Self { host, agent, address }
    }

    /// `status` of it as a client with the certificate in this folder.
    fn status(&self, tls_dir: &Path, more: &[&str]) -> Ended {
        let (address, folder) = (self.address.to_string(), tls_dir.display().to_string());
        run(&[&["--hosts", &address, "--tls-dir", &folder, "--host-timeout", "20s"], more].concat())
    }

    /// It refuses a client, and both sides say why.
    fn refuses(&self, tls_dir: &Path, kind: &str, client: &str, agent: &str) {
        let ended = self.status(tls_dir, &["--json"]);
        assert_eq!(ended.code, Some(18), "{ended:?}");
        let missing = &ended.json()["hosts"][0]["missing"];
        assert_eq!(missing["kind"], kind, "{missing}");
        assert!(missing["reason"].as_str().unwrap().contains(client), "`{client}` in {missing}");
        assert_ne!(missing["remedy"], "", "{missing}");
        if !agent.is_empty() {
            until("the reason in the agent's log", || self.agent.log().contains(agent));
        }
    }

    async fn channel(&self, tls_dir: &Path, expected: ExpectedPeer) -> Channel {
        let dialer = TlsDialer::new(&IdentityFiles::in_folder(tls_dir), expected).unwrap();
        let host = self.address.to_string().parse().unwrap();
        Dialer::over_tls(dialer).dial(&host, LONG).await.unwrap().channel()
    }
}

fn peer() -> Option<Peer> {
    Some(Peer { protocol: 1, ..Peer::default() })
}

fn agent_here() -> Holder {
    Holder::Agent(vec!["127.0.0.1".parse().unwrap()])
}

fn operator() -> Holder {
    Holder::Client(Role::Operator, "carol".parse().unwrap())
}

fn days_ago(days: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() - days * 86_400).unwrap()
}

#[test]
fn the_status_of_hosts_is_asked_with_certificates() {
    let authority = Authority::usual();
    let remote = RemoteAgent::start(&authority.settings("127.0.0.1", ""));
    for name in ["alice", "bob"] {
        let page = remote.status(&authority.of(name), &[]);
        assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""), "{page:?}");
        assert!(page.stdout.starts_with("1 host; 1 chip\n"), "{page:?}");
    }
    // The folder may be named by the environment; another name of the same host is a host of its own.
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
        ["-", "-", "no_connection"]
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

#[test]
fn each_capture_of_another_host_is_in_the_log_with_who_and_from_where() {
    let authority = Authority::usual();
    let mut host = FakeHost::with(Generation::V6e, 1);
    let profiler = FakeProfiler::start(Mode::Trace(trace()));
    let procfs = tempfile::tempdir().unwrap();
    host.set_procfs(procfs.path());
    let endpoint = format!("[[workload.endpoints]]\nkind = 'profiler'\naddress = '{}'\n", profiler.target());
    let remote = RemoteAgent::on(host, &(authority.settings("127.0.0.1", "") + &endpoint));
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
    let holder = Holder::Client(Role::Viewer, "dora".parse().unwrap());
    authority.issued_at("plain", &holder, now(), 10);
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
        assert!(said.contains("certificate expired") || said.contains("alert"), "{said}");
        until("the reason in the agent's log", || remote.agent.log().contains(says));
    }
}

/// What `openssl s_client` says, with the certificate in this folder.
fn openssl(address: SocketAddr, folder: &Path) -> String {
    let output = std::process::Command::new("openssl")
        .args(["s_client", "-alpn", "h2", "-connect", &address.to_string(), "-cert"])
        .arg(folder.join("cert.pem"))
        .arg("-key")
        .arg(folder.join("key.pem"))
        .stdin(std::process::Stdio::piped())
        .output()
        .expect("openssl is installed");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// A certificate that signs itself, with this URI.
fn self_signed(folder: &Path, uri: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    let cert = params.self_signed(&key).unwrap();
    write_identity(folder, &cert.pem(), &key);
}

fn write_identity(folder: &Path, cert: &str, key: &KeyPair) {
    fs::write(folder.join("cert.pem"), cert).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    fs::set_permissions(folder.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
}

/// Replaces the certificate in a folder by one of the authority with the name `workload.example` alone.
fn without_role(ca: &Path, folder: &Path) {
    named(ca, folder, &[SanType::DnsName("workload.example".try_into().unwrap())]);
}

fn named(ca: &Path, folder: &Path, names: &[SanType]) {
    let read = |file: &str| fs::read_to_string(ca.join(file)).unwrap();
    let ca_key = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.to_vec();
    let cert = params.signed_by(&key, &issuer).unwrap();
    write_identity(folder, &cert.pem(), &key);
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

#[test]
fn certificates_are_issued_shown_and_never_replaced() {
    let authority = Authority(tempfile::tempdir().unwrap());
    authority.certs(&["init", "ca"]);
    let issued = authority.certs(&["issue", "ca", "--agent", "tpu-[1-2]", "10.0.0.7", "--days", "30"]);
    assert_eq!(issued.stdout.lines().count(), 3, "{issued:?}");
    assert!(issued.stdout.starts_with("ca/tpu-1: agent tpu-1, valid from "), "{issued:?}");
    let key = fs::metadata(authority.of("ca/tpu-1/key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let shown = authority.certs(&["show", "ca/10.0.0.7/cert.pem"]).stdout;
    assert!(shown.contains("role     agent\nnames    10.0.0.7\n"), "{shown}");
    assert!(shown.contains(": expires in 29 days\n"), "{shown}");
    let json = authority.certs(&["show", "ca/ca.pem", "--json"]).json();
    Schema::open("certs-show").admits(&json);
    assert_eq!(json["certificates"][0]["authority"], true);
    let refused = |words: &[&str], code, says: &str| {
        run_tpuscope(authority.folder(), &[&["certs"], words].concat()).failed(code, says);
    };
    refused(&["init", "ca"], 7, "ca/ca-key.pem exists");
    refused(&["issue", "ca", "--agent", "tpu-1"], 7, "ca/tpu-1/key.pem exists");
    refused(&["issue", "none", "--operator", "x"], 5, "cannot read none/ca.pem");
    refused(&["issue", "ca", "--operator", "../x"], 2, "is no name");
    refused(&["issue", "ca", "--agent", "a b"], 2, "white space");
    refused(&["issue", "ca"], 2, "required");
    refused(&["show", "ca/ca-key.pem"], 8, "it has a private key, and no certificate");
    refused(&["show", "none.pem"], 5, "cannot read none.pem");
    fs::set_permissions(authority.of("ca/ca-key.pem"), Permissions::from_mode(0o644)).unwrap();
    refused(&["issue", "ca", "--operator", "x"], 4, "ca/ca-key.pem has the mode 0644");
}

/// `openssl verify` agrees that a certificate is of its authority.
#[test]
fn openssl_accepts_what_is_issued() {
    let authority = Authority::usual();
    for (name, purpose) in [("127.0.0.1", "sslserver"), ("alice", "sslclient"), ("bob", "sslclient")] {
        let verified = std::process::Command::new("openssl")
            .args(["verify", "-x509_strict", "-purpose", purpose, "-CAfile"])
            .arg(authority.of("ca/ca.pem"))
            .arg(authority.of(name).join("cert.pem"))
            .output()
            .expect("openssl is installed");
        assert!(verified.status.success(), "{verified:?}");
    }
}
