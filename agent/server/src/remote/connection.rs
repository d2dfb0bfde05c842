//! A connection of another host, after its handshake.

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use cluster::identity::role::Role;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::connections::{ConnectInfo, ServerConnection};

/// Who is at the other end, as the certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePeer {
    /// Its name, fit to be shown.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where it connected from.
    pub address: IpAddr,
}

/// For the log: `operator alice at 10.0.0.7`.
impl fmt::Display for RemotePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, role, address } = self;
        write!(f, "{role} {name} at {address}")
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct RemoteConnection {
    stream: TlsStream<ServerConnection>,
    peer: Arc<RemotePeer>,
}

impl RemoteConnection {
    pub(super) fn new(stream: TlsStream<ServerConnection>, peer: RemotePeer) -> Self {
        Self { stream, peer: Arc::new(peer) }
    }
}

impl Connected for RemoteConnection {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        ConnectInfo::Remote(Arc::clone(&self.peer))
    }
}

impl AsyncRead for RemoteConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for RemoteConnection {
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
