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

/// What this side saw of the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionLoss {
    /// The other end, or the network to it, did not answer any more.
    Silent,
    /// The other end closed it.
    Closed,
    /// The system ended it, for this reason.
    Failed(String),
}

/// How a connection ended on which a call failed.
pub fn loss(status: &Status) -> ConnectionLoss {
    let source = std::error::Error::source(status);
    let sources = || std::iter::successors(source, |error| error.source());
    if sources().filter_map(|error| error.downcast_ref::<hyper::Error>()).any(hyper::Error::is_timeout) {
        return ConnectionLoss::Silent;
    }
    let of_io = |error: &'_ (dyn std::error::Error + 'static)| {
        let of_h2 = || error.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
        error.downcast_ref::<io::Error>().or_else(of_h2).map(|error| (error.kind(), error.to_string()))
    };
    of_kind(sources().find_map(of_io))
}

fn of_kind(error: Option<(io::ErrorKind, String)>) -> ConnectionLoss {
    use io::ErrorKind as Kind;
    match error {
        None => ConnectionLoss::Closed,
        Some((Kind::BrokenPipe | Kind::ConnectionReset | Kind::UnexpectedEof | Kind::NotConnected, _)) => {
            ConnectionLoss::Closed
        }
        // Packets that nobody acknowledges end a connection before a ping that nobody answers does.
        Some((Kind::TimedOut | Kind::HostUnreachable | Kind::NetworkUnreachable, _)) => {
            ConnectionLoss::Silent
        }
        Some((_, text)) => ConnectionLoss::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_cut_is_no_end_by_the_other_side() {
        let of = |code: i32| {
            let error = io::Error::from_raw_os_error(code);
            of_kind(Some((error.kind(), error.to_string())))
        };
        for code in [nix::libc::ETIMEDOUT, nix::libc::EHOSTUNREACH, nix::libc::ENETUNREACH] {
            assert_eq!(of(code), ConnectionLoss::Silent, "{code}");
        }
        for code in [nix::libc::ECONNRESET, nix::libc::EPIPE] {
            assert_eq!(of(code), ConnectionLoss::Closed, "{code}");
        }
        assert_eq!(of_kind(None), ConnectionLoss::Closed);
        let ConnectionLoss::Failed(text) = of(nix::libc::ENETDOWN) else { panic!("another loss") };
        assert!(text.starts_with("Network is down"), "{text}");
    }

    #[test]
    fn the_reason_is_found_below_the_error_of_a_call() {
        let error = io::Error::from(io::ErrorKind::TimedOut);
        let status = Status::from_error(Box::new(error));
        assert_eq!(loss(&status), ConnectionLoss::Silent);
    }
}
