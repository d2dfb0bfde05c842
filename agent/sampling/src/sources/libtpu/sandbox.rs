//! The rights that the child drops before it loads anything.
//!
//! Must run while the process has one thread: capabilities belong to threads.

use std::{fs, io, process};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::Signal,
        stat::{Mode, umask},
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
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: Errno },
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("cannot give up the {set:?} capabilities: {source}")]
    Capabilities { set: caps::CapSet, source: caps::errors::CapsError },
}

fn system<T>(what: &'static str, result: nix::Result<T>) -> Result<T, SandboxError> {
    result.map_err(|source| SandboxError::System { what, source })
}

/// Gives up everything that a child of the process `parent` does not need. The conversation's file descriptors
/// are 0 to 2; all others are closed.
pub(super) fn enter(parent: u32) -> Result<(), SandboxError> {
    system("die with the agent", prctl::set_pdeathsig(Signal::SIGKILL))?;
    // The agent may have died before that.
    if unistd::getppid().as_raw().cast_unsigned() != parent {
        return Err(SandboxError::ParentGone);
    }
    close_others()?;
    system("set no_new_privs", prctl::set_no_new_privs())?;
    drop_capabilities()?;
    // Under memory pressure the kernel ends this process first. Not every container allows the setting. It is no
    // protection.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    system("forbid core dumps", setrlimit(Resource::RLIMIT_CORE, 0, 0))?;
    system("limit memory", setrlimit(Resource::RLIMIT_DATA, MAX_DATA, MAX_DATA))?;
    system("become undumpable", prctl::set_dumpable(false))?;
    umask(Mode::from_bits_truncate(0o077));
    system("leave the working directory", unistd::chdir("/"))?;
    Ok(())
}

fn close_others() -> Result<(), SandboxError> {
    let failed = |source| SandboxError::Io { what: "list file descriptors", source };
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The listing's own descriptor is closed already.
        let _ = unistd::close(fd);
    }
    Ok(())
}

fn drop_capabilities() -> Result<(), SandboxError> {
    use caps::{CapSet, Capability};
    let failed = |set| move |source| SandboxError::Capabilities { set, source };
    // Without CAP_SETPCAP the bounding set stays; no_new_privs already keeps what is in it out of reach.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        caps::clear(None, CapSet::Bounding).map_err(failed(CapSet::Bounding))?;
    }
    caps::clear(None, CapSet::Ambient).map_err(failed(CapSet::Ambient))?;
    for set in [CapSet::Effective, CapSet::Inheritable, CapSet::Permitted] {
        caps::clear(None, set).map_err(failed(set))?;
    }
    // The child does not continue if a right cannot be dropped.
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable, CapSet::Ambient] {
        if !caps::read(None, set).map_err(failed(set))?.is_empty() {
            return Err(SandboxError::System { what: "give up all capabilities", source: Errno::EPERM });
        }
    }
    Ok(())
}

/// The process number of this process, for its child to check.
pub(super) fn own_pid() -> u32 {
    process::id()
}
