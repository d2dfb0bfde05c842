//! Capture errors and what a session is about as messages: the one conversion between the two, used by both ends of the
//! API. Manifests are converted by [`sessions::manifest_messages`].

use proto::tpuscope::v1::{self, CaptureFailure, LibraryVersions};
use sessions::{
    CaptureError, FailureKind, FailureReason,
    manifest_messages::{job_message, job_of, levels_message, levels_of},
};
use tonic::{Code, Status, metadata::MetadataValue};
use xprof::session::{PartLosses, SessionContext, SessionUser};

pub use sessions::manifest_messages::{manifest, manifest_of};

/// `error` as a message.
pub fn failure(error: &CaptureError) -> CaptureFailure {
    CaptureFailure {
        kind: error.kind().as_str().to_owned(),
        message: error.to_string(),
        reason: error.reason().as_str().to_owned(),
        target: error.target().map(ToString::to_string).unwrap_or_default(),
        causes: error.causes().iter().map(|cause| cause.reason().as_str().to_owned()).collect(),
    }
}

/// The header of a refused call that carries the reason.
const REASON: &str = "tpuscope-reason";

/// The refusal of a request that is out of bounds. Its reason is in a header.
pub fn status(error: &CaptureError) -> Status {
    let code = match error.kind() {
        FailureKind::Denied => Code::PermissionDenied,
        FailureKind::Invalid => Code::InvalidArgument,
        _ => Code::Internal,
    };
    refusal(code, error.reason(), &error.to_string())
}

/// A refusal with its reason in a header.
pub fn refusal(code: Code, reason: FailureReason, message: &str) -> Status {
    let mut status = Status::new(code, message);
    status.metadata_mut().insert(REASON, MetadataValue::from_static(reason.as_str()));
    status
}

/// The reason of a refused call, if it has one.
pub fn reason(status: &Status) -> Option<FailureReason> {
    Some(FailureReason::named(status.metadata().get(REASON)?.to_str().ok()?))
}

/// `context` as a message.
pub fn context(context: SessionContext) -> v1::SessionContext {
    let SessionContext {
        jobs,
        commands,
        users,
        requested_ns,
        recorded_ns,
        tracer_levels,
        options,
        versions,
        losses,
    } = context;
    let user = |SessionUser { uid, name }| v1::SessionUser { uid, name };
    let library = |(library, versions): (_, std::collections::BTreeSet<_>)| LibraryVersions {
        library,
        versions: versions.into_iter().collect(),
    };
    v1::SessionContext {
        jobs: jobs.into_iter().map(job_message).collect(),
        commands,
        users: users.into_iter().map(user).collect(),
        requested_ns,
        recorded_ns,
        tracer_levels: tracer_levels.map(levels_message),
        options: options.into_iter().collect(),
        versions: versions.into_iter().map(library).collect(),
        losses: losses
            .into_iter()
            .map(|PartLosses { file, certain, possible }| v1::PartLosses { file, certain, possible })
            .collect(),
    }
}

/// The context in `message`.
pub fn context_of(message: v1::SessionContext) -> SessionContext {
    let user = |v1::SessionUser { uid, name }| SessionUser { uid, name };
    let library = |LibraryVersions { library, versions }| (library, versions.into_iter().collect());
    SessionContext {
        jobs: message.jobs.into_iter().map(job_of).collect(),
        commands: message.commands,
        users: message.users.into_iter().map(user).collect(),
        requested_ns: message.requested_ns,
        recorded_ns: message.recorded_ns,
        tracer_levels: message.tracer_levels.map(levels_of),
        options: message.options.into_iter().collect(),
        versions: message.versions.into_iter().map(library).collect(),
        losses: message
            .losses
            .into_iter()
            .map(|v1::PartLosses { file, certain, possible }| PartLosses { file, certain, possible })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use xprof::session::Manifest;

    use super::*;

    /// A manifest with all that a context is made of.
    const FULL: &str = r#"{
        "version": 1, "session": "s", "tool": {"name": "tpuscope", "version": "0.1.0"},
        "window": {"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:07Z"},
        "tracer_levels": {"host": 2, "device": 1, "python": 0}, "options": {"tpu_trace_mode": "TRACE_COMPUTE"},
        "hosts": [{
            "host": "h",
            "parts": [{
                "file": "h.xplane.pb", "size": 3, "sha256": "ab", "pid": 17, "command": "python",
                "uid": 1000, "user": "ada", "versions": {"jaxlib": "0.10.2"},
                "job": {"kind": "slurm", "id": "1", "attempt": 2, "name": "n", "user": "u", "rank": 3},
                "planes": 4, "lines": 5, "events": 6,
                "window": {"start": "2026-03-04T05:06:05Z", "stop": "2026-03-04T05:06:07Z"},
                "losses": [{"kind": "dropped_traces", "certain": true, "plane": "/device:TPU:0", "count": 9}]
            }]
        }]
    }"#;

    #[test]
    fn a_context_crosses_whole() {
        let full: Manifest = serde_json::from_str(FULL).unwrap();
        let whole = SessionContext::of(&full);
        assert_eq!(whole.jobs.len() + whole.users.len() + whole.versions.len() + whole.losses.len(), 4);
        assert_eq!(context_of(context(whole.clone())), whole);
    }
}
