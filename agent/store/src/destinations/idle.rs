//! Connections that fail when nothing moves on them for the idle time.
//!
//! Each byte that the kernel takes or gives counts, so that a slow network is never taken for a dead one: one byte a
//! second is enough. Must never limit the total time.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use tokio::time::{Instant, Sleep, sleep};
use tower::Service;

/// Makes connections that are watched.
#[derive(Debug, Clone)]
pub(super) struct IdleConnector {
    connector: HttpConnector,
    idle: Duration,
}

impl IdleConnector {
    /// Connections of `connector` that fail when nothing moves for `idle`.
    pub(super) fn new(connector: HttpConnector, idle: Duration) -> Self {
        Self { connector, idle }
    }
}

impl Service<Uri> for IdleConnector {
    type Response = WatchedStream<<HttpConnector as Service<Uri>>::Response>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let idle = self.idle;
        self.connector.call(uri).map_ok(move |connection| WatchedStream::new(connection, idle)).boxed()
    }
}

/// A connection that is watched.
#[derive(Debug)]
pub(super) struct WatchedStream<C> {
    connection: C,
    idle: Duration,
    moved: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<C: Unpin> WatchedStream<C> {
    fn new(connection: C, idle: Duration) -> Self {
        Self { connection, idle, moved: Instant::now(), timer: Box::pin(sleep(idle)) }
    }

    /// Notes what an operation came to. One that waits fails when nothing moved for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.moved = Instant::now();
            return polled;
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let end = self.moved + self.idle;
            if end <= Instant::now() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<C: Connection> Connection for WatchedStream<C> {
    fn connected(&self) -> Connected {
        self.connection.connected()
    }
}

impl<C: Read + Unpin> Read for WatchedStream<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.connection).poll_read(cx, buffer);
        self.watch(cx, polled)
    }
}

impl<C: Write + Unpin> Write for WatchedStream<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.connection).poll_write(cx, bytes);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.connection).poll_write_vectored(cx, pieces);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
