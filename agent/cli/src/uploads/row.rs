//! One upload as text and as JSON (`docs/schemas/uploads-list.schema.json`).

use model::time::Timestamp;
use proto::tpuscope::v1::UploadStatus;
use serde::Serialize;

use crate::remedies;

/// An upload in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct UploadRow {
    session: String,
    destination: String,
    url: String,
    name_there: Option<String>,
    state: String,
    priority: String,
    bytes: u64,
    sent_bytes: u64,
    queued: Timestamp,
    done: Option<Timestamp>,
    unverified_files: u32,
    failure: Option<FailureRow>,
}

#[derive(Debug, Serialize)]
struct FailureRow {
    class: String,
    message: String,
    remedy: &'static str,
}

impl From<&UploadStatus> for UploadRow {
    fn from(upload: &UploadStatus) -> Self {
        let failure = (!upload.failure_class.is_empty()).then(|| FailureRow {
            class: upload.failure_class.clone(),
            message: upload.failure.clone(),
            remedy: remedies::upload(&upload.failure_class, &upload.url),
        });
        Self {
            session: upload.session.clone(),
            destination: upload.destination.clone(),
            url: upload.url.clone(),
            name_there: (!upload.name_there.is_empty()).then(|| upload.name_there.clone()),
            state: upload.state.clone(),
            priority: upload.priority.clone(),
            bytes: upload.bytes,
            sent_bytes: upload.sent_bytes,
            queued: Timestamp(upload.queued_unix_ns),
            done: upload.done_unix_ns.map(Timestamp),
            unverified_files: upload.unverified,
            failure,
        }
    }
}

/// The rows of these uploads.
pub(crate) fn rows(uploads: &[UploadStatus]) -> Vec<UploadRow> {
    uploads.iter().map(UploadRow::from).collect()
}

/// How far an upload is, in a few words.
pub(crate) fn progress(upload: &UploadStatus) -> String {
    match upload.state.as_str() {
        "done" if upload.unverified > 0 => format!("there ({} unverified)", upload.unverified),
        "done" => "there".to_owned(),
        "failed" => format!("failed ({})", upload.failure_class),
        _ if !upload.failure_class.is_empty() => {
            format!("{} %, waits ({})", percent(upload), upload.failure_class)
        }
        "running" => format!("{} % on its way", percent(upload)),
        _ => "waits".to_owned(),
    }
}

fn percent(upload: &UploadStatus) -> u64 {
    u128::from(upload.sent_bytes)
        .saturating_mul(100)
        .checked_div(u128::from(upload.bytes))
        .map_or(0, |percent| u64::try_from(percent.min(100)).unwrap_or(100))
}

/// Where a session is, in a few words: here, and how far each upload is.
pub(crate) fn places(uploads: &[UploadStatus]) -> String {
    if uploads.is_empty() {
        return "here".to_owned();
    }
    let each = uploads.iter().map(|upload| format!("{}: {}", upload.destination, progress(upload)));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_is_said_in_few_words() {
        let upload = |state: &str, sent_bytes, failure_class: &str| UploadStatus {
            destination: "bucket".to_owned(),
            state: state.to_owned(),
            bytes: 1000,
            sent_bytes,
            failure_class: failure_class.to_owned(),
            ..UploadStatus::default()
        };
        assert_eq!(progress(&upload("waiting", 0, "")), "waits");
        assert_eq!(progress(&upload("running", 405, "")), "40 % on its way");
        assert_eq!(progress(&upload("waiting", 405, "denied")), "40 %, waits (denied)");
        assert_eq!(progress(&upload("failed", 0, "damaged")), "failed (damaged)");
        assert_eq!(places(&[upload("done", 1000, "")]), "bucket: there");
        assert_eq!(places(&[]), "here");
    }
}
