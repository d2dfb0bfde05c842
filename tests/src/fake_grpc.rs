//! A small gRPC server that can also misbehave: the ground of the fake metric services.
//!
//! It runs on a thread of its own, so that blocking and async tests use it alike, and ends when it is dropped.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use bytes::{BufMut, Bytes, BytesMut};
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, UnixListener},
    sync::oneshot,
    task::JoinSet,
};

/// What a call gets.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A good reply with this message.
    Message(Bytes),
    /// A gRPC status other than OK, with its text.
    Status(u16, String),
    /// The same with details: a `google.rpc.Status`.
    Detailed(u16, String, Bytes),
    /// No answer, ever.
    Hang,
    /// The reply after this long.
    Slow(Duration, Box<Reply>),
    /// A good gRPC status over these body bytes, taken as they are: wrong lengths, half a message.
    Raw(Bytes),
}

impl Reply {
    /// A good reply.
    pub fn of(message: &impl prost::Message) -> Self {
        Self::Message(message.encode_to_vec().into())
    }
}

/// How the server treats whole connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Manner {
    /// As it should.
    #[default]
    Polite,
    /// Accepts, and never says a word.
    Silent,
    /// Accepts, and answers with bytes that are no HTTP/2.
    Garbage,
}

/// Answers calls; given the path and the request message (without its prefix).
pub type Handler = Arc<dyn Fn(&str, &[u8]) -> Reply + Send + Sync>;

/// Where to listen.
#[derive(Debug, Clone)]
pub enum ServerAddress {
    /// A TCP address; `[::]:0` is dual stack.
    Tcp(SocketAddr),
    /// A TCP address that several processes may share (SO_REUSEPORT), as gRPC servers do.
    SharedTcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

type Body = BoxBody<Bytes, Infallible>;

/// The running server.
pub struct GrpcServer {
    address: Option<SocketAddr>,
    calls: Arc<Mutex<BTreeMap<String, u64>>>,
    connections: Arc<Mutex<u64>>,
    headers: Arc<Mutex<HeaderMap>>,
    manner: Arc<Mutex<Manner>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Shared {
    handler: Handler,
    calls: Arc<Mutex<BTreeMap<String, u64>>>,
    connections: Arc<Mutex<u64>>,
    headers: Arc<Mutex<HeaderMap>>,
    manner: Arc<Mutex<Manner>>,
}

impl GrpcServer {
    /// Listens and serves until it is dropped.
    ///
    /// # Panics
    /// If it cannot listen there.
    pub fn start(listen: ServerAddress, handler: Handler) -> Self {
        let shared = Shared {
            handler,
            calls: Arc::default(),
            connections: Arc::default(),
            headers: Arc::default(),
            manner: Arc::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let (ready, bound) = mpsc::channel();
        let serving = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                tokio::select! {
                    () = serve(listen, serving, ready) => {}
                    _ = stopped => {}
                }
            });
        });
        let address = bound.recv().expect("the fake service listens");
        Self {
            address,
            calls: shared.calls,
            connections: shared.connections,
            headers: shared.headers,
            manner: shared.manner,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens, if on TCP.
    ///
    /// # Panics
    /// If it listens on a Unix socket.
    pub fn address(&self) -> SocketAddr {
        self.address.expect("a TCP listener")
    }

    /// Where it listens, if on TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// How often each path was called.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.calls.lock().unwrap().clone()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        *self.connections.lock().unwrap()
    }

    /// The headers of the last call.
    pub fn headers(&self) -> HeaderMap {
        self.headers.lock().unwrap().clone()
    }

    /// How connections accepted from now on are treated.
    pub fn set_manner(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server's thread has already been printed.
            let _ = thread.join();
        }
    }
}

async fn serve(listen: ServerAddress, shared: Shared, ready: mpsc::Sender<Option<SocketAddr>>) {
    // Connections end with the set, and with it the server's thread.
    let mut connections = JoinSet::new();
    match listen {
        ServerAddress::Unix(path) => {
            let listener = bind_unix(&path);
            ready.send(None).unwrap();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(connection(stream, shared.clone()));
                }
            }
        }
        ServerAddress::Tcp(address) | ServerAddress::SharedTcp(address) => {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.set_reuseport(matches!(listen, ServerAddress::SharedTcp(_))).unwrap();
            socket.bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
            let listener = socket.listen(64).unwrap();
            ready.send(Some(listener.local_addr().unwrap())).unwrap();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    stream.set_nodelay(true).unwrap();
                    connections.spawn(connection(stream, shared.clone()));
                }
            }
        }
    }
}

fn bind_unix(path: &Path) -> UnixListener {
    UnixListener::bind(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

async fn connection<S>(mut stream: S, shared: Shared)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    *shared.connections.lock().unwrap() += 1;
    let manner = *shared.manner.lock().unwrap();
    match manner {
        Manner::Polite => {
            let service = service_fn(move |request| call(request, shared.clone()));
            // The client may leave at any time; that is no fault of the fake's.
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
        Manner::Silent => {
            let mut sink = [0; 1024];
            while matches!(stream.read(&mut sink).await, Ok(read) if read > 0) {}
        }
        Manner::Garbage => {
            let _ = stream.write_all(&[0xee; 4096]).await;
            let mut sink = [0; 1024];
            while matches!(stream.read(&mut sink).await, Ok(read) if read > 0) {}
        }
    }
}

async fn call(request: Request<Incoming>, shared: Shared) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    *shared.calls.lock().unwrap().entry(path.clone()).or_default() += 1;
    *shared.headers.lock().unwrap() = request.headers().clone();
    let bytes = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(status(13, "the request was cut off")),
    };
    let reply = (shared.handler)(&path, &message_of(&bytes));
    Ok(answer(reply).await)
}

/// The message of a body, without its prefix. One that is compressed, as those of collectors are, is unpacked.
fn message_of(body: &Bytes) -> Bytes {
    let message = if body.len() < 5 { Bytes::new() } else { body.slice(5..) };
    if body.first() != Some(&1) {
        return message;
    }
    let mut unpacked = Vec::new();
    GzDecoder::new(&*message).read_to_end(&mut unpacked).expect("gzip is the only compression");
    unpacked.into()
}

fn answer(reply: Reply) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
    Box::pin(async move {
        match reply {
            Reply::Message(message) => {
                let mut framed = BytesMut::with_capacity(message.len() + 5);
                framed.put_u8(0);
                framed.put_u32(u32::try_from(message.len()).unwrap());
                framed.put_slice(&message);
                good(framed.freeze())
            }
            Reply::Raw(body) => good(body),
            Reply::Status(code, text) => status(code, &text),
            Reply::Detailed(code, text, details) => {
                let mut answer = status(code, &text);
                let details = BASE64_STANDARD_NO_PAD.encode(details).parse().unwrap();
                answer.headers_mut().insert("grpc-status-details-bin", details);
                answer
            }
            Reply::Hang => std::future::pending().await,
            Reply::Slow(delay, reply) => {
                tokio::time::sleep(delay).await;
                answer(*reply).await
            }
        }
    })
}

fn good(body: Bytes) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [Ok(Frame::data(body)), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(tokio_stream::iter(frames)).boxed();
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

fn status(code: u16, text: &str) -> Response<Body> {
    let text: String = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code.to_string())
        .header("grpc-message", text)
        .body(Full::default().boxed())
        .unwrap()
}
