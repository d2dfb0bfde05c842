//! Connections within bounds: so many at a time, and none that stays without ever saying anything.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::mpsc,
    time::{Instant, Sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, UdsConnectInfo};
use tracing::warn;

use super::connection_limits::{ConnectionLimits, ConnectionSlot};
use super::own_metrics;

/// A connection that has not sent its first byte by then is closed.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// After a failed accept (no descriptors left, say) the next try waits this long.
const PAUSE: Duration = Duration::from_millis(200);
/// What is written and not taken by the other side for this long ends a TCP connection.
const STALLED_MS: u32 = 20_000;
/// Refused connections are told of this often at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A listener of either kind.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// A connection of either kind, with its place among the permitted ones.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    first_byte: Option<Pin<Box<Sleep>>>,
    place: ConnectionSlot,
    /// Done when it has to make room.
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                nix::sys::socket::setsockopt(
                    &stream,
                    nix::sys::socket::sockopt::TcpUserTimeout,
                    &STALLED_MS,
                )?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Stream {
    /// The user at the other end, where the kernel names one.
    fn user(&self) -> Option<u32> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(stream) => stream.peer_cred().ok().map(|peer| peer.uid()),
        }
    }
}

impl Connection {
    fn new(stream: Stream, place: ConnectionSlot) -> Self {
        Self {
            stream,
            first_byte: Some(Box::pin(tokio::time::sleep(FIRST_BYTE))),
            leave: Box::pin(place.leave().clone().cancelled_owned()),
            place,
        }
    }

    /// The address of the other end of a TCP connection.
    pub(super) fn peer_ip(&self) -> Option<std::net::IpAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
            Stream::Unix(_) => None,
        }
    }

    /// An error once it has to make room; wakes `context` when that comes.
    fn stay(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.leave.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

/// Connections that found no place, since they were last told of.
#[derive(Default)]
struct Refused {
    count: u64,
    told: Option<Instant>,
}

impl Refused {
    fn one_more(&mut self, user: Option<u32>) {
        self.count += 1;
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            warn!(refused = self.count, ?user, "too many connections (api.max_connections): closed at once");
            *self = Self { count: 0, told: Some(Instant::now()) };
        }
    }
}

/// Accepts on `listener` until `stop`, as long as there are `connection_limits`: who gets none is closed at once.
pub async fn accept(
    listener: Arc<Listener>,
    connection_limits: ConnectionLimits,
    connections: mpsc::Sender<Connection>,
    stop: CancellationToken,
) {
    let mut refused = Refused::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let user = stream.user();
        let Some(place) = connection_limits.take(user) else {
            own_metrics::connection_refused();
            refused.one_more(user);
            continue;
        };
        if connections.send(Connection::new(stream, place)).await.is_err() {
            return;
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buf),
        };
        if buf.filled().len() > before {
            self.first_byte = None;
            self.place.said();
        }
        self.stay(context)?;
        if read.is_pending()
            && let Some(deadline) = &mut self.first_byte
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stay(context)?;
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stay(context)?;
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    /// Peer credentials, as the kernel took them when the other side connected; none for TCP.
    fn connect_info(&self) -> UdsConnectInfo {
        match &self.stream {
            Stream::Unix(stream) => stream.connect_info(),
            Stream::Tcp(_) => UdsConnectInfo { peer_addr: None, peer_cred: None },
        }
    }
}
