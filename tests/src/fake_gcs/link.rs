//! A connection that can be made slow while it is used.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// Bytes at a time, and the pause after them; `None`: as fast as it goes.
pub(super) type SharedSpeed = Arc<Mutex<Option<(usize, Duration)>>>;

/// The least receive buffer of a slow connection. With the usual one the kernel takes megabytes in at once; with one for
/// less than is read at a time, the sender waits for its timer before each packet.
const SLOW_BUFFER: usize = 4096;

/// The connection.
pub(super) struct Link {
    stream: TcpStream,
    speed: SharedSpeed,
    small: bool,
    reading: Option<Pin<Box<Sleep>>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, speed: SharedSpeed) -> Self {
        Self { stream, speed, small: false, reading: None, writing: None }
    }

    fn speed(&mut self) -> Option<(usize, Duration)> {
        let speed = *self.speed.lock().expect("no owner of the lock panics");
        if let Some((bytes, _)) = speed.filter(|_| !self.small) {
            self.small = true;
            // It still is slow without.
            let _ = setsockopt(&self.stream, sockopt::RcvBuf, &(2 * bytes).max(SLOW_BUFFER));
        }
        speed
    }
}

fn pause(timer: &mut Option<Pin<Box<Sleep>>>, context: &mut Context<'_>) -> Poll<()> {
    if let Some(sleep) = timer {
        ready!(sleep.as_mut().poll(context));
        *timer = None;
    }
    Poll::Ready(())
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((most, after)) = self.speed() else {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        };
        ready!(pause(&mut self.reading, context));
        let mut few = buffer.take(most);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut few))?;
        let bytes = few.filled().to_vec();
        buffer.put_slice(&bytes);
        self.reading = Some(Box::pin(sleep(after)));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some((most, after)) = self.speed() else {
            return Pin::new(&mut self.stream).poll_write(context, bytes);
        };
        ready!(pause(&mut self.writing, context));
        let written =
            ready!(Pin::new(&mut self.stream).poll_write(context, &bytes[..most.min(bytes.len())]))?;
        self.writing = Some(Box::pin(sleep(after)));
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
