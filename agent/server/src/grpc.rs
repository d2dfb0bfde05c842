//! gRPC: the same server on the Unix socket and on the loopback; what a caller may do there is the [`AuthLayer`]'s.

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
    accept::{Listener, accept},
    auth_layer::AuthLayer,
    connection_limits::{ConnectionLimits, Rule},
};
use crate::Ended;

/// The longest that an answer may take to begin.
const ANSWER: Duration = Duration::from_secs(30);
const CALLS_PER_CONNECTION: u32 = 16;
const HEADER_BYTES: u32 = 8 << 10;
const WINDOW_BYTES: u32 = 64 << 10;
/// The longest request; ours are short.
pub const REQUEST_BYTES: usize = 64 << 10;
/// Streams that the other side opened and reset before they were seen.
const RESET_STREAMS: usize = 20;
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);

/// Health and the description of the services, which every door has.
pub fn common(health: HealthReporter) -> Result<Routes, tonic_reflection::server::Error> {
    let health =
        tonic_health::pb::health_server::HealthServer::new(HealthService::from_health_reporter(health))
            .max_decoding_message_size(REQUEST_BYTES);
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_file_descriptor_set(described())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(health).add_service(builder().build_v1()?).add_service(builder().build_v1alpha()?))
}

/// Our own services alone: the foreign packages are what we call, not what we serve.
fn described() -> FileDescriptorSet {
    let all = FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap_or_default();
    let own = all.file.into_iter().filter(|file| file.name() == "tpuscope/v1/agent.proto").collect();
    FileDescriptorSet { file: own }
}

/// Serves `routes` on `listener` behind `auth_layer` until `stop`.
pub async fn serve(
    listener: Arc<Listener>,
    auth_layer: AuthLayer,
    routes: Routes,
    most_connections: u16,
    stop: CancellationToken,
) -> Ended {
    let (queue, connections) = mpsc::channel(1);
    let rule = match *listener {
        Listener::Unix(_) => Rule::Users(Uid::effective().as_raw()),
        Listener::Tcp(_) => Rule::Yielding,
    };
    let connection_limits = ConnectionLimits::new(most_connections, rule);
    let _accepting =
        AbortOnDropHandle::new(tokio::spawn(accept(listener, connection_limits, queue, stop.clone())));
    Server::builder()
        .timeout(ANSWER)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
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
