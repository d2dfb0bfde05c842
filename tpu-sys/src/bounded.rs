//! Copies out of libtpu's memory, bounded.

use std::ffi::c_char;

use crate::{CallError, MAX_BYTES, MAX_TEXT, MAX_VALUES, MAX_VALUES_TEXT};

/// A copy of `size` bytes at `from`; nothing when the size is 0.
///
/// # Safety
/// `from` is NULL or points to `size` readable bytes, if `size` is at most `limit`.
unsafe fn copy(what: &'static str, from: *const u8, size: usize, limit: usize) -> Result<Vec<u8>, CallError> {
    if size > limit {
        return Err(CallError::Absurd { what, size });
    }
    if size == 0 {
        return Ok(Vec::new());
    }
    if from.is_null() {
        return Err(CallError::Null(what));
    }
    // SAFETY: not NULL, and the caller vouches for `size` bytes.
    Ok(unsafe { std::slice::from_raw_parts(from, size) }.to_vec())
}

/// Text with a length; bytes that are no UTF-8 are replaced.
///
/// # Safety
/// `from` is NULL or points to `size` readable bytes, if `size` is at most [`MAX_TEXT`].
pub(crate) unsafe fn text(what: &'static str, from: *const c_char, size: usize) -> Result<String, CallError> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { copy(what, from.cast(), size, MAX_TEXT) }?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A serialised message.
///
/// # Safety
/// `from` is NULL or points to `size` readable bytes, if `size` is at most [`MAX_BYTES`].
pub(crate) unsafe fn bytes(what: &'static str, from: *const u8, size: usize) -> Result<Vec<u8>, CallError> {
    // SAFETY: the caller's promise.
    unsafe { copy(what, from, size, MAX_BYTES) }
}

/// Text that ends with a NUL byte within [`MAX_TEXT`]; bytes that are no UTF-8 are replaced.
///
/// # Safety
/// `from` is NULL or points to readable bytes up to the NUL byte or for [`MAX_TEXT`].
pub(crate) unsafe fn terminated(what: &'static str, from: *const c_char) -> Result<String, CallError> {
    if from.is_null() {
        return Err(CallError::Null(what));
    }
    let start = from.cast::<u8>();
    let mut size = 0;
    // SAFETY: every byte before this one was not the NUL byte, so this one is readable.
    while unsafe { start.add(size).read() } != 0 {
        size += 1;
        if size > MAX_TEXT {
            return Err(CallError::Absurd { what, size });
        }
    }
    // SAFETY: `size` bytes were just read there.
    unsafe { text(what, from, size) }
}

/// An array of texts that end with a NUL byte, no more than [`MAX_VALUES`] of them and [`MAX_VALUES_TEXT`] bytes.
///
/// # Safety
/// `from` is NULL or points to `count` pointers, each as for [`terminated`], if `count` is at most [`MAX_VALUES`].
pub(crate) unsafe fn texts(
    what: &'static str,
    from: *const *const c_char,
    count: usize,
) -> Result<Vec<String>, CallError> {
    if count > MAX_VALUES {
        return Err(CallError::Absurd { what, size: count });
    }
    if count > 0 && from.is_null() {
        return Err(CallError::Null(what));
    }
    let mut all = Vec::with_capacity(count);
    let mut size = 0;
    for at in 0..count {
        // SAFETY: `at` is below `count`, and the caller vouches for the pointers and what they point to.
        let one = unsafe { terminated(what, from.add(at).read()) }?;
        size += one.len();
        if size > MAX_VALUES_TEXT {
            return Err(CallError::Absurd { what, size });
        }
        all.push(one);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn sizes_beyond_the_limit_are_never_read() {
        let near = [b'x'; 4];
        // SAFETY: sizes beyond the limit must not be read, which is what is tested.
        unsafe {
            assert_eq!(
                text("text", near.as_ptr().cast(), usize::MAX),
                Err(CallError::Absurd { what: "text", size: usize::MAX })
            );
            assert_eq!(
                bytes("bytes", near.as_ptr(), MAX_BYTES + 1),
                Err(CallError::Absurd { what: "bytes", size: MAX_BYTES + 1 })
            );
            assert_eq!(
                texts("texts", near.as_ptr().cast(), 1 << 40),
                Err(CallError::Absurd { what: "texts", size: 1 << 40 })
            );
        }
    }

    #[test]
    fn null_is_nothing_or_an_error() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert_eq!(text("text", ptr::null(), 0), Ok(String::new()));
            assert_eq!(text("text", ptr::null(), 3), Err(CallError::Null("text")));
            assert_eq!(terminated("text", ptr::null()), Err(CallError::Null("text")));
            assert_eq!(texts("texts", ptr::null(), 0), Ok(vec![]));
        }
    }

    #[test]
    fn text_without_an_end_is_refused() {
        let endless = vec![b'x'; MAX_TEXT + 2];
        let fine = [c"a".as_ptr(), c"\xffb".as_ptr()];
        // SAFETY: MAX_TEXT + 1 bytes are readable; the array holds two terminated texts.
        unsafe {
            assert!(matches!(
                terminated("text", endless.as_ptr().cast()),
                Err(CallError::Absurd { what: "text", .. })
            ));
            assert_eq!(texts("texts", fine.as_ptr(), 2), Ok(vec!["a".to_owned(), "\u{fffd}b".to_owned()]));
        }
    }
}
