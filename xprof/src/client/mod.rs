//! A client of `tensorflow.ProfilerService`, straight on HTTP/2: a gRPC library would buffer a whole trace.
//!
//! Memory is bounded by the flow-control windows and one write buffer, however long the answer is; every call
//! has a deadline. Must never send `repository_root` (the workload would write files of its own), never retry
//! a profile, and never end a session of another id than it started.

mod continuous;
pub mod envelope;
mod error;
mod forward;
mod receive;
mod status;
mod target;

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use proto::tensorflow::{ProfileRequest, TerminateRequest};
use tokio::{net::TcpStream, time::Instant};

pub use continuous::ContinuousMethods;
pub use error::Error;
pub use forward::{TraceHead, TracePiece};
pub use receive::Received;
pub use target::{BadTarget, Target};

use self::receive::SentCall;
use crate::framing::framed;

/// Flow-control windows: what may be on its way or wait for the disk.
const WINDOW: u32 = 8 << 20;
/// Largest frame that we take; larger ones would only make its buffer grow.
const MAX_FRAME: u32 = 256 << 10;
/// Headers of an answer.
const MAX_HEADERS: u32 = 64 << 10;

/// An open connection to one profiler.
#[derive(Debug, Clone)]
pub struct ProfilerClient {
    target: Target,
    peer: SocketAddr,
    send: SendRequest<Bytes>,
}

/// Bounds of one profile call.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// When the complete answer must be there, from now.
    pub within: Duration,
    /// Largest answer in bytes.
    pub max_bytes: u64,
}

impl ProfilerClient {
    /// Connects within `within`.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::NothingListens`].
    pub async fn connect(target: &Target, within: Duration) -> Result<Self, Error> {
        let connecting = tokio::time::timeout(within, TcpStream::connect((target.host(), target.port())));
        let stream = match connecting.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(Error::NothingListens(target.port()));
            }
            Ok(Err(error)) => return Err(Error::Unreachable(error.to_string())),
            Err(_) => return Err(Error::Unreachable(format!("no answer within {} ms", within.as_millis()))),
        };
        let unreachable = |error: io::Error| Error::Unreachable(error.to_string());
        stream.set_nodelay(true).map_err(unreachable)?;
        let peer = stream.peer_addr().map_err(unreachable)?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let (send, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(MAX_FRAME)
            .max_header_list_size(MAX_HEADERS)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(|error| Error::NotAProfiler(error.to_string()))?;
        // Ends by itself with the last handle; what went wrong shows in the streams.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Self { target: target.clone(), peer, send })
    }

    /// Where it is connected to.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The address that answered: the same for two names of one profiler.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Asks something harmless, which only a profiler answers, and says how long the answer took.
    ///
    /// # Errors
    /// [`Error::NotAProfiler`] among others.
    pub async fn probe(&self, fresh_id: &str, within: Duration) -> Result<Duration, Error> {
        let begin = Instant::now();
        self.terminate(fresh_id, within).await.map_err(|error| match error {
            Error::Broken(what) => Error::NotAProfiler(what),
            Error::Garbage(what) => Error::NotAProfiler(what),
            // There is no trace to send yet.
            Error::TooLargeToSend { code, message } => Error::Declined { code, message },
            other => other,
        })?;
        Ok(begin.elapsed())
    }

    /// Ends the session of this id, if it runs. An id that does not run is remembered by the workload and makes
    /// its next session of that id end at once, so ids must never be used twice.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn terminate(&self, session_id: &str, within: Duration) -> Result<(), Error> {
        let request = TerminateRequest { session_id: session_id.to_owned() };
        let call = async {
            let sent = self.call("Terminate", framed(&request), within).await?;
            receive::unary(sent).await
        };
        in_time(call, within, || 0).await
    }

    /// Records a profile and writes its XSpace, and nothing else, to `sink` as it arrives.
    ///
    /// `progress` receives the bytes received so far. Dropping the future resets the stream, which ends the
    /// session in the workload; so does every error, once a request was sent.
    ///
    /// # Errors
    /// See [`Error`]. What was written to a sink before an error is of no use.
    pub async fn profile<W: io::Write + Send + 'static>(
        &self,
        request: &ProfileRequest,
        sink: W,
        bounds: Bounds,
        mut progress: impl FnMut(u64),
    ) -> Result<Received<W>, Error> {
        let received = AtomicU64::new(0);
        let call = async {
            let sent = self.call("Profile", framed(request), bounds.within).await?;
            receive::streamed(receive::head(sent).await?, sink, bounds.max_bytes, |bytes| {
                received.store(bytes, Ordering::Relaxed);
                progress(bytes);
            })
            .await
        };
        in_time(call, bounds.within, || received.load(Ordering::Relaxed)).await
    }

    async fn call(&self, method: &'static str, message: Bytes, within: Duration) -> Result<SentCall, Error> {
        let uri = format!("http://{}/tensorflow.ProfilerService/{method}", self.target);
        let request = http::Request::post(uri)
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("grpc-accept-encoding", "identity")
            .header("grpc-timeout", grpc_timeout(within))
            .header("user-agent", concat!("tpuscope/", env!("CARGO_PKG_VERSION")))
            .body(())
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let mut send = self.send.clone().ready().await.map_err(status::before_answer)?;
        let (response, mut body) = send.send_request(request, false).map_err(status::before_answer)?;
        body.send_data(message, true).map_err(status::before_answer)?;
        Ok(SentCall { method, response })
    }
}

/// gRPC's DEADLINE_EXCEEDED.
const DEADLINE_EXCEEDED: u32 = 4;

/// What `call` gives `within` that time, whether we or the workload notice first that it is over.
async fn in_time<T>(
    call: impl Future<Output = Result<T, Error>>,
    within: Duration,
    received: impl Fn() -> u64,
) -> Result<T, Error> {
    match tokio::time::timeout(within, call).await {
        Err(_) | Ok(Err(Error::Declined { code: DEADLINE_EXCEEDED, .. })) => {
            Err(Error::Timeout { within, received: received() })
        }
        Ok(result) => result,
    }
}

/// The workload's own deadline is this much later than ours: it ends a call whose cancellation does not arrive.
const GRACE: Duration = Duration::from_secs(1);

/// At most eight digits and a unit.
fn grpc_timeout(within: Duration) -> String {
    match (within + GRACE).as_millis() {
        ms @ ..=99_999_999 => format!("{ms}m"),
        ms => format!("{}S", (ms / 1000).min(99_999_999)),
    }
}
