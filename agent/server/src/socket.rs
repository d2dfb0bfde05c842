//! The agent's Unix socket: claimed safely, given up cleanly.
//!
//! A lock file beside it decides who may touch it: whoever holds the lock may replace what a dead agent left.
//! Must never remove anything that is no socket, or a socket that somebody listens on.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use nix::unistd::Group;
use store::lock::{Lock, LockError};

use crate::settings::Mode;

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another agent, or its directory cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Somebody answers on it.
    #[error("something already listens on {}", .0.display())]
    Live(PathBuf),
    /// A file that is no socket.
    #[error("{} is in the way: it is no socket, and is not touched", .0.display())]
    NoSocket(PathBuf),
    /// The group of the settings does not exist.
    #[error("there is no group `{0}` (api.socket_group)")]
    NoGroup(String),
    /// The path cannot be a socket's.
    #[error("{} has no directory to put a socket in", .0.display())]
    NoDirectory(PathBuf),
    /// The system refuses.
    #[error("cannot {action} {}: {error}", .path.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// The socket of this agent; removed with the value.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    inode: u64,
    _lock: Lock,
}

impl Socket {
    /// Listens on `path`, in place of a dead agent's socket where there is one.
    pub fn claim(path: &Path, mode: Mode, group: &str) -> Result<(Self, UnixListener), SocketError> {
        let system = |action, error| SocketError::System { action, path: path.to_owned(), error };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(SocketError::NoDirectory(path.to_owned()));
        };
        if !dir.exists() {
            fs::create_dir_all(dir).map_err(|error| system("make the directory of", error))?;
        }
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let lock = Lock::file(&dir.join(lock_name))?;
        clear(path)?;
        let listener = UnixListener::bind(path).map_err(|error| system("listen on", error))?;
        let metadata = fs::symlink_metadata(path).map_err(|error| system("look at", error))?;
        // From here on the socket is removed again, whatever fails.
        let socket = Self { path: path.to_owned(), inode: metadata.ino(), _lock: lock };
        if !group.is_empty() {
            let found = Group::from_name(group).ok().flatten();
            let gid = found.ok_or_else(|| SocketError::NoGroup(group.to_owned()))?.gid;
            std::os::unix::fs::chown(path, None, Some(gid.as_raw()))
                .map_err(|error| system("give to its group", error))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))
            .map_err(|error| system("set the mode of", error))?;
        listener.set_nonblocking(true).map_err(|error| system("listen on", error))?;
        Ok((socket, listener))
    }
}

/// Removes a socket that nobody listens on.
fn clear(path: &Path) -> Result<(), SocketError> {
    let system = |action, error| SocketError::System { action, path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NoSocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| system("remove the dead socket", error))
        }
        // Connected, or kept from connecting: either way it is not known to be dead.
        _ => Err(SocketError::Live(path.to_owned())),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode);
        if ours {
            // A socket that stays behind is replaced by the next agent.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> Mode {
        Mode::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_dead_agents_socket_is_replaced_and_ours_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/agent.sock");
        fs::create_dir(dir.path().join("run")).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let (socket, _listener) = Socket::claim(&path, mode("0640"), "").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_one_is_refused_whoever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(Socket::claim(&path, mode("0600"), ""), Err(SocketError::Live(_))));
        let second = dir.path().join("second.sock");
        let _first = Socket::claim(&second, mode("0600"), "").unwrap();
        let refused = Socket::claim(&second, mode("0600"), "").unwrap_err();
        assert!(matches!(refused, SocketError::Lock(LockError::Held { .. })), "{refused}");
        assert!(UnixStream::connect(&second).is_ok());
    }

    #[test]
    fn nothing_but_a_socket_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::claim(&path, mode("0600"), ""), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn an_unknown_group_is_named_and_leaves_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let refused = Socket::claim(&path, mode("0600"), "no-such-group-here").unwrap_err();
        assert!(matches!(refused, SocketError::NoGroup(_)));
        assert!(!path.exists());
    }
}
