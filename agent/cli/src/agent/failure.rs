//! What keeps the agent from starting, as exit codes and words.

use std::{io, net::SocketAddr, path::Path};

use server::{scrape::ConfigurationError, socket::SocketError};
use store::lock::LockError;

use crate::{
    exit::{Exit, Failure},
    settings_args,
};

/// The code for a refusal of the system.
fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Permission,
        io::ErrorKind::AddrInUse => Exit::Conflict,
        // What the settings name is of another kind than it has to be.
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput => Exit::Config,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
        _ => Exit::Internal,
    }
}

/// The state directory cannot be had.
pub(super) fn state(error: &LockError, dir: &Path) -> Failure {
    match error {
        LockError::Held { pid, .. } => {
            let who = pid.map_or_else(|| "another agent".into(), |pid| format!("the agent with pid {pid}"));
            Failure::new(Exit::Conflict, format!("{who} already uses the state directory {}", dir.display()))
                .remedy("one agent a host is enough; for a second one set agent.state_dir, api.socket, api.http and api.grpc")
        }
        LockError::Directory { error: cause, .. } | LockError::Open { error: cause, .. } => {
            Failure::new(exit_of(cause), error)
                .remedy("set agent.state_dir to a directory that this user may write to, or run it as root")
        }
    }
}

/// The socket that `setting` names cannot be had.
pub(super) fn socket(error: &SocketError, setting: &str) -> Failure {
    let what = format!("{error} ({setting})");
    match error {
        SocketError::Lock(LockError::Held { .. }) | SocketError::Live(_) => {
            Failure::new(Exit::Conflict, what)
                .remedy(format!("stop the agent that listens there, or set {setting} to another path"))
        }
        SocketError::NoSocket(_) | SocketError::NoDirectory(_) => {
            Failure::new(Exit::Conflict, what).remedy(format!("set {setting} to another path"))
        }
        SocketError::NoGroup(_) => settings_args::no_group(error),
        SocketError::Lock(
            LockError::Directory { error: cause, .. } | LockError::Open { error: cause, .. },
        )
        | SocketError::System { error: cause, .. } => Failure::new(exit_of(cause), what).remedy(format!(
            "set {setting} to a path in a directory that this user may write to, or run it as root"
        )),
    }
}

/// The metrics listener cannot be opened to other hosts.
pub(crate) fn web_config(error: &ConfigurationError) -> Failure {
    let failure = Failure::new(Exit::Config, error);
    match error {
        ConfigurationError::Plaintext => failure.remedy(
            "set api.metrics_web_config to a file with tls_server_config, or api.metrics_plaintext = true if everybody \
             who reaches the address may read it",
        ),
        ConfigurationError::File(_) => {
            failure.remedy("the format is that of Prometheus' exporter toolkit: docs/api.md has an example")
        }
    }
}

/// A TCP address cannot be had.
pub(super) fn address(setting: &str, address: SocketAddr, error: &io::Error) -> Failure {
    let failure = Failure::new(exit_of(error), format!("cannot listen on {address} ({setting}): {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => failure.remedy(format!(
            "`ss -ltnp 'sport = :{}'` shows who does; set {setting} to another port, or to \"off\"",
            address.port()
        )),
        _ => failure.remedy(format!("set {setting} to another address, or to \"off\"")),
    }
}
