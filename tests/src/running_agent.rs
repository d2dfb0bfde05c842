//! A real `tpuscope agent` on a fake host, seen from a test: started with listeners on free ports, asked over its
//! socket and over HTTP, killed on drop.

use std::{
    fs::{self, File, Permissions},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    command::without_inherited_settings,
    fake_host::FakeHost,
    harness::tpuscope,
    wait::{LIMIT, eventually},
};

/// Where an agent of a test keeps its socket and state: a folder that every user may enter.
#[derive(Debug)]
pub struct Home(TempDir);

impl Home {
    /// A new one.
    ///
    /// # Panics
    /// If there is no room for it.
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).expect("ours");
        Self(home)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("agent.sock")
    }

    /// The command that runs an agent here.
    pub fn command(&self, config: &Path) -> Command {
        let mut command = Command::new(tpuscope());
        command.arg("agent").arg("--config").arg(config).arg("--socket").arg(self.socket());
        command.arg("--set").arg(format!("agent.state_dir={}", self.path().join("state").display()));
        command.args(["--set", "api.http=127.0.0.1:0", "--set", "api.grpc=127.0.0.1:0"]);
        command
    }
}

/// An agent that runs.
#[derive(Debug)]
pub struct RunningAgent {
    child: Child,
    home: Home,
    log: PathBuf,
}

impl RunningAgent {
    /// Starts one that looks at `host`, with these further settings, and waits until it has samples.
    pub fn start(host: &FakeHost, settings: &str) -> Self {
        let home = Home::new();
        let command = home.command(&host.config(settings));
        Self::ready(home, command)
    }

    /// The same behind `prefix`, a command that starts another, such as `nsenter`.
    ///
    /// # Panics
    /// If the prefix is empty.
    pub fn start_in(host: &FakeHost, settings: &str, prefix: &[&str]) -> Self {
        let home = Home::new();
        let plain = home.command(&host.config(settings));
        let (program, words) = prefix.split_first().expect("a command");
        let mut command = Command::new(program);
        command.args(words).arg(plain.get_program()).args(plain.get_args());
        Self::ready(home, command)
    }

    /// Starts a prepared command in `home` and waits until it has samples.
    pub fn ready(home: Home, command: Command) -> Self {
        let mut agent = Self::spawn(home, command);
        eventually("the first sample", || {
            assert!(agent.alive(), "the agent ended: {}", agent.log());
            agent.try_status().filter(|status| status["ready"] == true)
        });
        agent
    }

    /// Starts a prepared command in `home`, and waits for nothing.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(home: Home, mut command: Command) -> Self {
        without_inherited_settings(&mut command);
        let log = home.path().join("log");
        let file = File::options().create(true).append(true).open(&log).expect("a log file");
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().expect("it starts");
        Self { child, home, log }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it lives.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `status --json`, where it answers.
    pub fn try_status(&self) -> Option<Value> {
        let asked = Command::new(tpuscope())
            .args(["status", "--json", "--socket"])
            .arg(self.home.socket())
            .output()
            .expect("status runs");
        asked.status.success().then(|| serde_json::from_slice(&asked.stdout).expect("JSON"))
    }

    /// `status --json`.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn status(&self) -> Value {
        self.try_status().expect("the agent answers")
    }

    /// Where it serves HTTP.
    pub fn http(&self) -> SocketAddr {
        self.address("http_address")
    }

    /// Where it serves read-only gRPC.
    pub fn grpc(&self) -> SocketAddr {
        self.address("grpc_address")
    }

    fn address(&self, field: &str) -> SocketAddr {
        self.status()[field].as_str().and_then(|text| text.parse().ok()).expect("an address")
    }

    /// GET over HTTP with further headers.
    pub fn get(&self, path: &str, headers: &str) -> Answer {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        exchange(self.http(), head.as_bytes())
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid()).expect("a pid")), signal).expect("it still runs");
    }

    /// Waits for its end, and gives its exit code (`None` after a signal) and where it lived.
    pub fn end(mut self) -> (Option<i32>, Home) {
        let status = eventually("the end of the agent", || self.child.try_wait().expect("a child of ours"));
        let home = std::mem::replace(&mut self.home, Home::new());
        (status.code(), home)
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // Already over is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an HTTP server answered.
#[derive(Debug)]
pub struct Answer {
    /// Its status; 0 when the connection was closed without one.
    pub status: u16,
    /// Its headers, as they came.
    pub headers: String,
    /// Its body.
    pub body: String,
}

/// Sends bytes and reads until the other side closes.
///
/// # Panics
/// If nobody listens, or the answer does not end.
pub fn exchange(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket option");
    // A server may refuse in the middle of the request.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = headers.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Answer { status, headers: headers.to_owned(), body: body.to_owned() }
}
