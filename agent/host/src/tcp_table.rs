//! TCP sockets of a network namespace, from the kernel's tables `net/tcp` and `net/tcp6`.
//!
//! Reading is bounded and stops as early as the table allows; `procfs-core` parses each line. A line that it cannot
//! parse is skipped. Must never read a whole table when only the listeners are wanted: it may hold every connection.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
};

use procfs_core::{
    ExplicitSystemInfo, FromBufReadSI,
    net::{TcpNetEntries, TcpNetEntry, TcpState},
};

/// Largest part of a table that is searched for listeners: more than any namespace has.
const MAX_LISTENER_BYTES: u64 = 4 << 20;
/// Largest part of a table that is searched for connections.
pub(crate) const MAX_TABLE_BYTES: u64 = 16 << 20;
/// Bytes read at a time, fewer than a line has: for the next line after the last listener the kernel searches its
/// table of connections, and the more it is asked for, the farther it searches.
const CHUNK: usize = 128;

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListeningSocket {
    pub(crate) address: SocketAddr,
    pub(crate) inode: u64,
    /// The user that opened it.
    pub(crate) uid: u32,
}

/// Every listening socket in these tables, by port.
pub(crate) fn listening(tables: impl IntoIterator<Item = impl Read>) -> io::Result<Vec<ListeningSocket>> {
    let mut sockets = Vec::new();
    for table in tables {
        read_listeners(table, &mut sockets)?;
    }
    sockets.sort_by_key(|socket| (socket.address.port(), socket.address, socket.inode));
    Ok(sockets)
}

/// Reads as far as the listeners go: the kernel lists them before all connections.
fn read_listeners(table: impl Read, sockets: &mut Vec<ListeningSocket>) -> io::Result<()> {
    let mut table = table.take(MAX_LISTENER_BYTES);
    let (mut text, mut chunk) = (Vec::new(), [0; CHUNK]);
    let mut heading = true;
    loop {
        let count = table.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            if std::mem::take(&mut heading) {
                continue;
            }
            match entry(&line) {
                Some(entry) if entry.state == TcpState::Listen => sockets.push(ListeningSocket {
                    address: canonical(entry.local_address),
                    inode: entry.inode,
                    uid: entry.uid,
                }),
                _ => return Ok(()),
            }
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// Inodes of the sockets that listen at `at`, or at its port on all addresses, from the tables below `procfs`. Empty if they
/// cannot be read.
pub fn listening_at(procfs: &Path, at: SocketAddr) -> BTreeSet<u64> {
    let tables = ["net/tcp", "net/tcp6"].into_iter().filter_map(|table| File::open(procfs.join(table)).ok());
    let is_there = |socket: &ListeningSocket| {
        let ip = socket.address.ip();
        socket.address.port() == at.port() && (ip.is_unspecified() || ip == at.ip())
    };
    let sockets = listening(tables).unwrap_or_default();
    sockets.into_iter().filter(is_there).map(|socket| socket.inode).collect()
}

/// Inodes of the open connections of this host whose other end is `port`, from the tables below `procfs`.
pub fn connected_to(procfs: &Path, port: u16) -> BTreeSet<u64> {
    let mut inodes = BTreeSet::new();
    for table in ["net/tcp", "net/tcp6"] {
        if let Ok(file) = File::open(procfs.join(table)) {
            inodes.extend(connections(file, port));
        }
    }
    inodes
}

fn connections(table: impl Read, port: u16) -> Vec<u64> {
    let mut lines = BufReader::new(table.take(MAX_TABLE_BYTES)).split(b'\n').map_while(Result::ok);
    // A cheap test first: a table may have a hundred thousand lines.
    let other_end = format!(":{port:04X} 01 ");
    let wanted = move |line: &Vec<u8>| line.windows(other_end.len()).any(|part| part == other_end.as_bytes());
    let entries = lines.by_ref().filter(wanted).filter_map(|line| entry(&line));
    let open =
        |entry: &TcpNetEntry| entry.state == TcpState::Established && entry.remote_address.port() == port;
    entries.filter(open).map(|entry| entry.inode).collect()
}

/// One line of a table.
pub(crate) fn entry(line: &[u8]) -> Option<TcpNetEntry> {
    const KERNEL: ExplicitSystemInfo = ExplicitSystemInfo {
        boot_time_secs: 0,
        ticks_per_second: 0,
        page_size: 0,
        is_little_endian: cfg!(target_endian = "little"),
    };
    // The parser skips the heading.
    let table = (&b"\n"[..]).chain(line);
    TcpNetEntries::from_buf_read(table, &KERNEL).ok()?.0.pop()
}

/// An IPv4 address in IPv6 clothing is an IPv4 address.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:20EF 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1472 1 0 100 0 0 10 0
   1: 0100007F:20F0 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1000        0 1473 1 0 100 0 0 10 0
   2: 0100007F:20F1 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1474 1 0 100 0 0 10 0
";

    #[test]
    fn reading_ends_where_the_listeners_end() {
        let want = ListeningSocket { address: "127.0.0.1:8431".parse().unwrap(), inode: 1472, uid: 1000 };
        assert_eq!(listening([TCP.as_bytes()]).unwrap(), [want]);
    }

    #[test]
    fn ipv6_words_are_turned() {
        let address = |hex: &str| {
            let line = format!("0: {hex}:20EF {hex}:0000 0A 0:0 00:0 0 1000 0 1472 1 0 100 0 0 10 0\n");
            entry(line.as_bytes()).map(|entry| canonical(entry.local_address).ip())
        };
        assert_eq!(address("00000000000000000000000001000000"), "::1".parse().ok());
        assert_eq!(address("0000000000000000FFFF00000100007F"), "127.0.0.1".parse().ok());
        assert_eq!(address("00000000000000000000000000000000"), "::".parse().ok());
        assert_eq!(address("0100007"), None);
    }

    #[test]
    fn a_real_listener_and_a_real_connection_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let table = || File::open("/proc/self/net/tcp").unwrap();
        let sockets = listening([table()]).unwrap();
        assert!(sockets.iter().any(|socket| socket.address == at && socket.inode != 0));
        assert_eq!(connections(table(), at.port()), [0; 0]);
        let _stream = TcpStream::connect(at).unwrap();
        assert_eq!(connections(table(), at.port()).len(), 1);
    }

    #[test]
    fn a_connection_is_open_and_leads_to_the_port() {
        let line =
            "   1: 0100007F:D2F0 0100007F:2334 01 00000000:00000000 00:00000000 00000000  1000 0 4711 1 0000";
        assert_eq!(connections(line.as_bytes(), 9012), [4711]);
        assert_eq!(connections(line.as_bytes(), 9013), [0; 0]);
        assert_eq!(connections(line.replace(" 01 ", " 06 ").as_bytes(), 9012), [0; 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..400), line in "[ -~]{0,200}") {
            let _ = listening([&bytes[..]]);
            let _ = listening([format!("heading\n{line}\n").as_bytes()]);
            let _ = connections(&bytes[..], 1);
            let _ = entry(line.as_bytes());
        }
    }
}
