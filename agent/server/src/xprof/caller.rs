//! The user of a loopback connection: of its other end's socket, and of the process that has it open.

use std::{net::SocketAddr, path::Path};

use host::tcp_peer;

use super::written::FileOwner;
use crate::access::{ForeignNamespace, PidNamespace, Principal};

/// The tables of this network namespace, in which the listener is.
const NET: &str = "/proc/self/net";
const PROC: &str = "/proc";

/// The other end of a loopback connection.
#[derive(Debug)]
pub struct LoopbackPeer(Option<LoopbackIdentity>);

/// Who is at the other end.
#[derive(Debug)]
pub(crate) struct LoopbackIdentity {
    /// The user of the socket.
    pub(crate) uid: u32,
    /// The group of the process.
    pub(crate) gid: u32,
    /// The process.
    pub(crate) pid: u32,
    pid_namespace: PidNamespace,
}

impl LoopbackPeer {
    /// Looks for the user of the connection from `peer` to `local`. Blocks.
    pub(crate) fn look_up(peer: SocketAddr, local: SocketAddr) -> Self {
        Self(tcp_peer::socket(Path::new(NET), peer, local).map(|socket| {
            let process = tcp_peer::process(Path::new(PROC), socket);
            let pid_namespace = match &process {
                Some(tcp_peer::SocketProcess { in_own_pid_namespace: Some(true), .. }) => PidNamespace::Agent,
                Some(_) => PidNamespace::Unknown,
                None => PidNamespace::Unseen,
            };
            let (pid, gid) = process.as_ref().map_or((0, NO_GROUP), |process| (process.pid, process.gid));
            let foreign = process.and_then(|process| process.pid_namespace);
            let pid_namespace = foreign.map_or(pid_namespace, |(inode, file)| {
                PidNamespace::Foreign(ForeignNamespace::new(inode, file))
            });
            LoopbackIdentity { uid: socket.uid, gid, pid, pid_namespace }
        }))
    }

    /// A peer for which nobody was found.
    pub(crate) fn unidentified() -> Self {
        Self(None)
    }

    pub(crate) fn identity(&self) -> Option<&LoopbackIdentity> {
        self.0.as_ref()
    }

    pub(crate) fn uid(&self) -> Option<u32> {
        self.0.as_ref().map(|found| found.uid)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.0.as_ref().map(|found| found.pid).filter(|pid| *pid > 0)
    }

    /// Who writes files for the caller: nobody where it is in another pid namespace, as containers are, whose files are others.
    pub(crate) fn file_owner(&self) -> Option<FileOwner> {
        let found = self.0.as_ref().filter(|found| found.pid_namespace == PidNamespace::Agent)?;
        Some(FileOwner { uid: found.uid, gid: found.gid })
    }

    /// The caller. `overflow_uid` is the id that stands for all users that the agent's user namespace does not map.
    pub(crate) fn principal(&self, overflow_uid: Option<u32>) -> Principal {
        match &self.0 {
            None => Principal::Unidentified,
            Some(LoopbackIdentity { uid, pid_namespace, .. }) => Principal::Local {
                uid: Some(*uid).filter(|uid| Some(*uid) != overflow_uid),
                pid_namespace: pid_namespace.clone(),
            },
        }
    }
}

/// The id that no group has.
const NO_GROUP: u32 = u32::MAX;
