//! An agent that other hosts reach over mutual TLS, and the certificates of a test.

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
        authority::{self, CertificateSubject, ValidDays},
        files::IdentityFiles,
        role::Role,
    },
};
use fakes::{
    command::{Ended, run as run_tpuscope},
    fake_host::FakeHost,
    running_agent::RunningAgent,
    wait::until,
};
use jiff::Timestamp;
use model::{
    device::Generation,
    time::{Clock, SystemClock},
};
use proto::tpuscope::v1::Peer;
use rcgen::{CertificateParams, KeyPair, SanType};
use tempfile::TempDir;
use tonic::transport::Channel;

use super::run;

/// Longer than any dial of a test takes.
const LONG: Duration = Duration::from_secs(60);

/// The time of this host.
pub(crate) fn now() -> Timestamp {
    SystemClock.now().into()
}

/// An authority in the folder `ca`, with the certificates that it issued beside it.
pub(crate) struct Authority(TempDir);

impl Authority {
    /// Only its folder.
    pub(crate) fn none() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// One without certificates.
    pub(crate) fn new() -> Self {
        let authority = Self::none();
        // Older than the certificates that the tests let expire.
        authority::create(&authority.of("ca"), ValidDays(3650), days_ago(60)).unwrap();
        authority
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Runs `tpuscope certs` in the folder.
    pub(crate) fn certs(&self, words: &[&str]) -> Ended {
        let ended = run_tpuscope(self.folder(), &[&["certs"], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }

    /// The folder of a certificate.
    pub(crate) fn of(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Issues one that was valid for some days from this time.
    pub(crate) fn issued_at(
        &self,
        name: &str,
        subject: &CertificateSubject,
        at: Timestamp,
        days: u16,
    ) -> PathBuf {
        authority::issue(&self.of("ca"), &self.of(name), subject, ValidDays(days), at).unwrap();
        self.of(name)
    }

    /// Issues the usual ones: an agent at 127.0.0.1, an operator and a viewer.
    pub(crate) fn usual() -> Self {
        let authority = Self::new();
        authority.certs(&["issue", "ca", "--agent", "127.0.0.1", "--also", "localhost", "--out", "."]);
        authority.certs(&["issue", "ca", "--operator", "alice", "--out", "."]);
        authority.certs(&["issue", "ca", "--viewer", "bob", "--out", "."]);
        authority
    }

    /// The settings of an agent with the certificate in this folder.
    pub(crate) fn settings(&self, name: &str, rest: &str) -> String {
        format!("{}{rest}\n", self.listener("127.0.0.1:0", name))
    }

    /// The same for an agent that listens here.
    pub(crate) fn listener(&self, listen: &str, name: &str) -> String {
        let path = self.of(name).display().to_string();
        format!(
            "[api.remote]\nlisten = '{listen}'\ncert = '{path}/cert.pem'\nkey = '{path}/key.pem'\nclient_ca = \
             '{path}/ca.pem'\n"
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

    pub(super) fn on(host: FakeHost, settings: &str) -> Self {
        let agent = RunningAgent::start(&host, settings);
        let address = agent.status()["remote_address"].as_str().unwrap().parse().unwrap();
        Self { host, agent, address }
    }

    /// `status` of it as a client with the certificate in this folder.
    pub(super) fn status(&self, tls_dir: &Path, more: &[&str]) -> Ended {
        let (address, folder) = (self.address.to_string(), tls_dir.display().to_string());
        run(&[&["--hosts", &address, "--tls-dir", &folder, "--host-timeout", "20s"], more].concat())
    }

    /// It refuses a client, and both sides say why.
    pub(super) fn refuses(&self, tls_dir: &Path, kind: &str, client: &str, agent: &str) {
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

    pub(super) async fn channel(&self, tls_dir: &Path, expected: ExpectedPeer) -> Channel {
        let dialer = TlsDialer::new(&IdentityFiles::in_folder(tls_dir), expected).unwrap();
        let host = self.address.to_string().parse().unwrap();
        Dialer::over_tls(dialer).dial(&host, LONG).await.unwrap().channel()
    }
}

pub(super) fn peer() -> Option<Peer> {
    Some(Peer { protocol: 1, ..Peer::default() })
}

pub(crate) fn agent_here() -> CertificateSubject {
    CertificateSubject::Agent(vec!["127.0.0.1".parse().unwrap()])
}

pub(super) fn operator() -> CertificateSubject {
    CertificateSubject::Client(Role::Operator, "carol".parse().unwrap())
}

pub(super) fn days_ago(days: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() - days * 86_400).unwrap()
}

/// A certificate that signs itself, with this URI.
pub(super) fn self_signed(folder: &Path, uri: &str) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    let cert = params.self_signed(&key).unwrap();
    write_identity(folder, &cert.pem(), &key);
}

pub(super) fn write_identity(folder: &Path, cert: &str, key: &KeyPair) {
    fs::write(folder.join("cert.pem"), cert).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    fs::set_permissions(folder.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
}

/// Replaces the certificate in a folder by one of the authority with the name `workload.example` alone.
pub(super) fn without_role(ca: &Path, folder: &Path) {
    named(ca, folder, &[SanType::DnsName("workload.example".try_into().unwrap())]);
}

pub(super) fn named(ca: &Path, folder: &Path, names: &[SanType]) {
    let read = |file: &str| fs::read_to_string(ca.join(file)).unwrap();
    let ca_key = KeyPair::from_pem(&read("ca-key.pem")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.to_vec();
    let cert = params.signed_by(&key, &issuer).unwrap();
    write_identity(folder, &cert.pem(), &key);
}
