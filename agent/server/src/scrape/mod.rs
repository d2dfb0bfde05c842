//! The metrics listener for a central Prometheus (`api.metrics`): the metrics page and health, nothing else.
//!
//! ```text
//! accept ── TLS handshake (5 s) ── rate limit ── basic authentication ── /metrics, /healthz, /readyz
//! ```
//!
//! It has its own thread, so that handshakes never run on the thread that samples. Password checks run on the
//! blocking pool of that thread, two at a time. Must never serve the names of the files of a process, or change
//! state.

mod active;
mod basic_auth;
mod rate_limit;
mod shape;
mod tls;
pub mod web_config;
mod yaml;

use std::{
    convert::Infallible,
    net::{IpAddr, TcpListener},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::time::Clock;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    ServeResult,
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ServerConnection, ServerListener, accept},
    host_api::HostApi,
    http_server::{HttpResponse, health, metrics, text},
    refusals::{RefusalReason, Refusals, RefusedPeer},
};
pub use active::ConfigurationError;
use active::{Active, Configuration, ConfigurationSource};
use basic_auth::AuthOutcome;

/// The longest that a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The longest wait for the next request's headers, idle connections included: Prometheus keeps its connection between
/// two scrapes, a minute apart by default.
const HEADERS: Duration = Duration::from_secs(150);
/// The longest line and headers of a request.
const REQUEST_BYTES: usize = 16 << 10;
/// The number of threads: two for password checks, and one for reading files, which may hang.
const BLOCKING_THREADS: usize = 3;

/// The listener with its configuration, before it serves.
pub struct ScrapeListener {
    listener: TcpListener,
    configuration: Arc<Configuration>,
    max_connections: u16,
}

/// Checks that a listener can be opened with this web configuration. Blocks.
///
/// # Errors
/// If it cannot.
pub fn check(
    web_config: Option<PathBuf>,
    plaintext: bool,
    clock: Arc<dyn Clock>,
) -> Result<(), ConfigurationError> {
    Configuration::open(ConfigurationSource { path: web_config, plaintext }, clock).map(|_| ())
}

impl ScrapeListener {
    /// Takes a bound `listener` and reads the web configuration at `web_config`, if any. `plaintext`: other hosts may
    /// read without TLS. Blocks.
    ///
    /// # Errors
    /// If the configuration cannot be used, or lacks TLS where plaintext is not allowed.
    pub fn open(
        listener: TcpListener,
        web_config: Option<PathBuf>,
        plaintext: bool,
        max_connections: u16,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConfigurationError> {
        let source = ConfigurationSource { path: web_config, plaintext };
        let configuration = Arc::new(Configuration::open(source, clock)?);
        Ok(Self { listener, configuration, max_connections })
    }

    /// Serves until `stop`, on a thread of its own.
    pub async fn serve(self: Arc<Self>, host_api: Arc<HostApi>, stop: CancellationToken) -> ServeResult {
        let (tell, ended) = oneshot::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(BLOCKING_THREADS)
                .build();
            let result = match runtime {
                Ok(runtime) => {
                    let result = runtime.block_on(self.run(host_api, stop));
                    // A thread that waits for a disk must not keep this one.
                    runtime.shutdown_background();
                    result
                }
                Err(error) => Err(error.to_string()),
            };
            // There is no receiver when the process ends.
            let _ = tell.send(result);
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(serve)
            .map_err(|error| format!("cannot start its thread: {error}"))?;
        ended.await.unwrap_or_else(|_| Err("its thread panicked".to_owned()))
    }

    async fn run(&self, host_api: Arc<HostApi>, stop: CancellationToken) -> ServeResult {
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let listener = Arc::new(ServerListener::Tcp(listener.map_err(|error| error.to_string())?));
        let (queue, mut accepted) = mpsc::channel(1);
        let limits = ConnectionLimits::new(self.max_connections, LimitPolicy::ReplaceLeastActive);
        let refusals = Refusals::of("metrics");
        let accepting = accept(listener, limits, refusals.clone(), queue, stop.clone());
        let _accepting = AbortOnDropHandle::new(tokio::spawn(accepting));
        let mut connections = JoinSet::new();
        while let Some(connection) = accepted.recv().await {
            let (configuration, host_api) = (self.configuration.clone(), host_api.clone());
            let server = Server { configuration, host_api, refusals: refusals.clone() };
            connections.spawn(server.converse(connection, stop.clone()));
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

/// What a connection needs.
struct Server {
    configuration: Arc<Configuration>,
    host_api: Arc<HostApi>,
    refusals: Refusals,
}

impl Server {
    /// One connection: the handshake, then requests.
    async fn converse(self, connection: ServerConnection, stop: CancellationToken) {
        let Some(address) = connection.peer_ip() else { return };
        let active = self.configuration.current().await;
        let Some(tls) = active.tls.clone() else {
            return self.requests(connection, address, false, stop).await;
        };
        let evicted = connection.evicted();
        let handshake = timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(connection));
        let fault = match stop.run_until_cancelled(handshake).await {
            None => return,
            Some(Ok(Ok(stream))) => return self.requests(stream, address, true, stop).await,
            Some(Ok(Err(error))) => error.to_string(),
            Some(Err(_)) => format!("not finished in {} s", HANDSHAKE.as_secs()),
        };
        // A connection that was closed in favour of another is counted as that.
        if !evicted.is_cancelled() {
            self.refuse(RefusalReason::Handshake, address, Some(fault));
        }
    }

    fn refuse(&self, reason: RefusalReason, address: IpAddr, detail: Option<String>) {
        self.refusals.add(reason, RefusedPeer { uid: None, address: Some(address) }, detail);
    }

    async fn requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        address: IpAddr,
        encrypted: bool,
        stop: CancellationToken,
    ) {
        let service = service_fn(|request: Request<Incoming>| async move {
            let active = self.configuration.current().await;
            // A connection from before TLS was enabled is closed.
            if active.tls.is_some() && !encrypted {
                return Ok::<_, Infallible>(text(StatusCode::UPGRADE_REQUIRED, "connect again with TLS\n"));
            }
            let mut answer = match self.refused(request.headers(), address, &active).await {
                Some(refused) => refused,
                None => page(request.method(), request.uri().path(), request.headers(), &self.host_api),
            };
            for (name, value) in &active.headers {
                if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                    answer.headers_mut().insert(name, value);
                }
            }
            Ok(answer)
        });
        let mut served = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .max_buf_size(REQUEST_BYTES)
                .serve_connection(TokioIo::new(stream), service)
        );
        // An error of the connection concerns its client only.
        tokio::select! {
            _ = served.as_mut() => return,
            () = stop.cancelled() => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
    }

    /// The answer to a request that exceeds a limit or has no right password.
    async fn refused(&self, headers: &HeaderMap, address: IpAddr, active: &Active) -> Option<HttpResponse> {
        if active.rate.as_ref().is_some_and(|rate| !rate.take(Instant::now())) {
            self.refuse(RefusalReason::RateLimit, address, None);
            return Some(text(StatusCode::TOO_MANY_REQUESTS, "too many requests (rate_limit)\n"));
        }
        let users = active.users.as_ref()?;
        let credentials = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match users.check(credentials, address).await {
            AuthOutcome::Accepted => None,
            AuthOutcome::Refused => {
                self.refuse(RefusalReason::Unauthorized, address, None);
                let mut answer = text(StatusCode::UNAUTHORIZED, "unauthorized\n");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
                Some(answer)
            }
            AuthOutcome::Limited => {
                self.refuse(RefusalReason::PasswordLimit, address, None);
                let why = "too many failed or waiting password checks\n";
                Some(text(StatusCode::TOO_MANY_REQUESTS, why))
            }
        }
    }
}

/// The answer to a request that is allowed.
fn page(method: &Method, path: &str, headers: &HeaderMap, host_api: &HostApi) -> HttpResponse {
    if method != Method::GET && method != Method::HEAD {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "this address is read-only: GET and HEAD\n");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match path {
        "/metrics" => metrics(headers, host_api),
        "/healthz" => health(host_api.alive()),
        "/readyz" => health(host_api.ready()),
        _ => text(StatusCode::NOT_FOUND, "this address serves /metrics, /healthz and /readyz\n"),
    }
}
