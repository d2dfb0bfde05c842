//! Tells when a process has ended, without reading a file.
//!
//! A pidfd always means the process that had the id when it was opened. Must never follow a process whose id is one of
//! another pid namespace, or keep more descriptors than [`MAX_FOLLOWED`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::procfs::Procfs;

/// Maximum number of processes that are asked for in one call.
const MAX_FOLLOWED: usize = 64;

/// The life of a process.
#[derive(Debug)]
pub(super) struct ProcessLife {
    /// `None` where the process cannot be followed.
    pidfd: Option<OwnedFd>,
}

impl ProcessLife {
    /// Follows the process with this id in `proc`, where that shows the agent's own pid namespace.
    pub(super) fn follow(proc: &Procfs, pid: u32) -> Self {
        let open = || {
            let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
            proc.is_of_our_namespace().then(|| pidfd_open(pid, PidfdFlags::NONBLOCK).ok())?
        };
        Self { pidfd: open() }
    }
}

/// Whether all of these processes are followed and none has ended. Does not block.
pub(super) fn all_live<'a>(lives: impl Iterator<Item = &'a ProcessLife>) -> bool {
    let followed: Option<Vec<BorrowedFd<'_>>> =
        lives.take(MAX_FOLLOWED + 1).map(|life| life.pidfd.as_ref().map(AsFd::as_fd)).collect();
    let Some(followed) = followed.filter(|followed| followed.len() <= MAX_FOLLOWED) else { return false };
    let mut ends: Vec<PollFd<'_>> =
        followed.iter().map(|pidfd| PollFd::from_borrowed_fd(*pidfd, PollFlags::IN)).collect();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut ends, Some(&at_once)), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::{path::Path, process::Command};

    use super::*;

    fn follow(pid: u32) -> ProcessLife {
        ProcessLife::follow(&Procfs::open(Path::new("/proc")).unwrap(), pid)
    }

    #[test]
    fn an_end_is_seen_and_a_process_that_is_not_followed_is_not_known_to_live() {
        let own = follow(std::process::id());
        assert!(all_live([&own].into_iter()));
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = follow(child.id());
        assert!(all_live([&own, &life].into_iter()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!all_live([&own, &life].into_iter()));
        assert!(!all_live([&own, &follow(child.id())].into_iter()));
        assert!(!all_live(std::iter::repeat_n(&own, MAX_FOLLOWED + 1)));
    }

    #[test]
    fn a_procfs_of_another_pid_namespace_gives_nothing_to_follow() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("self")).unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let inner = status.lines().map(|line| match line.strip_prefix("NSpid:") {
            Some(ids) => format!("NSpid:{ids}\t7\n"),
            None => format!("{line}\n"),
        });
        std::fs::write(proc.path().join("self/status"), inner.collect::<String>()).unwrap();
        let life = ProcessLife::follow(&Procfs::open(proc.path()).unwrap(), std::process::id());
        assert!(life.pidfd.is_none());
    }
}
