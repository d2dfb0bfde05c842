//! A profiler that misbehaves on the real wire: HTTP/2 by `h2`, or raw TCP where even that is broken.
//!
//! Real profilers are JAX's (see `jax_job`); this one is for what those never do.

mod continuous;

use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    task::Poll,
    thread,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    server::{self, SendResponse},
};
use http::{HeaderMap, Request, Response};
use prost::Message;
use proto::tensorflow::{
    ProfileRequest, ProfileResponse, TerminateRequest,
    profiler::{XEvent, XLine, XPlane, XSpace, XStat, XStatMetadata, x_stat::Value},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    runtime,
    sync::watch,
};

pub use continuous::{ContinuousFake, MissingMethods};

/// How it answers a `Profile` call; `Terminate` it answers as it should, where it speaks HTTP/2 at all.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// With this trace, at once.
    Trace(XSpace),
    /// Raw bytes that are no HTTP/2.
    Garbage,
    /// Raw zeros, a gigabyte of them.
    RawZeros,
    /// As an HTTP/1.1 server does.
    HttpOne,
    /// Takes connections and never says anything.
    Hang,
    /// Closes every connection at once.
    Close,
    /// A gRPC server of another service.
    OtherService,
    /// A gigabyte of zeros as the body.
    Zeros,
    /// A gigabyte of zeros as the trace, well framed.
    ZeroTrace,
    /// Half of a message, then an end as if all were well.
    HalfMessage,
    /// Half of a message, then the connection is gone.
    HalfThenGone,
    /// A sound answer, one byte a second.
    Drip,
    /// Sound events without end, as announced: 3 GiB.
    Endless,
    /// The profiler's answer when somebody else has it.
    Busy,
    /// The answer when somebody profiles continuously.
    AlreadyExists,
    /// `empty_trace`.
    Empty,
    /// A message of 0 bytes.
    NoBytes,
    /// As gRPC does where its message is larger than it may be.
    Exhausted,
    /// As gRPC does where protobuf cannot serialize the message.
    Unserializable,
    /// A compressed message.
    Compressed,
    /// A length prefix of 4 GiB.
    HugePrefix,
    /// Never answers `Profile`.
    Silent,
    /// Says that the time is up before we do.
    TimeIsUp,
    /// Resets the stream.
    Reset,
    /// A message of its own with a trace whose nesting is broken.
    BrokenNesting,
    /// A server with continuous profiling.
    Continuous(Box<ContinuousFake>),
}

/// What a fake profiler has seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The `Profile` requests.
    pub profiles: Vec<ProfileRequest>,
    /// Ids of the `Terminate` calls.
    pub terminated: Vec<String>,
    /// `Profile` calls that the client gave up before their end.
    pub given_up: usize,
    /// Continuous profiling runs.
    pub is_open: bool,
    /// Sessions of continuous profiling that were started.
    pub starts: usize,
    /// Calls that asked for a snapshot.
    pub snapshots: usize,
    /// Calls that asked to stop, as a server of that method understands them.
    pub stops: usize,
}

impl Seen {
    /// Whether the session of every `Profile` call was given up or terminated.
    pub fn all_freed(&self) -> bool {
        self.profiles.iter().all(|profile| self.terminated.contains(&profile.session_id))
            || self.given_up >= self.profiles.len()
    }
}

/// A running fake; ends when dropped.
#[derive(Debug)]
pub struct FakeProfiler {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    stop: watch::Sender<bool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FakeProfiler {
    /// Starts one on a free port of the loopback.
    ///
    /// # Panics
    /// If there is none.
    pub fn start(mode: Mode) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = std::sync::mpsc::channel();
        let inner = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
                tell.send(listener.local_addr().expect("an address")).expect("the test waits");
                serve(listener, mode, inner, stopped).await;
            });
            runtime.shutdown_background();
        });
        Self { address: told.recv().expect("it binds"), seen, stop, thread: Some(thread) }
    }

    /// `127.0.0.1:port`.
    pub fn target(&self) -> String {
        self.address.to_string()
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        self.seen.lock().expect("no holder panics").clone()
    }
}

impl Drop for FakeProfiler {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: TcpListener,
    mode: Mode,
    seen: Arc<Mutex<Seen>>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.expect("accept").0,
            _ = stopped.changed() => return,
        };
        let (mode, seen) = (mode.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            // A client that hangs up is not this fake's fault.
            let _ = connection(stream, mode, seen).await;
        });
    }
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

async fn connection(mut stream: TcpStream, mode: Mode, seen: Arc<Mutex<Seen>>) -> Result<(), Fault> {
    match mode {
        Mode::Garbage => {
            stream.write_all(b"\x16\x03\x01 220 mail.example ESMTP ready, or something like it\r\n").await?;
            std::future::pending::<()>().await;
        }
        Mode::RawZeros => {
            let zeros = vec![0; 1 << 20];
            for _ in 0..1024 {
                stream.write_all(&zeros).await?;
            }
        }
        Mode::HttpOne => stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await?,
        Mode::Hang => std::future::pending::<()>().await,
        Mode::Close => {}
        mode => {
            let (gone, mut go) = watch::channel(false);
            let mut connection = server::handshake(stream).await?;
            loop {
                let accepted = tokio::select! {
                    accepted = connection.accept() => accepted,
                    _ = go.changed() => {
                        // One poll writes what is queued to the socket.
                        let _ = poll_fn(|context| Poll::Ready(connection.poll_accept(context).is_ready())).await;
                        return Ok(());
                    }
                };
                let Some(accepted) = accepted else { return Ok(()) };
                let (request, respond) = accepted?;
                tokio::spawn(call(request, respond, mode.clone(), Arc::clone(&seen), gone.clone()));
            }
        }
    }
    Ok(())
}

async fn call(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    mode: Mode,
    seen: Arc<Mutex<Seen>>,
    gone: watch::Sender<bool>,
) -> Result<(), Fault> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let message = message(request.into_body()).await?;
    if mode == Mode::OtherService {
        return status(&mut respond, 12, "unknown service tensorflow.ProfilerService");
    }
    if method == "Terminate" {
        let id = TerminateRequest::decode(&message[..])?.session_id;
        seen.lock().expect("no holder panics").terminated.push(id);
        let mut body = respond.send_response(head(), false)?;
        body.send_data(framed(&[]), false)?;
        return ok(&mut body);
    }
    if let Mode::Continuous(fake) = mode {
        return continuous::call(&fake, &method, &message, respond, &seen).await;
    }
    let request = ProfileRequest::decode(&message[..])?;
    seen.lock().expect("no holder panics").profiles.push(request);
    let mut body = match mode {
        Mode::Busy => return status(&mut respond, 13, "Another profiling session active."),
        Mode::TimeIsUp => return status(&mut respond, 4, "Deadline Exceeded"),
        Mode::Exhausted => return status(&mut respond, 8, "Sent message larger than max (2147483648)"),
        Mode::Unserializable => return status(&mut respond, 13, "Failed to serialize message"),
        Mode::AlreadyExists => return status(&mut respond, 6, "continuous profiling runs"),
        Mode::Silent => {
            let _ = poll_fn(|context| respond.poll_reset(context)).await;
            seen.lock().expect("no holder panics").given_up += 1;
            return Ok(());
        }
        Mode::Reset => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
        _ => respond.send_response(head(), false)?,
    };
    match answer(&mut body, &mode).await {
        Ok(()) if mode == Mode::HalfThenGone => {
            let _ = gone.send(true);
        }
        Ok(()) => ok(&mut body)?,
        Err(_) => seen.lock().expect("no holder panics").given_up += 1,
    }
    Ok(())
}

async fn answer(body: &mut SendStream<Bytes>, mode: &Mode) -> Result<(), Fault> {
    match mode {
        Mode::Trace(trace) => send(body, sound(trace)).await,
        Mode::Empty => {
            send(body, framed(&ProfileResponse { empty_trace: true, ..Default::default() }.encode_to_vec()))
                .await
        }
        Mode::NoBytes => send(body, framed(&[])).await,
        Mode::Compressed => {
            let mut bytes = BytesMut::from(&sound(&trace())[..]);
            bytes[0] = 1;
            send(body, bytes.freeze()).await
        }
        Mode::HugePrefix => {
            send(body, Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff])).await?;
            send(body, Bytes::from(vec![1; 1 << 20])).await
        }
        Mode::HalfMessage | Mode::HalfThenGone => {
            let bytes = sound(&trace());
            send(body, bytes.slice(..bytes.len() / 2)).await
        }
        Mode::Drip => {
            for byte in sound(&trace()) {
                send(body, Bytes::copy_from_slice(&[byte])).await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        }
        Mode::Zeros => zeros(body).await,
        Mode::ZeroTrace => {
            let trace = 1_u32 << 30;
            send(body, begin_of_trace(trace)).await?;
            zeros(body).await
        }
        Mode::BrokenNesting => {
            // A plane of 2 bytes that holds a line of 100.
            send(body, framed(&[0x42, 4, 0x0a, 2, 0x1a, 100])).await
        }
        Mode::Endless => {
            send(body, begin_of_trace(3 << 30)).await?;
            // Empty planes, 1 MiB of them at a time.
            let planes = Bytes::from([0x0a, 0].repeat(1 << 19));
            loop {
                send(body, planes.clone()).await?;
            }
        }
        other => unreachable!("{other:?} is answered elsewhere"),
    }
}

async fn zeros(body: &mut SendStream<Bytes>) -> Result<(), Fault> {
    let zeros = Bytes::from(vec![0; 1 << 20]);
    for _ in 0..1024 {
        send(body, zeros.clone()).await?;
    }
    Ok(())
}

/// Waits for the client's window, so that nothing piles up here; fails when the client resets.
async fn send(body: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), Fault> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let room = match poll_fn(|context| body.poll_capacity(context)).await {
            Some(room) => room?,
            None => return Err("the stream is over".into()),
        };
        body.send_data(bytes.split_to(room.min(bytes.len())), false)?;
    }
    Ok(())
}

async fn message(mut body: RecvStream) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data?);
    }
    Ok(bytes.split_off(5))
}

fn head() -> Response<()> {
    Response::builder().header("content-type", "application/grpc").body(()).expect("a head")
}

fn ok(body: &mut SendStream<Bytes>) -> Result<(), Fault> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse()?);
    Ok(body.send_trailers(trailers)?)
}

fn status(respond: &mut SendResponse<Bytes>, code: u32, text: &str) -> Result<(), Fault> {
    let mut head = head();
    head.headers_mut().insert("grpc-status", code.to_string().parse()?);
    head.headers_mut().insert("grpc-message", text.parse()?);
    respond.send_response(head, true)?;
    Ok(())
}

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("below 4 GiB"));
    bytes.put_slice(message);
    bytes.freeze()
}

fn sound(trace: &XSpace) -> Bytes {
    framed(&ProfileResponse { xspace: Some(trace.clone()), ..Default::default() }.encode_to_vec())
}

/// The head of an answer whose trace has so many bytes.
fn begin_of_trace(length: u32) -> Bytes {
    let mut field = BytesMut::new();
    field.put_u8(0x42);
    prost::encoding::encode_varint(u64::from(length), &mut field);
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(length + u32::try_from(field.len()).expect("a few bytes"));
    bytes.put(field);
    bytes.freeze()
}

/// The same with at least so many bytes more, which differ from place to place and between two values of `seed`.
pub fn trace_of(bytes: usize, seed: u8) -> XSpace {
    let mut trace = trace();
    let host = &mut trace.planes[0];
    host.stat_metadata.insert(1, XStatMetadata { id: 1, name: "payload".into(), ..Default::default() });
    let piece = |number: usize| -> Vec<u8> {
        let at = |byte: usize| [seed, number.to_le_bytes()[0], byte.to_le_bytes()[0], byte.to_le_bytes()[1]];
        (0..PAYLOAD)
            .map(|byte| at(byte).iter().fold(0, |mixed: u8, part| mixed.rotate_left(3) ^ part))
            .collect()
    };
    let pieces = (0..bytes.div_ceil(PAYLOAD)).map(piece);
    host.stats.extend(pieces.map(|piece| XStat { metadata_id: 1, value: Some(Value::BytesValue(piece)) }));
    trace
}

/// The size of one value of a large trace.
const PAYLOAD: usize = 64 << 10;

/// A small sound trace of a host, without device planes: one line with 50 events in a window of 1 s.
pub fn trace() -> XSpace {
    let start = 1_800_000_000_000_000_000;
    let events = (0..50).map(|n| XEvent {
        metadata_id: 1,
        data: Some(proto::tensorflow::profiler::x_event::Data::OffsetPs(n * 1_000_000)),
        duration_ps: 500_000,
        stats: vec![],
    });
    let line = XLine { id: 1, name: "python".into(), events: events.collect(), ..Default::default() };
    let host = XPlane { name: "/host:CPU".into(), lines: vec![line], ..Default::default() };
    let mut times = XPlane { name: "Task Environment".into(), ..Default::default() };
    for (id, name, at) in [(1, "profile_start_time", start), (2, "profile_stop_time", start + 1_000_000_000)]
    {
        times.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
        times.stats.push(XStat { metadata_id: id, value: Some(Value::Uint64Value(at)) });
    }
    XSpace { planes: vec![host, times], hostnames: vec!["fake".into()], ..Default::default() }
}
