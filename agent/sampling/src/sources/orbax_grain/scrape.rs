//! One HTTP GET of `/metrics`, bounded in time and bytes.

use std::io::ErrorKind;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use model::{
    untrusted::{MESSAGE, clean},
    workload::Address,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use super::{DEADLINE, LONGEST_PAGE};
use crate::sources::grpc::CONNECT_DEADLINE;

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeError {
    /// Nothing listens there.
    #[error("nothing listens there now ({0})")]
    Refused(ErrorKind),
    /// The system does not connect.
    #[error("it cannot be connected to ({0})")]
    Unconnectable(ErrorKind),
    /// Too slow.
    #[error("no page within {} ms", DEADLINE.as_millis())]
    Deadline,
    /// Another protocol, or a broken connection.
    #[error("the answer is no HTTP: {0}")]
    NotHttp(String),
    /// Not OK.
    #[error("it answers with HTTP status {0}")]
    Status(u16),
    /// Too much, or broken off.
    #[error("the page was not read to its end ({0}; at most {limit} KiB are)", limit = LONGEST_PAGE / 1024)]
    Body(String),
    /// No text.
    #[error("the page is no text")]
    NotText,
}

/// The page.
pub(super) async fn get(address: &Address) -> Result<String, ScrapeError> {
    let refused = |error: std::io::Error| match error.kind() {
        kind @ (ErrorKind::ConnectionRefused | ErrorKind::NotFound) => ScrapeError::Refused(kind),
        kind => ScrapeError::Unconnectable(kind),
    };
    let connecting = async {
        match address {
            Address::Tcp(at) => TcpStream::connect(at).await.map(Stream::Tcp),
            Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        }
    };
    let stream =
        timeout(CONNECT_DEADLINE, connecting).await.map_err(|_| ScrapeError::Deadline)?.map_err(refused)?;
    let asking = async {
        match stream {
            Stream::Tcp(stream) => ask(stream).await,
            Stream::Unix(stream) => ask(stream).await,
        }
    };
    timeout(DEADLINE, asking).await.unwrap_or(Err(ScrapeError::Deadline))
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn ask<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Result<String, ScrapeError> {
    let not_http = |error: hyper::Error| ScrapeError::NotHttp(clean(&error.to_string(), MESSAGE));
    let (mut send, connection) = http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(not_http)?;
    let request = Request::get("/metrics")
        .header("host", "localhost")
        .header("accept", "text/plain")
        .header("connection", "close")
        .body(Empty::new())
        .expect("a request of well-formed parts");
    let page = async {
        let response = send.send_request(request).await.map_err(not_http)?;
        if response.status() != http::StatusCode::OK {
            return Err(ScrapeError::Status(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), LONGEST_PAGE).collect().await;
        let body = body.map_err(|error| ScrapeError::Body(clean(&error.to_string(), MESSAGE)))?;
        String::from_utf8(body.to_bytes().into()).map_err(|_| ScrapeError::NotText)
    };
    tokio::pin!(page, connection);
    tokio::select! {
        page = &mut page => page,
        ended = &mut connection => match ended {
            // All bytes are here; the page is what is left to be put together.
            Ok(()) => page.await,
            Err(error) => page.await.map_err(|_| not_http(error)),
        },
    }
}
