//! Listeners and their connections: a bounded number of connections, each of which must send something soon.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::mpsc,
    time::Sleep,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;
use tracing::warn;

use super::{
    connection_limits::{ConnectionLimits, ConnectionSlot},
    peer::UnixPeer,
    refusals::{RefusalReason, Refusals, RefusedPeer},
    remote::RemotePeer,
    xprof::caller::LoopbackPeer,
};

/// A connection that has sent nothing by then is closed.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait after a failed accept, for example when no file descriptors are left.
pub(super) const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// A TCP connection whose peer acknowledges nothing for this long is closed.
const USER_TIMEOUT_MS: u32 = 20_000;
/// What is at least as large is a whole frame of an answer, after which a frame follows at once.
const WHOLE_FRAME: usize = 16 << 10;

/// A listener, TCP or Unix.
#[derive(Debug)]
pub enum ServerListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// An accepted connection, TCP or Unix, with its slot.
#[derive(Debug)]
pub struct ServerConnection {
    stream: Stream,
    info: ConnectInfo,
    /// `None` once something was received.
    first_byte_timeout: Option<Pin<Box<Sleep>>>,
    slot: ConnectionSlot,
    /// Ready when the connection must close in favour of another.
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// The caller, as far as the transport knows it. A service finds it in the extensions of its request.
#[derive(Debug, Clone)]
pub enum ConnectInfo {
    /// A process of this host.
    Unix(Arc<UnixPeer>),
    /// A TCP connection, whose user is unknown.
    Tcp,
    /// A TCP connection over the loopback, whose user was looked for.
    Loopback(Arc<LoopbackPeer>),
    /// A connection of another host, whose certificate is verified.
    Remote(Arc<RemotePeer>),
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ServerListener {
    /// Its name in metrics and in the log, without `http`, `metrics`, `remote` and `xprof`, which accept connections themselves.
    pub(super) fn grpc_name(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "grpc",
            Self::Unix(_) => "socket",
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                nix::sys::socket::setsockopt(
                    &stream,
                    nix::sys::socket::sockopt::TcpUserTimeout,
                    &USER_TIMEOUT_MS,
                )?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Stream {
    /// The addresses of the other end and of this end of a TCP connection.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Tcp(stream) => Some((stream.peer_addr().ok()?, stream.local_addr().ok()?)),
            Self::Unix(_) => None,
        }
    }

    /// The address of the other end of a TCP connection.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|peer| peer.ip().to_canonical()),
            Self::Unix(_) => None,
        }
    }
}

impl ConnectInfo {
    fn of(stream: &Stream) -> io::Result<Self> {
        match stream {
            Stream::Tcp(_) => Ok(Self::Tcp),
            Stream::Unix(stream) => Ok(Self::Unix(Arc::new(UnixPeer::of(stream)?))),
        }
    }

    /// The user at the other end. `None` for another host, and for TCP.
    fn uid(&self) -> Option<u32> {
        match self {
            Self::Tcp | Self::Remote(_) => None,
            Self::Loopback(peer) => peer.uid(),
            Self::Unix(peer) => Some(peer.uid()),
        }
    }
}

impl ServerConnection {
    pub(super) fn new(stream: Stream, info: ConnectInfo, slot: ConnectionSlot) -> Self {
        Self {
            stream,
            info,
            first_byte_timeout: Some(Box::pin(tokio::time::sleep(FIRST_BYTE_TIMEOUT))),
            evicted: Box::pin(slot.evicted().clone().cancelled_owned()),
            slot,
        }
    }

    /// The address of the other end of a TCP connection.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.stream.peer_ip()
    }

    /// Gives back its slot and takes `slot` instead.
    pub(super) fn set_slot(&mut self, slot: ConnectionSlot) {
        self.evicted = Box::pin(slot.evicted().clone().cancelled_owned());
        self.slot = slot;
    }

    /// Cancelled when the connection must close in favour of another.
    pub(super) fn evicted(&self) -> CancellationToken {
        self.slot.evicted().clone()
    }

    /// An error once the connection is evicted. Wakes `context` when that happens.
    fn check_slot(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.evicted.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

/// Accepts connections on `listener` until `stop`. Closes those that get no slot from `connection_limits`.
pub(crate) async fn accept(
    listener: Arc<ServerListener>,
    connection_limits: ConnectionLimits,
    refusals: Refusals,
    connections: mpsc::Sender<ServerConnection>,
    stop: CancellationToken,
) {
    let accepting = accept_all(&listener, &connection_limits, &refusals, &connections);
    stop.run_until_cancelled(accepting).await;
    refusals.flush();
}

/// Accepts connections until their receiver is gone.
async fn accept_all(
    listener: &ServerListener,
    connection_limits: &ConnectionLimits,
    refusals: &Refusals,
    connections: &mpsc::Sender<ServerConnection>,
) {
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let address = stream.peer_ip();
        let info = match ConnectInfo::of(&stream) {
            Ok(info) => info,
            Err(error) => {
                let peer = RefusedPeer { uid: None, address };
                refusals.add(RefusalReason::UnknownPeer, peer, Some(error.to_string()));
                continue;
            }
        };
        let uid = info.uid();
        let peer = RefusedPeer { uid, address };
        let Some(slot) = connection_limits.take(uid) else {
            refusals.add(RefusalReason::NoSlot, peer, None);
            continue;
        };
        if slot.replaced_another() {
            refusals.add(RefusalReason::Replaced, peer, None);
        }
        if connections.send(ServerConnection::new(stream, info, slot)).await.is_err() {
            return;
        }
    }
}

impl AsyncRead for ServerConnection {
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
            self.first_byte_timeout = None;
            self.slot.mark_active();
        }
        self.check_slot(context)?;
        if read.is_pending()
            && let Some(deadline) = &mut self.first_byte_timeout
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_slot(context)?;
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
        self.check_slot(context)?;
        // Other connections have answers whose last frame is whole, and waits.
        let joins = matches!(self.info, ConnectInfo::Loopback(_))
            && bytes.iter().map(|part| part.len()).sum::<usize>() >= WHOLE_FRAME;
        match &mut self.stream {
            Stream::Tcp(stream) if joins => poll_write_more(stream, context, bytes),
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// Writes what more follows at once: the kernel joins the frames of an answer into packets as large as the loopback takes.
/// A packet for each frame, with a wakeup of the client, would cost more than the copy of its bytes. What does not fill a
/// packet waits for the next write, at most 200 ms.
fn poll_write_more(
    stream: &TcpStream,
    context: &mut Context<'_>,
    bytes: &[io::IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let send = || {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        Ok(rustix::net::sendmsg(stream, bytes, &mut SendAncillaryBuffer::default(), flags)?)
    };
    loop {
        ready!(stream.poll_write_ready(context))?;
        match stream.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        self.info.clone()
    }
}
