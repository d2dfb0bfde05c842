//! Resident memory of one process, for the agent itself and its children: always this host's own `/proc`, whatever
//! root the settings name.

use std::{fs::File, io::Read};

use nix::unistd::{SysconfVar, sysconf};
use procfs_core::{FromRead, process::StatM};

/// `statm` is one short line.
const MAX_BYTES: u64 = 1024;

/// Resident memory in bytes of the process `pid`, or of this process; `None` when `/proc` does not show it.
pub fn resident_bytes(pid: Option<u32>) -> Option<u64> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let file = File::open(format!("/proc/{process}/statm")).ok()?;
    let pages = StatM::from_read(file.take(MAX_BYTES)).ok()?.resident;
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    pages.checked_mul(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_no_process_has_none() {
        let own = resident_bytes(None).unwrap();
        assert!(own > 1 << 20, "{own}");
        assert!(resident_bytes(Some(std::process::id())).is_some());
        assert_eq!(resident_bytes(Some(u32::MAX)), None);
    }
}
