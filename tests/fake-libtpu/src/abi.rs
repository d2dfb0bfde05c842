//! Fields of the caller's structs by offset, and the objects behind the handles.

use std::{
    ffi::{CString, c_void},
    ptr,
    sync::atomic::{AtomicI64, Ordering},
};

/// A caller's argument struct.
pub(crate) type Args = *mut u8;
/// An opaque object.
pub(crate) type ObjectPointer = *mut c_void;

/// Reads the field at `offset`.
///
/// # Safety
/// `args` points to a struct that has such a field there.
pub(crate) unsafe fn get<T: Copy>(args: Args, offset: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { args.add(offset).cast::<T>().read_unaligned() }
}

/// Writes the field at `offset`.
///
/// # Safety
/// As for [`get`].
pub(crate) unsafe fn put<T>(args: Args, offset: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { args.add(offset).cast::<T>().write_unaligned(value) };
}

/// How many objects of one kind were made and not freed.
pub(crate) struct Live(AtomicI64);

impl Live {
    pub(crate) const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    pub(crate) fn count(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    /// A new object's handle.
    pub(crate) fn make<T>(&self, object: T) -> ObjectPointer {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::into_raw(Box::new(object)).cast()
    }

    /// Counts an object as freed whose memory is kept.
    pub(crate) fn forget(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Frees an object.
    ///
    /// # Safety
    /// `handle` is NULL or came from [`make`](Self::make) with the same type, and is freed once.
    pub(crate) unsafe fn free<T>(&self, handle: ObjectPointer) {
        if !handle.is_null() {
            self.0.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle.cast::<T>()) });
        }
    }
}

/// A status with its text.
pub(crate) struct Error {
    pub(crate) code: i32,
    pub(crate) message: CString,
}

/// Errors of all interfaces.
pub(crate) static ERRORS: Live = Live::new();

/// A new error's handle.
pub(crate) fn error(code: i32, message: &str) -> ObjectPointer {
    ERRORS.make(Error { code, message: text(message) })
}

/// `message` as C text; NUL bytes are left out.
pub(crate) fn text(message: &str) -> CString {
    CString::new(message.replace('\0', "")).unwrap_or_default()
}

/// The C pointer of "all is well".
pub(crate) fn fine() -> ObjectPointer {
    ptr::null_mut()
}
