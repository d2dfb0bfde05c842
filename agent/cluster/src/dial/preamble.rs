//! What a command writes before the far end's magic line: messages of shells and log-in programs. It is shown when the dial
//! fails.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::relay::{MAGIC, MAGIC_NAME};

/// The longest version in a magic line, with its end.
const LONGEST_VERSION: usize = 8;
/// The most bytes before the magic line.
const MOST_BYTES: usize = 64 << 10;

/// What came before the magic line.
#[derive(Debug, Default)]
pub(super) struct Preamble(BytesMut);

/// Why there is no magic line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMagic {
    /// The stream ended.
    Ended,
    /// Too much came without it.
    TooLong,
    /// The line of another version of the relay.
    OtherVersion,
    /// The line ends as a terminal ends it: what follows would be changed too.
    Terminal,
}

/// Whether the far side sends back what it is sent: a terminal that echoes, or another program than the relay.
#[derive(Debug, Clone, Default)]
pub(super) struct EchoMark(Arc<AtomicBool>);

impl EchoMark {
    /// Whether it does.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a client of HTTP/2 sends first, and a server never.
const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0";

impl Preamble {
    /// Reads up to the magic line. Returns the bytes that were read behind it.
    pub(super) async fn read(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> Result<Bytes, NoMagic> {
        let mut searched: usize = 0;
        loop {
            if !matches!(stream.read_buf(&mut self.0).await, Ok(1..)) {
                return Err(NoMagic::Ended);
            }
            // The line may have begun in the bytes before.
            let from = searched.saturating_sub(MAGIC.len());
            let found = self.0[from..].windows(MAGIC.len()).position(|window| window == MAGIC);
            if let Some(at) = found {
                let mut rest = self.0.split_off(from + at);
                rest.advance(MAGIC.len());
                return Ok(rest.freeze());
            }
            if self.version(searched).is_some_and(|version| version.ends_with(b"\r")) {
                return Err(NoMagic::Terminal);
            }
            if self.other_version(searched).is_some() {
                return Err(NoMagic::OtherVersion);
            }
            searched = self.0.len();
            if searched > MOST_BYTES {
                return Err(NoMagic::TooLong);
            }
        }
    }

    /// The version in the line of a relay, with what stands behind it there, if it came after the first `searched` bytes.
    fn version(&self, searched: usize) -> Option<&[u8]> {
        let from = searched.saturating_sub(MAGIC_NAME.len() + LONGEST_VERSION);
        let at = self.0[from..].windows(MAGIC_NAME.len()).position(|window| window == MAGIC_NAME)?;
        let rest = &self.0[from + at + MAGIC_NAME.len()..];
        let end = rest.iter().take(LONGEST_VERSION).position(|byte| *byte == b'\n')?;
        Some(&rest[..end])
    }

    /// The version in the line of another version of the relay, if it came after the first `searched` bytes.
    fn other_version(&self, searched: usize) -> Option<&[u8]> {
        let version = self.version(searched)?;
        Some(version).filter(|version| !version.is_empty() && version.iter().all(u8::is_ascii_digit))
    }

    /// The line of another version of the relay, if there is one.
    pub(super) fn version_there(&self) -> String {
        String::from_utf8_lossy(self.other_version(0).unwrap_or_default()).into_owned()
    }

    /// It as text.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// A stream whose first bytes were read already. One on which the begin of what we send comes back is an error.
#[derive(Debug)]
pub(super) struct AfterPreamble<S> {
    early: Bytes,
    stream: S,
    /// So many bytes were as those that we send; none: others came.
    same: Option<usize>,
    echo: EchoMark,
}

impl<S> AfterPreamble<S> {
    pub(super) fn new(early: Bytes, stream: S) -> Self {
        Self { early, stream, same: Some(0), echo: EchoMark::default() }
    }

    /// Is set when the far side sends back what it is sent.
    pub(super) fn echo(&self) -> EchoMark {
        self.echo.clone()
    }

    fn compare(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(same) = self.same else { return Ok(()) };
        let left = &CLIENT_PREFACE[same..];
        let count = left.len().min(bytes.len());
        self.same = (left[..count] == bytes[..count]).then_some(same + count);
        if self.same != Some(CLIENT_PREFACE.len()) {
            return Ok(());
        }
        self.echo.0.store(true, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::InvalidData, "the far side sends back what it is sent"))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AfterPreamble<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.early.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(context, buf))?;
        } else {
            let length = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early.split_to(length));
        }
        let compared = self.compare(&buf.filled()[before..]);
        if compared.is_err() {
            // Nothing was read.
            buf.set_filled(before);
        }
        Poll::Ready(compared)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AfterPreamble<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a stream that arrives in these pieces.
    async fn read(pieces: Vec<Vec<u8>>) -> (Result<Bytes, NoMagic>, String, Vec<u8>) {
        let (mut writer, mut reader) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move {
            for piece in pieces {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut writer, &piece).await;
                tokio::task::yield_now().await;
            }
        });
        let mut preamble = Preamble::default();
        let early = preamble.read(&mut reader).await;
        let mut rest = Vec::new();
        if let Ok(early) = &early {
            let mut stream = AfterPreamble::new(early.clone(), reader);
            let _ = stream.read_to_end(&mut rest).await;
        }
        (early, preamble.text(), rest)
    }

    #[tokio::test]
    async fn a_banner_is_skipped_and_bounded() {
        let magic = MAGIC.to_vec();
        let (early, said, rest) =
            read(vec![b"Welcome\nto n1> ".to_vec(), magic.clone(), b"PRI".to_vec()]).await;
        assert!(early.is_ok());
        assert_eq!((said.as_str(), &rest[..]), ("Welcome\nto n1> ", &b"PRI"[..]));
        // The begin of what we send comes back.
        let (early, _, rest) = read(vec![magic.clone(), b"PRI * HTTP/".to_vec(), b"2.0\r\n".to_vec()]).await;
        assert!(early.is_ok() && !rest.ends_with(b"\n"), "{rest:?}");
        let (early, ..) =
            read(vec![b"hello\ntpuscope-dial-stdio/".to_vec(), b"12\n".to_vec(), magic.clone()]).await;
        assert_eq!(early, Err(NoMagic::OtherVersion));
        let (early, ..) = read(vec![b"hi\r\ntpuscope-dial-stdio/".to_vec(), b"1\r\n".to_vec()]).await;
        assert_eq!(early, Err(NoMagic::Terminal));
        let (early, said, _) = read(vec![b"This account is currently not available.\n".to_vec()]).await;
        assert_eq!((early, said.trim()), (Err(NoMagic::Ended), "This account is currently not available."));
        let (early, ..) = read(vec![vec![b'x'; 200 << 10], magic]).await;
        assert_eq!(early, Err(NoMagic::TooLong));
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(before in "[a-z\\n]{0,20}", after in prop::collection::vec(any::<u8>(), 0..50), size in 1_usize..30) {
            let all = [before.as_bytes(), MAGIC, &after].concat();
            let pieces = all.chunks(size).map(<[u8]>::to_vec).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (early, said, rest) = runtime.block_on(read(pieces));
            prop_assert!(early.is_ok());
            prop_assert_eq!((said, rest), (before, after));
        }
    }
}
