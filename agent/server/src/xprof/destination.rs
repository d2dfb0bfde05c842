//! Where a trace goes: into the answer, or into a file of the client's user, of which the answer then only says that it is there.

use bytes::Bytes;
use proto::tensorflow::ProfileResponse;
use tonic::Status;
use xprof::{
    client::TraceHead,
    framing::framed,
    service::{TraceCarrier, answer_head, carries_trace},
};

use super::{
    answer::Answer,
    profile::too_large,
    written::{FileBelow, FileOwner, FileWriter},
};

/// Where a trace goes.
#[derive(Debug, Clone)]
pub(super) enum TraceDestination {
    Answer(TraceCarrier),
    File(FileBelow, FileOwner),
}

/// A trace on its way: its head, its bytes, its end.
pub(super) struct TraceOut<'a> {
    answer: &'a Answer,
    destination: TraceDestination,
    /// The bytes that follow are to be passed on.
    carries: bool,
    is_empty: bool,
    writer: Option<FileWriter>,
    /// Follows the bytes of the trace.
    last: Bytes,
}

impl<'a> TraceOut<'a> {
    /// `last` is added to the trace.
    pub(super) fn new(answer: &'a Answer, destination: TraceDestination, last: Bytes) -> Self {
        Self { answer, destination, carries: false, is_empty: false, writer: None, last }
    }

    /// The trace begins.
    pub(super) async fn begin(&mut self, trace: TraceHead) -> Result<(), Status> {
        let head = TraceHead { bytes: trace.bytes + self.last.len() as u64, ..trace };
        self.is_empty = head.is_empty;
        match &self.destination {
            TraceDestination::Answer(carrier) => {
                self.carries = carries_trace(*carrier, head);
                let head = answer_head(*carrier, head).map_err(too_large)?;
                self.answer.send(head).await?;
            }
            TraceDestination::File(file, owner) if !head.is_empty => {
                self.carries = true;
                self.writer = Some(file.begin(*owner, head.bytes)?);
            }
            TraceDestination::File(..) => {}
        }
        Ok(())
    }

    /// Bytes of the trace.
    pub(super) async fn bytes(&mut self, piece: Bytes) -> Result<(), Status> {
        match &mut self.writer {
            _ if !self.carries => Ok(()),
            Some(writer) => writer.write(&piece).await,
            None => Ok(self.answer.send(piece).await?),
        }
    }

    /// The trace was whole.
    pub(super) async fn end(mut self) -> Result<(), Status> {
        if !self.last.is_empty() {
            let last = std::mem::take(&mut self.last);
            self.bytes(last).await?;
        }
        if let TraceDestination::Answer(_) = self.destination {
            return Ok(());
        }
        if let Some(writer) = self.writer {
            writer.finish().await?;
        }
        // As a workload's own server answers that has written the file.
        let answer = ProfileResponse { empty_trace: self.is_empty, ..ProfileResponse::default() };
        Ok(self.answer.send(framed(&answer)).await?)
    }
}
