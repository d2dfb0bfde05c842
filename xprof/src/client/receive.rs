//! Receives an answer: unwraps, checks and writes the trace while it arrives.
//!
//! The connection's task only moves bytes; one thread checks them and another writes them, since the sink may
//! have work of its own to do (a hash). Flow control is given back after the write, so that a slow disk
//! slows the sender down instead of filling memory. Both threads belong to the answer alone: a disk that hangs must
//! never take the runtime's threads for blocking calls.

use std::{
    io::{BufWriter, Write},
    sync::mpsc::SyncSender,
    thread,
};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, client::ResponseFuture};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{
    Error,
    envelope::{Envelope, Piece},
    status,
};
use crate::check::{Checker, TraceSummary};

/// What one write hands to the file at least, save the last.
const WRITE: usize = 256 << 10;
/// Small frames are joined up to this, so that no queue grows by their number.
const JOIN: usize = 64 << 10;
/// Pieces that may wait for the check, and as many for the disk.
const QUEUE: usize = 32;
/// Answers that are received at the same time, with two threads each: the service of the agent has a limit of 128.
/// Further answers wait, and their senders too.
const MAX_RECEIVERS: usize = 32;
/// Largest answer of a call that has no content.
const MAX_UNARY: usize = 64 << 10;

static RECEIVERS: Semaphore = Semaphore::const_new(MAX_RECEIVERS);

/// A trace that arrived whole.
#[derive(Debug)]
pub struct Received<W> {
    /// Where it was written to, flushed; syncing it is the caller's.
    pub sink: W,
    /// What is in it.
    pub summary: TraceSummary,
    /// The workload says that the trace is empty.
    pub said_empty: bool,
}

/// A call that was sent.
pub(super) struct SentCall {
    pub(super) method: &'static str,
    pub(super) response: ResponseFuture,
}

/// An answer with content that began.
pub(super) struct AnswerBody {
    pub(super) method: &'static str,
    pub(super) body: RecvStream,
}

/// An answer whose content does not matter.
pub(super) async fn unary(SentCall { method, response }: SentCall) -> Result<(), Error> {
    let response = response.await.map_err(status::before_answer)?;
    status::head(&response)?;
    if let Some(status) = status::grpc(method, response.headers()) {
        return status;
    }
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(data) = body.data().await {
        let data = data.map_err(status::in_answer)?;
        bytes += data.len();
        if bytes > MAX_UNARY {
            return Err(Error::NotAProfiler("it answers without end".to_owned()));
        }
    }
    trailers(method, &mut body).await
}

/// The begin of an answer with content: its body, unless the peer says at once that the call failed.
pub(super) async fn head(SentCall { method, response }: SentCall) -> Result<AnswerBody, Error> {
    let response = response.await.map_err(status::before_answer)?;
    status::head(&response)?;
    if let Some(status) = status::grpc(method, response.headers()) {
        status?;
        return Err(Error::Garbage("an answer without content".to_owned()));
    }
    Ok(AnswerBody { method, body: response.into_body() })
}

/// The body of a `ProfileResponse`, its XSpace to `sink`.
pub(super) async fn streamed<W: Write + Send + 'static>(
    AnswerBody { method, mut body }: AnswerBody,
    sink: W,
    max_bytes: u64,
    mut progress: impl FnMut(u64),
) -> Result<Received<W>, Error> {
    let (pieces, received) = mpsc::channel(QUEUE);
    let (written, mut acknowledged) = mpsc::unbounded_channel();
    let worker = spawn(move || check_and_write(sink, max_bytes, received, &written)).await?;
    let pumped = pump(&mut body, pieces, &mut acknowledged, &mut progress).await;
    let status = match pumped {
        Ok(Pumped::Complete) => trailers(method, &mut body).await,
        Ok(Pumped::Refused) => Ok(()),
        Err(error) => Err(error),
    };
    // Dropped before waiting for the disk: an open body would keep the workload's session open.
    drop(body);
    let worker = worker.await.map_err(|_| panicked())?;
    match (status, worker) {
        // The status tells why an answer is cut, so it goes before what the worker makes of the cut.
        (Err(status), Ok(_) | Err(Error::CutShort { .. })) => Err(status),
        (_, result) => result,
    }
}

/// Runs `work` on a thread of its own. The receiver gets no result if `work` panics.
async fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, Error> {
    let permit = RECEIVERS.acquire().await.map_err(|error| Error::Broken(error.to_string()))?;
    let (result, receiver) = oneshot::channel();
    let thread = thread::Builder::new().name("trace-checker".to_owned()).spawn(move || {
        let _permit = permit;
        // The call is over if there is no receiver; the sink is dropped here then.
        let _ = result.send(work());
    });
    thread.map_err(Error::write)?;
    Ok(receiver)
}

fn panicked() -> Error {
    Error::Broken("a thread ended unexpectedly".to_owned())
}

enum Pumped {
    /// The body is over.
    Complete,
    /// The worker wants no more, and says why itself.
    Refused,
}

async fn pump(
    body: &mut RecvStream,
    pieces: mpsc::Sender<Bytes>,
    acknowledged: &mut mpsc::UnboundedReceiver<usize>,
    progress: &mut impl FnMut(u64),
) -> Result<Pumped, Error> {
    let mut window = body.flow_control().clone();
    let mut joined = BytesMut::new();
    let mut received = 0;
    loop {
        let data = tokio::select! {
            biased;
            Some(bytes) = acknowledged.recv() => {
                // Fails only for a stream that is already over.
                let _ = window.release_capacity(bytes);
                continue;
            }
            () = pieces.closed() => return Ok(Pumped::Refused),
            data = body.data() => data,
        };
        let Some(data) = data else { break };
        let data = data.map_err(status::in_answer)?;
        received += data.len() as u64;
        progress(received);
        let piece = if joined.is_empty() && data.len() >= JOIN {
            data
        } else {
            joined.extend_from_slice(&data);
            // The first bytes go at once: they tell garbage from an answer.
            if joined.len() < JOIN && received > JOIN as u64 {
                continue;
            }
            joined.split().freeze()
        };
        if pieces.send(piece).await.is_err() {
            return Ok(Pumped::Refused);
        }
    }
    if !joined.is_empty() && pieces.send(joined.freeze()).await.is_err() {
        return Ok(Pumped::Refused);
    }
    Ok(Pumped::Complete)
}

/// The status after the last byte.
pub(super) async fn trailers(method: &'static str, body: &mut RecvStream) -> Result<(), Error> {
    let trailers = body.trailers().await.map_err(status::in_answer)?;
    trailers
        .and_then(|trailers| status::grpc(method, &trailers))
        .unwrap_or_else(|| Err(Error::Broken("the answer ended without a status".to_owned())))
}

/// Blocks: checks the pieces on this thread and writes them on a second one, until the answer ends.
fn check_and_write<W: Write + Send>(
    sink: W,
    max_bytes: u64,
    received: mpsc::Receiver<Bytes>,
    written: &mpsc::UnboundedSender<usize>,
) -> Result<Received<W>, Error> {
    let (to_writer, checked) = std::sync::mpsc::sync_channel(QUEUE);
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("trace-writer".to_owned());
        let writer =
            writer.spawn_scoped(scope, move || write(sink, &checked, written)).map_err(Error::write)?;
        let checked = Check::new(max_bytes).run(received, to_writer);
        // A failed sink also stops the check, so its error comes first.
        let sink = writer.join().map_err(|_| panicked())??;
        let (summary, said_empty) = checked?;
        Ok(Received { sink, summary, said_empty })
    })
}

/// A piece of the trace that passed the check.
struct CheckedPiece {
    trace: Bytes,
    /// Number of bytes of the answer that this piece was received in.
    answer_bytes: usize,
}

/// What checks.
struct Check {
    envelope: Envelope,
    checker: Option<Checker>,
}

impl Check {
    fn new(max_bytes: u64) -> Self {
        Self { envelope: Envelope::new(max_bytes), checker: None }
    }

    /// What the trace holds, and whether the workload says that it is empty.
    fn run(
        mut self,
        mut received: mpsc::Receiver<Bytes>,
        to_writer: SyncSender<CheckedPiece>,
    ) -> Result<(TraceSummary, bool), Error> {
        while let Some(bytes) = received.blocking_recv() {
            // An answer has one trace, so these bytes hold at most one piece of it.
            let mut trace = Bytes::new();
            self.envelope.push(&bytes, |piece| {
                match piece {
                    Piece::Begin(length) => self.checker = Some(Checker::new(length)),
                    Piece::Bytes(piece) => {
                        if let Some(checker) = &mut self.checker {
                            checker.push(piece)?;
                        }
                        trace = bytes.slice_ref(piece);
                    }
                }
                Ok(())
            })?;
            if to_writer.send(CheckedPiece { trace, answer_bytes: bytes.len() }).is_err() {
                return Err(Error::Broken("the writer of the trace stopped".to_owned()));
            }
        }
        let fields = self.envelope.finish()?;
        let summary = self.checker.map(Checker::finish).transpose()?.unwrap_or_default();
        if !fields.empty && fields.trace_bytes.is_none_or(|bytes| bytes == 0) {
            return Err(Error::ZeroBytes);
        }
        Ok((summary, fields.empty))
    }
}

/// What writes; it gives back the sink, flushed.
fn write<W: Write>(
    sink: W,
    checked: &std::sync::mpsc::Receiver<CheckedPiece>,
    written: &mpsc::UnboundedSender<usize>,
) -> Result<W, Error> {
    let mut sink = BufWriter::with_capacity(WRITE, sink);
    while let Ok(CheckedPiece { trace, answer_bytes }) = checked.recv() {
        sink.write_all(&trace).map_err(Error::write)?;
        drop(trace);
        // There is no receiver if the call was cancelled. The rest of the queue is not worth writing then.
        written.send(answer_bytes).map_err(|_| Error::Broken("the call was cancelled".to_owned()))?;
    }
    sink.into_inner().map_err(|error| Error::write(error.into_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hangs here ends when the sender is dropped.
    fn hanging() -> (std::sync::mpsc::Sender<()>, impl FnOnce() -> bool + Send + 'static) {
        let (release, hang) = std::sync::mpsc::channel::<()>();
        (release, move || hang.recv().is_err())
    }

    #[test]
    fn a_disk_that_hangs_takes_no_thread_of_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, work) = hanging();
            let worker = spawn(work).await.unwrap();
            assert_eq!(tokio::task::spawn_blocking(|| 7).await.unwrap(), 7);
            drop(release);
            assert!(worker.await.unwrap());
        });
    }

    #[test]
    fn a_cancelled_call_writes_no_more() {
        let (sound, checked) = std::sync::mpsc::sync_channel(2);
        for _ in 0..2 {
            sound.send(CheckedPiece { trace: Bytes::from_static(b"abc"), answer_bytes: 3 }).unwrap();
        }
        drop(sound);
        let (written, acknowledged) = mpsc::unbounded_channel();
        drop(acknowledged);
        let result = write(Vec::new(), &checked, &written);
        assert!(matches!(result, Err(Error::Broken(_))), "{result:?}");
        assert!(checked.try_recv().is_ok(), "the second piece was taken too");
    }

    #[tokio::test]
    async fn a_panic_gives_no_result() {
        let worker = spawn(|| "x".parse::<u32>().expect("a number")).await.unwrap();
        assert!(worker.await.is_err());
    }
}
