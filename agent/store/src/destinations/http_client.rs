//! The HTTP client of the bucket library: hyper with one TLS provider, made once for a worker of uploads.
//!
//! A request has no total time limit: it ends when nothing moved for the idle time. Must never send credentials in plain
//! text to another host, and never hold more of an answer than its caller says, at most [`MAX_ANSWER`].

use std::{
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector as StoreConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
        HttpResponse, HttpService,
    },
};
use tokio::{
    sync::OnceCell,
    time::{Instant, Sleep},
};

use super::{idle::IdleConnector, rate::SendRate};

/// The longest time for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The time after which an unused connection is closed, unless its owner says another.
const KEEP: Duration = Duration::from_secs(20);
/// The largest answer in bytes.
pub(crate) const MAX_ANSWER: usize = 16 << 20;

/// The paths of the machine's metadata server.
const METADATA: &str = "/computeMetadata/";

type Plain = Client<IdleConnector, PacedBody>;
type Tls = Client<HttpsConnector<IdleConnector>, PacedBody>;

/// The client. Clones share their connections.
#[derive(Clone)]
pub struct Transport(Arc<Inner>);

struct Inner {
    plain: Plain,
    /// Made with the first request that needs it: it reads all certificate authorities of the host.
    tls: OnceCell<Tls>,
    idle: Duration,
    keep: Duration,
    rate: SendRate,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("idle", &self.0.idle).finish_non_exhaustive()
    }
}

/// Why a request failed. The bucket library keeps it among the sources of its own error, where
/// [`TransportError::of`] finds it: the library's own classes are not public.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    #[error("{}", refusal(*.status, .code, .message))]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// Such as `NoSuchBucket`; empty if the answer has none.
        code: String,
        message: String,
        /// Whether the machine's metadata server answered, not the bucket.
        metadata: bool,
    },
    #[error("cannot connect to {server}: {why}")]
    Connect {
        /// Host and port.
        server: String,
        why: String,
    },
    /// The machine's account was asked for, because nothing else says who the agent is.
    #[error("no key file is named, and no metadata server answers at {server}: {why}")]
    NoMetadata {
        /// Host and port.
        server: String,
        why: String,
    },
    #[error("TLS with {server} failed: {why}")]
    Tls {
        /// Host and port.
        server: String,
        why: String,
    },
    #[error("the connection ended: {0}")]
    Interrupted(String),
    #[error("the answer is not one of HTTP: {0}")]
    NotHttp(String),
    #[error("nothing was sent or received for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("plain http is only for this host: {0} is not on the loopback")]
    PlainText(String),
    #[error("no certificate authority of this host can be read: {0}")]
    Authorities(String),
    #[error("the answer has more than {0} bytes")]
    Answer(usize),
}

impl TransportError {
    /// Whether an object cannot be made of these parts, whenever it is tried.
    pub(crate) fn refuses_parts(&self) -> bool {
        const CODES: [&str; 3] = ["InvalidPart", "InvalidPartOrder", "EntityTooSmall"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&code.as_str()))
    }

    /// The error of the request that made `error`.
    pub(crate) fn of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
    }
}

fn refusal(status: StatusCode, code: &str, message: &str) -> String {
    let texts = [code, message].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
    if texts.is_empty() { format!("status {status}") } else { format!("status {}: {texts}", status.as_u16()) }
}

/// The longest code or message of an answer that is kept.
const MAX_TEXT: usize = 200;

/// The text of `<name>…</name>` in an answer of a bucket.
fn element(body: &str, name: &str) -> String {
    let inner = body.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
    let text = inner.map_or("", |(text, _)| text);
    clean(text)
}

/// The start of a text of an answer, without what could confuse a terminal or log.
fn clean(text: &str) -> String {
    text.chars().take(MAX_TEXT).flat_map(char::escape_debug).collect()
}

/// The server of a request, as `host:port`.
fn host_and_port(uri: &Uri) -> String {
    let default = if uri.scheme() == Some(&http::uri::Scheme::HTTPS) { 443 } else { 80 };
    format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(default))
}

/// The CRC32C of an object, as the header `x-goog-hash` of an answer has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectCrc(pub(crate) u32);

impl Transport {
    /// A client that gives a request up when nothing moves for `idle`, and sends no faster than `rate`.
    pub fn new(idle: Duration, rate: SendRate) -> Self {
        Self::with(idle, KEEP, rate)
    }

    /// A client that keeps a connection for `keep` after a request. Its callers limit the time of a request.
    pub fn kept_for(keep: Duration) -> Self {
        Self::with(keep, keep, SendRate::default())
    }

    fn with(idle: Duration, keep: Duration, rate: SendRate) -> Self {
        let plain = Client::builder(TokioExecutor::new()).pool_idle_timeout(keep).build(connector(idle));
        Self(Arc::new(Inner { plain, tls: OnceCell::new(), idle, keep, rate }))
    }

    /// The rate that all share.
    pub(crate) fn rate(&self) -> SendRate {
        self.0.rate.clone()
    }

    async fn tls(&self) -> Result<&Tls, TransportError> {
        let (idle, keep) = (self.0.idle, self.0.keep);
        let make = || async move {
            let made = tokio::task::spawn_blocking(move || {
                let provider = rustls::crypto::ring::default_provider();
                let builder = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider);
                builder.map(|builder| builder.https_only().enable_http1().wrap_connector(connector(idle)))
            });
            let connector = made.await.map_err(|error| TransportError::Interrupted(error.to_string()))?;
            let connector = connector.map_err(|error| TransportError::Authorities(error.to_string()))?;
            Ok(Client::builder(TokioExecutor::new()).pool_idle_timeout(keep).build(connector))
        };
        self.0.tls.get_or_try_init(make).await
    }

    /// Sends a request and receives its whole answer, whatever its status; of more than `most` bytes it fails.
    pub(super) async fn exchange(
        &self,
        request: HttpRequest,
        most: usize,
    ) -> Result<(http::response::Parts, Bytes), HttpError> {
        let metadata = is_metadata(request.uri());
        let is_tls = request.uri().scheme() == Some(&http::uri::Scheme::HTTPS);
        let server = host_and_port(request.uri());
        let (parts, body) = request.into_parts();
        let request = http::Request::from_parts(parts, PacedBody::new(body, self.0.rate.clone()));
        let answer = if is_tls {
            let tls = self.tls().await.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            tls.request(request).await
        } else {
            check_plain(request.uri(), request.headers())
                .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            self.0.plain.request(request).await
        };
        let answer = answer.map_err(|error| {
            let (server, why) = (server.clone(), cause(&error).to_string());
            if let Some(fault) = tls_fault(&error) {
                let why = fault.to_string();
                HttpError::new(HttpErrorKind::Connect, TransportError::Tls { server, why })
            } else if error.is_connect() && metadata {
                HttpError::new(HttpErrorKind::Connect, TransportError::NoMetadata { server, why })
            } else if error.is_connect() {
                HttpError::new(HttpErrorKind::Connect, TransportError::Connect { server, why })
            } else {
                self.interrupted(&error)
            }
        })?;
        self.received(answer, most).await
    }

    /// A request of the bucket library. An answer that is no success is an error.
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let metadata = is_metadata(request.uri());
        let (parts, body) = self.exchange(request, MAX_ANSWER).await?;
        if parts.status.is_success() {
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        let text = String::from_utf8_lossy(&body);
        let (code, mut message) = (element(&text, "Code"), element(&text, "Message"));
        // What is missing, or why: the message alone is the same for each of them.
        let details = element(&text, "Details");
        if !details.is_empty() && details != message {
            message = if message.is_empty() { details } else { format!("{message} {details}") };
        }
        if let Some(to) = parts.headers.get(header::LOCATION).filter(|_| parts.status.is_redirection()) {
            // A query may hold what is secret.
            let to = String::from_utf8_lossy(to.as_bytes());
            message = format!("it redirects to {}", clean(to.split('?').next().unwrap_or_default()));
        }
        let refused = TransportError::Refused { status: parts.status, code, message, metadata };
        // Of a kind that the library does not try again: this crate decides that.
        Err(HttpError::new(HttpErrorKind::Unknown, refused))
    }

    /// The whole answer, with the object's checksum among its extensions: the library drops the header.
    async fn received(
        &self,
        answer: http::Response<Incoming>,
        most: usize,
    ) -> Result<(http::response::Parts, Bytes), HttpError> {
        let (mut parts, body) = answer.into_parts();
        if let Some(crc) = crc32c_of(&parts.headers) {
            parts.extensions.insert(ObjectCrc(crc));
        }
        match Limited::new(body, most).collect().await {
            Ok(body) => Ok((parts, body.to_bytes())),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(HttpError::new(HttpErrorKind::Decode, TransportError::Answer(most)))
            }
            Err(error) => Err(self.interrupted(&*error)),
        }
    }

    fn interrupted(&self, error: &(dyn std::error::Error + 'static)) -> HttpError {
        let cause = cause(error);
        match cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => {
                HttpError::new(HttpErrorKind::Timeout, TransportError::Idle(self.0.idle))
            }
            _ if is_not_http(error) => {
                HttpError::new(HttpErrorKind::Decode, TransportError::NotHttp(cause.to_string()))
            }
            _ => HttpError::new(HttpErrorKind::Interrupted, TransportError::Interrupted(cause.to_string())),
        }
    }
}

fn is_metadata(uri: &Uri) -> bool {
    uri.path().starts_with(METADATA)
}

/// Whether a request in plain text stays on this host, or asks the machine's metadata server without credentials.
fn check_plain(uri: &Uri, headers: &HeaderMap) -> Result<(), TransportError> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let metadata = is_metadata(uri) && !headers.contains_key(header::AUTHORIZATION);
    if loopback || metadata { Ok(()) } else { Err(TransportError::PlainText(host.to_owned())) }
}

fn connector(idle: Duration) -> IdleConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    IdleConnector::new(connector, idle)
}

/// The fault of TLS that made `error`. It is in errors of the system, which do not give it as their source.
fn tls_fault<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut causes = std::iter::successors(Some(error), |error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.map_or_else(|| error.source(), |inner| Some(inner as &(dyn std::error::Error + 'static)))
    });
    causes.find_map(|error| error.downcast_ref())
}

/// Whether an answer cannot be read.
fn is_not_http(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse))
}

/// The reason, which is at the end of the chain: the texts above it say only which step it was.
fn cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// The CRC32C in `x-goog-hash: crc32c=…,md5=…`, or in one of several such headers.
fn crc32c_of(headers: &HeaderMap) -> Option<u32> {
    let texts = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
    let hash = texts.flat_map(|text| text.split(',')).find_map(|hash| hash.trim().strip_prefix("crc32c="))?;
    let bytes: [u8; 4] = BASE64_STANDARD.decode(hash).ok()?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.send(request).await
    }
}

impl StoreConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

/// A request's body, in pieces that keep the rate.
struct PacedBody {
    body: HttpRequestBody,
    rest: Bytes,
    /// When `rest` may go on.
    wait: Option<Pin<Box<Sleep>>>,
    rate: SendRate,
}

impl PacedBody {
    fn new(body: HttpRequestBody, rate: SendRate) -> Self {
        Self { body, rest: Bytes::new(), wait: None, rate }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        } else {
            if self.rest.is_empty() {
                match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
                    other => return Poll::Ready(other),
                }
            }
            let length = self.rest.len().min(self.rate.piece());
            if let Some(at) = self.rate.take(length, Instant::now()) {
                let mut wait = Box::pin(tokio::time::sleep_until(at));
                let waited = wait.as_mut().poll(cx);
                if waited.is_pending() {
                    self.wait = Some(wait);
                    return Poll::Pending;
                }
            }
        }
        let length = self.rest.len().min(self.rate.piece());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        SizeHint::with_exact(self.body.size_hint().exact().unwrap_or(0) + rest)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn plain_text_stays_on_this_host() {
        let check = |uri: &str, token: bool| {
            let mut headers = HeaderMap::new();
            if token {
                headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer x"));
            }
            check_plain(&uri.parse().unwrap(), &headers).is_ok()
        };
        assert!(
            check("http://127.0.0.1:9/b/o", true)
                && check("http://[::1]:9/b", true)
                && check("http://localhost:9/b", true)
        );
        assert!(check("http://metadata.google.internal/computeMetadata/v1/x", false));
        assert!(!check("http://metadata.google.internal/computeMetadata/v1/x", true));
        assert!(!check("http://storage.example/b/o", false) && !check("http://10.0.0.1/b/o", true));
        assert!(!check("http://127.0.0.1.example/b", true));
    }

    #[test]
    fn a_server_is_named_with_its_port() {
        for (uri, server) in [
            ("https://storage.googleapis.com/b/o", "storage.googleapis.com:443"),
            ("http://169.254.169.254/computeMetadata/v1/x", "169.254.169.254:80"),
            ("http://127.0.0.1:9/b", "127.0.0.1:9"),
        ] {
            assert_eq!(host_and_port(&uri.parse().unwrap()), server);
        }
    }

    #[test]
    fn the_checksum_is_found_among_others() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                headers.append("x-goog-hash", HeaderValue::from_static(value));
            });
            crc32c_of(&headers)
        };
        assert_eq!(of(&["crc32c=yZRlqg==,md5=XrY7u+Ae7tCTyyK7j1rNww=="]), Some(0xc994_65aa));
        assert_eq!(of(&["md5=XrY7u+Ae7tCTyyK7j1rNww==", "crc32c=yZRlqg=="]), Some(0xc994_65aa));
        for none in [&[][..], &["md5=x"], &["crc32c="], &["crc32c=!!!!"], &["crc32c=yZRlqqqqqg=="]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
