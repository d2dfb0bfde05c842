//! The client of the agent's Unix socket. Every call has a deadline.

use std::{
    ffi::OsString,
    future::Future,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::Duration,
};

use cluster::channel;
use tokio::{net::UnixStream, time::timeout};
use tonic::{Status, transport::Channel};

use super::{failure::Failure, remedies, settings, settings_args};

/// The longest time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest time for the answer to a call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without data after which the agent is pinged, and the time that it has to answer.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The variable that names the socket.
pub const VARIABLE: &str = settings::SOCKET_VARIABLE;

/// Whether this path of the socket is the value of [`VARIABLE`].
pub fn is_from_variable(socket: &Path) -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == socket.as_os_str())
}

/// The arguments of all commands that call the agent.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct SocketArgs {
    /// Path of the agent's Unix socket [default: the setting api.socket, /run/tpuscope/agent.sock]
    #[arg(long, value_name = "PATH", env = VARIABLE)]
    socket: Option<PathBuf>,
}

impl SocketArgs {
    /// Whether the command line names a socket other than that of the variable.
    pub(crate) fn is_given(&self) -> bool {
        self.socket.as_deref().is_some_and(|socket| !is_from_variable(socket))
    }

    /// The path of the socket: that of the argument or its variable, else of the settings.
    fn path(&self, settings: &settings_args::Args) -> Result<PathBuf, Failure> {
        self.socket.clone().map_or_else(|| settings.socket(), Ok)
    }

    /// What a further command needs to call the same agent: empty, or ` --socket PATH` if the command line named it.
    pub(crate) fn repeated(&self) -> String {
        match &self.socket {
            Some(socket) if self.is_given() => format!(" --socket {}", socket.display()),
            _ => String::new(),
        }
    }

    /// The same as [`SocketArgs::repeated`], as words.
    pub(crate) fn words(&self) -> Vec<OsString> {
        match &self.socket {
            Some(socket) if self.is_given() => vec!["--socket".into(), socket.into()],
            _ => Vec::new(),
        }
    }

    /// Connects to the agent's socket.
    ///
    /// # Errors
    /// If no process listens on it.
    pub(crate) async fn stream(&self) -> Result<UnixStream, Failure> {
        stream(&self.path(&settings_args::Args::of_environment())?).await
    }

    /// Connects to the agent.
    ///
    /// # Errors
    /// If no agent answers, or the settings file that the environment names cannot be used.
    pub async fn connect(&self) -> Result<Channel, Failure> {
        self.connect_as_in(&settings_args::Args::of_environment()).await
    }

    /// Connects to the agent of these settings.
    ///
    /// # Errors
    /// As [`SocketArgs::connect`].
    pub(crate) async fn connect_as_in(&self, settings: &settings_args::Args) -> Result<Channel, Failure> {
        let socket = self.path(settings)?;
        match timeout(CONNECT_TIMEOUT, channel::over(stream(&socket).await?, KEEPALIVE)).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(_)) => Err(remedies::connection_closed()),
            Err(_) => Err(remedies::no_answer(&socket)),
        }
    }
}

async fn stream(socket: &Path) -> Result<UnixStream, Failure> {
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await {
        Ok(connected) => {
            connected.map_err(|error| remedies::no_connection(socket, &error, is_socket(socket)))
        }
        Err(_) => Err(remedies::no_answer(socket)),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Waits for an answer within `limit`.
///
/// # Errors
/// If it does not come, or is an error.
pub async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Failure> {
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|status| remedies::refused(&status)),
        Err(_) => Err(remedies::call_timeout(limit)),
    }
}

/// Runs the future of a command on this thread.
///
/// # Errors
/// Those of the future.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format_args!("cannot start: {error}")))?
        .block_on(future)
}
