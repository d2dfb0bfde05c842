//! The possible users of a busy profiler: the processes of this host that are connected to its port.
//!
//! A profiler does not report the owner of its session, so this is only a hint. Processes of other users, of other
//! namespaces and of other hosts are not visible.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use host::tcp_table;

/// The maximum number of processes that are read, and of descriptors of each.
const MAX_PROCESSES: usize = 20_000;
const MAX_DESCRIPTORS: usize = 4_096;
/// The maximum number of processes in the result.
const MAX_NAMED: usize = 3;

/// The processes except `own` that are connected to `port` of this host, such as `pid 17 (python)`.
pub(super) fn connected(procfs: &Path, port: u16, own: u32) -> Vec<String> {
    let sockets: BTreeSet<String> =
        tcp_table::connected_to(procfs, port).into_iter().map(|inode| format!("socket:[{inode}]")).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(procfs) else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| *pid != own && holds_one(&procfs.join(pid.to_string()), &sockets);
    pids.take(MAX_PROCESSES).filter(holds).take(MAX_NAMED).map(|pid| named(procfs, pid)).collect()
}

fn holds_one(process: &Path, sockets: &BTreeSet<String>) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    let links =
        descriptors.flatten().take(MAX_DESCRIPTORS).filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link: PathBuf| link.into_os_string().into_string().ok())
        .any(|link| sockets.contains(&link))
}

fn named(procfs: &Path, pid: u32) -> String {
    match fs::read_to_string(procfs.join(pid.to_string()).join("comm")) {
        Ok(command) => format!("pid {pid} ({})", command.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, net::TcpStream};

    use super::*;

    #[test]
    fn a_connected_process_is_found_and_a_listener_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proc = Path::new("/proc");
        assert_eq!(connected(proc, port, 0), [""; 0]);
        let _stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let found = connected(proc, port, 0);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with(&format!("pid {} (", std::process::id())), "{found:?}");
        assert_eq!(connected(proc, port, std::process::id()), [""; 0]);
    }
}
