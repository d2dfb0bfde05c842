//! How far the clock is set, as the file says that `SET_CLOCK` names: mapped once, since programs ask for the time very often.

use std::{
    env,
    ffi::CString,
    os::unix::ffi::OsStringExt,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
};

/// Nanoseconds to add to the wall clock.
pub(crate) fn ns() -> i64 {
    static FILE: OnceLock<Option<&'static AtomicI64>> = OnceLock::new();
    FILE.get_or_init(map).map_or(0, |offset| offset.load(Ordering::Relaxed))
}

fn map() -> Option<&'static AtomicI64> {
    let path = CString::new(env::var_os("SET_CLOCK")?.into_vec()).ok()?;
    // SAFETY: the path ends with a NUL and lives through the call.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: a new mapping, of a file that was opened here.
    let mapped = unsafe {
        libc::mmap(ptr::null_mut(), size_of::<AtomicI64>(), libc::PROT_READ, libc::MAP_SHARED, file, 0)
    };
    // SAFETY: the descriptor was opened here.
    unsafe { libc::close(file) };
    // SAFETY: the mapping is never undone, begins at a page, and has the eight bytes that the file has.
    (mapped != libc::MAP_FAILED).then(|| unsafe { AtomicI64::from_ptr(mapped.cast()) })
}
