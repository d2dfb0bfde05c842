//! The listener for a central Prometheus: a real one scrapes it in plaintext, with a password over TLS, and with a client
//! certificate; a flood of wrong passwords and half handshakes does not move the sampler.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use fakes::{
    fake_host::FakeHost,
    running_agent::{Home, RunningAgent, exchange},
    wait::{eventually, until},
};
use model::device::Generation;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;

use super::scrape::Prometheus;

/// A user `prometheus` with the password `secret`.
pub(crate) fn users() -> String {
    format!("basic_auth_users: {{prometheus: {}}}\n", bcrypt::hash("secret", 10).unwrap())
}

/// A free port: the agent's own listeners say theirs, this one is for a Prometheus whose file is written first.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Certificates of an authority, a server on 127.0.0.1 and a client, as files of a folder.
pub(crate) fn certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(folder.join("ca.crt"), authority.pem()).unwrap();
    for (name, subject) in
        [("server", "127.0.0.1"), ("client", "prometheus.example"), ("other", "other.example")]
    {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![subject.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        let cert = params.signed_by(&key, &authority).unwrap();
        fs::write(folder.join(format!("{name}.crt")), cert.pem()).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

struct AgentWithListener {
    host: FakeHost,
    agent: RunningAgent,
    address: SocketAddr,
    folder: PathBuf,
}

/// An agent with the listener on a free loopback port and this web configuration (empty: none).
fn start(web_config: &str) -> AgentWithListener {
    let (host, home, address) = (FakeHost::with(Generation::V6e, 1), Home::new(), free());
    let folder = home.path().join("tls");
    fs::create_dir(&folder).unwrap();
    certificates(&folder);
    let mut settings = format!("[api]\nmetrics = \"{address}\"\n");
    if !web_config.is_empty() {
        fs::write(folder.join("web.yml"), web_config).unwrap();
        settings += &format!("metrics_web_config = \"{}\"\n", folder.join("web.yml").display());
    }
    let command = home.command(&host.config(&settings));
    AgentWithListener { host, agent: RunningAgent::ready(home, command), address, folder }
}

fn scraped(agent: &AgentWithListener, options: &str) {
    let prometheus = Prometheus::scraping_with(agent.address, options);
    assert_eq!(prometheus.values("tpuscope_build_info"), 1);
}

const PASSWORD_OVER_TLS: &str = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n";

#[test]
fn a_prometheus_scrapes_in_plaintext_and_sees_nothing_else() {
    let agent = start("");
    scraped(&agent, "");
    for path in ["/", "/api/v1/status", "/api/v1/samples", "/metrics/../api/v1/status"] {
        let answer = exchange(agent.address, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        assert!(answer.headers.starts_with("HTTP/1.0 404"), "{path}: {}", answer.headers);
    }
    let posted = exchange(agent.address, b"POST /metrics HTTP/1.0\r\n\r\n");
    assert!(posted.headers.starts_with("HTTP/1.0 405"), "{}", posted.headers);
}

#[test]
fn a_prometheus_scrapes_with_a_password_over_tls() {
    let agent = start(&format!("{PASSWORD_OVER_TLS}{}", users()));
    let tls = format!("scheme: https, tls_config: {{ca_file: '{}'}}", agent.folder.join("ca.crt").display());
    scraped(&agent, &format!("{tls}, basic_auth: {{username: prometheus, password: secret}}"));
    let wrong = format!("{tls}, basic_auth: {{username: prometheus, password: wrong}}");
    Prometheus::scraping_with(agent.address, &wrong).fails_with("401");
    Prometheus::scraping_with(agent.address, "").fails_with("");
    let page = agent.agent.get("/metrics", "").body;
    for (series, reason) in [("requests", "unauthorized"), ("connections", "tls_handshake")] {
        let series = format!("tpuscope_refused_{series}_total{{listener=\"metrics\",reason=\"{reason}\"}} ");
        let count = page.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
        assert!(count.is_some_and(|count| count > 0.0), "{series}{count:?}");
    }
    let log = agent.agent.log();
    assert!(log.contains("(401) listener=\"metrics\" refused=1 peer=127.0.0.1"), "{log}");
    assert!(log.contains("TLS handshake failed"), "{log}");
}

#[test]
fn a_prometheus_scrapes_with_a_client_certificate() {
    let agent = start(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  client_ca_file: ca.crt\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus.example]\n",
    );
    let folder = agent.folder.display();
    let with = |name: &str| {
        format!(
            "scheme: https, tls_config: {{ca_file: '{folder}/ca.crt', cert_file: '{folder}/{name}.crt', key_file: \
             '{folder}/{name}.key'}}"
        )
    };
    scraped(&agent, &with("client"));
    Prometheus::scraping_with(agent.address, &with("other")).fails_with("tls");
    let none = format!("scheme: https, tls_config: {{ca_file: '{folder}/ca.crt'}}");
    Prometheus::scraping_with(agent.address, &none).fails_with("tls");
}

#[test]
fn a_changed_file_is_taken_and_a_broken_one_changes_nothing() {
    let agent = start(&format!("{PASSWORD_OVER_TLS}{}", users()));
    let tls = format!("scheme: https, tls_config: {{ca_file: '{}'}}", agent.folder.join("ca.crt").display());
    Prometheus::scraping_with(agent.address, &tls).fails_with("401");
    fs::write(agent.folder.join("web.yml"), "nonsense: [").unwrap();
    Prometheus::scraping_with(agent.address, &tls).fails_with("401");
    until("the fault in the log", || agent.agent.log().contains("stays as it was"));
    fs::write(agent.folder.join("web.yml"), PASSWORD_OVER_TLS).unwrap();
    scraped(&agent, &tls);
    let log = agent.agent.log();
    assert!(log.contains("read again; no longer required: passwords"), "{log}");
}

#[test]
fn other_hosts_get_nothing_in_clear_unless_the_settings_say_so() {
    let host = FakeHost::with(Generation::V6e, 1);
    let refused = |settings: &str| {
        let home = Home::new();
        let ended = home.command(&host.config(settings)).output().unwrap();
        assert_eq!(ended.status.code(), Some(3), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let said = refused("[api]\nmetrics = \"0.0.0.0:0\"\n");
    assert!(said.contains("without TLS") && said.contains("api.metrics_plaintext"), "{said}");
    let said = refused("[api]\nmetrics = \"0.0.0.0:0\"\nmetrics_web_config = \"/nowhere/web.yml\"\n");
    assert!(said.contains("cannot read /nowhere/web.yml"), "{said}");
}

const MISSED: &str = "tpuscope_source_missed_ticks_total";

#[test]
fn a_flood_does_not_move_the_sampler() {
    let agent = start(&format!("{PASSWORD_OVER_TLS}{}", users()));
    let page = || agent.agent.get("/metrics", "").body;
    let sum = |metric: &str| -> f64 {
        let page = page();
        let of = page.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
        of.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    let ticks = || {
        let answer = agent.agent.get("/api/v1/history?metric=host_memory_total_bytes", "");
        let history: Value = serde_json::from_str(&answer.body).expect("JSON");
        history["series"][0]["points"].as_array().map_or(0, Vec::len)
    };
    until("a first tick", || ticks() > 1);
    let missed = sum(MISSED);
    // Half handshakes that stay, and wrong passwords one after the other.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01];
    let half_handshakes = || -> Vec<TcpStream> {
        let open = || {
            let mut stream = TcpStream::connect(agent.address).ok()?;
            stream.write_all(&hello).ok()?;
            Some(stream)
        };
        (0..200).map_while(|_| open()).collect()
    };
    let curl = |password: &str| {
        let ca = agent.folder.join("ca.crt");
        let output = Command::new("curl")
            .args([
                "-s",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-u",
                &format!("prometheus:{password}"),
                "--cacert",
            ])
            .arg(&ca)
            .arg(format!("https://{}/metrics", agent.address))
            .output()
            .expect("curl is installed by tests/setup.sh");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // The cost of a failure is not the right user's: its password is known from before the flood.
    assert_eq!(curl("secret"), "200");
    let half = half_handshakes();
    let codes: Vec<String> = (0..20).map(|n| curl(&format!("wrong{n}"))).collect();
    assert_eq!(curl("secret"), "200", "the right password during the flood");
    let during = ticks();
    until("ticks during the flood", || ticks() > during + 1);
    drop(half);
    let replaced = "tpuscope_refused_connections_total{listener=\"metrics\",reason=\"replaced\"} ";
    let after = page();
    let count = after.lines().find_map(|line| line.strip_prefix(replaced)?.parse::<f64>().ok());
    assert!(count.is_some_and(|count| count >= 100.0), "replaced connections are counted: {count:?}");
    assert!(codes.iter().all(|code| code == "401" || code == "429"), "{codes:?}");
    assert!(codes.iter().any(|code| code == "429"), "failures are limited: {codes:?}");
    assert!(page().contains(MISSED), "the counter is there");
    assert_eq!(sum(MISSED), missed, "a tick was missed");
    eventually("health", || agent.agent.get("/healthz", "").headers.contains(" 200 ").then_some(()));
    let _ = &agent.host;
}
