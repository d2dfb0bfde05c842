//! The functions of the C library that change something on a disk.

use std::{
    ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_long, c_uint, c_void},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use libc::{AT_FDCWD, mode_t, off64_t, size_t, ssize_t};

use crate::{
    kernel::{self, as_int, fail},
    rule,
};

/// The path of an open file.
fn of_file(file: c_int) -> Option<PathBuf> {
    let link = CString::new(format!("/proc/self/fd/{file}")).ok()?;
    Some(PathBuf::from(OsString::from_vec(kernel::read_link(&link)?)))
}

/// The path below a folder that is open.
///
/// # Safety
/// `path` is a text that ends with a NUL.
unsafe fn below(folder: c_int, path: *const c_char) -> Option<PathBuf> {
    // SAFETY: as the caller promises.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    if path.is_absolute() {
        return Some(path.to_owned());
    }
    let folder = if folder == AT_FDCWD { std::env::current_dir().ok()? } else { of_file(folder)? };
    Some(folder.join(path))
}

/// Makes the call, unless it is to fail.
fn unless_it_fails(call: &str, path: Option<PathBuf>, make: impl FnOnce() -> c_long) -> c_long {
    match path.and_then(|path| rule::error_of(call, &path)) {
        Some(error) => fail(error).into(),
        None => make(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_write, file, bytes, length) };
    as_size(unless_it_fails("write", of_file(file), make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(file: c_int, bytes: *const c_void, length: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, length, at) };
    as_size(unless_it_fails("pwrite", of_file(file), make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(file: c_int, bytes: *const c_void, length: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the two are one where offsets have 64 bits.
    unsafe { pwrite64(file, bytes, length, at) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(file: c_int) -> c_int {
    // SAFETY: the argument is the caller's, for the same call.
    as_int(unless_it_fails("fsync", of_file(file), || unsafe { libc::syscall(libc::SYS_fsync, file) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    // SAFETY: the argument is the caller's, for the same call.
    as_int(unless_it_fails("fdatasync", of_file(file), || unsafe {
        libc::syscall(libc::SYS_fdatasync, file)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(file: c_int, length: off64_t) -> c_int {
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_ftruncate, file, length) };
    as_int(unless_it_fails("ftruncate", of_file(file), make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(file: c_int, length: off64_t) -> c_int {
    // SAFETY: the two are one where offsets have 64 bits.
    unsafe { ftruncate64(file, length) }
}

/// A file that is opened changes the disk where it is created.
///
/// # Safety
/// As `openat`; `mode` means nothing without `O_CREAT`.
#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's path ends with a NUL.
    let created = if flags & libc::O_CREAT == 0 { None } else { unsafe { below(folder, path) } };
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) };
    as_int(unless_it_fails("open", created, make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the two are one where offsets have 64 bits.
    unsafe { openat64(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { openat64(AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { openat64(AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's path ends with a NUL.
    let folder = unsafe { below(AT_FDCWD, path) };
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_mkdirat, AT_FDCWD, path, mode) };
    as_int(unless_it_fails("mkdir", folder, make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdirat(folder: c_int, path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's path ends with a NUL.
    let parent = unsafe { below(folder, path) };
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_mkdirat, folder, path, mode) };
    as_int(unless_it_fails("mkdir", parent, make))
}

/// Moves a file, counted where it goes to.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: *const c_char,
    to_folder: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    // SAFETY: the caller's path ends with a NUL.
    let target = unsafe { below(to_folder, to) };
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_renameat2, from_folder, from, to_folder, to, flags) };
    as_int(unless_it_fails("rename", target, make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { renameat2(AT_FDCWD, from, AT_FDCWD, to, 0) }
}

/// Removes a name.
///
/// # Safety
/// As the function of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller's path ends with a NUL.
    let target = unsafe { below(folder, path) };
    // SAFETY: the arguments are the caller's, for the same call.
    let make = || unsafe { libc::syscall(libc::SYS_unlinkat, folder, path, flags) };
    as_int(unless_it_fails("unlink", target, make))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { unlinkat(AT_FDCWD, path, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: the arguments are the caller's.
    unsafe { unlinkat(AT_FDCWD, path, libc::AT_REMOVEDIR) }
}

fn as_size(returned: c_long) -> ssize_t {
    ssize_t::try_from(returned).unwrap_or(-1)
}
