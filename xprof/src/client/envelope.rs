//! Takes a `ProfileResponse` out of its gRPC frame as the bytes arrive, and hands on the XSpace inside.
//!
//! Holds no more than a tag or a length. Must never accept a length that exceeds the enclosing one.

use super::Error;
use crate::{
    framing::{self, FrameError, PREFIX_LEN},
    wire::PushedVarint,
};

/// One piece of the answer, in order of arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The XSpace begins and is so many bytes long.
    Begin(u64),
    /// Bytes of the XSpace.
    Bytes(&'a [u8]),
}

#[derive(Debug, Clone, Copy)]
enum EnvelopeState {
    /// The five bytes before a gRPC message.
    Prefix {
        bytes: [u8; PREFIX_LEN],
        have: usize,
    },
    Tag(PushedVarint),
    Length {
        number: u64,
        varint: PushedVarint,
    },
    Value {
        number: u64,
        varint: PushedVarint,
    },
    Skip {
        left: u64,
    },
    Trace {
        left: u64,
    },
    /// The message is complete.
    Done,
}

/// The fields of the answer, apart from the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseFields {
    /// `empty_trace`.
    pub empty: bool,
    /// Bytes of the XSpace, if there was one.
    pub trace_bytes: Option<u64>,
}

/// Reads one answer; see the module.
#[derive(Debug)]
pub struct Envelope {
    limit: u64,
    state: EnvelopeState,
    /// Bytes of the message that are still to come.
    left: u64,
    fields: ResponseFields,
}

impl Envelope {
    /// Refuses messages of more than `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            state: EnvelopeState::Prefix { bytes: [0; PREFIX_LEN], have: 0 },
            left: 0,
            fields: ResponseFields::default(),
        }
    }

    /// Reads the next bytes of the body and passes the bytes of the trace to `out`.
    ///
    /// # Errors
    /// When the bytes are not such an answer, it is too large, or `out` fails.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut out: impl FnMut(Piece<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            let available = rest.len() as u64;
            let used = match self.state {
                EnvelopeState::Done => return Err(garbage("more than one message in the answer")),
                EnvelopeState::Prefix { .. } => self.prefix(byte)?,
                EnvelopeState::Skip { left } => {
                    let used = left.min(available);
                    self.left -= used;
                    self.state = after(left - used, |left| EnvelopeState::Skip { left });
                    used
                }
                EnvelopeState::Trace { left } => {
                    let used = left.min(available);
                    self.left -= used;
                    out(Piece::Bytes(&rest[..used as usize]))?;
                    self.state = after(left - used, |left| EnvelopeState::Trace { left });
                    used
                }
                _ => self.token(byte, &mut out)?,
            };
            rest = &rest[used as usize..];
            self.end_of_message()?;
        }
        Ok(())
    }

    fn end_of_message(&mut self) -> Result<(), Error> {
        match self.state {
            EnvelopeState::Prefix { .. } | EnvelopeState::Done => {}
            EnvelopeState::Tag(tag) if self.left == 0 && !tag.is_open() => self.state = EnvelopeState::Done,
            _ if self.left == 0 => return Err(garbage("the answer ends inside a field")),
            _ => {}
        }
        Ok(())
    }

    /// The fields of the answer so far.
    pub(super) fn fields(&self) -> ResponseFields {
        self.fields
    }

    /// The fields of the answer, after the last bytes of the body.
    ///
    /// # Errors
    /// When the answer is not complete.
    pub fn finish(&self) -> Result<ResponseFields, Error> {
        match self.state {
            EnvelopeState::Done => Ok(self.fields),
            _ => Err(Error::CutShort { missing: self.left }),
        }
    }

    fn prefix(&mut self, byte: u8) -> Result<u64, Error> {
        let EnvelopeState::Prefix { mut bytes, have } = self.state else { return Ok(0) };
        bytes[have] = byte;
        let wrong = |error| match error {
            FrameError::Compressed => Error::Compressed,
            other => Error::Garbage(format!("the answer is not gRPC: {other}")),
        };
        match have + 1 {
            // The first byte tells already.
            1 => {
                framing::check_flag(byte).map_err(wrong)?;
                self.state = EnvelopeState::Prefix { bytes, have: 1 };
            }
            PREFIX_LEN => {
                self.left = u64::from(framing::message_len(bytes).map_err(wrong)?);
                if self.left > self.limit {
                    return Err(Error::TooLarge { bytes: self.left, limit: self.limit });
                }
                self.state = EnvelopeState::Tag(PushedVarint::default());
            }
            have => self.state = EnvelopeState::Prefix { bytes, have },
        }
        Ok(1)
    }

    fn token(
        &mut self,
        byte: u8,
        out: &mut impl FnMut(Piece<'_>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let too_long = |()| garbage("a number in the answer is too long");
        self.left -= 1;
        match self.state {
            EnvelopeState::Tag(mut tag) => {
                self.state = match tag.push(byte).map_err(too_long)? {
                    None => EnvelopeState::Tag(tag),
                    Some(tag) => self.field(tag)?,
                };
            }
            EnvelopeState::Value { number, mut varint } => {
                self.state = match varint.push(byte).map_err(too_long)? {
                    None => EnvelopeState::Value { number, varint },
                    Some(value) => {
                        self.fields.empty |= number == 7 && value != 0;
                        EnvelopeState::Tag(PushedVarint::default())
                    }
                };
            }
            EnvelopeState::Length { number, mut varint } => match varint.push(byte).map_err(too_long)? {
                None => self.state = EnvelopeState::Length { number, varint },
                Some(length) if length > self.left => {
                    return Err(garbage("a field is longer than the answer"));
                }
                Some(length) if number == 8 => {
                    if self.fields.trace_bytes.replace(length).is_some() {
                        return Err(garbage("two traces in one answer"));
                    }
                    out(Piece::Begin(length))?;
                    self.state = after(length, |left| EnvelopeState::Trace { left });
                }
                Some(length) => self.state = after(length, |left| EnvelopeState::Skip { left }),
            },
            EnvelopeState::Prefix { .. }
            | EnvelopeState::Skip { .. }
            | EnvelopeState::Trace { .. }
            | EnvelopeState::Done => {}
        }
        Ok(1)
    }

    fn field(&self, tag: u64) -> Result<EnvelopeState, Error> {
        let (number, wire) = (tag >> 3, tag & 7);
        let skip = |left| {
            if left > self.left {
                Err(garbage("the answer ends inside a field"))
            } else {
                Ok(EnvelopeState::Skip { left })
            }
        };
        match (number, wire) {
            (0, _) => Err(garbage("the answer is not a ProfileResponse: a field has number 0")),
            (6 | 8, 0 | 1 | 5) | (7, 1 | 2 | 5) => Err(garbage("the answer is not a ProfileResponse")),
            (_, 0) => Ok(EnvelopeState::Value { number, varint: PushedVarint::default() }),
            (_, 1) => skip(8),
            (_, 2) => Ok(EnvelopeState::Length { number, varint: PushedVarint::default() }),
            (_, 5) => skip(4),
            _ => Err(garbage("the answer is not a ProfileResponse: unknown wire type")),
        }
    }
}

fn after(left: u64, state: impl FnOnce(u64) -> EnvelopeState) -> EnvelopeState {
    if left == 0 { EnvelopeState::Tag(PushedVarint::default()) } else { state(left) }
}

fn garbage(what: &str) -> Error {
    Error::Garbage(what.to_owned())
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::tensorflow::{ProfileResponse, ProfileToolData, profiler};

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(u32::try_from(message.len()).expect("small").to_be_bytes());
        bytes.extend(message);
        bytes
    }

    fn unwrap(bytes: &[u8], piece: usize) -> Result<(ResponseFields, Vec<u8>), Error> {
        let mut envelope = Envelope::new(1 << 20);
        let mut trace = Vec::new();
        for piece in bytes.chunks(piece) {
            envelope.push(piece, |piece| {
                if let Piece::Bytes(bytes) = piece {
                    trace.extend_from_slice(bytes);
                }
                Ok(())
            })?;
        }
        envelope.finish().map(|fields| (fields, trace))
    }

    fn answer() -> (Vec<u8>, Vec<u8>) {
        let xspace = profiler::XSpace { hostnames: vec!["a-host".into()], ..Default::default() };
        let response = ProfileResponse {
            tool_data: vec![ProfileToolData { name: "t".into(), data: vec![1; 300] }],
            empty_trace: true,
            xspace: Some(xspace.clone()),
        };
        (framed(&response.encode_to_vec()), xspace.encode_to_vec())
    }

    #[test]
    fn the_trace_comes_out_byte_by_byte() {
        let (bytes, trace) = answer();
        for piece in [1, 2, 5, 100, bytes.len()] {
            let (fields, got) = unwrap(&bytes, piece).expect("sound");
            assert_eq!(got, trace);
            assert_eq!(fields, ResponseFields { empty: true, trace_bytes: Some(trace.len() as u64) });
        }
        assert_eq!(unwrap(&framed(&[]), 1).expect("an empty answer is sound").0, ResponseFields::default());
    }

    #[test]
    fn a_cut_is_a_cut() {
        let (bytes, _) = answer();
        for cut in 0..bytes.len() {
            assert!(matches!(unwrap(&bytes[..cut], 9), Err(Error::CutShort { .. })), "{cut}");
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let refused = |bytes: &[u8]| unwrap(bytes, 3).expect_err("refused");
        assert!(matches!(refused(&[1, 0, 0, 0, 0]), Error::Compressed));
        assert!(matches!(refused(&[0, 0xff, 0xff, 0xff, 0xff]), Error::TooLarge { .. }));
        assert!(matches!(refused(&[0; 64]), Error::Garbage(_)));
        assert!(matches!(refused(b"HTTP/1.1 400"), Error::Garbage(_)));
        assert!(matches!(refused(&framed(&[0x42, 0x7f, 1])), Error::Garbage(_)));
        assert!(matches!(refused(&framed(&[0x3a])), Error::Garbage(_)));
        assert!(matches!(refused(&framed(&[0x42, 0x00, 0x42, 0x00])), Error::Garbage(_)));
    }
}
