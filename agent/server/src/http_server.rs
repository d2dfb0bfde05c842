//! The HTTP server on the loopback: read-only, for scrapers, probes and scripts.
//!
//! A web page of another site must not read it through the user's browser: the Host header must name this host, and no
//! response has a CORS header.

use std::{convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use export::TextFormat;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::debug;

use super::{
    connection_limits::{ConnectionLimits, LimitPolicy},
    connections::{ServerConnection, ServerListener, accept},
    host_api::{HistoryQuery, HostApi},
    refusals::Refusals,
};
use crate::ServeResult;

/// The longest wait for the headers of the next request. Idle connections are closed after it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest request line and headers.
const REQUEST_BYTES: usize = 16 << 10;

const INDEX: &str = "\
tpuscope agent (read-only)

/metrics          metrics in the Prometheus text or OpenMetrics format
/healthz          200 while the sampler works
/readyz           200 once the agent has samples
/api/v1/status    the host, its chips and their owners (JSON)
/api/v1/samples   the latest values (JSON); ?metric=NAME, repeatable
/api/v1/history   past values, of a counter its rise per second (JSON); ?metric=NAME [&chip=N] [&last=10m] [&limit=N]
";

/// A whole response.
pub(super) type HttpResponse = Response<Full<Bytes>>;

/// Serves HTTP on `listener` until `stop`. Each request is checked against the present `allowed_hosts`.
///
/// # Errors
/// Why the server ended before `stop`.
pub async fn serve(
    listener: Arc<ServerListener>,
    host_api: Arc<HostApi>,
    allowed_hosts: watch::Receiver<Vec<String>>,
    max_connections: u16,
    stop: CancellationToken,
) -> ServeResult {
    let (queue, mut accepted) = mpsc::channel(1);
    let connection_limits = ConnectionLimits::new(max_connections, LimitPolicy::ReplaceLeastActive);
    let _accepting = AbortOnDropHandle::new(tokio::spawn(accept(
        listener,
        connection_limits,
        Refusals::of("http"),
        queue,
        stop.clone(),
    )));
    let mut connections = JoinSet::new();
    while let Some(connection) = accepted.recv().await {
        connections.spawn(serve_connection(
            connection,
            host_api.clone(),
            allowed_hosts.clone(),
            stop.clone(),
        ));
        // Finished tasks would stay in the set.
        while connections.try_join_next().is_some() {}
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_connection(
    connection: ServerConnection,
    host_api: Arc<HostApi>,
    hosts: watch::Receiver<Vec<String>>,
    stop: CancellationToken,
) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let response =
            respond_to(request.method(), request.uri(), request.headers(), &host_api, &hosts.borrow());
        debug!(method = %request.method(), uri = %request.uri(), status = response.status().as_u16(), "HTTP request");
        async { Ok::<_, Infallible>(response) }
    });
    let mut served = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(REQUEST_BYTES)
            .serve_connection(TokioIo::new(connection), service)
    );
    // An error of the connection concerns its client only.
    tokio::select! {
        _ = served.as_mut() => return,
        () = stop.cancelled() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

fn respond_to(
    method: &Method,
    uri: &http::Uri,
    headers: &HeaderMap,
    host_api: &HostApi,
    hosts: &[String],
) -> HttpResponse {
    if !names_this_host(uri, headers, hosts) {
        return text(
            StatusCode::FORBIDDEN,
            "the Host header does not name this host; use localhost or 127.0.0.1, or add the name to api.allowed_hosts\n",
        );
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response =
            text(StatusCode::METHOD_NOT_ALLOWED, "this address is read-only; use GET or HEAD\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let query = uri.query().unwrap_or_default();
    match uri.path() {
        "/" => text(StatusCode::OK, INDEX),
        "/metrics" => metrics(headers, host_api),
        "/healthz" => health(host_api.alive()),
        "/readyz" => health(host_api.ready()),
        "/api/v1/status" => answer_to(check_parameters(query, &[]), |()| json(&host_api.status())),
        "/api/v1/samples" => answer_to(check_parameters(query, &["metric"]), |()| {
            let metrics: Vec<String> = values(query, "metric").collect();
            json(&host_api.samples(&metrics))
        }),
        "/api/v1/history" => answer_to(history_query(query), |query| json(&host_api.history(&query))),
        _ => text(StatusCode::NOT_FOUND, "not found; / lists the pages\n"),
    }
}

/// The metrics page, in the format and encoding that the headers ask for.
pub(super) fn metrics(headers: &HeaderMap, host_api: &HostApi) -> HttpResponse {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = TextFormat::negotiate(accept);
    let page = host_api.metrics(format);
    let mut response = if accepts_gzip(headers) {
        let mut response = respond(StatusCode::OK, format.content_type(), gzip(page.as_bytes()));
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        respond(StatusCode::OK, format.content_type(), page)
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    response
}

/// Whether a client takes gzip: named with a quality above 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let named = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts
            .any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0)));
        gzip && !refused
    })
}

/// A page is tens of kilobytes of repetitive text: the fastest level makes a tenth of it.
fn gzip(page: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder =
        flate2::write::GzEncoder::new(Vec::with_capacity(page.len() / 8), flate2::Compression::fast());
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(page);
    encoder.finish().unwrap_or_default()
}

/// Health as a status code, with the reason as text.
pub(super) fn health(state: Result<(), &'static str>) -> HttpResponse {
    match state {
        Ok(()) => text(StatusCode::OK, "ok\n"),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

/// The answer to a query, or its fault.
fn answer_to<T>(query: Result<T, String>, answer: impl FnOnce(T) -> HttpResponse) -> HttpResponse {
    match query {
        Ok(query) => answer(query),
        Err(fault) => text(StatusCode::BAD_REQUEST, fault + "\n"),
    }
}

/// Refuses parameters that the page does not know.
fn check_parameters(query: &str, known: &[&str]) -> Result<(), String> {
    let unknown = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| !known.contains(&&**key));
    let Some((name, _)) = unknown else { return Ok(()) };
    let name = name.chars().take(60).collect::<String>();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Err(format!("there is no parameter `{}`; this page has: {known}", name.escape_debug()))
}

fn values<'a>(query: &'a str, name: &'static str) -> impl Iterator<Item = String> + 'a {
    form_urlencoded::parse(query.as_bytes())
        .filter(move |(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

/// What the query of `/api/v1/history` asks for; the error is the answer's text.
pub fn history_query(query: &str) -> Result<HistoryQuery, String> {
    check_parameters(query, &["metric", "chip", "last", "limit"])?;
    let one = |name| values(query, name).next();
    let number = |name: &'static str| match one(name) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| format!("`{name}` must be a number")),
    };
    let last = one("last").map(|text| text.parse::<model::unit::Duration>()).transpose();
    let last: Option<Duration> = last.map_err(|error| error.to_string())?.map(Into::into);
    if last.is_some_and(|last| last.is_zero()) {
        return Err("`last` is 0: expected more than 0s, such as `10m`".to_owned());
    }
    Ok(HistoryQuery {
        metric: one("metric").ok_or("the request names no metric; add ?metric=NAME")?,
        chip: number("chip")?,
        last,
        limit: number("limit")?,
    })
}

/// Whether the request names this host. Another name may point here through an attacker's DNS.
fn names_this_host(uri: &http::Uri, headers: &HeaderMap, allowed: &[String]) -> bool {
    let mut named = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (named.next(), named.next()) else { return false };
    let Some(host) = host.to_str().ok().and_then(|host| host.parse::<http::uri::Authority>().ok()) else {
        return false;
    };
    let ours = |name: &str| {
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || literal.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
            || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    };
    ours(host.host()) && uri.host().is_none_or(ours)
}

fn json(value: &impl serde::Serialize) -> HttpResponse {
    match serde_json::to_string(value) {
        Ok(text) => respond(StatusCode::OK, "application/json", text + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// A plain text.
pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        names_this_host(&"/metrics".parse().unwrap(), &headers, &["tpu-7.internal".to_owned()])
    }

    #[test]
    fn only_requests_that_name_this_host_are_answered() {
        for good in
            ["localhost", "LOCALHOST:4390", "127.0.0.1:4390", "127.9.9.9", "[::1]:4390", "tpu-7.internal:1"]
        {
            assert!(host(good), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:4390",
            "0.0.0.0",
            "",
            "a b",
            "127.0.0.1.evil",
        ] {
            assert!(!host(bad), "{bad}");
        }
        assert!(!names_this_host(&"/".parse().unwrap(), &HeaderMap::new(), &[]));
        let mut twice = HeaderMap::new();
        twice.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(!names_this_host(&"http://evil.example/".parse().unwrap(), &twice, &[]));
        twice.append(header::HOST, HeaderValue::from_static("localhost"));
        assert!(!names_this_host(&"/".parse().unwrap(), &twice, &[]));
    }

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let accepts = |encodings: &[&str]| {
            let mut headers = HeaderMap::new();
            for encoding in encodings {
                headers.append(header::ACCEPT_ENCODING, HeaderValue::from_str(encoding).unwrap());
            }
            accepts_gzip(&headers)
        };
        for taken in [&["gzip"][..], &["deflate, GZIP;q=0.5"], &["br", "gzip"], &["gzip; q=1"]] {
            assert!(accepts(taken), "{taken:?}");
        }
        for refused in [&[][..], &["identity"], &["gzip;q=0"], &["gzip;q=0.000, br"], &["x-gzip"], &["*"]] {
            assert!(!accepts(refused), "{refused:?}");
        }
        let page = "tpu_x{chip=\"0\"} 1\n".repeat(1000);
        let packed = gzip(page.as_bytes());
        assert!(packed.len() * 10 < page.len(), "{}", packed.len());
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut text).unwrap();
        assert_eq!(text, page);
    }

    #[test]
    fn a_history_query_is_parsed_or_refused() {
        let query = history_query("metric=tpu_x%5F&chip=3&last=10m&limit=5").unwrap();
        assert_eq!((query.metric.as_str(), query.chip, query.limit), ("tpu_x_", Some(3), Some(5)));
        assert_eq!(query.last, Some(Duration::from_secs(600)));
        assert!(history_query("").unwrap_err().contains("names no metric"));
        assert!(history_query("metric=x&chip=y").unwrap_err().contains("`chip` must be a number"));
        assert!(history_query("metric=x&last=5").unwrap_err().contains("no unit"));
        assert!(history_query("metric=x&last=0s").unwrap_err().contains("more than 0s"));
        assert_eq!(
            history_query("metrc=x&metric=y").unwrap_err(),
            "there is no parameter `metrc`; this page has: metric, chip, last, limit"
        );
    }

    #[test]
    fn an_unknown_parameter_is_refused_with_the_known_ones() {
        assert_eq!(check_parameters("", &["metric"]), Ok(()));
        assert_eq!(check_parameters("metric=a&metric=b", &["metric"]), Ok(()));
        for (query, known, fault) in [
            ("metrc=X", &["metric"][..], "there is no parameter `metrc`; this page has: metric"),
            ("metric=a&Metric=b", &["metric"], "there is no parameter `Metric`; this page has: metric"),
            ("v=1", &[], "there is no parameter `v`; this page has: none"),
        ] {
            assert_eq!(check_parameters(query, known), Err(fault.to_owned()));
        }
    }
}
