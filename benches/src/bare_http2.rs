//! A bare download over HTTP/2 and TLS: one request, one response, its bytes to a file. Nothing checks them.

use std::{
    convert::Infallible,
    fs::File,
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fakes::simulated_hosts::{PIECE, server_config};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::{Request, Response, body::Frame, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore, version::TLS13};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A server of some bytes, which ends with the process, and the files of its client.
#[derive(Debug)]
pub struct BareDownload {
    address: SocketAddr,
    client: PathBuf,
}

impl BareDownload {
    /// Serves so many bytes with the certificate in the folder `server`, to clients with that in `client`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(bytes: usize, server: &Path, client: &Path) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(server)));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(acceptor.clone(), stream, bytes));
                }
            });
        });
        Self { address, client: client.to_owned() }
    }

    /// Downloads all of it to a file, which is synced and removed. Returns how long that took.
    ///
    /// # Panics
    /// If it fails.
    pub fn download(&self, to: &Path) -> Duration {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begin = Instant::now();
        runtime.block_on(self.receive(to));
        let took = begin.elapsed();
        std::fs::remove_file(to).unwrap();
        took
    }

    async fn receive(&self, to: &Path) {
        let connector = TlsConnector::from(Arc::new(client_config(&self.client)));
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = connector.connect(name, stream).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("https://127.0.0.1/").body(Empty::<Bytes>::new()).unwrap();
        let mut body = sender.send_request(request).await.unwrap().into_body();
        let mut file = File::create(to).unwrap();
        while let Some(frame) = body.frame().await {
            file.write_all(frame.unwrap().data_ref().unwrap()).unwrap();
        }
        file.sync_all().unwrap();
        connection.abort();
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, bytes: usize) {
    stream.set_nodelay(true).unwrap();
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let respond = move |_| async move {
        let piece = Bytes::from(vec![7; PIECE]);
        let pieces = (0..bytes.div_ceil(PIECE)).map(move |number| {
            let left = bytes - number * PIECE;
            Ok::<_, Infallible>(Frame::data(piece.slice(..left.min(PIECE))))
        });
        Ok::<_, Infallible>(Response::new(StreamBody::new(tokio_stream::iter(pieces))))
    };
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // The client hangs up when it has all.
    let _ = server.serve_connection(TokioIo::new(stream), service_fn(respond)).await;
}

fn client_config(identity: &Path) -> ClientConfig {
    let read = |file: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(identity.join(file)).unwrap().map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add(read("ca.pem").swap_remove(0)).unwrap();
    let key = PrivateKeyDer::from_pem_file(identity.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let mut config =
        config.with_root_certificates(roots).with_client_auth_cert(read("cert.pem"), key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
