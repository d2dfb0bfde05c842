//! A capture of one process whose trace is passed on while it arrives. The agent keeps nothing of it.

use std::{sync::Arc, time::Duration};

use model::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;
use xprof::{
    client::{Bounds, TracePiece},
    session::SessionName,
};

use super::{Caller, CaptureRunner};
use crate::{
    CaptureError, ProfilerCall,
    capture::reserve::{LEASE_SLACK, MAX_LEAD, failed, refused, until},
    own_metrics,
    profiler::{ForwardJob, ProbeTimeouts, ProfilerLease, queue::ProfilerUser},
    settings::Settings,
    spec::{CaptureParams, CaptureSpec, ParamsSource},
    target::CaptureTarget,
};

/// What a caller asks for.
pub struct ForwardCapture {
    /// What to record.
    pub params: CaptureParams,
    /// The profiler to ask.
    pub target: CaptureTarget,
    /// The most bytes that the caller takes.
    pub max_bytes: u64,
    /// Gets the trace.
    pub to: mpsc::Sender<TracePiece>,
    /// Ends the window early: what was recorded so far is passed on.
    pub enough: CancellationToken,
    /// Who asks, for the log.
    pub caller: Caller,
}

/// A capture that runs.
pub struct RunningForward {
    /// Dropping it ends the capture.
    pub cancel: DropGuard,
    /// How it ends.
    pub result: oneshot::Receiver<Result<(), CaptureError>>,
}

/// A capture that was accepted.
struct Forward {
    spec: CaptureSpec,
    settings: Settings,
    target: CaptureTarget,
    to: mpsc::Sender<TracePiece>,
    cancel: CancellationToken,
    enough: CancellationToken,
}

impl CaptureRunner {
    /// Begins to record one process and to pass its trace on.
    ///
    /// # Errors
    /// If it cannot begin; then the workload was not disturbed.
    pub async fn forward(self: &Arc<Self>, capture: ForwardCapture) -> Result<RunningForward, CaptureError> {
        let caller = capture.caller.clone();
        self.begin_forward(capture).inspect_err(|error| self.note_refusal(&caller, error))
    }

    fn begin_forward(self: &Arc<Self>, capture: ForwardCapture) -> Result<RunningForward, CaptureError> {
        let ForwardCapture { params, target, max_bytes, to, enough, caller } = capture;
        let settings = self.settings();
        let mut spec = CaptureSpec::new(params, ParamsSource::Agent, &settings, self.clock.now())?;
        spec.max_bytes = spec.max_bytes.min(max_bytes);
        let permit = self.permit()?;
        let cancel = self.stop.child_token();
        let (reply, result) = oneshot::channel();
        let forward = Forward { spec, settings, target, to, cancel: cancel.clone(), enough };
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let Caller { uid, pid, remote } = caller;
            let (target, remote) = (forward.target.at.clone(), remote.as_deref());
            info!(%target, uid, pid, remote, "capture begins, its trace is passed on");
            let passed = this.pass_on(forward).await;
            match &passed {
                Ok(()) => info!(%target, uid, pid, remote, "capture passed on"),
                Err(error) => {
                    info!(%target, uid, pid, remote, reason = error.reason().as_str(), %error, "capture failed");
                }
            }
            own_metrics::passed_on(&passed);
            drop(permit);
            // The caller may be gone.
            let _ = reply.send(passed);
        });
        Ok(RunningForward { cancel: cancel.drop_guard(), result })
    }

    async fn pass_on(&self, forward: Forward) -> Result<(), CaptureError> {
        let Forward { spec, settings, target, to, cancel, enough } = forward;
        let prepared = cancel.run_until_cancelled(self.prepare(&spec, &settings, &target)).await;
        let lease = prepared.ok_or(CaptureError::Cancelled)??;
        let id = format!("tpuscope-forward-{:016x}", fastrand::u64(..));
        let wait = until(spec.start, self.clock.now());
        let job = ForwardJob {
            request: spec.request(&id, spec.start),
            to,
            bounds: Bounds { within: wait + spec.duration + spec.timeout, max_bytes: spec.max_bytes },
            cancel,
            enough,
        };
        let passed = lease.forward(job).await;
        passed.map_err(|error| failed(target.at.clone(), ProfilerCall::Profile, error))
    }

    /// Reserves the profiler, waits until shortly before the start, and probes it.
    async fn prepare(
        &self,
        spec: &CaptureSpec,
        settings: &Settings,
        target: &CaptureTarget,
    ) -> Result<ProfilerLease, CaptureError> {
        let now = self.clock.now();
        let user = ProfilerUser::Capture(SessionName::of_time(now.into()));
        let within = until(spec.start, now) + spec.duration + spec.timeout + LEASE_SLACK;
        let reserved = self.profilers.reserve(target, &user, within).await;
        let lease = reserved.map_err(|refusal| refused(target.at.clone(), refusal))?;
        let timeouts = ProbeTimeouts {
            connect: settings.connect_timeout.get(),
            answer: settings.probe_timeout.get().min(spec.timeout),
        };
        // The workload waits for the start itself, but is deaf to a cancel until then.
        let ahead = timeouts.connect + timeouts.answer + MAX_LEAD;
        tokio::time::sleep(remaining(spec.start, self.clock.now(), ahead)).await;
        match lease.probe(timeouts).await {
            Ok(_) => Ok(lease),
            Err(error) => Err(failed(target.at.clone(), ProfilerCall::Probe, error)),
        }
    }
}

/// How long it is until `ahead` before the start.
fn remaining(start: Option<Timestamp>, now: Timestamp, ahead: Duration) -> Duration {
    until(start, now).saturating_sub(ahead)
}
