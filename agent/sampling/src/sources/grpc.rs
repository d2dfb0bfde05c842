//! Unary gRPC calls over one kept HTTP/2 connection, all calls of a read in flight together.
//!
//! The connection is polled by a timer, and only during a read: answers arrive in many pieces, and a wake-up for each
//! would cost more than reading them. Between two reads there is no task, no traffic and no wake-up. Must never wait
//! beyond its deadlines or keep more of a reply than [`LONGEST_REPLY`].

use std::{
    future::Future,
    io::{self, Read, Write},
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, HeaderValue, Request, Uri, header::CONTENT_TYPE};
use model::{
    untrusted::{MESSAGE, clean},
    workload::Address,
};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};
use xprof::{framing, grpc_status::GrpcStatus};

use super::blocking::{BlockingSlots, Unanswered};

/// Looking up the paths of Unix sockets: those that hang may not take all blocking threads.
static PATH_LOOKUPS: LazyLock<BlockingSlots> = LazyLock::new(|| BlockingSlots::new(4));

/// How long a connection may take.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_millis(100);
/// How long the calls of one read may take together.
pub(super) const CALL_DEADLINE: Duration = Duration::from_millis(500);
/// The longest reply that is read.
pub(super) const LONGEST_REPLY: usize = 256 * 1024;

/// The time before the first poll: usually all answers have arrived by then.
const FIRST_LOOK: Duration = Duration::from_millis(3);
/// The time between two polls doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(24);
/// The flow-control window. More would let a peer use more memory of the agent.
const WINDOW: u32 = 1 << 20;
const LONGEST_HEADERS: u32 = 16 * 1024;

/// gRPC's NOT_FOUND.
pub(super) const NOT_FOUND: u32 = 5;
/// gRPC's UNIMPLEMENTED.
pub(super) const UNIMPLEMENTED: u32 = 12;

/// The reason why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum GrpcCallError {
    /// Nothing listens there.
    #[error("nothing listens there now ({0})")]
    Refused(String),
    /// The system does not connect.
    #[error("it cannot be connected to ({0})")]
    Unconnectable(String),
    /// No connection in time.
    #[error("no connection within {} ms", CONNECT_DEADLINE.as_millis())]
    ConnectDeadline,
    /// The connection broke, or never spoke HTTP/2.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// No answer in time.
    #[error("no answer within {} ms", CALL_DEADLINE.as_millis())]
    Deadline,
    /// An answer that is no gRPC.
    #[error("the answer is no gRPC: {0}")]
    NotGrpc(String),
    /// The answer is too long.
    #[error("the answer is longer than {} KiB", LONGEST_REPLY / 1024)]
    TooLong,
    /// The service returned an error.
    #[error("the service answers with status {code}: {text}")]
    Status {
        /// gRPC status code.
        code: u32,
        /// The message of the service, escaped.
        text: String,
    },
}

/// Why a reply cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the reply cannot be read: {0}")]
pub(super) struct Malformed(String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(clean(&error.to_string(), 80))
    }
}

impl From<xprof::wire::Error> for Malformed {
    fn from(error: xprof::wire::Error) -> Self {
        Self(error.to_string())
    }
}

/// A call that can be made again and again: path and framed message are built once.
#[derive(Debug, Clone)]
pub(super) struct UnaryCall {
    uri: Uri,
    body: Bytes,
}

impl UnaryCall {
    /// The call of `path` with `message`.
    pub(super) fn new(path: &'static str, message: &impl Message) -> Self {
        let uri = Uri::builder().scheme("http").authority("localhost").path_and_query(path);
        Self { uri: uri.build().expect("our paths are well-formed"), body: framing::framed(message) }
    }

    fn request(&self) -> Request<()> {
        let mut request = Request::post(self.uri.clone()).body(()).expect("a request of well-formed parts");
        let headers = request.headers_mut();
        headers.reserve(2);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        request
    }
}

trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A socket that does not block and wakes no task: its user polls it again.
struct Unwatched(Box<dyn Socket>);

fn now_or_later<T>(done: io::Result<T>) -> Poll<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}

impl AsyncRead for Unwatched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(now_or_later(self.0.read(buffer.initialize_unfilled())))?;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Unwatched {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        now_or_later(self.0.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        now_or_later(self.0.write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The socket closes when it is dropped.
        Poll::Ready(Ok(()))
    }
}

/// An open connection.
pub(super) struct GrpcConnection {
    send: SendRequest<Bytes>,
    driver: h2::client::Connection<Unwatched, Bytes>,
    broken: bool,
}

impl GrpcConnection {
    /// Connects, within [`CONNECT_DEADLINE`].
    pub(super) async fn open(address: &Address) -> Result<Self, GrpcCallError> {
        let refused = |error: io::Error| match error.kind() {
            kind @ (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
                GrpcCallError::Refused(kind.to_string())
            }
            kind => GrpcCallError::Unconnectable(kind.to_string()),
        };
        let opening = async {
            let stream: Box<dyn Socket> = match address {
                Address::Tcp(at) => {
                    let stream = TcpStream::connect(at).await.map_err(refused)?;
                    stream.set_nodelay(true).map_err(refused)?;
                    Box::new(stream.into_std().map_err(refused)?)
                }
                Address::Unix(path) => {
                    // A workload names the path, and its disk may hang: the look-up is for a blocking thread.
                    let (path, runtime) = (path.clone(), Handle::current());
                    let connect = move || runtime.block_on(UnixStream::connect(path));
                    let stream = PATH_LOOKUPS.run(CONNECT_DEADLINE, connect).await;
                    let stream = stream.map_err(|Unanswered| GrpcCallError::ConnectDeadline)?;
                    Box::new(stream.and_then(UnixStream::into_std).map_err(refused)?)
                }
            };
            let (send, driver) = h2::client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .max_header_list_size(LONGEST_HEADERS)
                .enable_push(false)
                .handshake(Unwatched(stream))
                .await
                .map_err(|error| broken(&error))?;
            Ok(Self { send, driver, broken: false })
        };
        timeout(CONNECT_DEADLINE, opening).await.unwrap_or(Err(GrpcCallError::ConnectDeadline))
    }

    /// Whether no further call can succeed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Makes all `calls` at the same time and returns their results in the same order, within [`CALL_DEADLINE`].
    pub(super) async fn all(&mut self, calls: &[&UnaryCall]) -> Vec<Result<Bytes, GrpcCallError>> {
        let mut slots: Vec<Slot> = calls.iter().map(|_| Slot::Unsent).collect();
        let deadline = Instant::now() + CALL_DEADLINE;
        let mut pause = FIRST_LOOK;
        while !self.advance(calls, &mut slots) && Instant::now() < deadline {
            sleep_until((Instant::now() + pause).min(deadline)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        // What is still open at the deadline becomes an error of its own; dropping it resets its stream.
        self.broken |= !slots.is_empty() && slots.iter().all(Slot::is_open);
        slots.into_iter().map(Slot::finish).collect()
    }

    /// Sends and receives what is possible without waiting; true when every call has its result.
    fn advance(&mut self, calls: &[&UnaryCall], slots: &mut [Slot]) -> bool {
        let cx = &mut Context::from_waker(Waker::noop());
        for (slot, call) in slots.iter_mut().zip(calls) {
            if matches!(slot, Slot::Unsent) && !self.send(cx, slot, call) {
                break;
            }
        }
        if !self.broken
            && let Poll::Ready(ended) = Pin::new(&mut self.driver).poll(cx)
        {
            self.broken = true;
            let error = ended.map_or_else(|error| broken(&error), |()| closed());
            let unsent = slots.iter_mut().filter(|slot| matches!(slot, Slot::Unsent));
            unsent.for_each(|slot| *slot = Slot::Done(Err(error.clone())));
        }
        let mut all = true;
        for slot in slots {
            all &= slot.advance(cx);
        }
        all
    }

    /// Sends one call; false when the peer takes no more at the moment.
    fn send(&mut self, cx: &mut Context<'_>, slot: &mut Slot, call: &UnaryCall) -> bool {
        let sent = match self.send.poll_ready(cx) {
            Poll::Pending => return false,
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => self
                .send
                .send_request(call.request(), false)
                .and_then(|(response, mut body)| body.send_data(call.body.clone(), true).map(|()| response)),
        };
        *slot = match sent {
            Ok(response) => Slot::Waiting(response),
            Err(error) => Slot::Done(Err(broken(&error))),
        };
        true
    }
}

/// Where one call is.
enum Slot {
    Unsent,
    Waiting(ResponseFuture),
    Reading(h2::RecvStream, BytesMut),
    Done(Result<Bytes, GrpcCallError>),
}

impl Slot {
    fn is_open(&self) -> bool {
        !matches!(self, Self::Done(_))
    }

    fn finish(self) -> Result<Bytes, GrpcCallError> {
        match self {
            Self::Done(result) => result,
            _ => Err(GrpcCallError::Deadline),
        }
    }

    /// Receives what has arrived; true when the call has its result.
    fn advance(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let next = match self {
                Self::Unsent => return false,
                Self::Done(_) => return true,
                Self::Waiting(response) => match Pin::new(response).poll(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(Err(error)) => Self::Done(Err(broken(&error))),
                    Poll::Ready(Ok(response)) => begin(response),
                },
                Self::Reading(stream, body) => match read(cx, stream, body) {
                    Poll::Pending => return false,
                    Poll::Ready(result) => Self::Done(result),
                },
            };
            *self = next;
        }
    }
}

/// Judges the headers of a response.
fn begin(response: http::Response<h2::RecvStream>) -> Slot {
    if response.status() != http::StatusCode::OK {
        return Slot::Done(Err(GrpcCallError::NotGrpc(format!(
            "HTTP status {}",
            response.status().as_u16()
        ))));
    }
    // A reply that consists of trailers alone carries its status here.
    if let Some(Err(error)) = status(response.headers()) {
        return Slot::Done(Err(error));
    }
    Slot::Reading(response.into_body(), BytesMut::new())
}

/// Reads the body and the trailers.
fn read(
    cx: &mut Context<'_>,
    stream: &mut h2::RecvStream,
    body: &mut BytesMut,
) -> Poll<Result<Bytes, GrpcCallError>> {
    while let Some(data) = ready!(stream.poll_data(cx)) {
        let data = match data {
            Ok(data) => data,
            Err(error) => return Poll::Ready(Err(broken(&error))),
        };
        if body.len() + data.len() > LONGEST_REPLY + framing::PREFIX_LEN {
            return Poll::Ready(Err(GrpcCallError::TooLong));
        }
        body.extend_from_slice(&data);
        // The window is given back as it is used; a stream that is over no longer takes it.
        let _ = stream.flow_control().release_capacity(data.len());
    }
    Poll::Ready(match ready!(stream.poll_trailers(cx)) {
        Err(error) => Err(broken(&error)),
        Ok(None) => Err(GrpcCallError::NotGrpc("it ends without a status".to_owned())),
        Ok(Some(trailers)) => match status(&trailers) {
            None => Err(GrpcCallError::NotGrpc("it ends without a status".to_owned())),
            Some(Err(error)) => Err(error),
            Some(Ok(())) => {
                let message = framing::unframed(std::mem::take(body).freeze());
                message.map_err(|error| GrpcCallError::NotGrpc(error.to_string()))
            }
        },
    })
}

/// The gRPC status in these headers, if there is one.
fn status(headers: &HeaderMap) -> Option<Result<(), GrpcCallError>> {
    let GrpcStatus { code, message } = GrpcStatus::of(headers)?;
    Some(if code == 0 { Ok(()) } else { Err(GrpcCallError::Status { code, text: clean(&message, MESSAGE) }) })
}

fn broken(error: &h2::Error) -> GrpcCallError {
    GrpcCallError::Broken(clean(&error.to_string(), MESSAGE))
}

fn closed() -> GrpcCallError {
    GrpcCallError::Broken("the peer closed it".to_owned())
}
