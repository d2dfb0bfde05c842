//! A layer below a program's calls for the time that sets its wall clock forward or back. It is loaded with `LD_PRELOAD`.
//!
//! `SET_CLOCK` names a file of eight bytes: a signed number of nanoseconds in the byte order of the machine, which is added to
//! the wall clock. Programs that share the file have one clock, and whoever writes the file sets it for all of them at once.
//! Without the file the clock is the machine's.
//!
//! Must never change a clock that counts time, such as the time since boot. It asks the kernel itself, because the library's
//! own functions of these names are the ones that it replaces.

#![allow(
    clippy::missing_safety_doc,
    reason = "every export is a function of the C library, whose contract the caller keeps"
)]

mod offset;

use std::ffi::{c_int, c_void};

use libc::{CLOCK_REALTIME, CLOCK_REALTIME_COARSE, clockid_t, time_t, timespec, timeval};

const SECOND: i64 = 1_000_000_000;

/// What a clock of the kernel says.
fn kernel(clock: clockid_t, time: &mut timespec) -> c_int {
    // SAFETY: the clock is the caller's, and the time is ours.
    let returned = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, std::ptr::from_mut(time)) };
    c_int::try_from(returned).unwrap_or(-1)
}

/// The wall clock as it is set, in nanoseconds since the epoch.
fn wall(clock: clockid_t) -> Option<i64> {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    let said = kernel(clock, &mut time) == 0;
    said.then(|| time.tv_sec * SECOND + time.tv_nsec + offset::ns())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller's pointer is that of a time.
    let time = unsafe { &mut *time };
    match clock {
        CLOCK_REALTIME | CLOCK_REALTIME_COARSE => {
            let Some(ns) = wall(clock) else { return -1 };
            (time.tv_sec, time.tv_nsec) = (ns.div_euclid(SECOND), ns.rem_euclid(SECOND));
            0
        }
        _ => kernel(clock, time),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut timeval, _zone: *mut c_void) -> c_int {
    let Some(ns) = wall(CLOCK_REALTIME) else { return -1 };
    if !time.is_null() {
        let micros = ns.rem_euclid(SECOND) / 1000;
        // SAFETY: the caller's pointer is that of a time.
        unsafe { *time = timeval { tv_sec: ns.div_euclid(SECOND), tv_usec: micros } };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(seconds: *mut time_t) -> time_t {
    let Some(ns) = wall(CLOCK_REALTIME) else { return -1 };
    if !seconds.is_null() {
        // SAFETY: the caller's pointer is that of a number.
        unsafe { *seconds = ns.div_euclid(SECOND) };
    }
    ns.div_euclid(SECOND)
}
