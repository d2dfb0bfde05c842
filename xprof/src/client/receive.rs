//! Receives an answer: unwraps, checks and writes the trace while it arrives.
//!
//! The connection's task only moves bytes; a blocking thread checks and writes them. Flow control is given
//! back after the write, so that a slow disk slows the sender down instead of filling memory.

use std::io::{BufWriter, Write};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, client::ResponseFuture};
use tokio::sync::mpsc;

use super::{
    Error,
    envelope::{Envelope, Piece},
    status,
};
use crate::check::{Checker, Summary};

/// What one write hands to the file at least, save the last.
const WRITE: usize = 256 << 10;
/// Small frames are joined up to this, so that no queue grows by their number.
const JOIN: usize = 64 << 10;
/// Pieces that may wait for the disk.
const QUEUE: usize = 32;
/// Largest answer of a call that has no content.
const MAX_UNARY: usize = 64 << 10;

/// A trace that arrived whole.
#[derive(Debug)]
pub struct Received<W> {
    /// Where it was written to, flushed; syncing it is the caller's.
    pub sink: W,
    /// What is in it.
    pub summary: Summary,
    /// The workload says that the trace is empty.
    pub said_empty: bool,
}

/// An answer whose content does not matter.
pub(super) async fn unary(response: ResponseFuture) -> Result<(), Error> {
    let response = response.await.map_err(status::before_answer)?;
    status::head(&response)?;
    if let Some(status) = status::grpc(response.headers()) {
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
    trailers(&mut body).await
}

/// A `ProfileResponse`, its XSpace to `sink`.
pub(super) async fn streamed<W: Write + Send + 'static>(
    response: ResponseFuture,
    sink: W,
    max_bytes: u64,
    mut progress: impl FnMut(u64),
) -> Result<Received<W>, Error> {
    let response = response.await.map_err(status::before_answer)?;
    status::head(&response)?;
    if let Some(status) = status::grpc(response.headers()) {
        status?;
        return Err(Error::Garbage("an answer without content".to_owned()));
    }
    let (pieces, queue) = mpsc::channel(QUEUE);
    let (written, acknowledged) = mpsc::unbounded_channel();
    let worker = tokio::task::spawn_blocking(move || Worker::new(sink, max_bytes).run(queue, &written));
    let mut body = response.into_body();
    let pumped = pump(&mut body, pieces, acknowledged, &mut progress).await;
    let status = match pumped {
        Ok(Pumped::Complete) => trailers(&mut body).await,
        Ok(Pumped::Refused) => Ok(()),
        Err(error) => Err(error),
    };
    // A body that is not wanted any more must not hold the workload's session while the disk is waited for.
    drop(body);
    let worker = worker.await.map_err(|_| Error::Broken("the writer ended unexpectedly".to_owned()))?;
    match (status, worker) {
        // The status tells why an answer is cut, so it goes before what the worker makes of the cut.
        (Err(status), Ok(_) | Err(Error::CutShort { .. })) => Err(status),
        (_, result) => result,
    }
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
    mut acknowledged: mpsc::UnboundedReceiver<usize>,
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

async fn trailers(body: &mut RecvStream) -> Result<(), Error> {
    let trailers = body.trailers().await.map_err(status::in_answer)?;
    trailers
        .and_then(|trailers| status::grpc(&trailers))
        .unwrap_or_else(|| Err(Error::Broken("the answer ended without a status".to_owned())))
}

/// The blocking half.
struct Worker<W: Write> {
    envelope: Envelope,
    trace: Trace<W>,
}

/// The trace on its way to the sink.
struct Trace<W: Write> {
    sink: BufWriter<W>,
    checker: Option<Checker>,
}

impl<W: Write> Trace<W> {
    fn take(&mut self, piece: Piece<'_>) -> Result<(), Error> {
        match piece {
            Piece::Begin(length) => self.checker = Some(Checker::new(length)),
            Piece::Bytes(bytes) => {
                if let Some(checker) = &mut self.checker {
                    checker.push(bytes)?;
                }
                self.sink.write_all(bytes).map_err(Error::write)?;
            }
        }
        Ok(())
    }
}

impl<W: Write> Worker<W> {
    fn new(sink: W, max_bytes: u64) -> Self {
        Self {
            envelope: Envelope::new(max_bytes),
            trace: Trace { sink: BufWriter::with_capacity(WRITE, sink), checker: None },
        }
    }

    fn run(
        mut self,
        mut queue: mpsc::Receiver<Bytes>,
        written: &mpsc::UnboundedSender<usize>,
    ) -> Result<Received<W>, Error> {
        while let Some(bytes) = queue.blocking_recv() {
            self.envelope.push(&bytes, |piece| self.trace.take(piece))?;
            let length = bytes.len();
            drop(bytes);
            // The other half is gone only when the call is over.
            let _ = written.send(length);
        }
        let said = self.envelope.finish()?;
        let summary = self.trace.checker.map(Checker::finish).transpose()?.unwrap_or_default();
        let sink = self.trace.sink.into_inner().map_err(|error| Error::write(error.into_error()))?;
        Ok(Received {
            sink,
            summary,
            said_empty: said.empty || said.trace_bytes.is_none_or(|bytes| bytes == 0),
        })
    }
}
