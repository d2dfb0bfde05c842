//! The gRPC server, used for the Unix socket, for TCP and for mutual TLS. The [`AuthLayer`] decides what a caller may do.

use std::{convert::Infallible, sync::Arc, time::Duration};

use nix::unistd::Uid;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{
    service::Routes,
    transport::{Server, server::Connected},
};
use tonic_health::server::{HealthReporter, HealthService};

use super::{
    auth_layer::AuthLayer,
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ConnectInfo, ServerListener, accept},
    reflection,
    refusals::Refusals,
};
use crate::ServeResult;

/// The longest time until the first byte of an answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const CALLS_PER_CONNECTION: u32 = 16;
const HEADER_BYTES: u32 = 8 << 10;
const WINDOW_BYTES: u32 = 64 << 10;
/// The largest request message.
pub const REQUEST_BYTES: usize = 64 << 10;
/// Streams that the peer opened and reset before the server handled them.
const RESET_STREAMS: usize = 20;
pub(crate) const LOOPBACK_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) };
/// Where the caller may be on another host, also behind the Unix socket (`tpuscope dial-stdio`): a cut cable shows in nothing
/// else.
pub(crate) const REMOTE_KEEPALIVE: Keepalive =
    Keepalive { interval: Duration::from_secs(5), timeout: Duration::from_secs(5) };

/// How a connection without data is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keepalive {
    /// The time without data after which the peer is pinged.
    interval: Duration,
    /// The time that it has to answer.
    timeout: Duration,
}

/// The services of every listener: health and reflection.
pub fn health_and_reflection(health: HealthReporter) -> Routes {
    let health =
        tonic_health::pb::health_server::HealthServer::new(HealthService::from_health_reporter(health))
            .max_decoding_message_size(REQUEST_BYTES);
    reflection::add_to(Routes::new(health))
}

/// Serves `routes` on `listener`, behind `auth_layer`, until `stop`.
///
/// # Errors
/// Why the server ended before `stop`.
pub async fn serve(
    listener: Arc<ServerListener>,
    auth_layer: AuthLayer,
    routes: Routes,
    max_connections: u16,
    stop: CancellationToken,
) -> ServeResult {
    let (queue, connections) = mpsc::channel(1);
    let (policy, keepalive) = match *listener {
        ServerListener::Unix(_) => (LimitPolicy::ByUser(Uid::effective().as_raw()), REMOTE_KEEPALIVE),
        ServerListener::Tcp(_) => (LimitPolicy::ReplaceLeastActive, LOOPBACK_KEEPALIVE),
    };
    let connection_limits = ConnectionLimits::new(max_connections, policy);
    let refusals = Refusals::of(listener.grpc_name());
    let _accepting = AbortOnDropHandle::new(tokio::spawn(accept(
        listener,
        connection_limits,
        refusals,
        queue,
        stop.clone(),
    )));
    serve_connections(connections, auth_layer, routes, keepalive, stop).await
}

/// Serves `routes` on connections that were accepted, behind `auth_layer`, until `stop`.
///
/// # Errors
/// Why the server ended before `stop`.
pub(crate) async fn serve_connections<C>(
    connections: mpsc::Receiver<C>,
    auth_layer: AuthLayer,
    routes: Routes,
    keepalive: Keepalive,
    stop: CancellationToken,
) -> ServeResult
where
    C: AsyncRead + AsyncWrite + Connected<ConnectInfo = ConnectInfo> + Unpin + Send + 'static,
{
    Server::builder()
        .timeout(RESPONSE_TIMEOUT)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS))
        .http2_keepalive_interval(Some(keepalive.interval))
        .http2_keepalive_timeout(Some(keepalive.timeout))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .layer(auth_layer)
        .serve_with_incoming_shutdown(
            routes.prepare(),
            ReceiverStream::new(connections).map(Ok::<_, Infallible>),
            stop.cancelled_owned(),
        )
        .await
        .map_err(|error| error.to_string())
}
