//! The kernel's calls, past the functions that this library replaces.

use std::ffi::{CStr, c_int, c_long};

/// What a call returned, in the type of its function. Errors are -1 with `errno`, as `syscall` leaves them.
pub(crate) fn as_int(returned: c_long) -> c_int {
    c_int::try_from(returned).unwrap_or(-1)
}

/// Sets `errno`, and gives what a failed call returns.
pub(crate) fn fail(errno: c_int) -> c_int {
    // SAFETY: the address is this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    // SAFETY: the path ends with a NUL and lives through the call.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644) };
    (file >= 0).then(|| as_int(file))
}

fn close(file: c_int) {
    // SAFETY: the descriptor was opened here.
    unsafe { libc::syscall(libc::SYS_close, file) };
}

/// The first bytes of a file.
pub(crate) fn read(path: &CStr, most: usize) -> Option<Vec<u8>> {
    let file = open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let mut bytes = vec![0_u8; most];
    // SAFETY: the buffer has `most` bytes.
    let length = unsafe { libc::syscall(libc::SYS_read, file, bytes.as_mut_ptr(), most) };
    close(file);
    bytes.truncate(usize::try_from(length).ok()?);
    Some(bytes)
}

/// Adds bytes to the end of a file.
pub(crate) fn append(path: &CStr, bytes: &[u8]) {
    let Some(file) = open(path, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC) else {
        return;
    };
    // SAFETY: the buffer has as many bytes.
    unsafe { libc::syscall(libc::SYS_write, file, bytes.as_ptr(), bytes.len()) };
    close(file);
}

/// Ends the process as `kill -9` does.
pub(crate) fn kill_this_process() {
    // SAFETY: the calls take no memory.
    unsafe { libc::syscall(libc::SYS_kill, libc::syscall(libc::SYS_getpid), libc::SIGKILL) };
}

/// The target of a link, such as one of /proc/self/fd.
pub(crate) fn read_link(path: &CStr) -> Option<Vec<u8>> {
    let mut bytes = vec![0_u8; 4096];
    // SAFETY: the path ends with a NUL, and the buffer has as many bytes.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), bytes.as_mut_ptr(), bytes.len())
    };
    bytes.truncate(usize::try_from(length).ok()?);
    Some(bytes)
}
