//! The connection to the agent.

use std::{io, path::Path, time::Duration};

use cluster::channel;
use server::session_messages;
use tonic::{Code, Status};

use super::capture::{KeptIn, capture, exit_of};
use crate::{client, exit::Exit, failure::Failure};

const AGENT_LOG: &str = "the agent's log has more details: `journalctl -u tpuscope`";

/// The socket's path, with the variable that set it.
fn named(socket: &Path) -> String {
    let path = socket.display();
    if client::is_from_variable(socket) {
        format!("{path} (from {})", client::VARIABLE)
    } else {
        path.to_string()
    }
}

/// No connection to the socket. `is_socket` says whether the file is one.
pub(crate) fn no_connection(socket: &Path, error: &io::Error, is_socket: bool) -> Failure {
    let at = named(socket);
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Exit::NoAgent, format!("no agent: there is no socket {at}"))
            .remedy("start the agent (`systemctl start tpuscope`, or `tpuscope agent`), or name its socket with --socket"),
        io::ErrorKind::ConnectionRefused if !is_socket => {
            Failure::new(Exit::NoAgent, format!("no agent: {at} is not a socket"))
                .remedy(format!("name the agent's socket with --socket or {}", client::VARIABLE))
        }
        io::ErrorKind::ConnectionRefused => {
            Failure::new(Exit::NoAgent, format!("no agent: no process listens on {at}"))
                .remedy("start the agent: `systemctl start tpuscope`, or `tpuscope agent`")
        }
        io::ErrorKind::PermissionDenied => match closed_folder(socket) {
            Some(folder) => Failure::new(
                Exit::Permission,
                format!("no permission to connect to {at}: the folder {} is closed to this user", folder.display()),
            )
            .remedy(format!(
                "run as root or as a member of the folder's group, or let this user search it (`chmod o+x {}`)",
                folder.display()
            )),
            None => Failure::new(Exit::Permission, format!("no permission to connect to {at}"))
                .remedy("run as root or as a member of the socket's group"),
        },
        _ => Failure::new(Exit::NoAgent, format!("cannot connect to {at}: {error}")),
    }
}

/// The folder on the way to the socket that this user cannot search; none where the socket itself refuses.
fn closed_folder(socket: &Path) -> Option<&Path> {
    let is_denied = |path: &Path| {
        let error = path.symlink_metadata().err();
        error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    // What lies in a closed folder cannot be looked at: the folder above the highest such path.
    socket.ancestors().take_while(|path| is_denied(path)).last()?.parent()
}

/// The process on the socket does not speak the agent's protocol, or hangs.
pub(crate) fn no_answer(socket: &Path) -> Failure {
    Failure::new(Exit::NoAgent, format!("the process that listens on {} does not answer", named(socket)))
        .remedy(AGENT_LOG)
}

/// The agent did not answer a call in time.
pub(crate) fn call_timeout(limit: Duration) -> Failure {
    Failure::new(Exit::Timeout, format!("the agent did not answer within {limit:?}")).remedy(AGENT_LOG)
}

/// The agent closed the connection before its answer.
pub(crate) fn connection_closed() -> Failure {
    Failure::new(Exit::NoAgent, "the agent closed the connection").remedy(
        "`journalctl -u tpuscope` says whether it ended, or has too many connections: then close some (`ss -xp` lists them), \
         or raise api.max_connections; it also closes that of a command that was stopped for more than 5 s",
    )
}

/// The agent refused a call.
pub(crate) fn refused(status: &Status) -> Failure {
    if channel::ended(status) {
        return connection_closed();
    }
    if status.code() == Code::Unimplemented {
        return Failure::new(
            Exit::NoAgent,
            "the agent does not know this call: it is older than this command",
        )
        .remedy("restart the agent with the same version: `systemctl restart tpuscope`");
    }
    let exit = match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Exit::Permission,
        Code::NotFound => Exit::NotFound,
        Code::InvalidArgument | Code::OutOfRange => Exit::Usage,
        Code::AlreadyExists | Code::Aborted => Exit::Conflict,
        Code::Unavailable => Exit::NoAgent,
        Code::DeadlineExceeded => Exit::Timeout,
        Code::ResourceExhausted => Exit::NoSpace,
        _ => Exit::Internal,
    };
    let what = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    match session_messages::reason(status) {
        Some(reason) => {
            Failure::new(exit_of(reason.kind()), what).remedy(capture(reason, KeptIn::AgentStore))
        }
        None => Failure::new(exit, what),
    }
}

/// The agent ended during a capture. It may have kept the session, or a part of it, before it ended.
pub(crate) fn agent_ended_in_capture() -> Failure {
    Failure::new(Exit::NoAgent, "the agent ended during the capture or does not answer").remedy(
        "restart the agent (`systemctl restart tpuscope`): `tpuscope sessions list` then lists what it has kept; the \
         profiler is free when the agent has ended; `journalctl -u tpuscope` has more details",
    )
}

/// The agent was stopped during a capture.
pub(crate) fn agent_stopped_in_capture() -> Failure {
    Failure::new(
        Exit::NoAgent,
        "the agent was stopped during the capture; nothing was kept, and the profilers are free",
    )
    .remedy("start the agent and capture again; `systemctl status tpuscope` shows its state")
}

/// A session that is not there or in use cannot be removed.
pub(crate) fn not_removed(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.remedy("`tpuscope sessions list` lists those that you may remove"),
        Exit::Conflict => failure.remedy("wait until its capture ends, or end the capture"),
        _ => failure,
    }
}
