//! What keeps the agent from starting.

use std::{fmt, io, net::SocketAddr, path::Path};

use cluster::identity::files::IdentityError;
use nix::unistd::Uid;
use server::{
    agent_socket::SocketError, hook_users::UnknownUser, remote::RemoteError, scrape::ConfigurationError,
};
use store::lock::LockError;

use super::certs::close_key;
use crate::{exit::Exit, failure::Failure};

/// The exit code of a failed system call.
fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Permission,
        io::ErrorKind::AddrInUse => Exit::Conflict,
        // The path of the settings has another type than it must have.
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput => Exit::Config,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
        _ => Exit::Internal,
    }
}

/// What to do when the path of `setting` cannot be written to. Root needs no advice to become root.
fn writable(setting: &str, what: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
        return format!("the file system is mounted read-only: set {setting} to {what} on a writable one");
    }
    let root = error.kind() == io::ErrorKind::PermissionDenied && !Uid::effective().is_root();
    let or_root = if root { ", or run as root" } else { "" };
    format!("set {setting} to {what} that this user can write to{or_root}")
}

/// The state directory cannot be used.
pub(crate) fn state_dir(error: &LockError, dir: &Path) -> Failure {
    match error {
        LockError::Held { pid, .. } => {
            let agent = pid.map_or_else(|| "another agent".into(), |pid| format!("the agent with pid {pid}"));
            let what = format!("{agent} already uses the state directory {}", dir.display());
            Failure::new(Exit::Conflict, what).remedy(
                "one agent per host is enough; for a second one set agent.state_dir, api.socket, api.http and api.grpc",
            )
        }
        LockError::Directory { error: cause, .. } | LockError::Open { error: cause, .. } => {
            Failure::new(exit_of(cause), error).remedy(writable("agent.state_dir", "a directory", cause))
        }
    }
}

/// The socket cannot be created. `setting` names the source of its path.
pub(crate) fn agent_socket(error: &SocketError, setting: &str) -> Failure {
    let what = format!("{error} ({setting})");
    match error {
        SocketError::Lock(LockError::Held { .. }) | SocketError::Live(_) => {
            Failure::new(Exit::Conflict, what)
                .remedy(format!("stop the agent that listens there, or set {setting} to another path"))
        }
        SocketError::NotASocket(_) | SocketError::NoDirectory(_) => {
            Failure::new(Exit::Conflict, what).remedy(format!("set {setting} to another path"))
        }
        SocketError::NoGroup(group) => socket_group(group),
        SocketError::Lock(
            LockError::Directory { error: cause, .. } | LockError::Open { error: cause, .. },
        )
        | SocketError::System { error: cause, .. } => {
            Failure::new(exit_of(cause), what).remedy(writable(setting, "a path in a directory", cause))
        }
    }
}

/// The group of the socket does not exist.
pub(crate) fn socket_group(group: &str) -> Failure {
    Failure::new(Exit::Config, format!("there is no group `{group}` (api.socket_group)"))
        .remedy("create the group (`groupadd --system`), or leave api.socket_group empty")
}

/// The user of Slurm's hooks does not exist.
pub(crate) fn slurm_user(error: &UnknownUser) -> Failure {
    Failure::new(Exit::Config, format!("{error} (slurm.user)"))
        .remedy("set it to SlurmdUser of slurm.conf, or leave slurm.user empty if that is root")
}

/// The metrics listener cannot be opened.
pub(crate) fn web_config(error: &ConfigurationError) -> Failure {
    let failure = Failure::new(Exit::Config, error);
    match error {
        ConfigurationError::Plaintext => failure.remedy(
            "set api.metrics_web_config to a file with tls_server_config, or set api.metrics_plaintext = true to serve \
             everybody who reaches the address",
        ),
        ConfigurationError::File(_) => {
            failure.remedy("the file has the format of Prometheus' exporter toolkit: docs/api.md has an example")
        }
    }
}

/// The files of the remote listener cannot be used.
pub(crate) fn remote_files(error: &RemoteError) -> Failure {
    let remedy = match error {
        RemoteError::Files(IdentityError::Exposed { path, .. }) => close_key(path),
        RemoteError::Files(IdentityError::Unreadable { .. }) => {
            "the agent's user must be able to read the files of api.remote".to_owned()
        }
        _ => "`tpuscope certs issue --agent HOST` makes the files of api.remote; `tpuscope certs show FILE` shows them"
            .to_owned(),
    };
    Failure::new(Exit::Config, error).remedy(remedy)
}

/// A TCP address cannot be bound. `setting` names it.
pub(crate) fn tcp_address(setting: &str, address: SocketAddr, error: &io::Error) -> Failure {
    let failure = Failure::new(exit_of(error), format!("cannot listen on {address} ({setting}): {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => failure.remedy(format!(
            "`ss -ltnp 'sport = :{}'` shows the process that listens there; set {setting} to another port, or to \"off\"",
            address.port()
        )),
        _ => failure.remedy(format!("set {setting} to another address, or to \"off\"")),
    }
}

/// A task that the agent needs ended.
pub(crate) fn task_ended(why: impl fmt::Display) -> Failure {
    Failure::internal(why).remedy("the agent's log has more details")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_on_a_path_follows_from_its_error() {
        let advice = |kind| writable("agent.state_dir", "a directory", &io::Error::from(kind));
        assert_eq!(
            advice(io::ErrorKind::ReadOnlyFilesystem),
            "the file system is mounted read-only: set agent.state_dir to a directory on a writable one"
        );
        assert_eq!(
            advice(io::ErrorKind::NotADirectory),
            "set agent.state_dir to a directory that this user can write to"
        );
        let root = Uid::effective().is_root();
        assert_eq!(advice(io::ErrorKind::PermissionDenied).contains("run as root"), !root);
    }
}
