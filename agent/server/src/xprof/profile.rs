//! `Profile`: one window of the processes that the caller may profile.
//!
//! The trace of one process is passed on while it arrives. Those of several are received first, since an answer begins with
//! its length; then they are joined and sent.

use std::{hint::black_box, sync::Arc};

use ::sessions::{
    CaptureError, FailureKind, FailureReason,
    capture_runner::{
        CaptureJob, RunningCapture, SessionUse,
        forwarding::{ForwardCapture, RunningForward},
    },
    target::{CaptureTarget, Targets},
};
use bytes::Bytes;
use proto::{tensorflow::ProfileRequest, tpuscope::v1::CaptureRequest};
use store::uploads::UploadChoice;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::warn;
use xprof::{client::TracePiece, service::MAX_ANSWER_TRACE};

use super::{
    XprofApi, XprofCaller,
    answer::Answer,
    destination::{TraceDestination, TraceOut},
    remarks::{self, Remarks},
    request::CheckedRequest,
    stored::{self, ChipOrder, KeptSession, StoredCarrier},
};
use crate::session_messages;

/// Pieces of a trace that wait to be answered.
const PIECES: usize = 2;
/// Half of the free memory that stays with the allocator between the frames of a trace.
const FREED: usize = 2 << 20;

pub(super) async fn profile(
    api: &Arc<XprofApi>,
    caller: XprofCaller,
    request: ProfileRequest,
    answer: &Answer,
) -> Result<(), Status> {
    let captures = &api.inputs.captures;
    let mut request = checked(api, &caller, request)?;
    let (_entry, enough) = api.begin(request.session_id.clone(), caller.caller.uid);
    let file = request.file.take().and_then(|file| file.below(&api.inputs.roots));
    let destination = match (file, caller.owner) {
        (Some(file), Some(owner)) => TraceDestination::File(file, owner),
        _ => TraceDestination::Answer(request.carrier),
    };
    let mut targets = captures.targets(&caller.scope, &CaptureRequest::default()).await;
    note_missing(&caller, &targets);
    let pass = Pass { api, caller: &caller, answer, destination, enough };
    match targets.targets.len() {
        1 => {
            let remarks = Remarks::before(&targets).field();
            pass.one(request, targets.targets.remove(0), remarks).await
        }
        _ => pass.several(request, targets).await,
    }
}

/// A request that can be one. Another one is noted as any capture that is refused.
pub(super) fn checked(
    api: &XprofApi,
    caller: &XprofCaller,
    request: ProfileRequest,
) -> Result<CheckedRequest, Status> {
    let captures = &api.inputs.captures.captures;
    CheckedRequest::new(request, captures.now()).inspect_err(|status| {
        captures.note_refused(&caller.caller, FailureReason::Invalid, &status.message());
    })
}

/// Notes in the log which processes of the caller are not captured at all.
fn note_missing(caller: &XprofCaller, targets: &Targets) {
    if let Some(first) = targets.missing.first().filter(|_| !targets.targets.is_empty()) {
        let (uid, pid, missing) = (caller.caller.uid, caller.caller.pid, targets.missing.len());
        let (process, why) = (first.process.as_deref().unwrap_or(&first.host), &first.why);
        warn!(uid, pid, missing, process, why, "processes are missing from a trace of api.xprof");
    }
}

/// A profile on its way to the client.
struct Pass<'a> {
    api: &'a Arc<XprofApi>,
    caller: &'a XprofCaller,
    answer: &'a Answer,
    destination: TraceDestination,
    enough: CancellationToken,
}

impl Pass<'_> {
    async fn one(self, request: CheckedRequest, target: CaptureTarget, remarks: Bytes) -> Result<(), Status> {
        keep_free_memory();
        let (to, mut pieces) = mpsc::channel(PIECES);
        let capture = ForwardCapture {
            params: request.params,
            target,
            max_bytes: MAX_ANSWER_TRACE - remarks.len() as u64,
            to,
            enough: self.enough,
            caller: self.caller.caller.clone(),
        };
        let running = self.api.inputs.captures.captures.forward(capture).await;
        // Dropping the guard ends the capture.
        let RunningForward { cancel: _guard, result } = running.map_err(|error| status(&error))?;
        let mut out = TraceOut::new(self.answer, self.destination, remarks);
        let passing = async {
            while let Some(piece) = pieces.recv().await {
                match piece {
                    TracePiece::Begin(head) => out.begin(head).await?,
                    TracePiece::Bytes(bytes) => out.bytes(bytes).await?,
                }
            }
            result.await.unwrap_or_else(|_| Err(lost())).map_err(|error| status(&error))?;
            out.end().await
        };
        tokio::select! {
            passed = passing => passed,
            () = self.answer.hung_up() => Err(Status::cancelled("the caller has hung up")),
        }
    }

    async fn several(self, request: CheckedRequest, targets: Targets) -> Result<(), Status> {
        let chips = self.api.chip_order();
        let beside = remarks::beside(&targets);
        let job = CaptureJob {
            params: request.params,
            session: None,
            targets,
            upload: UploadChoice::Nowhere,
            listener: Arc::new(|_| {}),
            caller: self.caller.caller.clone(),
            enough: self.enough,
            share: None,
            session_use: SessionUse::PassedOn,
        };
        let running = self.api.inputs.captures.captures.start(job).await;
        let RunningCapture { cancel: _guard, result } = running.map_err(|error| status(&error))?;
        let captured = tokio::select! {
            captured = result => captured.unwrap_or_else(|_| Err(lost())).map_err(|error| status(&error))?,
            () = self.answer.hung_up() => return Err(Status::cancelled("the caller has hung up")),
        };
        let kept = KeptSession::new(self.api.inputs.store.clone(), captured, chips, beside);
        let carrier = StoredCarrier::One(self.destination);
        stored::answer(kept, Arc::clone(&self.api.inputs.segments), carrier, self.answer).await
    }
}

/// Lets the allocator keep the memory of frames that were passed on. It gives free memory back to the system beyond twice the
/// largest block that was ever freed, and would get it back page by page for the next frames.
fn keep_free_memory() {
    drop(black_box(Vec::<u8>::with_capacity(FREED)));
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
