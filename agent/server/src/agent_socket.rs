//! The agent's Unix sockets: created without disturbing another agent, removed at the end.
//!
//! A lock file beside the socket belongs to the agent that serves it. With the lock, a socket that a dead agent left is
//! replaced. Must never remove a file that is not a socket, or a socket on which a process listens.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::unistd::Group;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use store::lock::{Lock, LockError};

use crate::settings::FileMode;

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another agent serves it, or its directory cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A process listens on it.
    #[error("another process listens on {}", .0.display())]
    Live(PathBuf),
    /// The file is not a socket.
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The group does not exist.
    #[error("there is no group `{0}`")]
    NoGroup(String),
    /// The path has no parent directory.
    #[error("{} has no parent directory", .0.display())]
    NoDirectory(PathBuf),
    /// A system call failed.
    #[error("cannot {action} {}: {error}", .path.display())]
    System {
        /// The step that failed, as in "cannot ACTION PATH".
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// The socket file of this agent. Dropping the value removes the file.
#[derive(Debug)]
pub struct AgentSocket {
    path: PathBuf,
    inode: u64,
    _lock: Lock,
}

/// A kind of socket: how one is made, and how it is seen whether a process listens.
struct SocketKind {
    listen: fn(&Path) -> io::Result<UnixListener>,
    connect: fn(&Path) -> io::Result<()>,
}

/// A stream of bytes.
const STREAM: SocketKind = SocketKind {
    listen: |path| {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    },
    connect: |path| UnixStream::connect(path).map(drop),
};

/// Packets that keep their bounds.
const PACKETS: SocketKind = SocketKind {
    listen: |path| {
        let socket = packet_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, PACKET_BACKLOG)?;
        Ok(socket.into())
    },
    connect: |path| Ok(rustix::net::connect(packet_socket()?, &SocketAddrUnix::new(path)?)?),
};

/// Connections that wait to be accepted.
const PACKET_BACKLOG: i32 = 128;

fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl AgentSocket {
    /// Listens on `path`. Replaces the socket of a dead agent. Blocks: the group comes from the user database.
    ///
    /// # Errors
    /// If another process listens there, or a step fails.
    pub fn claim(path: &Path, mode: FileMode, group: &str) -> Result<(Self, UnixListener), SocketError> {
        Self::claim_kind(path, mode, group, &STREAM)
    }

    /// The same with a socket of packets (SOCK_SEQPACKET).
    ///
    /// # Errors
    /// As [`AgentSocket::claim`].
    pub fn claim_packets(
        path: &Path,
        mode: FileMode,
        group: &str,
    ) -> Result<(Self, UnixListener), SocketError> {
        Self::claim_kind(path, mode, group, &PACKETS)
    }

    fn claim_kind(
        path: &Path,
        mode: FileMode,
        group: &str,
        kind: &SocketKind,
    ) -> Result<(Self, UnixListener), SocketError> {
        let system = |action, error| SocketError::System { action, path: path.to_owned(), error };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(SocketError::NoDirectory(path.to_owned()));
        };
        if !dir.exists() {
            fs::create_dir_all(dir).map_err(|error| system("create the directory of", error))?;
        }
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let lock = Lock::file(&dir.join(lock_name))?;
        clear(path, kind.connect)?;
        let listener = (kind.listen)(path).map_err(|error| system("listen on", error))?;
        let metadata = fs::symlink_metadata(path).map_err(|error| system("read the metadata of", error))?;
        // From here on a failure removes the socket.
        let socket = Self { path: path.to_owned(), inode: metadata.ino(), _lock: lock };
        if !group.is_empty() {
            let found = Group::from_name(group).ok().flatten();
            let gid = found.ok_or_else(|| SocketError::NoGroup(group.to_owned()))?.gid;
            std::os::unix::fs::chown(path, None, Some(gid.as_raw()))
                .map_err(|error| system("change the group of", error))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode.bits()))
            .map_err(|error| system("set the mode of", error))?;
        Ok((socket, listener))
    }
}

/// Removes a socket on which no process listens.
fn clear(path: &Path, connect: fn(&Path) -> io::Result<()>) -> Result<(), SocketError> {
    let system = |action, error| SocketError::System { action, path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("read the metadata of", error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| system("remove the unused socket", error))
        }
        // Connected, or not permitted to connect: a process may listen.
        _ => Err(SocketError::Live(path.to_owned())),
    }
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode);
        if ours {
            // The next agent replaces a socket that stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(text: &str) -> FileMode {
        FileMode::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_dead_agents_socket_is_replaced_and_ours_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/agent.sock");
        fs::create_dir(dir.path().join("run")).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let (socket, _listener) = AgentSocket::claim(&path, mode("0640"), "").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let _foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(AgentSocket::claim(&path, mode("0600"), ""), Err(SocketError::Live(_))));
        let second = dir.path().join("second.sock");
        let _first = AgentSocket::claim(&second, mode("0600"), "").unwrap();
        let refused = AgentSocket::claim(&second, mode("0600"), "").unwrap_err();
        assert!(matches!(refused, SocketError::Lock(LockError::Held { .. })), "{refused}");
        assert!(UnixStream::connect(&second).is_ok());
    }

    #[test]
    fn a_socket_of_packets_is_claimed_in_the_same_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks.sock");
        drop((PACKETS.listen)(&path).unwrap());
        let (first, listener) = AgentSocket::claim_packets(&path, mode("0666"), "").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        let second = AgentSocket::claim_packets(&path, mode("0666"), "").unwrap_err();
        assert!(matches!(second, SocketError::Lock(LockError::Held { .. })), "{second}");
        (PACKETS.connect)(&path).unwrap();
        drop((first, listener));
        assert!(!path.exists());
        let _foreign = (PACKETS.listen)(&path).unwrap();
        assert!(matches!(AgentSocket::claim_packets(&path, mode("0666"), ""), Err(SocketError::Live(_))));
    }

    #[test]
    fn a_file_that_is_not_a_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(AgentSocket::claim(&path, mode("0600"), ""), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn an_unknown_group_is_named_and_leaves_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let refused = AgentSocket::claim(&path, mode("0600"), "no-such-group-here").unwrap_err();
        assert!(matches!(refused, SocketError::NoGroup(_)));
        assert!(!path.exists());
    }
}
