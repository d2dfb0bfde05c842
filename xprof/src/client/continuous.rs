//! Continuous profiling: start, take what was recorded since, stop.
//!
//! The workload records until somebody stops it, whatever becomes of the client that started it. So a caller starts only
//! what it can stop: [`ProfilerClient::continuous_methods`] tells, without a call that a session of another program would
//! notice. Must never start on a server that has no `StopContinuousProfiling`; a caller asks first.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use proto::tensorflow::{GetSnapshotRequest, ProfileRequest, StopContinuousProfilingRequest};

use super::{
    Bounds, Error, ProfilerClient, Received, in_time,
    receive::{self, AnswerBody},
};
use crate::framing::framed;

/// A gRPC frame whose message is none: its one field has a wire type that does not exist. A server refuses it before it
/// runs the method, and an unknown method is refused before that.
const UNREADABLE: &[u8] = &[0, 0, 0, 0, 1, 0x0f];
/// What servers say of a message that they cannot read: UNKNOWN, INVALID_ARGUMENT, INTERNAL.
const UNREADABLE_CODES: [u32; 3] = [2, 3, 13];

/// Which methods of continuous profiling a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuousMethods {
    /// `StartContinuousProfiling`.
    pub start: bool,
    /// `StopContinuousProfiling`.
    pub stop: bool,
}

impl ProfilerClient {
    /// Asks which methods the server has, by requests that it cannot read: no method runs.
    ///
    /// # Errors
    /// If the answers do not tell.
    pub async fn continuous_methods(&self, within: Duration) -> Result<ContinuousMethods, Error> {
        let ask = async {
            let stop = self.has("StopContinuousProfiling", within).await?;
            let start = stop && self.has("StartContinuousProfiling", within).await?;
            Ok(ContinuousMethods { start, stop })
        };
        in_time(ask, within, || 0).await
    }

    async fn has(&self, method: &'static str, within: Duration) -> Result<bool, Error> {
        let sent = self.call(method, Bytes::from_static(UNREADABLE), within).await?;
        match receive::unary(sent).await {
            Err(Error::NoMethod(_)) => Ok(false),
            Err(Error::Declined { code, .. }) if UNREADABLE_CODES.contains(&code) => Ok(true),
            Err(error) => Err(error),
            Ok(()) => Err(Error::NotAProfiler(format!("it takes a message to {method} that is none"))),
        }
    }

    /// Starts continuous profiling. Without an answer it may run all the same.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::Busy`] if a session runs that somebody else started.
    pub async fn start_continuous(&self, request: &ProfileRequest, within: Duration) -> Result<(), Error> {
        let call = async {
            let sent = self.call("StartContinuousProfiling", framed(request), within).await?;
            receive::unary(sent).await
        };
        in_time(call, within, || 0).await
    }

    /// Stops continuous profiling, whoever started it.
    ///
    /// # Errors
    /// [`Error::NoSession`] if it does not run.
    pub async fn stop_continuous(&self, within: Duration) -> Result<(), Error> {
        let call = async {
            let request = framed(&StopContinuousProfilingRequest {});
            let sent = self.call("StopContinuousProfiling", request, within).await?;
            receive::unary(sent).await
        };
        in_time(call, within, || 0).await
    }

    /// Takes what was recorded since the start or the last snapshot, and writes its XSpace to `sink` as it arrives. The
    /// workload forgets it. What is in flight at that moment is in neither snapshot.
    ///
    /// # Errors
    /// [`Error::NoSession`] if continuous profiling does not run. After any other error the workload may have forgotten
    /// what it recorded, and goes on recording.
    pub async fn snapshot<W: io::Write + Send + 'static>(
        &self,
        sink: W,
        bounds: Bounds,
        mut progress: impl FnMut(u64),
    ) -> Result<Received<W>, Error> {
        let received = AtomicU64::new(0);
        let call = async {
            // Older servers have the same method by another name.
            let body = match self.begin_snapshot("GetSnapshot", bounds.within).await {
                Err(Error::NoMethod(_)) => self.begin_snapshot("GetSnapShot", bounds.within).await?,
                body => body?,
            };
            receive::streamed(body, sink, bounds.max_bytes, |bytes| {
                received.store(bytes, Ordering::Relaxed);
                progress(bytes);
            })
            .await
        };
        in_time(call, bounds.within, || received.load(Ordering::Relaxed)).await
    }

    async fn begin_snapshot(&self, method: &'static str, within: Duration) -> Result<AnswerBody, Error> {
        let sent = self.call(method, framed(&GetSnapshotRequest::default()), within).await?;
        receive::head(sent).await
    }
}
