//! The child seen from the agent: start, one request at a time with a deadline, end.
//!
//! The child may be a hostile program: its messages are bounded and checked, and a child that is late, dead or out of
//! step is killed, never waited for. The parent-death signal follows the thread that started the child, so start it
//! from a thread that lives as long as the process: a tokio worker, never a `spawn_blocking` thread.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdUnixStream, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use host::process_memory::resident_bytes;
use model::untrusted::{self, clean};
use nix::sys::signal::Signal;
use proto::tpuscope::v1::{
    ChildReply, ChildRequest, GetMetrics, GetRuntimeStatus, LibraryInfo, LoadLibrary, MetricValue, Probe,
    child_reply::Result as Answer, child_request::Call,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::UnixStream,
    process::{Child, Command},
    time::{Instant, timeout},
};

use super::{child_protocol as protocol, sandbox};

/// The hidden subcommand of this binary that calls [`super::child::run`].
pub const SUBCOMMAND: &str = "libtpu-child";

/// How long a killed child may take to be gone. It is only a courtesy to the report: the kill itself is certain.
const REAP: Duration = Duration::from_secs(2);

/// Longest line of the child's standard error that is logged, bytes.
const MAX_LINE: usize = 300;
/// Lines logged per [`LINES_WINDOW`]; the rest is counted.
const MAX_LINES: u32 = 20;
const LINES_WINDOW: Duration = Duration::from_secs(60);

/// The user of the child, if it is not the user of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id; there are no supplementary groups.
    pub gid: u32,
}

/// How to start a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildCommand {
    /// The `tpuscope` binary.
    pub program: PathBuf,
    /// `None`: the user of the agent.
    pub user: Option<RunAs>,
    /// `TPU_ACCELERATOR_TYPE`, if the host has it; libtpu's metrics do not depend on it.
    pub accelerator_type: Option<String>,
}

impl Default for ChildCommand {
    fn default() -> Self {
        // Not the path: a binary replaced by an upgrade would speak another protocol.
        Self { program: PathBuf::from("/proc/self/exe"), user: None, accelerator_type: None }
    }
}

/// Why a request has no answer. After each of these but [`Refused`](Self::Refused) the child is gone.
#[derive(Debug, thiserror::Error)]
pub enum ChildFailure {
    /// It could not be started.
    #[error("the libtpu child cannot be started: {0}")]
    Start(#[source] io::Error),
    /// It did not answer in time and was killed.
    #[error("libtpu did not answer within {} s; its process was killed", .0.as_secs_f64())]
    Late(Duration),
    /// It ended.
    #[error("libtpu {0}")]
    Died(String),
    /// It answered something that is no answer, and was killed.
    #[error("the libtpu child answered nonsense ({0}); it was killed")]
    Nonsense(String),
    /// The child works and refuses the request.
    #[error("{message}")]
    Refused {
        /// libtpu's status code, or 0.
        code: i32,
        /// Its message, escaped and bounded.
        message: String,
    },
}

impl ChildFailure {
    /// Whether the child is gone.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Refused { .. })
    }
}

/// A running child. It is killed when the value is dropped.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    stream: UnixStream,
    next_id: u64,
    /// A request was sent whose answer was not taken: the connection is out of step.
    unanswered: bool,
}

/// What libtpu finds in its environment, and nothing else.
fn environment(accelerator_type: Option<&str>) -> [(&'static str, OsString); 7] {
    [
        // Without it libtpu waits for the metadata server for minutes.
        ("TPU_SKIP_MDS_QUERY", "1".into()),
        ("TPU_LOG_DIR", "disabled".into()),
        ("TPU_MIN_LOG_LEVEL", "3".into()),
        ("TPU_SDK_GRPC_TIMEOUT_SEC", "2".into()),
        ("TPU_ACCELERATOR_TYPE", accelerator_type.unwrap_or("v5litepod-4").into()),
        ("TPU_WORKER_HOSTNAMES", "localhost".into()),
        ("TPU_WORKER_ID", "0".into()),
    ]
}

impl ChildProcess {
    /// Starts a child.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn start(launch: &ChildCommand) -> Result<Self, ChildFailure> {
        Self::spawn(launch).map_err(ChildFailure::Start)
    }

    fn spawn(launch: &ChildCommand) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = Command::new(&launch.program);
        command
            .arg(SUBCOMMAND)
            .arg(sandbox::own_pid().to_string())
            .env_clear()
            .envs(environment(launch.accelerator_type.as_deref()))
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Signals of the terminal are the agent's to handle.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(user) = launch.user {
            command.uid(user.uid).gid(user.gid);
        }
        let mut child = command.spawn()?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(forward(stderr));
        }
        Ok(Self { child, stream: UnixStream::from_std(ours)?, next_id: 1, unanswered: false })
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Its resident memory in bytes, where `/proc` shows it.
    pub fn resident(&self) -> Option<u64> {
        resident_bytes(Some(self.pid()?))
    }

    /// Loads a library and reads what needs no start of libtpu.
    ///
    /// # Errors
    /// Any [`ChildFailure`].
    pub async fn probe(&mut self, path: &Path, deadline: Duration) -> Result<LibraryInfo, ChildFailure> {
        let path = path.to_string_lossy().into_owned();
        match self.call(Call::Probe(Probe { path }), deadline).await? {
            Answer::Library(info) => Ok(info),
            _ => Err(self.confused().await),
        }
    }

    /// Loads a library and gets its SDK.
    ///
    /// # Errors
    /// Any [`ChildFailure`].
    pub async fn load(&mut self, path: &Path, deadline: Duration) -> Result<LibraryInfo, ChildFailure> {
        let path = path.to_string_lossy().into_owned();
        match self.call(Call::Load(LoadLibrary { path }), deadline).await? {
            Answer::Library(info) => Ok(info),
            _ => Err(self.confused().await),
        }
    }

    /// Reads one metric.
    ///
    /// # Errors
    /// Any [`ChildFailure`].
    pub async fn metric(&mut self, name: &str, deadline: Duration) -> Result<MetricValue, ChildFailure> {
        let call = Call::GetMetrics(GetMetrics { names: vec![name.to_owned()] });
        let Answer::Metrics(mut values) = self.call(call, deadline).await? else {
            return Err(self.confused().await);
        };
        match (values.metrics.pop(), values.metrics.is_empty()) {
            (Some(MetricValue { error: Some(error), .. }), true) => Err(refused(error.code, &error.message)),
            (Some(value), true) if value.name == name => Ok(value),
            _ => Err(self.confused().await),
        }
    }

    /// Reads the state of the cores: a serialised `tpu.monitoring.runtime.GetTpuRuntimeStatusResponse`.
    ///
    /// # Errors
    /// Any [`ChildFailure`].
    pub async fn runtime_status(
        &mut self,
        include_hlo_info: bool,
        deadline: Duration,
    ) -> Result<Vec<u8>, ChildFailure> {
        let call = Call::GetRuntimeStatus(GetRuntimeStatus { include_hlo_info });
        match self.call(call, deadline).await? {
            Answer::RuntimeStatus(bytes) => Ok(bytes),
            _ => Err(self.confused().await),
        }
    }

    async fn call(&mut self, call: Call, deadline: Duration) -> Result<Answer, ChildFailure> {
        if std::mem::replace(&mut self.unanswered, true) {
            return Err(self.nonsense("the request before was abandoned".to_owned()).await);
        }
        let id = self.next_id;
        self.next_id += 1;
        let request = ChildRequest { id, call: Some(call) };
        let exchange = async {
            protocol::send_async(&mut self.stream, &request).await?;
            protocol::receive_async::<ChildReply>(&mut self.stream, protocol::MAX_REPLY).await
        };
        let reply = match timeout(deadline, exchange).await {
            Err(_elapsed) => {
                self.kill().await;
                return Err(ChildFailure::Late(deadline));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(self.nonsense(error.to_string()).await);
            }
            Ok(Err(_closed)) => return Err(ChildFailure::Died(self.ended().await)),
            Ok(Ok(reply)) => reply,
        };
        match reply.result {
            Some(Answer::Error(error)) if reply.id == id => {
                self.unanswered = false;
                Err(refused(error.code, &error.message))
            }
            Some(answer) if reply.id == id => {
                self.unanswered = false;
                Ok(answer)
            }
            _ => Err(self.confused().await),
        }
    }

    async fn confused(&mut self) -> ChildFailure {
        self.nonsense("no answer to what was asked".to_owned()).await
    }

    async fn nonsense(&mut self, what: String) -> ChildFailure {
        self.kill().await;
        ChildFailure::Nonsense(what)
    }

    /// Ends the child with SIGKILL and waits until it is gone.
    pub async fn kill(&mut self) {
        // It is gone already when this fails.
        let _ = self.child.start_kill();
        let _ = timeout(REAP, self.child.wait()).await;
    }

    /// How a child ended that closed its socket; one that closed it and runs on is killed.
    async fn ended(&mut self) -> String {
        if let Ok(Ok(status)) = timeout(REAP, self.child.wait()).await {
            return describe(status);
        }
        self.kill().await;
        "closed its socket and had to be killed".to_owned()
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(number), _) => {
            let name = Signal::try_from(number).map_or_else(|_| number.to_string(), |name| name.to_string());
            format!("ended its process by {name}")
        }
        (None, code) => format!("ended its process with exit code {}", code.unwrap_or_default()),
    }
}

fn refused(code: i32, message: &str) -> ChildFailure {
    ChildFailure::Refused { code, message: clean(message, untrusted::MESSAGE) }
}

/// Logs the child's standard error at a bounded rate, and reads on in any case so that it never blocks on it.
async fn forward(mut stderr: impl AsyncRead + Unpin) {
    let mut buffer = [0; 4096];
    let mut limit = Rate::new(Instant::now());
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for line in buffer[..read].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Some(dropped) = limit.admit(Instant::now()) {
                let line = clean(&String::from_utf8_lossy(line), MAX_LINE);
                tracing::debug!(target: "libtpu", dropped, "{line}");
            }
        }
    }
}

/// A bound on log lines per window.
struct Rate {
    window: Instant,
    lines: u32,
    dropped: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { window: now, lines: 0, dropped: 0 }
    }

    /// Whether a line may be logged now, and how many were dropped before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.window) >= LINES_WINDOW {
            (self.window, self.lines) = (now, 0);
        }
        if self.lines >= MAX_LINES {
            self.dropped += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_bounded_and_the_rest_counted() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let admitted = (0..100).filter(|_| rate.admit(start).is_some()).count();
        assert_eq!(admitted, MAX_LINES as usize);
        assert_eq!(rate.admit(start + LINES_WINDOW), Some(100 - u64::from(MAX_LINES)));
    }
}
