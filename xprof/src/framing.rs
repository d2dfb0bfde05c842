//! gRPC's length-prefixed messages: a flag byte, four bytes of length (big-endian), the message.
//!
//! For calls that are read by hand, whole or in pieces. Must never trust the length: who reads in pieces bounds it,
//! and a whole body is compared with it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// The bytes before each message.
pub const PREFIX_LEN: usize = 5;

/// Why a body is no length-prefixed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than a prefix.
    #[error("it has no message")]
    NoMessage,
    /// A flag byte that gRPC does not know.
    #[error("it does not begin as a gRPC message does")]
    BadFlag(u8),
    /// Compressed, which no call of ours asks for.
    #[error("it is compressed, which was not asked for")]
    Compressed,
    /// Not as long as its prefix says.
    #[error("its message should have {expected} bytes and has {found}")]
    Length {
        /// As the prefix has it.
        expected: u64,
        /// As it is.
        found: u64,
    },
}

/// Checks the first byte of a prefix.
///
/// # Errors
/// When the message is compressed, or the byte is no flag.
pub fn check_flag(flag: u8) -> Result<(), FrameError> {
    match flag {
        0 => Ok(()),
        1 => Err(FrameError::Compressed),
        other => Err(FrameError::BadFlag(other)),
    }
}

/// The length of the message behind `prefix`.
///
/// # Errors
/// See [`check_flag`].
pub fn message_len(prefix: [u8; PREFIX_LEN]) -> Result<u32, FrameError> {
    let [flag, length @ ..] = prefix;
    check_flag(flag)?;
    Ok(u32::from_be_bytes(length))
}

/// `message` with its prefix.
///
/// # Panics
/// For a message of 4 GiB, which no prefix can describe.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_LEN + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("a message is below 4 GiB"));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// The one message of a whole body.
///
/// # Errors
/// When the body is not exactly one uncompressed message.
pub fn unframed(mut body: Bytes) -> Result<Bytes, FrameError> {
    let prefix = *body.first_chunk().ok_or(FrameError::NoMessage)?;
    let expected = message_len(prefix)?;
    body.advance(PREFIX_LEN);
    match body.len() as u64 {
        found if found == u64::from(expected) => Ok(body),
        found => Err(FrameError::Length { expected: u64::from(expected), found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_framed_comes_out() {
        let message = "ab".to_owned();
        let body = framed(&message);
        assert_eq!(body, &b"\0\0\0\0\x04\x0a\x02ab"[..]);
        assert_eq!(unframed(body).unwrap(), &b"\x0a\x02ab"[..]);
        let error = |body: &'static [u8]| unframed(Bytes::from_static(body)).unwrap_err();
        assert_eq!(error(b"\0\0\0\0"), FrameError::NoMessage);
        assert_eq!(error(b"\x01\0\0\0\0"), FrameError::Compressed);
        assert_eq!(error(b"HTTP/"), FrameError::BadFlag(b'H'));
        assert_eq!(error(b"\0\0\0\0\x02a"), FrameError::Length { expected: 2, found: 1 });
        assert_eq!(error(b"\0\0\0\0\x01ab"), FrameError::Length { expected: 1, found: 2 });
    }
}
