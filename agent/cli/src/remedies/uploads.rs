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
        FailureClass::Tls => {
            "the certificate of the service has to be one that this host trusts (a proxy may have put its own in the way), and the URL \
             https:// only where TLS is spoken"
        }
        FailureClass::Timeout => "check the network; upload.idle_timeout is the limit",
        FailureClass::Credentials => {
            "name a key file in the destination's `credentials`; or, on Google Cloud, give the machine a service \
             account, and let the agent's unit reach the metadata server: docs/storage.md has the drop-in; \
             `tpuscope config check --online` tries it"
        }
        FailureClass::CredentialsFile => {
            "the file has to be readable for the agent's user (`root:tpuscope`, 0640) and to be a key of a service \
             account; the destination's `credentials`, else GOOGLE_APPLICATION_CREDENTIALS, has its path"
        }
        FailureClass::Refused => {
            "the service names the reason: look at the project's billing and at the bucket's policies; uploads are \
             tried again"
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
        FailureClass::TooLate => {
            "`tpuscope sessions fetch` with the same hosts copies what the agents keep; `tpuscope uploads drop` ends this upload"
        }
        FailureClass::Taken => "remove the other session there, or capture again under another name",
        FailureClass::Local => "check the disk of agent.state_dir",
        FailureClass::Server if is_folder => "check the file system of the folder; uploads are tried again",
        FailureClass::Throttled | FailureClass::Server => {
            "the service is busy or fails: uploads are tried again"
        }
        FailureClass::Other => "uploads are tried again; `journalctl -u tpuscope` has the log of the agent",
    }
}

/// The session has no upload, to `destination` if one is meant, that is not done.
pub(crate) fn no_upload(session: &SessionName, destination: Option<&DestinationName>) -> Failure {
    let to = destination.map(|name| format!(" to {name}")).unwrap_or_default();
    Failure::new(Exit::NotFound, format_args!("no upload of session {session}{to} waits or has failed"))
        .remedy("`tpuscope uploads list` lists all")
}

/// A capture is kept, and these uploads of it are not done in time or failed.
pub(crate) fn uploads_not_done(uploads: &[&UploadStatus], limit: Duration) -> Failure {
    let session = uploads.first().map_or("", |upload| upload.session.as_str());
    let what: Vec<String> = uploads.iter().map(|upload| not_done(upload, limit)).collect();
    let what = format!("session {session} is kept, and {}", what.join("; "));
    Failure::new(Exit::NotUploaded, what).remedy(once_each(uploads.iter().flat_map(|upload| {
        let next = match upload.state.as_str() {
            "failed" => format!("`tpuscope uploads retry {session}` tries again"),
            _ => format!("the agent goes on; `tpuscope uploads list {session}` shows it"),
        };
        [upload_remedy(upload).to_owned(), next]
    })))
}

fn not_done(upload: &UploadStatus, limit: Duration) -> String {
    let what = match upload.state.as_str() {
        "failed" => "has failed".to_owned(),
        _ if limit.is_zero() => "is not done yet".to_owned(),
        _ => format!("is not done after {limit:?}"),
    };
    let why = if upload.failure.is_empty() { String::new() } else { format!(": {}", upload.failure) };
    format!("its upload to {} {what}{why}", upload.destination)
}

fn upload_remedy(status: &UploadStatus) -> &'static str {
    if status.failure_class.is_empty() { "" } else { upload(&status.failure_class, &status.url) }
}

/// The texts that say something, each once.
fn once_each(texts: impl Iterator<Item = String>) -> String {
    let mut once: Vec<String> = Vec::new();
    for text in texts.filter(|text| !text.is_empty()) {
        if !once.contains(&text) {
            once.push(text);
        }
    }
    once.join("; ")
}

/// A capture is kept, and the agent cannot be asked how far its upload is.
pub(crate) fn not_uploaded(failure: Failure, session: &SessionName) -> Failure {
    let what = format!("session {session} is kept, and its upload is not known to be done: {}", failure.what);
    Failure { what, exit: Exit::NotUploaded, ..failure }
}

/// Destinations that do not permit what an upload needs; `None` if all do.
pub(crate) fn destinations(checks: &[DestinationCheck]) -> Option<Failure> {
    let failed = |check: &&DestinationCheck| !check.write_error.is_empty() || !check.read_error.is_empty();
    let failures: Vec<Failure> = checks.iter().filter(failed).map(destination).collect();
    let what: Vec<&str> = failures.iter().map(|failure| failure.what.as_str()).collect();
    let remedy = once_each(failures.iter().map(|failure| failure.remedy.clone()));
    Some(Failure::new(failures.first()?.exit, what.join("; ")).remedy(remedy))
}

/// The settings have other destinations than the running agent, which has not checked these.
pub(crate) fn other_destinations(names: &[String]) -> Failure {
    let what = format_args!(
        "the agent runs with other settings: what they say of these destinations differs, and was not checked: {}",
        names.join(", ")
    );
    Failure::new(Exit::Partial, what)
        .remedy("reload the agent with these settings (`systemctl reload tpuscope`), and check again")
}

fn destination(check: &DestinationCheck) -> Failure {
    let class = FailureClass::named(&check.failure_class);
    let (doing, why) = if check.write_error.is_empty() {
        ("read from", &check.read_error)
    } else {
        ("write to", &check.write_error)
    };
    let exit = match class {
        FailureClass::Denied
        | FailureClass::Refused
        | FailureClass::Credentials
        | FailureClass::CredentialsFile => Exit::Permission,
        FailureClass::NotFound | FailureClass::NoDestination => Exit::NotFound,
        FailureClass::NoSpace => Exit::NoSpace,
        FailureClass::Timeout => Exit::Timeout,
        FailureClass::Unreachable | FailureClass::Tls | FailureClass::Throttled | FailureClass::Server => {
            Exit::Unreachable
        }
        FailureClass::Taken | FailureClass::TooLate => Exit::Conflict,
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
        let failure = uploads_not_done(&[&waiting], Duration::from_secs(5));
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
        assert!(uploads_not_done(&[&failed], Duration::ZERO).what.ends_with("has failed"));
        let what = uploads_not_done(&[&waiting], Duration::ZERO).what;
        assert!(what.ends_with("its upload to bucket is not done yet: status 403"), "{what}");
    }

    #[test]
    fn each_destination_that_fails_has_its_advice() {
        let upload = |destination: &str, class: &str| UploadStatus {
            session: "s".to_owned(),
            destination: destination.to_owned(),
            state: "waiting".to_owned(),
            failure_class: class.to_owned(),
            failure: format!("{class} there"),
            ..UploadStatus::default()
        };
        let (one, two) = (upload("one", "denied"), upload("two", "credentials_file"));
        let failure = uploads_not_done(&[&one, &two], Duration::from_secs(5));
        for destination in ["upload to one is not done after 5s: denied there", "upload to two is not done"] {
            assert!(failure.what.contains(destination), "{failure}");
        }
        assert!(failure.remedy.contains("objectUser") && failure.remedy.contains("0640"), "{failure}");
        assert_eq!(failure.remedy.matches("the agent goes on").count(), 1, "{failure}");
        let check = |name: &str, class: &str| DestinationCheck {
            name: name.to_owned(),
            write_error: format!("{class} there"),
            failure_class: class.to_owned(),
            ..DestinationCheck::default()
        };
        let fine = DestinationCheck { name: "fine".to_owned(), ..DestinationCheck::default() };
        assert!(destinations(std::slice::from_ref(&fine)).is_none());
        let failure =
            destinations(&[fine, check("one", "not_found"), check("two", "credentials_file")]).unwrap();
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.what.contains("destination one") && failure.what.contains("destination two"));
        assert!(failure.remedy.contains("check the bucket") && failure.remedy.contains("0640"), "{failure}");
    }

    #[test]
    fn what_is_no_lack_of_a_permission_is_not_mended_by_a_role() {
        for class in ["refused", "credentials_file", "credentials", "throttled", "server", "other"] {
            let remedy = upload(class, "gs://bucket/x");
            assert!(!remedy.is_empty() && !remedy.contains("objectUser"), "{class}: {remedy}");
        }
        assert!(!upload("credentials_file", "gs://bucket/x").contains("name a key file"));
    }
}
