//! An answer while it is made: its message in pieces, then its status.
//!
//! A gRPC library takes a message whole; here its bytes go out as they come, as fast as the client takes them.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use model::untrusted::clean;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Status,
    body::Body,
    codegen::http::{self, HeaderMap},
};

/// Pieces that wait for the client. A piece is at most as large as a frame of the workload.
const QUEUE: usize = 2;

/// The sending end of an answer.
#[derive(Debug, Clone)]
pub(super) struct Answer(mpsc::Sender<Frame<Bytes>>);

/// The client has hung up.
#[derive(Debug)]
pub(super) struct HungUp;

impl From<HungUp> for Status {
    fn from(_: HungUp) -> Self {
        Self::cancelled("the caller has hung up")
    }
}

/// The longest message of a status.
const MAX_MESSAGE: usize = 1000;

/// A status without what could disturb the terminal of a client: its message may quote a workload.
fn harmless(status: Status) -> Status {
    let message = clean(status.message(), MAX_MESSAGE);
    Status::with_metadata(status.code(), message, status.metadata().clone())
}

impl Answer {
    /// An answer that makes itself, and its response.
    pub(super) fn begin() -> (Self, http::Response<Body>) {
        let (frames, queue) = mpsc::channel(QUEUE);
        let body = StreamBody::new(ReceiverStream::new(queue).map(Ok::<_, Infallible>));
        let mut response = http::Response::new(Body::new(body));
        let content_type = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
        (Self(frames), response)
    }

    /// Sends a piece of the message once there is room for it.
    pub(super) async fn send(&self, piece: Bytes) -> Result<(), HungUp> {
        self.0.send(Frame::data(piece)).await.map_err(|_| HungUp)
    }

    /// The same on a thread that may block.
    pub(super) fn send_blocking(&self, piece: Bytes) -> Result<(), HungUp> {
        self.0.blocking_send(Frame::data(piece)).map_err(|_| HungUp)
    }

    /// Waits until the client hangs up.
    pub(super) async fn hung_up(&self) {
        self.0.closed().await;
    }

    /// Ends the answer with its status.
    pub(super) async fn end(self, result: Result<(), Status>) {
        let status = result.err().map_or_else(|| Status::ok(""), harmless);
        let mut trailers = HeaderMap::new();
        let trailers = match status.add_header(&mut trailers) {
            Ok(()) => trailers,
            Err(_) => HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static("13"),
            )]),
        };
        // The client may have hung up.
        let _ = self.0.send(Frame::trailers(trailers)).await;
    }
}
