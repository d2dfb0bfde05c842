//! `Profile`: one window of the processes that the caller may profile.
//!
//! The trace of one process is passed on while it arrives. Those of several are received first, since an answer begins with
//! its length; then they are joined and sent.

use std::sync::Arc;

use ::sessions::{
    CaptureError, FailureKind,
    capture_runner::{
        CaptureJob, RunningCapture,
        forwarding::{ForwardCapture, RunningForward},
    },
    target::{CaptureTarget, Targets},
};
use proto::{tensorflow::ProfileRequest, tpuscope::v1::CaptureRequest};
use store::uploads::UploadChoice;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use xprof::{
    client::TracePiece,
    service::{MAX_ANSWER_TRACE, answer_head, carries_trace},
};

use super::{
    XprofApi, XprofCaller,
    answer::Answer,
    request::CheckedRequest,
    stored::{self, ChipOrder, KeptSession},
};
use crate::session_messages;

/// Pieces of a trace that wait to be answered.
const PIECES: usize = 2;

pub(super) async fn profile(
    api: &Arc<XprofApi>,
    caller: XprofCaller,
    request: ProfileRequest,
    answer: &Answer,
) -> Result<(), Status> {
    let captures = &api.inputs.captures;
    let request = CheckedRequest::new(request, captures.captures.now())?;
    let (_entry, enough) = api.begin(request.session_id.clone(), caller.caller.uid);
    let mut targets = captures.targets(&caller.scope, &CaptureRequest::default()).await;
    match targets.targets.len() {
        1 => {
            let target = targets.targets.remove(0);
            let pass = Pass { api, caller: &caller, answer, enough };
            pass.one(request, target).await
        }
        _ => Pass { api, caller: &caller, answer, enough }.several(request, targets).await,
    }
}

/// A profile on its way to the client.
struct Pass<'a> {
    api: &'a Arc<XprofApi>,
    caller: &'a XprofCaller,
    answer: &'a Answer,
    enough: CancellationToken,
}

impl Pass<'_> {
    async fn one(self, request: CheckedRequest, target: CaptureTarget) -> Result<(), Status> {
        let (to, mut pieces) = mpsc::channel(PIECES);
        let capture = ForwardCapture {
            params: request.params,
            target,
            max_bytes: MAX_ANSWER_TRACE,
            to,
            enough: self.enough,
            caller: self.caller.caller.clone(),
        };
        let running = self.api.inputs.captures.captures.forward(capture).await;
        // Dropping the guard ends the capture.
        let RunningForward { cancel: _guard, result } = running.map_err(|error| status(&error))?;
        let mut carries = false;
        while let Some(piece) = tokio::select! {
            piece = pieces.recv() => piece,
            () = self.answer.hung_up() => return Err(Status::cancelled("the caller has hung up")),
        } {
            match piece {
                TracePiece::Begin(head) => {
                    carries = carries_trace(request.carrier, head);
                    let head = answer_head(request.carrier, head).map_err(too_large)?;
                    self.answer.send(head).await?;
                }
                TracePiece::Bytes(bytes) if carries => self.answer.send(bytes).await?,
                TracePiece::Bytes(_) => {}
            }
        }
        result.await.unwrap_or_else(|_| Err(lost())).map_err(|error| status(&error))
    }

    async fn several(self, request: CheckedRequest, targets: Targets) -> Result<(), Status> {
        let chips = self.api.chip_order();
        let job = CaptureJob {
            params: request.params,
            session: None,
            targets,
            upload: UploadChoice::Nowhere,
            listener: Arc::new(|_| {}),
            caller: self.caller.caller.clone(),
            enough: self.enough,
            share: None,
        };
        let running = self.api.inputs.captures.captures.start(job).await;
        let RunningCapture { cancel: _guard, result } = running.map_err(|error| status(&error))?;
        let captured = tokio::select! {
            captured = result => captured.unwrap_or_else(|_| Err(lost())).map_err(|error| status(&error))?,
            () = self.answer.hung_up() => return Err(Status::cancelled("the caller has hung up")),
        };
        let kept = KeptSession::new(self.api.inputs.store.clone(), captured, chips);
        stored::answer(kept, Arc::clone(&self.api.inputs.segments), request.carrier.into(), self.answer).await
    }
}

impl XprofApi {
    /// The first chip of each process.
    pub(super) fn chip_order(&self) -> ChipOrder {
        let host = self.inputs.captures.host_snapshot();
        let first = |owner: &model::workload::Owner| Some((owner.process.pid, owner.chips.iter().min()?.0));
        host.workloads.owners.iter().filter_map(first).collect()
    }
}

/// A failed capture as the status of a call.
pub(super) fn status(error: &CaptureError) -> Status {
    let code = match error.kind() {
        FailureKind::Unreachable | FailureKind::NotListening | FailureKind::NotAProfiler => Code::Unavailable,
        // As a workload's own server says it; a client of XProf tries again.
        FailureKind::Busy => Code::AlreadyExists,
        FailureKind::EmptyTrace | FailureKind::NoTarget | FailureKind::NotFound => Code::NotFound,
        FailureKind::Timeout => Code::DeadlineExceeded,
        FailureKind::TooLarge | FailureKind::NoSpace | FailureKind::Conflict => Code::ResourceExhausted,
        FailureKind::Denied => Code::PermissionDenied,
        FailureKind::Invalid => Code::InvalidArgument,
        FailureKind::Cancelled => Code::Cancelled,
        FailureKind::Damaged | FailureKind::Internal => Code::Internal,
    };
    let text = match error.kind() {
        FailureKind::TooLarge => format!("{error}: record a shorter window"),
        _ => error.to_string(),
    };
    session_messages::refusal(code, error.reason(), &text)
}

/// An answer that no parser takes.
pub(super) fn too_large(error: impl std::fmt::Display) -> Status {
    Status::resource_exhausted(error.to_string())
}

fn lost() -> CaptureError {
    CaptureError::Panicked("the agent's log has the reason".to_owned())
}
