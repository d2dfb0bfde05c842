//! How a process ended that is not a child of the caller, as Linux 6.15 and later tell. Reads only; no other crate may have
//! the `unsafe` that the call needs.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

/// `struct pidfd_info` of `linux/pidfd.h` in its first version, which every later kernel takes.
#[repr(C)]
#[derive(Debug, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// pid, tgid, ppid, and the four pairs of user and group ids.
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(mem::size_of::<PidfdInfo>() == 64);

/// Asks for, and says that there is, the field `exit_code`.
const EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)` on the architectures with the common layout of requests.
const GET_INFO: libc::Ioctl = 0xc040_ff0b;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// How the process of this pidfd ended; `None` as long as its parent has not taken notice.
///
/// # Errors
/// If the kernel does not tell.
pub fn of(pidfd: BorrowedFd<'_>) -> io::Result<Option<ProcessExit>> {
    let mut info = PidfdInfo { mask: EXIT, ..PidfdInfo::default() };
    // SAFETY: the request has the size of the struct in it, and the kernel writes no more than that to the address, which
    // is that of one. A kernel that does not know the request writes nothing.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, ptr::from_mut(&mut info)) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.mask & EXIT != 0).then(|| of_status(info.exit_code)))
}

/// The status as `wait` gives it.
fn of_status(status: i32) -> ProcessExit {
    let [low, code, ..] = status.to_le_bytes();
    match low & 0x7f {
        0 => ProcessExit::Code(code),
        signal => ProcessExit::Signal(signal),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd};

    use super::*;

    #[test]
    fn a_status_is_a_code_or_a_signal() {
        assert_eq!(of_status(0), ProcessExit::Code(0));
        assert_eq!(of_status(7 << 8), ProcessExit::Code(7));
        assert_eq!(of_status(15), ProcessExit::Signal(15));
        assert_eq!(of_status(0x80 | 6), ProcessExit::Signal(6), "with a core dump");
    }

    #[test]
    fn what_is_no_pidfd_tells_nothing() {
        let file = File::open("/proc/self/stat").unwrap();
        assert!(of(file.as_fd()).is_err());
    }
}
