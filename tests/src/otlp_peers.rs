//! The real peers of an export over OTLP: the collector `rotel`, and VictoriaMetrics as the database behind it.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{harness::peer, running_agent::exchange, wait::eventually};

/// A process that is killed when this is dropped.
#[derive(Debug)]
struct OtlpPeer {
    child: Child,
    _folder: TempDir,
}

impl OtlpPeer {
    /// Starts it with a folder of its own, and waits until it listens.
    fn start(mut command: Command, listens: SocketAddr, folder: TempDir) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(folder.path());
        let mut process =
            Self { child: command.spawn().expect("tests/setup.sh installs it"), _folder: folder };
        eventually("a peer to listen", || {
            let ended = process.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "{command:?} ended: {ended:?}");
            TcpStream::connect(listens).ok()
        });
        process
    }
}

impl Drop for OtlpPeer {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The collector `rotel`.
#[derive(Debug)]
pub struct Rotel {
    address: SocketAddr,
    _process: OtlpPeer,
}

impl Rotel {
    /// One that passes metrics on to another collector, over gRPC.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn to(collector: SocketAddr) -> Self {
        let packages = peer("rotel/lib");
        let found = std::fs::read_dir(&packages).unwrap().filter_map(Result::ok);
        let program = found.map(|python| python.path().join("site-packages/rotel/rotel-agent"));
        let program = program.into_iter().find(|program| program.exists()).expect("rotel has a rotel-agent");
        let (address, http, folder) = (free_address(), free_address(), tempfile::tempdir().unwrap());
        let mut command = Command::new(program);
        command.args(["start", "--exporter", "otlp", "--batch-timeout", "100ms"]);
        command.args([
            "--otlp-grpc-endpoint",
            &address.to_string(),
            "--otlp-http-endpoint",
            &http.to_string(),
        ]);
        command.args(["--otlp-exporter-endpoint", &format!("http://{collector}")]);
        Self { address, _process: OtlpPeer::start(command, address, folder) }
    }

    /// Where it takes OTLP over gRPC.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A database that is asked with PromQL.
#[derive(Debug)]
pub struct VictoriaMetrics {
    address: SocketAddr,
    _process: OtlpPeer,
}

impl VictoriaMetrics {
    /// An empty one.
    ///
    /// # Panics
    /// If it is not installed.
    #[expect(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Self {
        let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
        let mut command = Command::new("victoria-metrics");
        command
            .arg(format!("-httpListenAddr={address}"))
            .arg("-storageDataPath=data")
            .arg("-search.latencyOffset=0s");
        Self { address, _process: OtlpPeer::start(command, address, folder) }
    }

    /// Takes samples in the text format of Prometheus, with times in milliseconds.
    ///
    /// # Panics
    /// If it refuses them.
    pub fn import(&self, text: &str) {
        let length = text.len();
        let head = format!(
            "POST /api/v1/import/prometheus HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let answer = exchange(self.address, &[head.as_bytes(), text.as_bytes()].concat());
        assert_eq!(answer.status, 204, "{answer:?}");
        // What was taken is found at once.
        self.get("/internal/force_flush");
    }

    /// The result of an instant query.
    ///
    /// # Panics
    /// If it is no query.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let body = self.get(&format!("/api/v1/query?nocache=1&query={encoded}"));
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{query}: {answer}")).clone()
    }

    fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        exchange(self.address, head.as_bytes()).body
    }
}
