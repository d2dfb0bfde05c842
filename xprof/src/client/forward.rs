//! Passes a trace on while it arrives, without a file and without a look at its events.
//!
//! The receiver learns how long the trace is, then gets its bytes as they come. Flow control is given back once the
//! receiver has room: a slow receiver slows the workload's sender down instead of filling memory.
//! Must never hold more than one frame beside the flow-control window.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proto::tensorflow::ProfileRequest;
use tokio::sync::mpsc;

use super::{
    Bounds, Error, ProfilerClient,
    envelope::{Envelope, Piece},
    in_time,
    receive::{self, AnswerBody},
    status,
};
use crate::framing::framed;

/// One piece of a trace that is passed on, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracePiece {
    /// The trace begins.
    Begin(TraceHead),
    /// Bytes of the trace.
    Bytes(Bytes),
}

/// What is known of a trace before its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceHead {
    /// Its length.
    pub bytes: u64,
    /// The workload says that it is empty.
    pub is_empty: bool,
}

impl ProfilerClient {
    /// Records a profile and hands the bytes of its XSpace to `to` as they arrive. Nothing checks what is in it.
    ///
    /// Dropping the future resets the stream, which ends the session in the workload; so does every error, once a request
    /// was sent.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::NotTaken`] if the receiver is gone.
    pub async fn forward(
        &self,
        request: &ProfileRequest,
        to: &mpsc::Sender<TracePiece>,
        bounds: Bounds,
    ) -> Result<(), Error> {
        let received = AtomicU64::new(0);
        let call = async {
            let sent = self.call("Profile", framed(request), bounds.within).await?;
            passed_on(receive::head(sent).await?, to, bounds.max_bytes, &received).await
        };
        in_time(call, bounds.within, || received.load(Ordering::Relaxed)).await
    }
}

async fn passed_on(
    mut answer: AnswerBody,
    to: &mpsc::Sender<TracePiece>,
    max_bytes: u64,
    received: &AtomicU64,
) -> Result<(), Error> {
    let mut envelope = Envelope::new(max_bytes);
    let mut window = answer.body.flow_control().clone();
    while let Some(data) = answer.body.data().await {
        let data = data.map_err(status::in_answer)?;
        received.fetch_add(data.len() as u64, Ordering::Relaxed);
        // An answer has one trace, so that a frame holds at most its begin and one piece of it.
        let (mut begin, mut bytes) = (None, Bytes::new());
        envelope.push(&data, |piece| {
            match piece {
                Piece::Begin(length) => begin = Some(length),
                Piece::Bytes(piece) => bytes = data.slice_ref(piece),
            }
            Ok(())
        })?;
        if let Some(length) = begin {
            let head = TraceHead { bytes: length, is_empty: envelope.fields().empty };
            send(to, TracePiece::Begin(head)).await?;
        }
        if !bytes.is_empty() {
            send(to, TracePiece::Bytes(bytes)).await?;
        }
        // Fails only for a stream that is already over.
        let _ = window.release_capacity(data.len());
    }
    receive::trailers(answer.method, &mut answer.body).await?;
    let fields = envelope.finish()?;
    match fields.trace_bytes {
        Some(1..) => Ok(()),
        _ if !fields.empty => Err(Error::ZeroBytes),
        Some(_) => Ok(()),
        None => send(to, TracePiece::Begin(TraceHead { bytes: 0, is_empty: true })).await,
    }
}

async fn send(to: &mpsc::Sender<TracePiece>, piece: TracePiece) -> Result<(), Error> {
    to.send(piece).await.map_err(|_| Error::NotTaken)
}
