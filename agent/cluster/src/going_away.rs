//! Whether an agent ended its connection because it was stopped. HTTP/2 says so in a GOAWAY frame without an error that still
//! lets all calls end (RFC 9113, section 6.8), before the connection is closed. One of a connection that is given up for
//! silence names the last call instead. Only calls that are open learn it from their errors, so the frames are watched.
//!
//! Must never change a byte, or keep more of a frame than its head.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The head of a frame: three bytes of length, type, flags, four bytes of stream.
const HEAD: usize = 9;
/// The bytes of a GOAWAY up to the end of its error code.
const GOAWAY: usize = HEAD + 8;
/// The type of that frame.
const GOAWAY_TYPE: u8 = 7;
/// What stands in the frame of an end that lets all calls end: the largest number of a call, and no error.
const GRACEFUL: [u8; GOAWAY - HEAD] = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Whether the other end said that it goes away because it is stopped.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopMark(Arc<AtomicBool>);

impl StopMark {
    /// Whether it did.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where one frame begins, and the next.
#[derive(Debug, Default)]
struct Frames {
    /// The begin of the current frame.
    begin: [u8; GOAWAY],
    /// So many bytes of it are there.
    there: usize,
    /// So many bytes of it are left that say nothing.
    skip: usize,
}

impl Frames {
    /// Takes the next bytes. Returns whether the frame of a stop is among them.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        let mut stopped = false;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let wanted = self.wanted();
            let count = (wanted - self.there).min(bytes.len());
            self.begin[self.there..self.there + count].copy_from_slice(&bytes[..count]);
            self.there += count;
            bytes = &bytes[count..];
            // The head may tell that more is wanted.
            if self.there == self.wanted() {
                stopped |= self.is_goaway() && self.begin[HEAD..] == GRACEFUL;
                self.skip = HEAD + self.length() - self.there;
                self.there = 0;
            }
        }
        stopped
    }

    fn length(&self) -> usize {
        let [high, middle, low, ..] = self.begin;
        usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)
    }

    fn is_goaway(&self) -> bool {
        self.begin[3] == GOAWAY_TYPE && self.length() >= GOAWAY - HEAD
    }

    /// How much of the current frame is wanted, as far as its head is known.
    fn wanted(&self) -> usize {
        if self.there >= HEAD && self.is_goaway() { GOAWAY } else { HEAD }
    }
}

/// A stream of HTTP/2 from its first frame on.
#[derive(Debug)]
pub(crate) struct WatchedStream<S> {
    stream: S,
    frames: Frames,
    mark: StopMark,
}

impl<S> WatchedStream<S> {
    /// Watches a stream of which nothing was read.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, frames: Frames::default(), mark: StopMark::default() }
    }

    /// Is set when the other end goes away.
    pub(crate) fn mark(&self) -> StopMark {
        self.mark.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buf))?;
        if self.frames.take(&buf.filled()[before..]) {
            self.mark.0.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
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

    fn frame(of_type: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[of_type, 0, 0, 0, 0, 0], payload].concat()
    }

    fn goaway(code: u8) -> Vec<u8> {
        frame(GOAWAY_TYPE, &[&GRACEFUL[..7], &[code]].concat())
    }

    proptest! {
        #[test]
        fn an_end_without_an_error_is_found_in_any_pieces(
            before in prop::collection::vec((0_u8..7, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
            end in prop::option::of(0_u8..3),
            said in "[a-z]{0,9}",
            size in 1_usize..50,
        ) {
            let mut bytes: Vec<u8> = before.iter().flat_map(|(of_type, payload)| frame(*of_type, payload)).collect();
            if let Some(code) = end {
                let reason = [&goaway(code)[HEAD..], said.as_bytes()].concat();
                bytes.extend(frame(GOAWAY_TYPE, &reason));
                bytes.extend(frame(0, b"more"));
            }
            let mut frames = Frames::default();
            let found = bytes.chunks(size).map(|piece| frames.take(piece)).filter(|found| *found).count();
            prop_assert_eq!(found, usize::from(end == Some(0)));
        }
    }

    #[test]
    fn a_frame_that_is_too_short_for_it_says_nothing() {
        let bytes = [frame(GOAWAY_TYPE, &[0; 7]), goaway(0)].concat();
        let mut frames = Frames::default();
        assert!(!frames.take(&bytes[..HEAD + 7]) && frames.take(&bytes[HEAD + 7..]));
    }

    #[test]
    fn a_connection_that_is_given_up_for_silence_is_no_stop() {
        let last_call = frame(GOAWAY_TYPE, &[0, 0, 0, 21, 0, 0, 0, 0]);
        assert!(!Frames::default().take(&last_call));
    }
}
