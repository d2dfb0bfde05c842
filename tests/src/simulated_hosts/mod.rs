//! Many hosts of a job in one process: each an agent over mutual TLS on a port of its own, with a clock that is wrong and a
//! network that is slow, unequal in its two ways, and uneven.
//!
//! They speak the real API. What a capture claims of clocks and starts is compared with what is true here.

mod bounds_check;
mod delay_line;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    pin::Pin,
    sync::{Arc, mpsc as std_mpsc},
    task::{Context, Poll},
    thread,
    time::Duration,
};

pub use bounds_check::BoundsCheck;
use bytes::Bytes;
pub use delay_line::{DelayLine, NetworkPath};
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier, version::TLS13};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::{JoinSet, LocalSet},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::fake_agent::FakeAgent;

/// What a real agent sends at a time.
pub const PIECE: usize = 128 << 10;
/// The bytes between a host and its end of the network.
const BUFFER: usize = 1 << 20;

/// What is true of a host.
#[derive(Debug, Clone, Copy)]
pub struct TrueHost {
    /// Its clock is ahead by this, nanoseconds.
    pub ahead_ns: i64,
    /// The way to it; none: nothing is delayed.
    pub path: Option<NetworkPath>,
}

impl TrueHost {
    /// One of the many: a clock that is wrong by up to 10 s, delays of 0.2 to 20 ms, unequal in the two ways, and jitter of up
    /// to a quarter of them.
    pub fn random(random: &mut fastrand::Rng) -> Self {
        // As many short delays as long ones: the exponents are what is even.
        let mut delay = || Duration::from_secs_f64(0.0002 * 100_f64.powf(random.f64()));
        let (there, back) = (delay(), delay());
        let jitter = there.max(back) / 4;
        let ahead_ns = random.i64(-10_000_000_000..=10_000_000_000);
        Self { ahead_ns, path: Some(NetworkPath { there, back, jitter }) }
    }
}

/// Hosts that run; they end when this is dropped.
#[derive(Debug)]
pub struct SimulatedHosts {
    hosts: Vec<RunningHost>,
    stop: Option<oneshot::Sender<()>>,
    line: DelayLine,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct RunningHost {
    address: SocketAddr,
    truth: TrueHost,
    starts: std_mpsc::Receiver<i64>,
}

/// A host, ready to serve.
struct BoundHost {
    agent: FakeAgent,
    listener: std::net::TcpListener,
    path: Option<NetworkPath>,
    started: std_mpsc::Sender<i64>,
}

impl SimulatedHosts {
    /// Starts hosts with these clocks and ways. Each has a part of so many bytes and the certificate in the folder, and wants
    /// to know the start so long before it.
    ///
    /// # Panics
    /// If they cannot be started.
    pub fn start(truths: &[TrueHost], part: usize, lead: Duration, identity: &Path) -> Self {
        let config = Arc::new(server_config(identity));
        let content: Bytes = (0..=250_u8).cycle().take(part).collect::<Vec<u8>>().into();
        let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        let (mut hosts, mut bound) = (Vec::new(), Vec::new());
        for (number, truth) in truths.iter().enumerate() {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            listener.set_nonblocking(true).unwrap();
            let (started, starts) = std_mpsc::channel();
            let address = listener.local_addr().unwrap();
            let agent = FakeAgent {
                host: format!("sim-{number:04}"),
                ahead_ns: truth.ahead_ns,
                part: format!("sim-{number:04}.xplane.pb"),
                size: content.len() as u64,
                sha256: sha256.clone(),
                content: content.clone(),
                piece: PIECE,
                keeps_time: true,
                lead,
                ..FakeAgent::default()
            };
            hosts.push(RunningHost { address, truth: *truth, starts });
            bound.push(BoundHost { agent, listener, path: truth.path, started });
        }
        let line = DelayLine::start();
        let (stop, stopped) = oneshot::channel();
        let network = line.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                for host in bound {
                    tokio::task::spawn_local(host.serve(Arc::clone(&config), network.clone()));
                }
                let _ = stopped.await;
            });
            runtime.shutdown_background();
        });
        Self { hosts, stop: Some(stop), line, thread: Some(thread) }
    }

    /// The hosts as a command takes them, one on each line.
    pub fn list(&self) -> String {
        self.hosts.iter().map(|host| format!("{}\n", host.address)).collect()
    }

    /// What is true of each host, and the last start that it was given, in the time of this machine, nanoseconds.
    ///
    /// # Panics
    /// If a host was given none since this was asked last.
    pub fn starts(&self) -> Vec<(TrueHost, i64)> {
        let start = |host: &RunningHost| {
            let given =
                host.starts.try_iter().last().unwrap_or_else(|| panic!("{} has no start", host.address));
            (host.truth, given - host.truth.ahead_ns)
        };
        self.hosts.iter().map(start).collect()
    }
}

impl Drop for SimulatedHosts {
    fn drop(&mut self) {
        self.line.stop();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BoundHost {
    async fn serve(self, config: Arc<ServerConfig>, line: DelayLine) {
        let Self { agent, listener, path, started } = self;
        let listener = TcpListener::from_std(listener).unwrap();
        let (accepted, connections) = mpsc::channel(16);
        let accepting = async move {
            let mut running = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (config, line, accepted) = (Arc::clone(&config), line.clone(), accepted.clone());
                running.spawn_local(accept(client, path, line, config, accepted));
                while running.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            () = accepting => {}
            () = agent.serve(ReceiverStream::new(connections), started) => {}
        }
    }
}

/// Brings a connection through the network to the host, which shakes hands.
async fn accept(
    client: TcpStream,
    path: Option<NetworkPath>,
    line: DelayLine,
    config: Arc<ServerConfig>,
    accepted: mpsc::Sender<io::Result<HostConnection>>,
) {
    let acceptor = TlsAcceptor::from(config);
    let Some(path) = path else {
        let _ = client.set_nodelay(true);
        if let Ok(stream) = acceptor.accept(HostEnd::Direct(client)).await {
            let _ = accepted.send(Ok(HostConnection(stream))).await;
        }
        return;
    };
    let (host, far) = tokio::io::duplex(BUFFER);
    let shaken = async {
        if let Ok(stream) = acceptor.accept(HostEnd::Delayed(host)).await {
            let _ = accepted.send(Ok(HostConnection(stream))).await;
        }
    };
    tokio::join!(line.connect(client, far, path), shaken);
}

/// TLS with the certificate in a folder, for clients with one of its authority.
///
/// # Panics
/// If the files cannot be used.
pub fn server_config(identity: &Path) -> ServerConfig {
    let certificates = |file: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(identity.join(file)).unwrap().map(Result::unwrap).collect()
    };
    let key = PrivateKeyDer::from_pem_file(identity.join("key.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificates("ca.pem").swap_remove(0)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(certificates("cert.pem"), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.send_tls13_tickets = 0;
    config
}

/// A host's end of its connection.
#[derive(Debug)]
enum HostEnd {
    Direct(TcpStream),
    Delayed(DuplexStream),
}

/// A connection after its handshake.
#[derive(Debug)]
struct HostConnection(TlsStream<HostEnd>);

impl Connected for HostConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for HostEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_read(context, buf),
            Self::Delayed(stream) => Pin::new(stream).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for HostEnd {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Delayed(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_flush(context),
            Self::Delayed(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Direct(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Delayed(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl AsyncRead for HostConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl AsyncWrite for HostConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
