//! Protobuf walked field by field, so that a hostile message of many empty parts cannot grow a hundredfold when it is
//! decoded: each part is decoded, counted and bounded by itself.

use model::untrusted::clean;
use prost::{
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

/// Why a message cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the reply cannot be read: {0}")]
pub(super) struct Malformed(String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(clean(&error.to_string(), 80))
    }
}

/// Calls `with` for every length-delimited field `wanted` of a message.
pub(super) fn each(
    mut message: &[u8],
    wanted: u32,
    mut with: impl FnMut(&[u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while message.has_remaining() {
        let (field, kind) = decode_key(&mut message)?;
        if field != wanted || kind != WireType::LengthDelimited {
            skip_field(kind, field, &mut message, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        let Some((inner, rest)) = message.split_at_checked(length) else {
            return Err(Malformed("a part is longer than the whole".to_owned()));
        };
        with(inner)?;
        message = rest;
    }
    Ok(())
}
