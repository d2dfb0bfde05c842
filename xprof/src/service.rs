//! The other end of [`client`](crate::client): what a server of `tensorflow.ProfilerService` answers with a trace.
//!
//! An answer is a few bytes of its own, then the trace as it is: whoever sends it needs to know no more of the trace than its
//! length. Must never describe a message that a protobuf parser refuses.

use bytes::{BufMut, Bytes, BytesMut};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use proto::tensorflow::ProfileResponse;

use crate::{client::TraceHead, framing::PREFIX_LEN};

/// The largest trace in an answer: gRPC and protobuf take no message of 2 GiB, and the answer has other fields too.
pub const MAX_ANSWER_TRACE: u64 = (2 << 30) - (1 << 20);

/// The name under which a client of XProf writes the trace: `<host>.xplane.pb`.
const FILE: &str = "xplane.pb";
const NAME: u32 = 1;
const DATA: u32 = 2;
const TOOL_DATA: u32 = 6;
const XSPACE: u32 = 8;

/// How an answer carries the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceCarrier {
    /// In the field `xspace`, for a client that reads it from there.
    XSpace,
    /// As a file, which the client writes where it keeps its sessions.
    File,
}

/// The trace is too large for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the trace has {bytes} bytes, and an answer of this protocol holds at most {limit}: record a shorter window"
)]
pub struct TooLargeToAnswer {
    /// The length of the trace.
    pub bytes: u64,
    /// The most bytes of a trace that such an answer holds.
    pub limit: u64,
}

/// What comes before the bytes of the trace: the prefix of the gRPC message and the head of the field that holds it. The
/// trace is the rest of the message.
///
/// # Errors
/// If the trace is too large.
pub fn answer_head(carrier: TraceCarrier, trace: TraceHead) -> Result<Bytes, TooLargeToAnswer> {
    if trace.bytes > MAX_ANSWER_TRACE {
        return Err(TooLargeToAnswer { bytes: trace.bytes, limit: MAX_ANSWER_TRACE });
    }
    let mut fields = BytesMut::new();
    ProfileResponse { empty_trace: trace.is_empty, ..ProfileResponse::default() }.encode_raw(&mut fields);
    match carrier {
        TraceCarrier::XSpace => {
            encode_key(XSPACE, WireType::LengthDelimited, &mut fields);
            encode_varint(trace.bytes, &mut fields);
        }
        // A client writes the files of an answer only if the answer does not say that it is empty.
        TraceCarrier::File if trace.is_empty => {}
        TraceCarrier::File => put_file_head(trace.bytes, &mut fields),
    }
    let message = match carrier {
        TraceCarrier::File if trace.is_empty => fields.len() as u64,
        _ => fields.len() as u64 + trace.bytes,
    };
    Ok(with_prefix(message, &fields))
}

/// The same for an answer that carries the trace twice: what comes before the file, and what comes before the field of the
/// trace. The trace follows each.
///
/// # Errors
/// If the trace is too large to be there twice.
pub fn both_heads(bytes: u64) -> Result<[Bytes; 2], TooLargeToAnswer> {
    if bytes > MAX_ANSWER_TRACE / 2 {
        return Err(TooLargeToAnswer { bytes, limit: MAX_ANSWER_TRACE / 2 });
    }
    let (mut file, mut space) = (BytesMut::new(), BytesMut::new());
    put_file_head(bytes, &mut file);
    encode_key(XSPACE, WireType::LengthDelimited, &mut space);
    encode_varint(bytes, &mut space);
    let message = file.len() as u64 + space.len() as u64 + 2 * bytes;
    Ok([with_prefix(message, &file), space.freeze()])
}

/// The prefix of a message of so many bytes, and its first ones. [`MAX_ANSWER_TRACE`] keeps it below 2 GiB.
fn with_prefix(message: u64, fields: &[u8]) -> Bytes {
    let mut head = BytesMut::with_capacity(PREFIX_LEN + fields.len());
    head.put_u8(0);
    head.put_u32(message as u32);
    head.put(fields);
    head.freeze()
}

/// Whether the bytes of the trace follow the head.
pub fn carries_trace(carrier: TraceCarrier, trace: TraceHead) -> bool {
    trace.bytes > 0 && !(carrier == TraceCarrier::File && trace.is_empty)
}

fn put_file_head(bytes: u64, fields: &mut BytesMut) {
    let name = key_len(NAME) + encoded_len_varint(FILE.len() as u64) + FILE.len();
    let data = key_len(DATA) + encoded_len_varint(bytes);
    encode_key(TOOL_DATA, WireType::LengthDelimited, fields);
    encode_varint((name + data) as u64 + bytes, fields);
    prost::encoding::string::encode(NAME, &FILE.to_owned(), fields);
    encode_key(DATA, WireType::LengthDelimited, fields);
    encode_varint(bytes, fields);
}

#[cfg(test)]
mod tests {
    use proto::tensorflow::{ProfileToolData, profiler::XSpace};

    use super::*;
    use crate::framing::unframed;

    fn answer(carrier: TraceCarrier, trace: &[u8], is_empty: bool) -> ProfileResponse {
        let head = TraceHead { bytes: trace.len() as u64, is_empty };
        let mut bytes = BytesMut::from(&answer_head(carrier, head).unwrap()[..]);
        if carries_trace(carrier, head) {
            bytes.put(trace);
        }
        ProfileResponse::decode(unframed(bytes.freeze()).unwrap()).unwrap()
    }

    #[test]
    fn an_answer_is_what_a_client_reads() {
        for length in [0_usize, 1, 127, 128, 70_000] {
            let space = XSpace { hostnames: vec!["h".repeat(length)], ..XSpace::default() };
            let trace = space.encode_to_vec();
            let as_field = answer(TraceCarrier::XSpace, &trace, false);
            assert_eq!(as_field, ProfileResponse { xspace: Some(space), ..ProfileResponse::default() });
            let as_file = answer(TraceCarrier::File, &trace, false);
            let file = ProfileToolData { name: "xplane.pb".to_owned(), data: trace };
            assert_eq!(as_file, ProfileResponse { tool_data: vec![file], ..ProfileResponse::default() });
        }
    }

    #[test]
    fn an_answer_can_carry_a_trace_twice() {
        let space = XSpace { hostnames: vec!["h".repeat(300)], ..XSpace::default() };
        let trace = space.encode_to_vec();
        let [first, second] = both_heads(trace.len() as u64).unwrap();
        let bytes = [&first[..], &trace, &second, &trace].concat();
        let both = ProfileResponse::decode(unframed(bytes.into()).unwrap()).unwrap();
        assert_eq!((both.xspace, &both.tool_data[0].data), (Some(space), &trace));
        assert!(both_heads(MAX_ANSWER_TRACE / 2).is_ok() && both_heads(MAX_ANSWER_TRACE / 2 + 1).is_err());
    }

    #[test]
    fn an_empty_trace_is_said_to_be_empty_and_is_no_file() {
        let empty = ProfileResponse { empty_trace: true, ..ProfileResponse::default() };
        assert_eq!(answer(TraceCarrier::File, b"\x22\x01h", true), empty);
        assert!(answer(TraceCarrier::XSpace, b"\x22\x01h", true).empty_trace);
    }

    #[test]
    fn what_no_parser_takes_is_refused_with_the_limit() {
        let head = |bytes| TraceHead { bytes, is_empty: false };
        for carrier in [TraceCarrier::XSpace, TraceCarrier::File] {
            assert!(answer_head(carrier, head(MAX_ANSWER_TRACE)).is_ok());
            let error = answer_head(carrier, head(MAX_ANSWER_TRACE + 1)).unwrap_err();
            assert!(error.to_string().contains("at most 2146435072"), "{error}");
        }
    }
}
