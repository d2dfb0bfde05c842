//! The older `TpuProfiler_*` exports. Every libtpu so far has them beside the PJRT profiler, which is to be preferred.

use std::ptr;

use crate::{
    CallError, Library, MAX_BYTES,
    abi::{LibtpuPointer, legacy as abi},
    bounded,
};

/// The exports of one library.
#[derive(Debug, Clone, Copy)]
pub struct Legacy<'lib> {
    status_new: abi::StatusNew,
    status_free: abi::StatusFree,
    status_message: abi::StatusMessage,
    status_code: abi::StatusCode,
    status_ok: abi::StatusOk,
    create: abi::Create,
    start: abi::Control,
    stop: abi::Control,
    collect: abi::CollectData,
    destroy: abi::Destroy,
    library: std::marker::PhantomData<&'lib Library>,
}

impl<'lib> Legacy<'lib> {
    /// The exports, if the library has all of them.
    pub fn of(library: &'lib Library) -> Option<Self> {
        // SAFETY: each name has the type that OpenXLA's tpu_profiler_c_api.h gives it.
        unsafe {
            Some(Self {
                status_new: library.function("TpuStatus_New")?,
                status_free: library.function("TpuStatus_Free")?,
                status_message: library.function("TpuStatus_Message")?,
                status_code: library.function("TpuStatus_Code")?,
                status_ok: library.function("TpuStatus_Ok")?,
                create: library.function("TpuProfiler_Create")?,
                start: library.function("TpuProfiler_Start")?,
                stop: library.function("TpuProfiler_Stop")?,
                collect: library.function("TpuProfiler_CollectData")?,
                destroy: library.function("TpuProfiler_Destroy")?,
                library: std::marker::PhantomData,
            })
        }
    }

    /// Runs `call` with a fresh status and turns the status into a result.
    fn with_status(&self, call: impl FnOnce(LibtpuPointer)) -> Result<(), CallError> {
        // SAFETY: takes nothing, returns a status that is freed below.
        let status = unsafe { (self.status_new)() };
        if status.is_null() {
            return Err(CallError::Null("status"));
        }
        call(status);
        // SAFETY: the status is alive; its message lives as long.
        let result = unsafe {
            if (self.status_ok)(status) {
                Ok(())
            } else {
                bounded::terminated("an error message", (self.status_message)(status))
                    .and_then(|message| Err(CallError::Status { code: (self.status_code)(status), message }))
            }
        };
        // SAFETY: the status is freed once, here.
        unsafe { (self.status_free)(status) };
        result
    }

    /// A profiler of this process, destroyed with the value.
    ///
    /// # Errors
    /// What libtpu says.
    pub fn profiler(&self) -> Result<LegacyProfiler<'_>, CallError> {
        let mut profiler = ptr::null_mut();
        // SAFETY: an out pointer and a living status.
        self.with_status(|status| unsafe { (self.create)(&raw mut profiler, status) })?;
        if profiler.is_null() {
            return Err(CallError::Null("profiler"));
        }
        Ok(LegacyProfiler { exports: self, profiler })
    }
}

/// A profiler of this process.
#[derive(Debug)]
pub struct LegacyProfiler<'a> {
    exports: &'a Legacy<'a>,
    profiler: LibtpuPointer,
}

impl LegacyProfiler<'_> {
    /// Starts tracing.
    ///
    /// # Errors
    /// What libtpu says.
    pub fn start(&mut self) -> Result<(), CallError> {
        // SAFETY: a living profiler and a living status.
        self.exports.with_status(|status| unsafe { (self.exports.start)(self.profiler, status) })
    }

    /// Stops tracing.
    ///
    /// # Errors
    /// What libtpu says.
    pub fn stop(&mut self) -> Result<(), CallError> {
        // SAFETY: a living profiler and a living status.
        self.exports.with_status(|status| unsafe { (self.exports.stop)(self.profiler, status) })
    }

    /// The trace, a serialised XSpace: its size is asked for first, then its bytes.
    ///
    /// # Errors
    /// What libtpu says, or a trace of absurd size.
    pub fn collect(&mut self) -> Result<Vec<u8>, CallError> {
        let mut size = 0;
        self.collect_into(ptr::null_mut(), &mut size)?;
        if size > MAX_BYTES {
            return Err(CallError::Absurd { what: "a trace", size });
        }
        let mut trace = vec![0; size];
        if size > 0 {
            self.collect_into(trace.as_mut_ptr(), &mut size)?;
            trace.truncate(size);
        }
        Ok(trace)
    }

    fn collect_into(&self, buffer: *mut u8, size: &mut usize) -> Result<(), CallError> {
        let size = ptr::from_mut(size);
        // SAFETY: the buffer is NULL (only the size is asked for) or `*size` bytes long.
        self.exports
            .with_status(|status| unsafe { (self.exports.collect)(self.profiler, status, buffer, size) })
    }
}

impl Drop for LegacyProfiler<'_> {
    fn drop(&mut self) {
        // SAFETY: the profiler is destroyed once, here.
        unsafe { (self.exports.destroy)(self.profiler) };
    }
}
