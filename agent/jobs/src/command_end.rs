//! Waits for the end of a process that is not a child of the agent, and finds out how it ended where the kernel tells.
//!
//! A pidfd always means one process: its number may be given away, and the wait is still for the first one.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Duration,
};

use host::workloads::process_status;
use model::workload::ProcessKey;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};
use tpu_sys::process_exit::{self, ProcessExit};

use crate::attempt::Ending;

/// How long the parent of a process may take to notice its end: the kernel tells how it was only then.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// A process whose end can be waited for.
#[derive(Debug)]
pub(crate) struct FollowedProcess {
    process: ProcessKey,
    pidfd: OwnedFd,
}

impl FollowedProcess {
    /// The process that has this pid now, in the agent's own pid namespace. Reads a file: blocks.
    ///
    /// # Errors
    /// If there is none, or the kernel is older than Linux 5.3.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no pid"))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        // Read after the pidfd was opened: if the process still lives then, the text is about it.
        let stat = std::fs::read(Path::new("/proc").join(pid.to_string()).join("stat"))?;
        let start_ticks = process_status::start_ticks(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time"))?;
        Ok(Self { process: ProcessKey { pid, start_ticks }, pidfd })
    }

    /// Which process it is.
    pub(crate) fn process(&self) -> ProcessKey {
        self.process
    }

    /// Returns when the process has ended.
    ///
    /// # Errors
    /// If the kernel refuses to watch it.
    pub(crate) async fn ended(self) -> io::Result<EndedProcess> {
        #[expect(
            deprecated,
            reason = "sound for an OwnedFd, whose descriptor stays; its successor is `unsafe`"
        )]
        let pidfd = AsyncFd::with_interest(self.pidfd, Interest::READABLE)?;
        pidfd.readable().await?.clear_ready();
        Ok(EndedProcess { pidfd })
    }
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct EndedProcess {
    pidfd: AsyncFd<OwnedFd>,
}

impl EndedProcess {
    /// How it ended, once its parent has taken notice; `None` if the parent does not, or the kernel does not tell.
    pub(crate) async fn how(self) -> Option<Ending> {
        let told = async {
            loop {
                match process_exit::of(self.pidfd.get_ref().as_fd()) {
                    Ok(Some(ProcessExit::Code(code))) => return Some(Ending::Exit(code)),
                    Ok(Some(ProcessExit::Signal(signal))) => return Some(Ending::Signal(signal)),
                    Ok(None) => self.pidfd.readable().await.ok()?.clear_ready(),
                    Err(_) => return None,
                }
            }
        };
        timeout(NOTICED_WITHIN, told).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn child(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_told_and_how_it_was_where_the_kernel_knows() {
        for (script, wanted) in
            [("read x; exit 7", Ending::Exit(7)), ("read x; kill -KILL $$", Ending::Signal(9))]
        {
            let mut child = child(script);
            let followed = FollowedProcess::of(child.id()).unwrap();
            assert_eq!(followed.process().pid, child.id());
            let ended = tokio::spawn(followed.ended());
            tokio::task::yield_now().await;
            assert!(!ended.is_finished());
            drop(child.stdin.take());
            tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
            let told = ended.await.unwrap().unwrap().how().await;
            // Before Linux 6.15 the kernel does not tell.
            assert!(told.is_none_or(|told| told == wanted), "{told:?}");
        }
    }

    #[test]
    fn what_is_no_process_cannot_be_followed() {
        assert!(FollowedProcess::of(0).is_err());
        assert!(FollowedProcess::of(u32::MAX).is_err());
    }
}
