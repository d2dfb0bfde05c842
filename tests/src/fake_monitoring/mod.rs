//! Cloud Monitoring as a writer of points sees it, on a loopback port: `projects.timeSeries.create` of its REST API.
//!
//! It must accept nothing that the service refuses: [`rules`] has its rules, and what breaks one is refused and kept as a
//! violation.

mod rules;

use std::{
    convert::Infallible,
    error::Error,
    future::pending,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use rules::SeriesBook;

use crate::server_thread::ServerThread;

/// How the server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitoringManner {
    /// As the service.
    Sound,
    /// Never.
    Hang,
    /// With the end of the connection.
    Cut,
    /// With this status, and the reason of a `google.rpc.ErrorInfo`.
    Status(u16, &'static str),
    /// With this status to all but the first so many requests.
    StatusAfter(usize, u16),
    /// 200 and a page, as a proxy that asks for a password.
    Page,
}

/// A request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitoringRequest {
    /// Its path.
    pub path: String,
    /// Its `Authorization` header.
    pub authorization: Option<String>,
    /// The series in it.
    pub series: usize,
}

struct State {
    manner: MonitoringManner,
    book: SeriesBook,
    requests: Vec<MonitoringRequest>,
    series: Vec<Value>,
    violations: Vec<String>,
    /// Its clock; `None`: that of this host.
    now: Option<Timestamp>,
    clock_offset: SignedDuration,
}

impl State {
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(Timestamp::now) + self.clock_offset
    }
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().expect("no owner of the lock panics")
}

/// The running server; ends when dropped.
pub struct FakeMonitoring {
    state: Shared,
    thread: ServerThread,
}

impl FakeMonitoring {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State {
            manner: MonitoringManner::Sound,
            book: SeriesBook::default(),
            requests: Vec::new(),
            series: Vec::new(),
            violations: Vec::new(),
            now: None,
            clock_offset: SignedDuration::ZERO,
        }));
        let serving = Arc::clone(&state);
        let thread =
            ServerThread::start((Ipv4Addr::LOCALHOST, 0).into(), |listener| serve(listener, serving));
        Self { state, thread }
    }

    /// The base URL of its REST API.
    pub fn url(&self) -> String {
        format!("http://{}", self.thread.address())
    }

    /// How it answers from now on.
    pub fn set_manner(&self, manner: MonitoringManner) {
        let mut state = lock(&self.state);
        state.requests.clear();
        state.manner = manner;
    }

    /// Stops its clock at this time.
    pub fn set_now(&self, now: Timestamp) {
        lock(&self.state).now = Some(now);
    }

    /// How far its clock is from the true time, or from that of [`FakeMonitoring::set_now`].
    pub fn set_clock_offset(&self, offset: SignedDuration) {
        lock(&self.state).clock_offset = offset;
    }

    /// The requests so far, or since the manner was set.
    pub fn requests(&self) -> Vec<MonitoringRequest> {
        lock(&self.state).requests.clone()
    }

    /// The series that were written, each with its point, in the order of their arrival.
    pub fn series(&self) -> Vec<Value> {
        lock(&self.state).series.clone()
    }

    /// The rules that requests broke.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.state).violations.clone()
    }
}

async fn serve(listener: TcpListener, state: Shared) {
    loop {
        // A client that is gone already is not this server's fault.
        if let Ok((stream, _)) = listener.accept().await {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(request, Arc::clone(&state)));
                // What a client does to its connection is over with it.
                let _ = http1::Builder::new()
                    .auto_date_header(false)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                Ok::<(), Infallible>(())
            });
        }
    }
}

type Dropped = Box<dyn Error + Send + Sync>;

async fn answer(request: Request<Incoming>, state: Shared) -> Result<Response<Full<Bytes>>, Dropped> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let authorization =
        head.headers.get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let count = serde_json::from_slice::<Value>(&body).ok();
    let count = count.and_then(|body| Some(body["timeSeries"].as_array()?.len())).unwrap_or(0);
    let path = head.uri.path().to_owned();
    let (manner, number) = {
        let mut state = lock(&state);
        state.requests.push(MonitoringRequest { path: path.clone(), authorization, series: count });
        (state.manner.clone(), state.requests.len())
    };
    let (status, text) = match manner {
        MonitoringManner::Hang => pending().await,
        MonitoringManner::Cut => return Err("cut by the test".into()),
        MonitoringManner::Status(status, reason) => (status, failure(status, "No.", reason)),
        MonitoringManner::StatusAfter(good, status) if number > good => (status, failure(status, "No.", "")),
        MonitoringManner::Page => (200, "<html><body>Please log in.</body></html>".to_owned()),
        MonitoringManner::Sound | MonitoringManner::StatusAfter(..) => {
            let is_call =
                head.method == "POST" && path.starts_with("/v3/projects/") && path.ends_with("/timeSeries");
            if is_call { write(&state, &body) } else { (404, failure(404, "Not found.", "")) }
        }
    };
    let date = lock(&state).now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let answer = Response::builder().status(status).header("date", date);
    Ok(answer.header("content-type", "application/json; charset=UTF-8").body(Full::new(text.into()))?)
}

fn write(state: &Shared, body: &[u8]) -> (u16, String) {
    let mut state = lock(state);
    let now = state.now();
    match state.book.write(body, now) {
        Ok(series) => {
            state.series.extend(series);
            (200, "{}\n".to_owned())
        }
        Err(why) => {
            let text = failure(400, &format!("One or more TimeSeries could not be written: {why}"), "");
            state.violations.push(why);
            (400, text)
        }
    }
}

/// An error as the service words it.
fn failure(code: u16, message: &str, reason: &str) -> String {
    let status = match code {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "UNKNOWN",
    };
    let details = match reason {
        "" => json!([]),
        reason => json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com",
        }]),
    };
    json!({"error": {"code": code, "message": message, "status": status, "details": details}}).to_string()
}
