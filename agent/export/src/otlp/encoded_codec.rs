//! The codec of calls whose requests are encoded already.
//!
//! Must never copy a message more often than the transport needs.

use bytes::{BufMut, Bytes};
use proto::opentelemetry::proto::collector::metrics::v1::ExportMetricsServiceResponse;
use tonic::{
    Status,
    codec::{Codec, EncodeBuf, Encoder},
};
use tonic_prost::{ProstCodec, ProstDecoder};

/// Sends bytes as they are, and decodes the answer.
#[derive(Debug, Default)]
pub(super) struct EncodedCodec(ProstCodec<ExportMetricsServiceResponse, ExportMetricsServiceResponse>);

/// Sends bytes as they are.
#[derive(Debug)]
pub(super) struct BytesEncoder;

impl Codec for EncodedCodec {
    type Encode = Bytes;
    type Decode = ExportMetricsServiceResponse;
    type Encoder = BytesEncoder;
    type Decoder = ProstDecoder<ExportMetricsServiceResponse>;

    fn encoder(&mut self) -> BytesEncoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        self.0.decoder()
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
