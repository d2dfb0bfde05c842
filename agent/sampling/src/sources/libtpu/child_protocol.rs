//! Frames between agent and child: a varint length, then one message of `child.proto`.
//!
//! Must never trust a length: a length above the limit ends the connection.

use std::io::{self, Read, Write};

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Largest request: one path, or a few names.
pub(super) const MAX_REQUEST: usize = 64 << 10;
/// Largest reply.
pub(super) const MAX_REPLY: usize = 4 << 20;
/// Largest runtime status in a reply: the states of all cores with their programs.
pub(super) const MAX_STATUS: usize = 3 << 20;
/// Bytes of the longest length.
const MAX_LENGTH: usize = 5;

/// The message is damaged or too large.
fn nonsense(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// Takes the bytes of a length one by one.
#[derive(Default)]
struct Length {
    value: u64,
    bytes: usize,
}

impl Length {
    /// The length, once `byte` was its last.
    fn push(&mut self, byte: u8, limit: usize) -> io::Result<Option<usize>> {
        self.value |= u64::from(byte & 0x7f) << (7 * self.bytes);
        self.bytes += 1;
        if byte & 0x80 != 0 {
            return if self.bytes == MAX_LENGTH {
                Err(nonsense("a length without an end"))
            } else {
                Ok(None)
            };
        }
        let length = usize::try_from(self.value).unwrap_or(usize::MAX);
        if length > limit {
            return Err(nonsense(format!("a message of {length} bytes")));
        }
        Ok(Some(length))
    }
}

fn decode<M: Message + Default>(body: &[u8]) -> io::Result<M> {
    M::decode(body).map_err(|error| nonsense(error.to_string()))
}

/// The next message, or `None` at the orderly end of the stream.
pub(super) fn receive<M: Message + Default>(stream: &mut impl Read, limit: usize) -> io::Result<Option<M>> {
    let mut length = Length::default();
    let size = loop {
        let mut byte = [0];
        match stream.read_exact(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && length.bytes == 0 => {
                return Ok(None);
            }
            read => read?,
        }
        if let Some(size) = length.push(byte[0], limit)? {
            break size;
        }
    };
    let mut body = vec![0; size];
    stream.read_exact(&mut body)?;
    decode(&body).map(Some)
}

/// Sends one message.
pub(super) fn send(stream: &mut impl Write, message: &impl Message) -> io::Result<()> {
    stream.write_all(&message.encode_length_delimited_to_vec())?;
    stream.flush()
}

/// [`receive`] for tokio; the end of the stream is an error. The body is read as it comes: a length alone
/// reserves nothing.
pub(super) async fn receive_async<M: Message + Default>(
    stream: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> io::Result<M> {
    let mut length = Length::default();
    let size = loop {
        if let Some(size) = length.push(stream.read_u8().await?, limit)? {
            break size;
        }
    };
    let mut body = Vec::new();
    (&mut *stream).take(size as u64).read_to_end(&mut body).await?;
    if body.len() < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(&body)
}

/// [`send`] for tokio.
pub(super) async fn send_async(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Message,
) -> io::Result<()> {
    stream.write_all(&message.encode_length_delimited_to_vec()).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::tpuscope::v1::{ChildReply, ChildRequest, GetMetrics, child_request::Call};

    use super::*;

    fn request(names: Vec<String>) -> ChildRequest {
        ChildRequest { id: 7, call: Some(Call::GetMetrics(GetMetrics { names })) }
    }

    proptest! {
        #[test]
        fn messages_arrive_as_sent(names in proptest::collection::vec(".{0,300}", 0..20)) {
            let mut bytes = Vec::new();
            send(&mut bytes, &request(names.clone())).unwrap();
            send(&mut bytes, &request(vec![])).unwrap();
            let mut stream = bytes.as_slice();
            prop_assert_eq!(receive(&mut stream, MAX_REQUEST).unwrap(), Some(request(names.clone())));
            prop_assert_eq!(receive(&mut stream, MAX_REQUEST).unwrap(), Some(request(vec![])));
            prop_assert_eq!(receive::<ChildRequest>(&mut stream, MAX_REQUEST).unwrap(), None);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let read: ChildRequest = runtime.block_on(receive_async(&mut bytes.as_slice(), MAX_REQUEST)).unwrap();
            prop_assert_eq!(read, request(names));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = receive::<ChildReply>(&mut bytes.as_slice(), MAX_REPLY);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(receive_async::<ChildReply>(&mut bytes.as_slice(), MAX_REPLY));
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused() {
        for bytes in [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 9]] {
            let error = receive::<ChildReply>(&mut &*bytes, MAX_REPLY).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
