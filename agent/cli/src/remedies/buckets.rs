//! Sessions in a bucket that a command reads with the caller's own credentials.

use store::destinations::{
    BucketUrl,
    target::{FailureClass, TransferError},
};

use crate::{exit::Exit, failure::Failure};

/// The most names that an error lists.
const LISTED: usize = 5;

/// The URL leads to no session.
pub(crate) fn no_session_in_bucket(url: &BucketUrl) -> Failure {
    let what = format_args!("{url} holds no session: no *.xplane.pb in it, nor below plugins/profile");
    Failure::new(Exit::NotFound, what).remedy(
        "check the URL: it names a session folder, a logdir with plugins/profile in it, or an .xplane.pb file",
    )
}

/// The URL leads to several sessions of which none is known to be the newest. `names` are those before the last one.
pub(crate) fn several_in_bucket(url: &str, names: &[String], last: &str) -> Failure {
    let mut listed: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    if names.len() < LISTED {
        listed.push(last);
    }
    let more = (names.len() + 1).saturating_sub(listed.len());
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let what = format_args!("{url} has {} sessions: {}{more}", names.len() + 1, listed.join(", "));
    Failure::new(Exit::Usage, what).remedy("name one of them: URL/plugins/profile/SESSION")
}

/// A bucket could not be read.
pub(crate) fn unread_bucket(url: &str, error: &TransferError) -> Failure {
    if *error == TransferError::Exists {
        return Failure::new(Exit::Conflict, format_args!("{url} changed while it was read"))
            .remedy("run the command again");
    }
    let (exit, remedy) = match error.class() {
        FailureClass::Unreachable => (Exit::Unreachable, "check the network of this machine"),
        FailureClass::Tls => (
            Exit::Unreachable,
            "the certificate of the service has to be one that this machine trusts; a proxy may have put its own in the way",
        ),
        FailureClass::Timeout => (Exit::Timeout, "run the command again"),
        FailureClass::Credentials => (
            Exit::Permission,
            "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
        ),
        FailureClass::CredentialsFile => (
            Exit::Permission,
            "correct or unset the variable that names the file, such as GOOGLE_APPLICATION_CREDENTIALS; `gcloud auth \
             application-default login` makes other credentials",
        ),
        FailureClass::Refused => (
            Exit::Permission,
            "the service names the reason: look at the project's billing and at the bucket's policies",
        ),
        FailureClass::Denied => {
            (Exit::Permission, "the role roles/storage.objectViewer on the bucket is needed to read it")
        }
        FailureClass::NotFound => (Exit::NotFound, "check the name of the bucket and the path"),
        FailureClass::Throttled | FailureClass::Server => (Exit::Unreachable, "run the command again later"),
        FailureClass::NoDestination
        | FailureClass::Damaged
        | FailureClass::NoSpace
        | FailureClass::Taken
        | FailureClass::TooLate
        | FailureClass::Local
        | FailureClass::Other => (Exit::Internal, ""),
    };
    Failure::new(exit, format_args!("cannot read {url}: {error}")).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_sessions_are_named_up_to_a_limit() {
        let names: Vec<String> = (0..9).map(|n| format!("s{n}")).collect();
        let what = |count: usize| several_in_bucket("gs://b", &names[..count], "z").what;
        assert_eq!(what(1), "gs://b has 2 sessions: s0, z");
        assert_eq!(what(4), "gs://b has 5 sessions: s0, s1, s2, s3, z");
        assert_eq!(what(9), "gs://b has 10 sessions: s0, s1, s2, s3, s4, and 5 more");
    }
}
