//! Connections and requests: each is logged, met by its fault if it has one, and answered.

use std::{collections::BTreeMap, convert::Infallible, error::Error, future::pending};

use http_body_util::BodyExt;
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::{
    Shared,
    calls::{CallPayload, StorageCall},
    faults::{GcsEffect, GcsFault, Moment},
    link::{Link, SharedSpeed},
    lock, metadata,
    replies::{GcsBody, GcsReply, ReplyBody, trouble},
};

/// A request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcsRequest {
    /// Its method.
    pub method: String,
    /// The bucket; empty for the metadata server.
    pub bucket: String,
    /// The object, decoded; empty for calls to a bucket.
    pub object: String,
    /// Its query, decoded.
    pub query: BTreeMap<String, String>,
    /// The bytes of its body that arrived.
    pub received: u64,
    /// What it was answered; `None` while it runs, and for good if the connection ended or hung.
    pub status: Option<u16>,
    /// Whether it stored or removed something.
    pub committed: bool,
}

impl GcsRequest {
    pub(super) fn is_metadata(&self) -> bool {
        self.bucket.is_empty()
    }

    /// Whether it is a call of this kind that took effect: a put, or the completion of a multipart upload.
    pub fn made_object(&self) -> bool {
        let put = self.method == "PUT" && !self.query.contains_key("uploadId");
        let complete = self.method == "POST" && self.query.contains_key("uploadId");
        self.committed && (put || complete)
    }
}

/// The most that a body may have which is no content.
const MOST_TEXT: u64 = 2 << 20;

type Dropped = Box<dyn Error + Send + Sync>;

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, state: Shared) {
    loop {
        // A client that is gone already is not this server's fault.
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream, state.clone()));
        }
    }
}

async fn connection(stream: TcpStream, state: Shared) -> Result<(), Infallible> {
    let _ = stream.set_nodelay(true);
    let speed = SharedSpeed::default();
    let link = Link::new(stream, speed.clone());
    let service = service_fn(move |request| answer(request, state.clone(), speed.clone()));
    // What a client or a fault does to its connection is over with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(link), service)
        .await;
    Ok(())
}

/// One request, from its head to the head of its answer.
async fn answer(
    request: Request<Incoming>,
    state: Shared,
    speed: SharedSpeed,
) -> Result<Response<GcsBody>, Dropped> {
    let (head, body) = request.into_parts();
    let (path, query) = (percent_decode(head.uri.path()), head.uri.query().unwrap_or_default());
    let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let shown: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let query = pairs.into_iter().collect::<BTreeMap<_, _>>();
    let (bucket, object) = match path.starts_with(metadata::ROOT) {
        true => ("", path.as_str()),
        false => path[1..].split_once('/').unwrap_or((&path[1..], "")),
    };
    let (effect, number) = {
        let mut state = lock(&state);
        let target = format!("{path}?{}", shown.join("&"));
        state.requests.push(GcsRequest {
            method: head.method.to_string(),
            bucket: bucket.to_owned(),
            object: object.to_owned(),
            query: query.clone(),
            received: 0,
            status: None,
            committed: false,
        });
        let number = state.requests.len() - 1;
        (GcsFault::take(&mut state.faults, head.method.as_str(), &target), number)
    };
    if let Some(GcsEffect::Slow(bytes, pause)) = effect {
        *speed.lock().expect("no owner of the lock panics") = Some((bytes, pause));
    }
    let call =
        StorageCall { method: head.method.as_str(), bucket, object, query: &query, headers: &head.headers };
    let cut = match effect {
        Some(GcsEffect::CutRequest(after)) => Some(after),
        _ => None,
    };
    let payload = receive(body, &call, &state, number, cut).await?;
    let mut reply = match effect {
        Some(GcsEffect::Status(status, Moment::BeforeCommit)) => trouble(status),
        Some(GcsEffect::Hang(Moment::BeforeCommit)) => pending().await,
        _ if bucket.is_empty() => metadata::answer(&state, &head, &query).await,
        _ => {
            let mut state = lock(&state);
            let now = jiff::Timestamp::now() + state.clock_offset;
            call.run(&mut state, payload, now)
        }
    };
    let now = {
        let mut state = lock(&state);
        state.requests[number].committed = reply.committed;
        jiff::Timestamp::now() + state.clock_offset
    };
    match effect {
        Some(GcsEffect::Status(status, Moment::AfterCommit)) => reply = trouble(status),
        Some(GcsEffect::Hang(Moment::AfterCommit)) => pending().await,
        Some(GcsEffect::CutAnswer) => return Ok(reply.send(now, true)?),
        Some(GcsEffect::Slow(..)) => reply = reply.header("connection", "close"),
        Some(effect) => falsify(&mut reply, &effect),
        None => {}
    }
    if head.method == "HEAD" && matches!(reply.body, ReplyBody::Text(_)) {
        reply.body = ReplyBody::Head(0);
    }
    lock(&state).requests[number].status = Some(reply.status.as_u16());
    Ok(reply.send(now, false)?)
}

/// Takes the body in; an error ends the connection.
async fn receive(
    mut body: Incoming,
    call: &StorageCall<'_>,
    state: &Shared,
    number: usize,
    cut: Option<u64>,
) -> Result<CallPayload, Dropped> {
    let mut writer = call.carries_content().then(|| lock(state).buckets.writer(call.is_whole()));
    let mut text = Vec::new();
    let mut received = 0;
    if cut.is_some_and(|most| body.size_hint().lower() <= most) && cut != Some(0) {
        return Err("the fault cuts behind the end of the request: nothing would be tested".into());
    }
    while cut.is_none_or(|most| received < most) {
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame?.into_data() else { continue };
        received += data.len() as u64;
        lock(state).requests[number].received = received;
        match &mut writer {
            Some(writer) => writer.write(&data),
            None if received > MOST_TEXT => return Err("a body that is too long".into()),
            None => text.extend_from_slice(&data),
        }
    }
    if cut.is_some() {
        return Err("cut by the test".into());
    }
    match writer {
        Some(writer) => Ok(CallPayload::Segment(writer.finish())),
        None => Ok(CallPayload::Text(String::from_utf8(text)?)),
    }
}

/// Makes an answer lie.
fn falsify(reply: &mut GcsReply, effect: &GcsEffect) {
    const FALSE_ETAG: &str = "\"00000000000000000000000000000bad\"";
    match effect {
        GcsEffect::WrongEtag => {
            for (_, value) in reply.headers.iter_mut().filter(|(name, _)| name == "etag") {
                FALSE_ETAG.clone_into(value);
            }
            if let ReplyBody::Text(text) = &mut reply.body
                && let Some((start, (_, end))) = text
                    .split_once("<ETag>")
                    .and_then(|(start, rest)| Some((start, rest.split_once("</ETag>")?)))
            {
                *text = format!("{start}<ETag>{}</ETag>{end}", FALSE_ETAG.replace('"', "&quot;"));
            }
        }
        GcsEffect::WrongSize => {
            if let ReplyBody::Head(length) = &mut reply.body {
                *length += 1;
                let stored = length.to_string();
                for (_, value) in
                    reply.headers.iter_mut().filter(|(name, _)| name == "x-goog-stored-content-length")
                {
                    value.clone_from(&stored);
                }
            }
        }
        GcsEffect::WrongCrc => {
            for (_, value) in reply.headers.iter_mut().filter(|(name, _)| name == "x-goog-hash") {
                *value = value.split(',').map(false_crc).collect::<Vec<_>>().join(",");
            }
        }
        GcsEffect::NoHash => reply.headers.retain(|(name, _)| name != "x-goog-hash"),
        _ => {}
    }
}

fn false_crc(hash: &str) -> &str {
    if hash.starts_with("crc32c=") { "crc32c=AAAADQ==" } else { hash }
}

/// The text that `%41` and the like stand for.
pub(super) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = (*byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                decoded.push(code);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
