//! The uploads as messages. The command line uses [`check`] too, for a check without an agent.

use proto::tpuscope::v1::{DestinationCheck, UploadStatus, UploadSummary};
use store::{
    SessionPriority,
    uploads::{self, UploadPhase, UploadsSummary},
};

/// One upload.
pub(super) fn status(upload: &uploads::UploadStatus) -> UploadStatus {
    let (done, unverified) = match upload.phase {
        UploadPhase::Done { at, unverified } => (Some(at.0), unverified),
        UploadPhase::Waiting | UploadPhase::Running | UploadPhase::Failed => (None, 0),
    };
    let failure = upload.failure.clone();
    UploadStatus {
        session: upload.session.clone(),
        destination: upload.destination.clone(),
        url: upload.url.clone(),
        name_there: upload.name_there.clone().unwrap_or_default(),
        state: upload.phase.as_str().to_owned(),
        priority: priority(upload.priority).to_owned(),
        bytes: upload.bytes,
        sent_bytes: upload.sent_bytes,
        queued_unix_ns: upload.queued.0,
        done_unix_ns: done,
        unverified,
        failure_class: failure.as_ref().map(|failure| failure.class.as_str().to_owned()).unwrap_or_default(),
        failure: failure.map(|failure| failure.message).unwrap_or_default(),
    }
}

fn priority(priority: SessionPriority) -> &'static str {
    match priority {
        SessionPriority::Periodic => "periodic",
        SessionPriority::Asked => "asked",
        SessionPriority::Triggered => "triggered",
    }
}

/// All uploads in short; `None` if there is nothing to say.
pub(super) fn summary(uploads: &UploadsSummary) -> Option<UploadSummary> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    (uploads.destinations > 0 || uploads.waiting > 0 || uploads.failed > 0).then(|| UploadSummary {
        destinations: count(uploads.destinations),
        waiting: count(uploads.waiting),
        failed: count(uploads.failed),
        bytes: uploads.bytes,
        sent_bytes: uploads.sent_bytes,
        oldest_seconds: uploads.oldest.map(|oldest| oldest.as_secs_f64()),
        failures: uploads.failures.iter().map(|class| class.as_str().to_owned()).collect(),
    })
}

/// What a destination permits.
pub fn check(check: uploads::DestinationCheck) -> DestinationCheck {
    let text = |result: &Result<(), _>| {
        result.as_ref().err().map(|error: &store::destinations::target::TransferError| error.to_string())
    };
    let first =
        [&check.write, &check.read, &check.delete].into_iter().find_map(|result| result.as_ref().err());
    DestinationCheck {
        write_error: text(&check.write).unwrap_or_default(),
        read_error: text(&check.read).unwrap_or_default(),
        delete_error: text(&check.delete).unwrap_or_default(),
        failure_class: first.map(|error| error.class().as_str().to_owned()).unwrap_or_default(),
        name: check.name,
        url: check.url,
        identity: check.identity,
    }
}
