//! The codec of calls whose requests are encoded already.
//!
//! Must never copy a message more often than the transport needs.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use prost::{DecodeError, Message};
use proto::opentelemetry::proto::collector::metrics::v1::ExportMetricsServiceResponse;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Sends bytes as they are, and decodes the answer.
#[derive(Debug, Default)]
pub(super) struct EncodedCodec;

/// Sends bytes as they are.
#[derive(Debug)]
pub(super) struct BytesEncoder;

/// Decodes the answer.
#[derive(Debug)]
pub(super) struct AnswerDecoder;

/// An answer that this side cannot read. It is the source of its status, which the collector did not send.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct UnreadableAnswer(#[from] DecodeError);

impl Codec for EncodedCodec {
    type Encode = Bytes;
    type Decode = ExportMetricsServiceResponse;
    type Encoder = BytesEncoder;
    type Decoder = AnswerDecoder;

    fn encoder(&mut self) -> BytesEncoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> AnswerDecoder {
        AnswerDecoder
    }
}

impl Encoder for BytesEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for AnswerDecoder {
    type Item = ExportMetricsServiceResponse;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        Self::Item::decode(buffer).map(Some).map_err(|error| unreadable(error.into()))
    }
}

pub(super) fn unreadable(error: UnreadableAnswer) -> Status {
    let mut status = Status::internal(error.to_string());
    status.set_source(Arc::new(error));
    status
}
