//! The caller of a capture over several hosts, as one agent sees it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    time::Duration,
};

use cluster::{channel, relay::MAGIC};
use fakes::{harness::tpuscope, wait::LIMIT};
use model::time::{Clock, SystemClock, Timestamp};
use proto::tpuscope::v1::{
    CaptureFailure, CaptureFinished, CaptureRequest, CaptureStarted, ClockReply, ClockRequest,
    HostCaptureEvent, HostCaptureRequest, HostReady, Peer, PutManifestRequest, RenewLease, ReserveHost,
    SessionManifest, StartHost, StatusRequest, TargetEvent, capture_event, captures_client::CapturesClient,
    host_capture_event, host_capture_request, host_client::HostClient, uploads_client::UploadsClient,
};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    runtime::{self, Runtime},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

/// The id of every session here.
pub(super) const ID: &str = "0123456789abcdef0123456789abcdef";

/// What a request says of its sender.
pub(super) fn peer() -> Option<Peer> {
    Some(Peer { protocol: 1, ..Peer::default() })
}

/// A reservation for a window of so many milliseconds, with a lease that no slow machine exceeds.
pub(super) fn reserve(session: &str, window_ms: u64) -> ReserveHost {
    let capture = CaptureRequest {
        peer: peer(),
        duration_ns: window_ms * 1_000_000,
        session: session.to_owned(),
        ..CaptureRequest::default()
    };
    let lease_ns = 60_000_000_000;
    ReserveHost { capture: Some(capture), session_id: ID.to_owned(), lease_ns, ..ReserveHost::default() }
}

/// A connection to an agent, kept alive by a thread of its own.
pub(super) struct AgentConnection {
    runtime: Runtime,
    channel: Channel,
    /// The command that carries it, if it is one of another user.
    _dialled: Option<Child>,
}

fn runtime() -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

impl AgentConnection {
    /// To the agent with this home.
    pub(super) fn to(home: &Path) -> Self {
        let runtime = runtime();
        let socket = format!("unix://{}", home.join("agent.sock").display());
        let endpoint = Endpoint::from_shared(socket).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        Self { runtime, channel, _dialled: None }
    }

    /// To the same as another user, over `dial-stdio`.
    pub(super) fn as_user(home: &Path, uid: u32) -> Self {
        let socket = home.join("agent.sock");
        for path in [home, &socket] {
            fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
        let runtime = runtime();
        let mut command = Command::new(tpuscope());
        command.args(["dial-stdio", "--socket"]).arg(socket).current_dir("/").uid(uid).gid(uid);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let (channel, dialled) = runtime.block_on(async {
            let mut dialled = command.spawn().unwrap();
            let (to, mut from) = (dialled.stdin.take().unwrap(), dialled.stdout.take().unwrap());
            let mut magic = vec![0; MAGIC.len()];
            from.read_exact(&mut magic).await.unwrap();
            assert_eq!(magic, MAGIC);
            (channel::over(tokio::io::join(from, to), LIMIT).await.unwrap(), dialled)
        });
        Self { runtime, channel, _dialled: Some(dialled) }
    }

    /// One round trip of the clock.
    pub(super) fn clock(&self) -> ClockReply {
        let mut host = HostClient::new(self.channel.clone());
        let reply = self.runtime.block_on(async move { host.clock(ClockRequest { peer: None }).await });
        reply.unwrap().into_inner()
    }

    /// What the agent says of itself.
    pub(super) fn peer(&self) -> Peer {
        let mut host = HostClient::new(self.channel.clone());
        let reply = self.runtime.block_on(async move { host.status(StatusRequest { peer: peer() }).await });
        reply.unwrap().into_inner().peer.unwrap()
    }

    /// Puts the manifest of all hosts. Returns the URL.
    pub(super) fn put_manifest(
        &self,
        destination: &str,
        manifest: SessionManifest,
    ) -> Result<String, Status> {
        let mut uploads = UploadsClient::new(self.channel.clone());
        let destination = destination.to_owned();
        let request = PutManifestRequest { peer: peer(), destination, manifest: Some(manifest) };
        let reply = self.runtime.block_on(async move { uploads.put_manifest(request).await });
        reply.map(|reply| reply.into_inner().url)
    }

    /// Reserves the host. Dropping what this returns hangs up.
    pub(super) fn reserve(self, reserve: ReserveHost) -> HostCaller {
        let (requests, queue) = mpsc::channel(8);
        let mut captures = CapturesClient::new(self.channel.clone());
        let call = async {
            let reserve = host_capture_request::Request::Reserve(reserve);
            requests.send(HostCaptureRequest { request: Some(reserve) }).await.unwrap();
            captures.capture_on_host(ReceiverStream::new(queue)).await
        };
        let events = self.runtime.block_on(call).unwrap().into_inner();
        HostCaller { connection: self, requests, events }
    }
}

/// A call that runs.
pub(super) struct HostCaller {
    connection: AgentConnection,
    requests: mpsc::Sender<HostCaptureRequest>,
    events: Streaming<HostCaptureEvent>,
}

impl HostCaller {
    /// Sends a message.
    pub(super) fn send(&self, request: host_capture_request::Request) {
        let message = HostCaptureRequest { request: Some(request) };
        self.connection.runtime.block_on(self.requests.send(message)).unwrap();
    }

    /// Renews the lease.
    pub(super) fn renew(&self) {
        self.send(host_capture_request::Request::Renew(RenewLease {}));
    }

    /// Sends a start so long from now. Returns it.
    pub(super) fn start_in(&self, ahead: Duration) -> Timestamp {
        let start = SystemClock.now().plus(ahead);
        self.start_at(start);
        start
    }

    /// Sends a start.
    pub(super) fn start_at(&self, start: Timestamp) {
        self.send(host_capture_request::Request::Start(StartHost { start_unix_ns: start.0 }));
    }

    /// The next event; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<host_capture_event::Event>, Status> {
        let events = &mut self.events;
        let next =
            self.connection.runtime.block_on(async { tokio::time::timeout(LIMIT, events.message()).await });
        let next = next.expect("an event in time")?;
        Ok(next.map(|event| event.event.expect("an event with content")))
    }

    /// The next event, which is about the capture.
    fn capture_event(&mut self) -> capture_event::Event {
        match self.next().unwrap() {
            Some(host_capture_event::Event::Capture(event)) => event.event.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The next event, which says that the host is ready.
    pub(super) fn ready(&mut self) -> HostReady {
        match self.next().unwrap() {
            Some(host_capture_event::Event::Ready(ready)) => ready,
            other => panic!("{other:?}"),
        }
    }

    /// The next event, which is about a target.
    pub(super) fn target(&mut self) -> TargetEvent {
        match self.capture_event() {
            capture_event::Event::Target(target) => target,
            other => panic!("{other:?}"),
        }
    }

    /// The next event, which says that the window begins.
    pub(super) fn started(&mut self) -> CaptureStarted {
        match self.capture_event() {
            capture_event::Event::Started(started) => started,
            other => panic!("{other:?}"),
        }
    }

    /// The last event, after any number of events about targets.
    pub(super) fn finished(&mut self) -> CaptureFinished {
        loop {
            match self.capture_event() {
                capture_event::Event::Finished(finished) => {
                    assert!(self.next().unwrap().is_none(), "`finished` is the last event");
                    return finished;
                }
                capture_event::Event::Target(_) => {}
                other @ capture_event::Event::Started(_) => panic!("{other:?}"),
            }
        }
    }

    /// Why nothing was kept, as the last event says.
    pub(super) fn failed(&mut self) -> CaptureFailure {
        let finished = self.finished();
        assert!(finished.session.is_none() && finished.manifest.is_none(), "{finished:?}");
        finished.failure.unwrap()
    }
}
