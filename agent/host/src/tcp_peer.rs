//! The process at the other end of a TCP connection over the loopback, from the kernel's tables and /proc.
//!
//! Must never guess: a socket that its process has closed belongs to nobody, and a process counts only while it has the
//! socket open.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::Path,
};

use procfs_core::net::TcpState;

use crate::{
    tcp_table::{MAX_TABLE_BYTES, canonical, entry},
    workloads::process_status::numbers,
};

/// The most processes that are looked at, and descriptors of each.
const MAX_PROCESSES: usize = 20_000;
const MAX_DESCRIPTORS: usize = 4096;

/// The socket at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSocket {
    /// The user that opened it.
    pub uid: u32,
    inode: u64,
}

/// The process that has a socket open.
#[derive(Debug)]
pub struct SocketProcess {
    /// Its id.
    pub pid: u32,
    /// Its group.
    pub gid: u32,
    /// Whether it is in the pid namespace of this process. `None` if that cannot be told.
    pub in_own_pid_namespace: Option<bool>,
    /// Its pid namespace, kept open, with its inode. `None` for this process's own, or if it may not be read.
    pub pid_namespace: Option<(u64, File)>,
}

/// The socket that is connected from `peer` to `local`, by the tables below `net`, such as `/proc/self/net`. Blocks.
pub fn socket(net: &Path, peer: SocketAddr, local: SocketAddr) -> Option<PeerSocket> {
    let tables = ["tcp", "tcp6"].into_iter().filter_map(|table| File::open(net.join(table)).ok());
    tables.into_iter().find_map(|table| find(table, canonical(peer), canonical(local)))
}

fn find(table: impl Read, peer: SocketAddr, local: SocketAddr) -> Option<PeerSocket> {
    // A cheap test first: a table may have a hundred thousand lines.
    let ports = (format!(":{:04X} ", peer.port()), format!(":{:04X} 01 ", local.port()));
    let has = |line: &[u8], part: &str| line.windows(part.len()).any(|window| window == part.as_bytes());
    let lines = BufReader::new(table.take(MAX_TABLE_BYTES)).split(b'\n').map_while(Result::ok);
    let entries = lines.filter(|line| has(line, &ports.0) && has(line, &ports.1));
    let found = entries.filter_map(|line| entry(&line)).find(|entry| {
        // A socket without an inode has no process any more, and is shown as root's.
        entry.state == TcpState::Established
            && entry.inode != 0
            && canonical(entry.local_address) == peer
            && canonical(entry.remote_address) == local
    })?;
    Some(PeerSocket { uid: found.uid, inode: found.inode })
}

/// A process of the socket's user that has it open. `None` if none is seen. Blocks.
pub fn process(procfs: &Path, socket: PeerSocket) -> Option<SocketProcess> {
    let wanted = format!("socket:[{}]", socket.inode);
    let pids = fs::read_dir(procfs).ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.take(MAX_PROCESSES).find_map(|pid| {
        let folder = procfs.join(pid.to_string());
        let metadata = fs::metadata(&folder).ok()?;
        if metadata.uid() != socket.uid || !has_open(&folder, &wanted) {
            return None;
        }
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let namespaces = numbers(&status, "NSpid").len();
        let in_own_pid_namespace = (namespaces > 0).then_some(namespaces == 1);
        let opened = || {
            let file = File::open(folder.join("ns/pid")).ok()?;
            Some((file.metadata().ok()?.ino(), file))
        };
        let pid_namespace = if in_own_pid_namespace == Some(true) { None } else { opened() };
        // What was read is the process's only if it still has the socket.
        has_open(&folder, &wanted).then_some(SocketProcess {
            pid,
            gid: metadata.gid(),
            in_own_pid_namespace,
            pid_namespace,
        })
    })
}

fn has_open(process: &Path, wanted: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    let links =
        descriptors.flatten().take(MAX_DESCRIPTORS).filter_map(|entry| fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| link.as_os_str() == wanted)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_process_at_the_other_end_is_found() {
        let (proc, net) = (Path::new("/proc"), Path::new("/proc/self/net"));
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            let found = socket(net, peer, local).unwrap();
            assert_eq!(found.uid, fs::metadata("/proc/self").unwrap().uid());
            let process = process(proc, found).unwrap();
            assert_eq!((process.pid, process.in_own_pid_namespace), (std::process::id(), Some(true)));
            drop(client);
            assert_eq!(socket(net, peer, local), None, "a closed socket is nobody's");
        }
    }

    #[test]
    fn only_the_open_socket_of_this_very_connection_counts() {
        let peer: SocketAddr = "127.0.0.1:8433".parse().unwrap();
        let local: SocketAddr = "127.0.0.1:4392".parse().unwrap();
        let line = |from: &str, to: &str, state: &str, inode: u64| {
            format!("1: {from} {to} {state} 0:0 00:0 0  1000        0 {inode} 1 0 20 4 30 10 -1\n")
        };
        let found = |line: String| find(line.as_bytes(), peer, local).map(|socket| socket.uid);
        let (client, server) = ("0100007F:20F1", "0100007F:1128");
        assert_eq!(found(line(client, server, "01", 7)), Some(1000));
        assert_eq!(found(line(server, client, "01", 7)), None, "the server's own end");
        assert_eq!(found(line(client, server, "06", 7)), None, "TIME_WAIT");
        assert_eq!(found(line(client, server, "01", 0)), None, "an orphan");
        assert_eq!(found(line("0200007F:20F1", server, "01", 7)), None, "another address");
        let mapped = |address: &str| format!("0000000000000000FFFF0000{address}");
        assert_eq!(found(line(&mapped(client), &mapped(server), "01", 7)), Some(1000));
    }
}
