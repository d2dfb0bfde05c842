//! Sends messages to the collector over one connection, which is made when it is needed and again after a failure.
//!
//! Must never wait longer than the timeout for one message, and never have more than one read of its files under way: they may
//! be on a disk that hangs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use cluster::dial::{DialError, tcp};
use http::{Uri, uri::PathAndQuery};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use proto::opentelemetry::proto::collector::metrics::v1::ExportMetricsPartialSuccess;
use rustls::ClientConfig;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tonic::{
    Request, Status,
    client::Grpc,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use super::{
    collector_files::{self, CollectorFileError, CollectorFiles},
    encoded_codec::EncodedCodec,
    fault::OtlpError,
    settings::{CollectorUrl, OtlpSettings},
};

const EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// The largest answer in bytes: it has a number and a text.
const MAX_ANSWER: usize = 64 << 10;

/// Sends to one collector.
pub(super) struct OtlpSender {
    settings: Arc<OtlpSettings>,
    url: CollectorUrl,
    connection: Option<CollectorConnection>,
    /// A read that was not over in time.
    reading: Option<JoinHandle<Result<CollectorFiles, CollectorFileError>>>,
}

struct CollectorConnection {
    client: Grpc<Channel>,
    headers: MetadataMap,
}

impl OtlpSender {
    pub(super) fn new(settings: OtlpSettings, url: CollectorUrl) -> Self {
        Self { settings: Arc::new(settings), url, connection: None, reading: None }
    }

    /// Sends one message. Points that the collector did not take are in its answer.
    ///
    /// # Errors
    /// Why the collector did not take the message. The next one has a new connection.
    pub(super) async fn send(&mut self, message: Bytes) -> Result<ExportMetricsPartialSuccess, OtlpError> {
        let limit = self.settings.timeout.get();
        let sent = timeout(limit, self.exchange(message, limit)).await;
        let sent = sent.unwrap_or_else(|_| Err(OtlpError::silent(limit)));
        if sent.is_err() {
            self.connection = None;
        }
        sent
    }

    async fn exchange(
        &mut self,
        message: Bytes,
        limit: Duration,
    ) -> Result<ExportMetricsPartialSuccess, OtlpError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(limit).await?,
        };
        let connection = self.connection.insert(connection);
        let mut request = Request::new(message);
        *request.metadata_mut() = connection.headers.clone();
        connection.client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::from_static(EXPORT);
        let answer = connection.client.unary(request, path, EncodedCodec).await?;
        Ok(answer.into_inner().partial_success.unwrap_or_default())
    }

    async fn connect(&mut self, limit: Duration) -> Result<CollectorConnection, OtlpError> {
        let settings = Arc::clone(&self.settings);
        let reading = self
            .reading
            .get_or_insert_with(|| tokio::task::spawn_blocking(move || collector_files::read(&settings)));
        let read = reading.await;
        self.reading = None;
        let CollectorFiles { headers, tls } = read.unwrap_or_else(|_| Err(CollectorFileError::Unfinished))?;
        let client = Grpc::new(channel(&self.url, tls, limit)).max_decoding_message_size(MAX_ANSWER);
        Ok(CollectorConnection { client, headers })
    }
}

/// A channel to the collector. It connects at the first call, and again when the collector closed the connection between two.
fn channel(url: &CollectorUrl, tls: Option<ClientConfig>, limit: Duration) -> Channel {
    let endpoint = Endpoint::from(url.uri().clone()).connect_timeout(limit);
    let tcp = tower::service_fn(move |uri: Uri| async move {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or_default();
        let stream = tcp::connect(&host, port, Instant::now() + limit).await?;
        // A collector that stopped reading must not keep a connection that was given up.
        let most = u32::try_from(2 * limit.as_millis()).unwrap_or(u32::MAX);
        let _ = setsockopt(&stream, TcpUserTimeout, &most);
        Ok::<_, DialError>(TokioIo::new(stream))
    });
    let Some(tls) = tls else { return endpoint.connect_with_connector_lazy(tcp) };
    let tls =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http2().wrap_connector(tcp);
    endpoint.connect_with_connector_lazy(tls)
}
