//! Listening TCP sockets of a network namespace, from `/proc/<pid>/net/tcp` and `tcp6`.

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::procfs::Procfs;

/// More listeners than any namespace has; what lies beyond is not looked at.
const MOST_BYTES: u64 = 4 << 20;

/// One listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) address: SocketAddr,
    pub(super) inode: u64,
    /// The user that opened it.
    pub(super) uid: u32,
}

/// Every listening TCP socket in the namespace of `process`.
pub(super) fn of(proc: &Procfs, process: &str) -> io::Result<Vec<Socket>> {
    let mut sockets = read(proc.file(process, "net/tcp")?)?;
    // A kernel without IPv6 has no such file.
    if let Ok(file) = proc.file(process, "net/tcp6") {
        sockets.extend(read(file)?);
    }
    sockets.sort_by_key(|socket| (socket.address.port(), socket.address, socket.inode));
    Ok(sockets)
}

/// Bytes read at a time, fewer than a line has: for the next line after the last listener the kernel looks through its
/// table of connections, and the more it is asked for, the farther it looks.
const CHUNK: usize = 128;

/// Reads as far as the listeners go: the kernel lists them before all connections, which may be many.
fn read(file: impl Read) -> io::Result<Vec<Socket>> {
    let mut file = file.take(MOST_BYTES);
    let (mut sockets, mut text, mut chunk) = (Vec::new(), Vec::new(), [0; CHUNK]);
    let mut heading = true;
    loop {
        let count = file.read(&mut chunk)?;
        text.extend_from_slice(&chunk[..count]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            if std::mem::take(&mut heading) {
                continue;
            }
            match socket(&String::from_utf8_lossy(&line)) {
                Some(found) => sockets.push(found),
                None => return Ok(sockets),
            }
        }
        if count == 0 {
            return Ok(sockets);
        }
    }
}

/// One line, when it is a listener's.
fn socket(line: &str) -> Option<Socket> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, _, state, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
    if state != LISTEN {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Socket {
        address: SocketAddr::new(ip(address)?, port),
        inode: inode.parse().ok()?,
        uid: uid.parse().ok()?,
    })
}

/// An address as the kernel prints it: 32-bit words in the machine's byte order.
fn ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for at in 0..4 {
                bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at * 8)?);
            }
            Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:20EF 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1472 1 0 100 0 0 10 0
   1: 0100007F:20F0 0100007F:0001 01 00000000:00000000 00:00000000 00000000  1000        0 1473 1 0 100 0 0 10 0
   2: 0100007F:20F1 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1474 1 0 100 0 0 10 0
";

    #[test]
    fn reading_ends_where_the_listeners_end() {
        let want = Socket { address: "127.0.0.1:8431".parse().unwrap(), inode: 1472, uid: 1000 };
        assert_eq!(read(TCP.as_bytes()).unwrap(), [want]);
    }

    #[test]
    fn ipv6_words_are_turned() {
        assert_eq!(ip("00000000000000000000000001000000"), "::1".parse().ok());
        assert_eq!(ip("0000000000000000FFFF00000100007F"), "127.0.0.1".parse().ok());
        assert_eq!(ip("00000000000000000000000000000000"), "::".parse().ok());
        assert_eq!(ip("0100007"), None);
    }

    #[test]
    fn a_real_listener_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let sockets = of(&Procfs::open("/proc".as_ref()).unwrap(), "self").unwrap();
        assert!(sockets.iter().any(|socket| socket.address == at && socket.inode != 0));
    }
}
