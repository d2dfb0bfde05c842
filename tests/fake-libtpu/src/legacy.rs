//! The `TpuStatus_*` and `TpuProfiler_*` exports.

use std::ffi::{c_char, c_int};

use crate::{
    abi::{Error, Live, ObjectPointer, text},
    settings,
};

static STATUSES: Live = Live::new();
static PROFILERS: Live = Live::new();
/// An XSpace with one host name.
const TRACE: &[u8] = b"\x22\x0blegacy-host";

#[unsafe(no_mangle)]
pub(crate) extern "C" fn TpuStatus_New() -> ObjectPointer {
    STATUSES.make(Error { code: 0, message: text("") })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuStatus_Free(status: ObjectPointer) {
    // SAFETY: the caller frees a status once.
    unsafe { STATUSES.free::<Error>(status) };
}

/// The status behind a handle.
unsafe fn status<'a>(status: ObjectPointer) -> &'a mut Error {
    // SAFETY: the caller hands over a living status.
    unsafe { &mut *status.cast::<Error>() }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuStatus_Message(handle: ObjectPointer) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { status(handle) }.message.as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuStatus_Code(handle: ObjectPointer) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { status(handle) }.code
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuStatus_Ok(handle: ObjectPointer) -> bool {
    // SAFETY: the caller's promise.
    unsafe { status(handle) }.code == 0
}

struct Profiler {
    running: bool,
    trace: Option<&'static [u8]>,
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuProfiler_Create(profiler: *mut ObjectPointer, _status: ObjectPointer) {
    // SAFETY: the caller hands over a place for the handle.
    unsafe { profiler.write(PROFILERS.make(Profiler { running: false, trace: None })) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuProfiler_Destroy(profiler: ObjectPointer) {
    // SAFETY: the caller destroys a profiler once.
    unsafe { PROFILERS.free::<Profiler>(profiler) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuProfiler_Start(profiler: ObjectPointer, handle: ObjectPointer) {
    // SAFETY: the caller hands over a living profiler and a living status.
    let (profiler, status) = unsafe { (&mut *profiler.cast::<Profiler>(), status(handle)) };
    if settings::get("start").as_deref() == Some("refused") {
        (status.code, status.message) = (12, text("No factory for ACTIVITY_TRACING on JELLYFISH"));
        return;
    }
    profiler.running = true;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuProfiler_Stop(profiler: ObjectPointer, _status: ObjectPointer) {
    // SAFETY: the caller hands over a living profiler.
    let profiler = unsafe { &mut *profiler.cast::<Profiler>() };
    if std::mem::take(&mut profiler.running) {
        profiler.trace = Some(TRACE);
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn TpuProfiler_CollectData(
    profiler: ObjectPointer,
    _status: ObjectPointer,
    buffer: *mut u8,
    size: *mut usize,
) {
    // SAFETY: the caller hands over a living profiler, a place for the size, and NULL or a buffer of that size.
    unsafe {
        let profiler = &mut *profiler.cast::<Profiler>();
        let trace = profiler.trace.unwrap_or_default();
        if buffer.is_null() {
            size.write(trace.len());
        } else {
            let count = trace.len().min(size.read());
            buffer.copy_from_nonoverlapping(trace.as_ptr(), count);
            size.write(count);
            profiler.trace = None;
        }
    }
}
