//! The window: all profilers record at once, and their traces are received.

use std::{sync::Arc, time::Duration};

use model::time::Timestamp;
use tokio::task::JoinSet;
use tracing::debug;
use xprof::{
    check::TraceSummary,
    client::{Bounds, Received},
    session::SessionName,
};

use super::{CaptureRun, Failures, StagedPart, listeners::ListenerWatch, progress::CaptureProgress, reserve};
use crate::{
    CaptureError, ProfilerCall,
    profiler::{ProfileJob, ProfilerLease, TraceSink},
};

/// A target that gave a trace.
pub(super) struct ReceivedPart {
    pub(super) index: usize,
    pub(super) part: StagedPart,
    pub(super) summary: TraceSummary,
    /// Further warnings about it.
    pub(super) notes: Vec<String>,
}

/// When the profilers record.
#[derive(Debug, Clone, Copy)]
pub(super) struct CaptureWindow {
    /// The start in the manifest.
    pub(super) begin: Timestamp,
    /// The start time in every request; `None`: at once.
    pub(super) common_start: Option<Timestamp>,
    /// When the traces must be complete, from now.
    pub(super) within: Duration,
}

impl CaptureRun {
    /// Records with every profiler that answered, by index of its target.
    pub(super) async fn record_all(
        self: &Arc<Self>,
        session: &SessionName,
        profilers: Vec<(usize, StagedPart, ProfilerLease)>,
        window: CaptureWindow,
        failures: &mut Failures,
    ) -> Result<Vec<ReceivedPart>, CaptureError> {
        let mut recording = JoinSet::new();
        for (index, part, lease) in profilers {
            let id = format!("tpuscope-{session}-{:016x}", fastrand::u64(..));
            let this = Arc::clone(self);
            recording.spawn(async move { (index, this.record(index, lease, part, &id, window).await) });
        }
        let mut received = Vec::new();
        while let Some(result) = recording.join_next().await {
            match result.map_err(CaptureError::panicked)? {
                (_, Ok(part)) => received.push(part),
                (index, Err(error)) => self.fail(index, error, failures),
            }
        }
        received.sort_by_key(|part| part.index);
        Ok(received)
    }

    async fn record(
        &self,
        index: usize,
        lease: ProfilerLease,
        part: StagedPart,
        id: &str,
        window: CaptureWindow,
    ) -> Result<ReceivedPart, CaptureError> {
        let listener = Arc::clone(&self.listener);
        let job = ProfileJob {
            request: self.spec.request(id, window.common_start),
            sink: TraceSink::Part(part),
            bounds: Bounds { within: window.within, max_bytes: self.spec.max_bytes },
            progress: Box::new(move |bytes| listener(CaptureProgress::Received(index, bytes))),
            cancel: self.cancel.clone(),
            enough: self.enough.clone(),
        };
        debug!(id, target = %lease.target(), "profile requested");
        let listeners = ListenerWatch::start(self.profilers.procfs(), lease.target());
        match lease.profile(job).await {
            Ok(Received { sink: TraceSink::Part(part), summary, .. }) => {
                debug!(id, target = %lease.target(), "trace received");
                Ok(ReceivedPart { index, part, summary, notes: listeners.note().await.into_iter().collect() })
            }
            Ok(Received { sink: TraceSink::Segment(_), .. }) => unreachable!("the sink was a part"),
            Err(error) => Err(reserve::failed(lease.target().clone(), ProfilerCall::Profile, error)),
        }
    }
}
