//! An agent of another host that can be old, have another clock, or lie: what a real one of this build never is or does.
//!
//! It serves a Unix socket on a thread of its own, and ends when it is dropped; or, as one of many, what it is given
//! (`simulated_hosts`).

use std::{
    io,
    path::Path,
    pin::Pin,
    sync::{Arc, mpsc as std_mpsc},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use proto::tpuscope::v1::{
    self as api, CaptureEvent, CaptureFinished, ClockReply, ClockRequest, FetchSessionRequest, FilePiece,
    HostCaptureEvent, HostCaptureRequest, HostReady, ManifestHost, ManifestPart, Peer, SessionManifest,
    SessionSummary, StatusReply, StatusRequest, capture_event, captures_server, host_capture_event,
    host_capture_request, host_server, recorder_server, sessions_server,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
    sync::{Notify, oneshot},
};
use tokio_stream::{Stream, StreamExt, iter, wrappers::UnixListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::Connected},
};

/// What the agent is like.
#[derive(Debug, Clone)]
pub struct FakeAgent {
    /// What it calls its host.
    pub host: String,
    /// What it says that it can do.
    pub capabilities: Vec<String>,
    /// Its clock is ahead by this, nanoseconds.
    pub ahead_ns: i64,
    /// The part that it says it has, its length and its SHA-256.
    pub part: String,
    /// See `part`.
    pub size: u64,
    /// See `part`.
    pub sha256: String,
    /// What it sends as the part.
    pub content: Bytes,
    /// The bytes that it sends at a time.
    pub piece: usize,
    /// The pause after each of these pieces.
    pub pause: Duration,
    /// Whether it is done at the end of the window in its clock, and refuses a start that is over; else it is done at once.
    pub keeps_time: bool,
    /// How long before the window it wants to know the start.
    pub lead: Duration,
    /// Whether it has something of the past, and is dead when it is asked for it.
    pub dies_in_snapshot: bool,
}

/// A running fake.
#[derive(Debug)]
pub struct RunningFakeAgent {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    starts: std_mpsc::Receiver<i64>,
}

impl Default for FakeAgent {
    /// A good one, whose part is three bytes.
    fn default() -> Self {
        Self {
            host: "fake".into(),
            capabilities: ["clock", "host_capture"].map(str::to_owned).to_vec(),
            ahead_ns: 0,
            part: "fake.xplane.pb".into(),
            size: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(),
            content: Bytes::from_static(b"abc"),
            piece: 1,
            pause: Duration::ZERO,
            keeps_time: false,
            lead: Duration::ZERO,
            dies_in_snapshot: false,
        }
    }
}

impl FakeAgent {
    /// Serves the socket.
    ///
    /// # Panics
    /// If the socket cannot be bound.
    pub fn start(self, socket: &Path) -> RunningFakeAgent {
        let (stop, stopped) = oneshot::channel();
        let (started, starts) = std_mpsc::channel();
        let (bound, is_bound) = std_mpsc::channel();
        let socket = socket.to_owned();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = UnixListener::bind(socket).expect("a free path");
                bound.send(()).expect("the test waits");
                tokio::select! {
                    () = self.serve(UnixListenerStream::new(listener), started) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        is_bound.recv().expect("it binds");
        RunningFakeAgent { stop: Some(stop), thread: Some(thread), starts }
    }

    /// Serves these connections. `started` is told of each start that it is given, in its clock.
    ///
    /// # Panics
    /// If it cannot serve.
    pub async fn serve<S>(
        self,
        connections: impl Stream<Item = io::Result<S>>,
        started: std_mpsc::Sender<i64>,
    ) where
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let dead = Arc::new(Notify::new());
        let service = Service { agent: self, started, dead: Arc::clone(&dead) };
        let server = Server::builder()
            .add_service(host_server::HostServer::new(service.clone()))
            .add_service(captures_server::CapturesServer::new(service.clone()))
            .add_service(recorder_server::RecorderServer::new(service.clone()))
            .add_service(sessions_server::SessionsServer::new(service));
        tokio::select! {
            served = server.serve_with_incoming(connections) => served.expect("it serves"),
            () = dead.notified() => {}
        }
    }
}

impl RunningFakeAgent {
    /// The next start that it was given, or the begin of the past that it was asked for, in its clock.
    ///
    /// # Panics
    /// If it was given none.
    pub fn start_given(&self) -> i64 {
        self.starts.try_recv().expect("a start")
    }
}

impl Drop for RunningFakeAgent {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone)]
struct Service {
    agent: FakeAgent,
    started: std_mpsc::Sender<i64>,
    /// Ends it with all connections.
    dead: Arc<Notify>,
}

impl Service {
    fn now(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch");
        i64::try_from(since.as_nanos()).expect("before 2262") + self.agent.ahead_ns
    }

    fn peer(&self) -> Option<Peer> {
        let capabilities = self.agent.capabilities.clone();
        Some(Peer { protocol: 1, version: "0.1.0".into(), capabilities, instance: String::new() })
    }

    fn finished(&self, session: String, id: String) -> CaptureFinished {
        let part = ManifestPart {
            file: self.agent.part.clone(),
            size: self.agent.size,
            sha256: self.agent.sha256.clone(),
            ..ManifestPart::default()
        };
        let host =
            ManifestHost { host: self.agent.host.clone(), parts: vec![part], ..ManifestHost::default() };
        let manifest = SessionManifest {
            version: 1,
            session: session.clone(),
            id: Some(id),
            tool_name: "tpuscope".into(),
            tool_version: "0.1.0".into(),
            hosts: vec![host],
            ..SessionManifest::default()
        };
        CaptureFinished {
            session: Some(SessionSummary { id: session, ..SessionSummary::default() }),
            manifest: Some(manifest),
            ..CaptureFinished::default()
        }
    }

    async fn serve(&self, mut requests: Streaming<HostCaptureRequest>, events: Events) -> Result<(), Status> {
        use host_capture_request::Request as Asked;
        let mut session = None;
        let mut duration = Duration::ZERO;
        while let Some(request) = requests.message().await? {
            let event = match request.request {
                Some(Asked::Reserve(reserve)) => {
                    let capture = reserve.capture.unwrap_or_default();
                    duration = Duration::from_nanos(capture.duration_ns);
                    let name = capture.session;
                    session = Some((name, reserve.session_id));
                    let (peer, host) = (self.peer(), self.agent.host.clone());
                    let lead_ns = u64::try_from(self.agent.lead.as_nanos()).unwrap_or(u64::MAX);
                    host_capture_event::Event::Ready(HostReady {
                        peer,
                        host,
                        lead_ns,
                        ..HostReady::default()
                    })
                }
                Some(Asked::Start(start)) => {
                    // The test may be over.
                    let _ = self.started.send(start.start_unix_ns);
                    let (name, id) = session.take().unwrap_or_default();
                    if self.agent.keeps_time {
                        let ahead = u64::try_from(start.start_unix_ns - self.now());
                        let ahead = ahead.map_err(|_| Status::failed_precondition("the start is over"));
                        tokio::time::sleep(Duration::from_nanos(ahead?) + duration).await;
                    }
                    let finished = capture_event::Event::Finished(self.finished(name, id));
                    host_capture_event::Event::Capture(CaptureEvent { event: Some(finished) })
                }
                _ => continue,
            };
            let _ = events.send(Ok(HostCaptureEvent { event: Some(event) })).await;
        }
        Ok(())
    }
}

type Events = tokio::sync::mpsc::Sender<Result<HostCaptureEvent, Status>>;
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn never<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not a part of this fake"))
}

#[tonic::async_trait]
impl host_server::Host for Service {
    async fn clock(&self, _: Request<ClockRequest>) -> Result<Response<ClockReply>, Status> {
        let received_unix_ns = self.now();
        Ok(Response::new(ClockReply { received_unix_ns, replied_unix_ns: self.now() }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusReply>, Status> {
        Ok(Response::new(StatusReply { peer: self.peer(), ..StatusReply::default() }))
    }

    async fn samples(&self, _: Request<api::SamplesRequest>) -> Result<Response<api::SamplesReply>, Status> {
        never()
    }

    async fn history(&self, _: Request<api::HistoryRequest>) -> Result<Response<api::HistoryReply>, Status> {
        never()
    }
}

#[tonic::async_trait]
impl captures_server::Captures for Service {
    type CaptureStream = Replies<CaptureEvent>;
    type CaptureOnHostStream = Replies<HostCaptureEvent>;

    async fn capture_on_host(
        &self,
        request: Request<Streaming<HostCaptureRequest>>,
    ) -> Result<Response<Self::CaptureOnHostStream>, Status> {
        let (events, queue) = tokio::sync::mpsc::channel(8);
        let service = self.clone();
        tokio::spawn(async move { service.serve(request.into_inner(), events).await });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(queue))))
    }

    async fn capture(
        &self,
        _: Request<api::CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        never()
    }
}

#[tonic::async_trait]
impl recorder_server::Recorder for Service {
    type SnapshotStream = Replies<api::SnapshotEvent>;

    /// It has nothing, or dies soon.
    async fn plan_snapshot(
        &self,
        request: Request<api::SnapshotRequest>,
    ) -> Result<Response<api::SnapshotPlan>, Status> {
        // The test may be over.
        let _ = self.started.send(request.into_inner().from_unix_ns);
        let failure = api::CaptureFailure {
            kind: "empty_trace".into(),
            reason: "nothing_recorded".into(),
            message: "nothing was recorded".into(),
            ..api::CaptureFailure::default()
        };
        let failure = (!self.agent.dies_in_snapshot).then_some(failure);
        let (peer, host) = (self.peer(), self.agent.host.clone());
        Ok(Response::new(api::SnapshotPlan { peer, host, processes: 1, failure, ..Default::default() }))
    }

    async fn snapshot(
        &self,
        _: Request<api::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.dead.notify_one();
        std::future::pending().await
    }

    async fn set(
        &self,
        _: Request<api::SetRecorderRequest>,
    ) -> Result<Response<api::RecorderStatusReply>, Status> {
        never()
    }

    async fn status(
        &self,
        _: Request<api::RecorderStatusRequest>,
    ) -> Result<Response<api::RecorderStatusReply>, Status> {
        never()
    }

    async fn timeline(
        &self,
        _: Request<api::RecorderTimelineRequest>,
    ) -> Result<Response<api::RecorderTimelineReply>, Status> {
        never()
    }
}

#[tonic::async_trait]
impl sessions_server::Sessions for Service {
    type FetchStream = Replies<FilePiece>;
    type ImportStream = Replies<api::ImportSessionReply>;

    async fn fetch(&self, _: Request<FetchSessionRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let FakeAgent { part, pause, content, piece, .. } = self.agent.clone();
        let file = move |offset: usize| {
            let data = content.slice(offset..content.len().min(offset + piece)).to_vec();
            Ok(FilePiece { file: part.clone(), offset: offset as u64, data })
        };
        let offsets = (0..self.agent.content.len()).step_by(self.agent.piece);
        let pieces = iter(offsets).map(file).then(move |piece| async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            piece
        });
        Ok(Response::new(Box::pin(pieces)))
    }

    async fn list(
        &self,
        _: Request<api::ListSessionsRequest>,
    ) -> Result<Response<api::ListSessionsReply>, Status> {
        never()
    }

    async fn show(
        &self,
        _: Request<api::ShowSessionRequest>,
    ) -> Result<Response<api::ShowSessionReply>, Status> {
        never()
    }

    async fn read(
        &self,
        _: Request<api::ReadSessionRequest>,
    ) -> Result<Response<api::ReadSessionReply>, Status> {
        never()
    }

    async fn remove(
        &self,
        _: Request<api::RemoveSessionRequest>,
    ) -> Result<Response<api::RemoveSessionReply>, Status> {
        never()
    }

    async fn pin(
        &self,
        _: Request<api::PinSessionRequest>,
    ) -> Result<Response<api::PinSessionReply>, Status> {
        never()
    }

    async fn prune(
        &self,
        _: Request<api::PruneSessionsRequest>,
    ) -> Result<Response<api::PruneSessionsReply>, Status> {
        never()
    }

    async fn import(
        &self,
        _: Request<Streaming<api::ImportPiece>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        never()
    }
}
