//! The process at the other end of a Unix connection: its user and its pid namespace.
//!
//! The kernel names the process when it connects. A pidfd of it (SO_PEERPIDFD, Linux 6.5) always means that process.
//! On older kernels only its pid is known, which may have been given to another process since: the pid is used if
//! the process that has it now started before the connection was accepted and is the same after the look-up.
//!
//! Whether the namespace is the agent's own needs no rights: it is in NSpid of fdinfo and status. The inode of another
//! namespace needs the right to trace the process (CAP_SYS_PTRACE, or the same user). What cannot be looked up is
//! [`PidNamespace::Unknown`].

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    sync::{Mutex, PoisonError},
    time::Duration,
};

use host::{
    boot_clock,
    workloads::process_status::{self, numbers},
};
use model::log_budget::LogBudget;
use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use tokio::{sync::OnceCell, time::Instant};
use tracing::warn;

use crate::access::{ForeignNamespace, PidNamespace, Principal};

/// The longest that the look-up of a namespace may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Any user can connect as often as they like.
static UNKNOWN_LOG: Mutex<LogBudget> = Mutex::new(LogBudget::new());

/// The peer of a Unix connection.
#[derive(Debug)]
pub struct UnixPeer {
    uid: u32,
    gid: u32,
    /// At the time of the connection; only for the log.
    pid: Option<u32>,
    process: std::sync::Arc<PeerProcess>,
    /// Looked up once, when it is first needed.
    pid_namespace: OnceCell<PidNamespace>,
}

impl UnixPeer {
    /// The peer of `connection`, which was accepted just now. Does not block.
    ///
    /// # Errors
    /// If the kernel does not name the peer.
    pub fn of(connection: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(connection, sockopt::PeerCredentials)?;
        // 0: the agent's pid namespace has none for it.
        let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid > 0);
        let process = match getsockopt(connection, sockopt::PeerPidfd) {
            Ok(pidfd) => PeerProcess::Pidfd(pidfd),
            Err(Errno::ENOPROTOOPT) => {
                PeerProcess::Pid { pid: pid.unwrap_or(0), accepted_ticks: boot_clock::ticks()? }
            }
            Err(_) => PeerProcess::Ended,
        };
        Ok(Self {
            uid: credentials.uid(),
            pid,
            gid: credentials.gid(),
            process: process.into(),
            pid_namespace: OnceCell::new(),
        })
    }

    /// The user id, as the agent's user namespace has it.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The process id at the time of the connection, for the log. `None` if the agent's pid namespace has none for it.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The primary group id.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The caller. `overflow_uid` is the id that stands for all users that the agent's user namespace does not map.
    pub async fn principal(&self, overflow_uid: Option<u32>) -> Principal {
        let uid = Some(self.uid).filter(|uid| Some(*uid) != overflow_uid);
        Principal::Local { uid, pid_namespace: self.pid_namespace().await }
    }

    async fn pid_namespace(&self) -> PidNamespace {
        // A look-up that did not finish is tried again with the next call.
        let looked_up = self.pid_namespace.get_or_try_init(|| async {
            let process = self.process.clone();
            let lookup = tokio::task::spawn_blocking(move || process.pid_namespace());
            match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
                Ok(Ok(Ok(namespace))) => Ok(namespace),
                Ok(Ok(Err(error))) => {
                    let permit = UNKNOWN_LOG.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
                    if let Some(permit) = permit {
                        let (uid, pid) = (self.uid, self.pid());
                        warn!(uid, pid, %error, "cannot tell the pid namespace of a caller: it gets no traces{permit}");
                    }
                    Ok(PidNamespace::Unknown)
                }
                Ok(Err(_)) | Err(_) => Err(()),
            }
        });
        looked_up.await.cloned().unwrap_or(PidNamespace::Unknown)
    }
}

/// Why the namespace of a peer is unknown.
#[derive(Debug, thiserror::Error)]
enum LookupError {
    #[error("/proc does not show the agent's own pid namespace")]
    OtherProc,
    #[error("the process has ended")]
    Ended,
    #[error("the process is in a pid namespace that the agent's does not contain")]
    Outside,
    #[error("another process has its pid now")]
    Reused,
    #[error("{file}: no {field}")]
    NoField { file: String, field: &'static str },
    #[error("{file}: {error}")]
    Unreadable { file: String, error: io::Error },
}

/// How the kernel names the peer.
#[derive(Debug)]
enum PeerProcess {
    Pidfd(OwnedFd),
    Pid {
        pid: u32,
        /// When the connection was accepted.
        accepted_ticks: u64,
    },
    /// It ended before the connection was accepted.
    Ended,
}

/// What /proc says of the peer at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Observed {
    pid: u32,
    /// 0 with a pidfd, which needs none.
    start_ticks: u64,
    /// The number of pid namespaces that it has a pid in, from the agent's down.
    namespaces: usize,
}

impl PeerProcess {
    /// Reads /proc: blocks.
    fn pid_namespace(&self) -> Result<PidNamespace, LookupError> {
        if pids(&read("/proc/self/status")?).len() != 1 {
            return Err(LookupError::OtherProc);
        }
        let before = self.observe()?;
        if before.namespaces == 1 {
            return Ok(PidNamespace::Agent);
        }
        let path = format!("/proc/{}/ns/pid", before.pid);
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.ino(), file)));
        let (inode, file) = opened.map_err(|error| LookupError::Unreadable { file: path, error })?;
        // The path names the peer only if the peer still lives.
        if self.observe()? != before {
            return Err(LookupError::Reused);
        }
        Ok(PidNamespace::Foreign(ForeignNamespace::new(inode, file)))
    }

    fn observe(&self) -> Result<Observed, LookupError> {
        match self {
            Self::Ended => Err(LookupError::Ended),
            Self::Pidfd(pidfd) => {
                let file = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
                of_pidfd(&String::from_utf8_lossy(&read(&file)?), file)
            }
            Self::Pid { pid: 0, .. } => Err(LookupError::Outside),
            Self::Pid { pid, accepted_ticks } => {
                let file = format!("/proc/{pid}/stat");
                let start_ticks = process_status::start_ticks(&read(&file)?)
                    .ok_or(LookupError::NoField { file, field: "start time" })?;
                if start_ticks > *accepted_ticks {
                    return Err(LookupError::Reused);
                }
                let file = format!("/proc/{pid}/status");
                let namespaces = pids(&read(&file)?).len();
                match namespaces {
                    0 => Err(LookupError::NoField { file, field: "NSpid" }),
                    _ => Ok(Observed { pid: *pid, start_ticks, namespaces }),
                }
            }
        }
    }
}

/// The pid in the fdinfo text of a pidfd, and the number of pid namespaces in which the process has one. `None` if the text
/// names no process.
pub fn decode_pidfd_info(text: &str) -> Option<(u32, usize)> {
    let observed = of_pidfd(text, String::new()).ok()?;
    Some((observed.pid, observed.namespaces))
}

/// What the fdinfo text of a pidfd says.
fn of_pidfd(text: &str, file: String) -> Result<Observed, LookupError> {
    let pid = numbers(text, "Pid").first().copied();
    match pid.ok_or_else(|| LookupError::NoField { file: file.clone(), field: "Pid" })? {
        -1 => Err(LookupError::Ended),
        0 => Err(LookupError::Outside),
        pid => {
            let namespaces = numbers(text, "NSpid").len();
            let pid = u32::try_from(pid).ok().filter(|_| namespaces > 0);
            let pid = pid.ok_or(LookupError::NoField { file, field: "NSpid" })?;
            Ok(Observed { pid, start_ticks: 0, namespaces })
        }
    }
}

/// The pids of a process in its namespaces, from the agent's down, as its `status` has them.
fn pids(status: &[u8]) -> Vec<i64> {
    numbers(&String::from_utf8_lossy(status), "NSpid")
}

fn read(file: &str) -> Result<Vec<u8>, LookupError> {
    fs::read(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LookupError::Ended,
        _ => LookupError::Unreadable { file: file.to_owned(), error },
    })
}

/// The id that stands for every user that the agent's user namespace does not map. `None` if it maps all. Blocks.
pub fn overflow_uid() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    if map.split_whitespace().eq(["0", "0", "4294967295"]) {
        return None;
    }
    let id = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    Some(id.and_then(|id| id.trim().parse().ok()).unwrap_or(65534))
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_process_of_the_same_namespace_is_known_with_and_without_a_pidfd() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let peer = UnixPeer::of(&stream).unwrap();
        let own = nix::unistd::Uid::effective().as_raw();
        assert_eq!(
            peer.principal(None).await,
            Principal::Local { uid: Some(own), pid_namespace: PidNamespace::Agent }
        );
        assert!(matches!(peer.principal(Some(own)).await, Principal::Local { uid: None, .. }));
        let process =
            PeerProcess::Pid { pid: std::process::id(), accepted_ticks: boot_clock::ticks().unwrap() };
        assert_eq!(process.pid_namespace().unwrap(), PidNamespace::Agent);
    }

    #[test]
    fn a_pid_that_was_given_away_after_the_connection_is_refused() {
        let process = PeerProcess::Pid { pid: std::process::id(), accepted_ticks: 0 };
        assert!(matches!(process.pid_namespace(), Err(LookupError::Reused)));
        let outside = PeerProcess::Pid { pid: 0, accepted_ticks: u64::MAX };
        assert!(matches!(outside.pid_namespace(), Err(LookupError::Outside)));
        assert!(matches!(PeerProcess::Ended.pid_namespace(), Err(LookupError::Ended)));
    }

    #[test]
    fn the_process_of_a_pidfd_is_read_from_its_fdinfo() {
        let observed = |text: &str| of_pidfd(text, "fdinfo".to_owned());
        let same = observed("pos:\t0\nPid:\t41\nNSpid:\t41\n").unwrap();
        assert_eq!(same, Observed { pid: 41, start_ticks: 0, namespaces: 1 });
        assert_eq!(observed("Pid:\t41\nNSpid:\t41\t1\n").unwrap().namespaces, 2);
        assert!(matches!(observed("Pid:\t0\nNSpid:\t0\n"), Err(LookupError::Outside)));
        assert!(matches!(observed("Pid:\t-1\nNSpid:\t-1\n"), Err(LookupError::Ended)));
        assert!(matches!(observed("Pid:\t41\n"), Err(LookupError::NoField { field: "NSpid", .. })));
        assert!(matches!(observed("Pid:\t41\nNSpid:\tx\n"), Err(LookupError::NoField { .. })));
        assert!(matches!(observed("pos:\t0\n"), Err(LookupError::NoField { field: "Pid", .. })));
    }
}
