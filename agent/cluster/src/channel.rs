//! gRPC over a stream that is already connected.

use std::{io, sync::Mutex, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Error},
};

/// A channel over `stream`, which is pinged after `keepalive` without data and ends when no answer comes for as long. There
/// is no second connection.
///
/// # Errors
/// If the other end closes the stream at once.
pub async fn over<S>(stream: S, keepalive: Duration) -> Result<Channel, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        let taken = stream.lock().ok().and_then(|mut stream| stream.take());
        async move { taken.map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // The name is only the authority of the requests.
    let endpoint = Endpoint::from_static("http://agent.invalid")
        .http2_keep_alive_interval(keepalive)
        .keep_alive_timeout(keepalive);
    endpoint.connect_with_connector(connector).await
}

/// Whether a call failed because the connection ended. Only errors of this side have a source.
pub fn ended(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// Whether that was because the other end answered no ping.
pub fn timed_out(status: &Status) -> bool {
    let sources = std::iter::successors(std::error::Error::source(status), |error| error.source());
    sources.filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_timeout)
}
