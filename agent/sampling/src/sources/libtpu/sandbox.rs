//! The rights that the child drops before it loads anything.
//!
//! Must run while the process has one thread: capabilities belong to threads.

use std::{fs, process};

use host::own_rights::{self, RightsError, system};
use nix::{
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::Signal,
    },
    unistd,
};

/// Most bytes of private memory: far above what a libtpu needs, far below what would hurt the host.
const MAX_DATA: u64 = 4 << 30;

/// Why the sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    #[error("the agent is gone")]
    ParentGone,
    #[error(transparent)]
    Rights(#[from] RightsError),
}

/// Gives up everything that a child of the process `parent` does not need. The conversation's file descriptors
/// are 0 to 2; all others are closed.
pub(super) fn enter(parent: u32) -> Result<(), SandboxError> {
    system("die with the agent", prctl::set_pdeathsig(Signal::SIGKILL))?;
    // The agent may have died before that.
    if unistd::getppid().as_raw().cast_unsigned() != parent {
        return Err(SandboxError::ParentGone);
    }
    // Under memory pressure the kernel ends this process first. Not every container allows the setting. It is no
    // protection. The file is closed to a process that is not dumpable.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    own_rights::give_up()?;
    system("limit memory", setrlimit(Resource::RLIMIT_DATA, MAX_DATA, MAX_DATA))?;
    Ok(())
}

/// The process number of this process, for its child to check.
pub(super) fn own_pid() -> u32 {
    process::id()
}
