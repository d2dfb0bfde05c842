//! The rights that a child process of the agent gives up before it does anything else.
//!
//! Must run while the process has one thread: capabilities belong to threads.

use std::{fs, io};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        stat::{Mode, umask},
    },
    unistd,
};

/// Why a right could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum RightsError {
    /// The system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// What it refuses.
        what: &'static str,
        /// Its error.
        source: Errno,
    },
    /// A file of the kernel cannot be read.
    #[error("cannot {what}: {source}")]
    Io {
        /// What it was read for.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// Capabilities cannot be given up.
    #[error("cannot give up the {set:?} capabilities: {source}")]
    Capabilities {
        /// The set.
        set: caps::CapSet,
        /// The error.
        source: caps::errors::CapsError,
    },
}

/// `result` with what it was for.
///
/// # Errors
/// That of `result`.
pub fn system<T>(what: &'static str, result: nix::Result<T>) -> Result<T, RightsError> {
    result.map_err(|source| RightsError::System { what, source })
}

/// Gives up all file descriptors but 0 to 2, all capabilities, new privileges, core dumps, and files that others may read.
///
/// # Errors
/// If one of them cannot be given up: the caller then ends.
pub fn give_up() -> Result<(), RightsError> {
    close_others()?;
    system("set no_new_privs", prctl::set_no_new_privs())?;
    drop_capabilities()?;
    system("forbid core dumps", setrlimit(Resource::RLIMIT_CORE, 0, 0))?;
    system("become undumpable", prctl::set_dumpable(false))?;
    umask(Mode::from_bits_truncate(0o077));
    system("leave the working directory", unistd::chdir("/"))
}

fn close_others() -> Result<(), RightsError> {
    let failed = |source| RightsError::Io { what: "list file descriptors", source };
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

fn drop_capabilities() -> Result<(), RightsError> {
    use caps::{CapSet, Capability};
    let failed = |set| move |source| RightsError::Capabilities { set, source };
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
            return Err(RightsError::System { what: "give up all capabilities", source: Errno::EPERM });
        }
    }
    Ok(())
}
