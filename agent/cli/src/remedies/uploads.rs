//! Uploads to destinations.

use std::time::Duration;

use proto::tpuscope::v1::{DestinationCheck, UploadStatus};
use store::destinations::{DestinationName, target::FailureClass};
use xprof::session::SessionName;

use crate::{exit::Exit, failure::Failure};

/// What to do about an attempt of this class that failed at this URL. Empty if there is nothing to add.
pub(crate) fn upload(class: &str, url: &str) -> &'static str {
    let is_folder = url.starts_with("file:");
    match FailureClass::named(class) {
        FailureClass::Unreachable => {
            "check the network and the unit's rules: IPAddressAllow=, docs/storage.md has the drop-in"
        }
        FailureClass::Timeout => "check the network; upload.idle_timeout is the limit",
        FailureClass::Credentials => {
            "give the machine a service account, or name a key file in the destination's `credentials`; \
             `tpuscope config check --online` tries it"
        }
        FailureClass::Denied if is_folder => {
            "let the agent's user write to the folder, and its unit too: ReadWritePaths=, docs/storage.md has the \
             drop-in; `tpuscope config check --online` names the user"
        }
        FailureClass::Denied => {
            "grant the agent's identity roles/storage.objectUser on the bucket; `tpuscope config check --online` \
             names the identity"
        }
        FailureClass::NoDestination => {
            "name the destination in the settings again and reload the agent (`systemctl reload tpuscope`), or \
             `tpuscope uploads drop` gives the upload up"
        }
        FailureClass::NotFound if is_folder => {
            "make the folder or mount its file system, or correct the destination's `url` and reload the agent: \
             `systemctl reload tpuscope`"
        }
        FailureClass::NotFound => {
            "check the bucket in the destination's `url`, then reload the agent: `systemctl reload tpuscope`"
        }
        FailureClass::Damaged => {
            "`tpuscope uploads retry` sends it again; check the machine's memory and disk"
        }
        FailureClass::NoSpace => "free space at the destination",
        FailureClass::Taken => "remove the other session there, or capture again under another name",
        FailureClass::Local => "check the disk of agent.state_dir",
        FailureClass::Throttled | FailureClass::Server | FailureClass::Other => "",
    }
}

/// The session has no upload, to `destination` if one is meant, that is not done.
pub(crate) fn no_upload(session: &SessionName, destination: Option<&DestinationName>) -> Failure {
    let to = destination.map(|name| format!(" to {name}")).unwrap_or_default();
    Failure::new(Exit::NotFound, format_args!("no upload of session {session}{to} waits or has failed"))
        .remedy("`tpuscope uploads list` lists all")
}

/// A capture is kept, and its upload is not done in time or failed.
pub(crate) fn upload_not_done(upload: &UploadStatus, limit: Duration) -> Failure {
    let (session, destination) = (&upload.session, &upload.destination);
    let (what, next) = match upload.state.as_str() {
        "failed" => ("has failed".to_owned(), format!("`tpuscope uploads retry {session}` tries again")),
        _ => (
            format!("is not done after {limit:?}"),
            format!("the agent goes on; `tpuscope uploads list {session}` shows it"),
        ),
    };
    let why = if upload.failure.is_empty() { String::new() } else { format!(": {}", upload.failure) };
    let remedies = [upload_remedy(upload), next.as_str()];
    let remedy: Vec<_> = remedies.into_iter().filter(|text| !text.is_empty()).collect();
    let what = format!("session {session} is kept, and its upload to {destination} {what}{why}");
    Failure::new(Exit::NotUploaded, what).remedy(remedy.join("; "))
}

fn upload_remedy(status: &UploadStatus) -> &'static str {
    if status.failure_class.is_empty() { "" } else { upload(&status.failure_class, &status.url) }
}

/// A capture is kept, and the agent cannot be asked how far its upload is.
pub(crate) fn not_uploaded(failure: Failure, session: &SessionName) -> Failure {
    let what = format!("session {session} is kept, and its upload is not known to be done: {}", failure.what);
    Failure { what, exit: Exit::NotUploaded, ..failure }
}

/// A destination does not permit what an upload needs.
pub(crate) fn destination(check: &DestinationCheck) -> Failure {
    let class = FailureClass::named(&check.failure_class);
    let (doing, why) = if check.write_error.is_empty() {
        ("read from", &check.read_error)
    } else {
        ("write to", &check.write_error)
    };
    let exit = match class {
        FailureClass::Denied | FailureClass::Credentials => Exit::Permission,
        FailureClass::NotFound | FailureClass::NoDestination => Exit::NotFound,
        FailureClass::NoSpace => Exit::NoSpace,
        FailureClass::Timeout => Exit::Timeout,
        FailureClass::Unreachable | FailureClass::Throttled | FailureClass::Server => Exit::Unreachable,
        FailureClass::Taken => Exit::Conflict,
        FailureClass::Damaged | FailureClass::Local | FailureClass::Other => Exit::Internal,
    };
    Failure::new(exit, format_args!("destination {}: cannot {doing} {}: {why}", check.name, check.url))
        .remedy(upload(&check.failure_class, &check.url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_and_not_uploaded_has_its_own_code() {
        let waiting = UploadStatus {
            session: "s".to_owned(),
            destination: "bucket".to_owned(),
            state: "waiting".to_owned(),
            failure_class: "denied".to_owned(),
            failure: "status 403".to_owned(),
            ..UploadStatus::default()
        };
        let failure = upload_not_done(&waiting, Duration::from_secs(5));
        assert_eq!(failure.exit, Exit::NotUploaded);
        assert_eq!(
            failure.what,
            "session s is kept, and its upload to bucket is not done after 5s: status 403"
        );
        assert!(
            failure.remedy.contains("roles/storage.objectUser")
                && failure.remedy.contains("the agent goes on")
        );
        let failed = UploadStatus { state: "failed".to_owned(), ..UploadStatus::default() };
        assert!(upload_not_done(&failed, Duration::ZERO).what.ends_with("has failed"));
    }
}
