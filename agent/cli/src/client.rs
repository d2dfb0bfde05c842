//! Talking to the agent over its Unix socket: a deadline on everything, and answers turned into exit codes.

use std::{
    future::Future,
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use server::session_messages;
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::{
    exit::{Exit, Failure},
    remedies::{self, Destination},
};

/// The longest that the agent may take to accept.
const CONNECT: Duration = Duration::from_secs(3);
/// The longest that a question without a stream may take.
pub const ANSWER: Duration = Duration::from_secs(10);

/// An agent that is silent for so long is asked whether it is there, and given as long to answer.
const ARE_YOU_THERE: Duration = Duration::from_secs(10);

/// The variable that names the socket.
pub const VARIABLE: &str = "TPUSCOPE_SOCKET";

/// Whether this path of the socket is the variable's.
pub fn is_from_variable(socket: &Path) -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == socket.as_os_str())
}

/// The socket in words, with the variable that names it.
fn named(socket: &Path) -> String {
    let at = socket.display();
    if is_from_variable(socket) { format!("{at} (from {VARIABLE})") } else { at.to_string() }
}

/// Where the agent is.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Socket {
    /// The agent's Unix socket
    #[arg(long, value_name = "PATH", env = VARIABLE, default_value = "/run/tpuscope/agent.sock")]
    socket: PathBuf,
}

impl Socket {
    /// A channel to the agent.
    pub async fn connect(&self) -> Result<Channel, Failure> {
        let connecting = timeout(CONNECT, UnixStream::connect(&self.socket));
        let stream = match connecting.await {
            Ok(connected) => connected.map_err(|error| no_connection(&self.socket, &error))?,
            Err(_) => return Err(silent(&self.socket)),
        };
        // The one connection is made already, so that its errors are the system's own; there is no second one.
        let stream = Mutex::new(Some(stream));
        let connector = tower::service_fn(move |_: http::Uri| {
            let taken = stream.lock().ok().and_then(|mut stream| stream.take());
            async move { taken.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
        });
        // The name only fills the request's authority: the connector knows where to go.
        let endpoint = Endpoint::from_static("http://agent.invalid")
            .http2_keep_alive_interval(ARE_YOU_THERE)
            .keep_alive_timeout(ARE_YOU_THERE);
        match timeout(CONNECT, endpoint.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(silent(&self.socket)),
        }
    }
}

fn no_connection(socket: &Path, error: &io::Error) -> Failure {
    let at = named(socket);
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Exit::NoAgent, format!("no agent: there is no socket {at}"))
            .remedy("start one (`systemctl start tpuscope`, or `tpuscope agent`), or name its socket with --socket"),
        io::ErrorKind::ConnectionRefused if !is_socket(socket) => {
            Failure::new(Exit::NoAgent, format!("no agent: {at} is no socket"))
                .remedy(format!("name the agent's socket with --socket or {VARIABLE}"))
        }
        io::ErrorKind::ConnectionRefused => {
            Failure::new(Exit::NoAgent, format!("no agent: nobody listens on {at} any more"))
                .remedy("start it again: `systemctl start tpuscope`, or `tpuscope agent`")
        }
        io::ErrorKind::PermissionDenied => {
            Failure::new(Exit::Permission, format!("you may not connect to {at}"))
                .remedy("run it as root or as a member of the socket's group")
        }
        _ => Failure::new(Exit::NoAgent, format!("cannot connect to {at}: {error}")),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

fn silent(socket: &Path) -> Failure {
    Failure::new(Exit::NoAgent, format!("what listens on {} does not answer as an agent does", named(socket)))
        .remedy("look at its log: `journalctl -u tpuscope`")
}

fn closed() -> Failure {
    let what = "the agent hung up before it had answered: it has too many connections, or it ended";
    Failure::new(Exit::NoAgent, what).remedy(
        "`journalctl -u tpuscope` says which; close connections (`ss -xp` shows whose they are) or raise \
         api.max_connections, or start it again",
    )
}

/// Whether the connection ended rather than the agent answering: only our own side's faults have a source.
pub fn hung_up(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// What the agent's refusal means for the exit code.
pub fn refused(status: &Status) -> Failure {
    if hung_up(status) {
        return closed();
    }
    let exit = match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Exit::Permission,
        Code::NotFound => Exit::NotFound,
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::AlreadyExists | Code::Aborted => Exit::Conflict,
        Code::Unavailable => Exit::NoAgent,
        Code::DeadlineExceeded => Exit::Timeout,
        _ => Exit::Internal,
    };
    let what = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    let failure = Failure::new(exit, what);
    match session_messages::reason(status) {
        Some(reason) => failure.remedy(remedies::capture(reason, Destination::AgentStore)),
        None => failure,
    }
}

/// Waits for an answer within `limit`.
pub async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|status| refused(&status)),
        Err(_) => Err(Failure::new(Exit::Timeout, format!("the agent did not answer within {limit:?}"))
            .remedy("look at its log: `journalctl -u tpuscope`")),
    }
}

/// Runs a command's future on one thread.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Internal, format!("cannot start: {error}")))?
        .block_on(future)
}
