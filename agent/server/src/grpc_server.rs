//! The gRPC server, used for the Unix socket and for TCP. The [`AuthLayer`] decides what a caller may do.

use std::{convert::Infallible, sync::Arc, time::Duration};

use nix::unistd::Uid;
use prost::Message;
use prost_types::FileDescriptorSet;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{service::Routes, transport::Server};
use tonic_health::server::{HealthReporter, HealthService};

use super::{
    auth_layer::AuthLayer,
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ServerListener, accept},
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
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// On the Unix socket: the caller may be on another host (`tpuscope dial-stdio`), and a cut cable shows in nothing else.
const SOCKET_KEEPALIVE: Duration = Duration::from_secs(5);

/// The services of every listener: health and reflection.
pub fn health_and_reflection(health: HealthReporter) -> Result<Routes, tonic_reflection::server::Error> {
    let health =
        tonic_health::pb::health_server::HealthServer::new(HealthService::from_health_reporter(health))
            .max_decoding_message_size(REQUEST_BYTES);
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(own_descriptors())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(health).add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

/// The agent's own services. The other packages are those that the agent calls.
fn own_descriptors() -> FileDescriptorSet {
    let all = FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap_or_default();
    let own = all.file.into_iter().filter(|file| file.name() == "tpuscope/v1/agent.proto").collect();
    FileDescriptorSet { file: own }
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
    let (policy, keepalive, keepalive_timeout) = match *listener {
        ServerListener::Unix(_) => {
            (LimitPolicy::ByUser(Uid::effective().as_raw()), SOCKET_KEEPALIVE, SOCKET_KEEPALIVE)
        }
        ServerListener::Tcp(_) => (LimitPolicy::ReplaceLeastActive, KEEPALIVE, KEEPALIVE_TIMEOUT),
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
    Server::builder()
        .timeout(RESPONSE_TIMEOUT)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS))
        .http2_keepalive_interval(Some(keepalive))
        .http2_keepalive_timeout(Some(keepalive_timeout))
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
