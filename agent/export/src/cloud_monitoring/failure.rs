//! Why points did not reach Cloud Monitoring, from what the service answered.
//!
//! Must never keep more of an answer than one short line.

use http::{Response, StatusCode, header};
use jiff::fmt::rfc2822::DateTimeParser;
use model::{
    time::Timestamp,
    untrusted::{MESSAGE, clean},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use store::destinations::target::{FailureClass, TransferError};

/// A clock that differs by more is said to be wrong, in nanoseconds. The service refuses points that lie 5 minutes ahead.
const CLOCK_TOLERANCE: u64 = 60_000_000_000;

/// The kinds of failures, for metrics and for what to do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExportFailureKind {
    /// Nothing says which project or zone it is.
    Project,
    /// There is no such project.
    NoProject,
    /// There are no credentials, or they cannot be used.
    Credentials,
    /// The service does not accept the account.
    Account,
    /// The machine's access scopes do not include writing to Cloud Monitoring.
    Scope,
    /// The project does not have Cloud Monitoring switched on.
    Disabled,
    /// The account may not write points.
    Permission,
    /// Too many requests or points.
    Quota,
    /// The clocks of the host and of the service differ.
    Clock,
    /// The service refuses points for another reason, which it names.
    Refused,
    /// The service failed.
    Server,
    /// No connection, or it ended.
    Unreachable,
    /// The two sides do not agree on TLS.
    Tls,
    /// No answer in time.
    Timeout,
    /// The answer is not one of Cloud Monitoring.
    Answer,
    /// The marks of a job cannot be read.
    Marks,
    /// There are more series or jobs than are sent at once.
    TooMany,
    /// Two jobs have one name.
    SameName,
}

impl ExportFailureKind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::Project,
        Self::NoProject,
        Self::Credentials,
        Self::Account,
        Self::Scope,
        Self::Disabled,
        Self::Permission,
        Self::Quota,
        Self::Clock,
        Self::Refused,
        Self::Server,
        Self::Unreachable,
        Self::Tls,
        Self::Timeout,
        Self::Answer,
        Self::Marks,
        Self::TooMany,
        Self::SameName,
    ];

    /// Its name in metrics and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::NoProject => "no_project",
            Self::Credentials => "credentials",
            Self::Account => "account",
            Self::Scope => "scope",
            Self::Disabled => "disabled",
            Self::Permission => "permission",
            Self::Quota => "quota",
            Self::Clock => "clock",
            Self::Refused => "refused",
            Self::Server => "server",
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Answer => "answer",
            Self::Marks => "marks",
            Self::TooMany => "too_many",
            Self::SameName => "same_name",
        }
    }

    /// Whether it is about the points of one request, so that those of others may be taken.
    pub(super) fn is_of_the_points(self) -> bool {
        matches!(self, Self::Refused | Self::Clock)
    }
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExportFailure {
    /// Its kind.
    pub kind: ExportFailureKind,
    /// What failed, in one line.
    pub message: String,
    /// The points of the request that were written all the same.
    pub written: u64,
}

impl ExportFailure {
    pub(super) fn new(kind: ExportFailureKind, message: impl ToString) -> Self {
        Self { kind, message: message.to_string(), written: 0 }
    }
}

/// No token, or no whole answer.
impl From<TransferError> for ExportFailure {
    fn from(error: TransferError) -> Self {
        let kind = match error.class() {
            FailureClass::Unreachable => ExportFailureKind::Unreachable,
            FailureClass::Tls => ExportFailureKind::Tls,
            FailureClass::Timeout => ExportFailureKind::Timeout,
            FailureClass::Credentials | FailureClass::CredentialsFile | FailureClass::Denied => {
                ExportFailureKind::Credentials
            }
            FailureClass::Throttled => ExportFailureKind::Quota,
            FailureClass::Server => ExportFailureKind::Server,
            _ => ExportFailureKind::Answer,
        };
        Self::new(kind, error)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorAnswer {
    error: ErrorBody,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    message: String,
    status: String,
    details: Vec<ErrorDetail>,
}

/// `google.rpc.ErrorInfo` and `google.monitoring.v3.CreateTimeSeriesSummary` in one: each has fields of its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ErrorDetail {
    reason: String,
    success_point_count: u64,
}

/// What an answer at `now` means.
///
/// # Errors
/// If it does not say that all points were written.
pub fn check(answer: &Response<impl AsRef<[u8]>>, now: Timestamp) -> Result<(), ExportFailure> {
    let (status, body) = (answer.status(), answer.body().as_ref());
    if status.is_success() {
        // It is an empty object. A proxy that asks for a password answers with a page.
        let is_object = serde_json::from_slice::<Map<String, Value>>(body).is_ok();
        let what = "the answer is not one of Cloud Monitoring";
        return if is_object { Ok(()) } else { Err(ExportFailure::new(ExportFailureKind::Answer, what)) };
    }
    let ErrorAnswer { error } = serde_json::from_slice(body).unwrap_or_default();
    let clock = clock_difference(answer, now);
    let has = |reason: &str| error.details.iter().any(|detail| detail.reason == reason);
    let kind = match status {
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED if clock.is_some() => ExportFailureKind::Clock,
        StatusCode::BAD_REQUEST => ExportFailureKind::Refused,
        StatusCode::UNAUTHORIZED => ExportFailureKind::Account,
        StatusCode::FORBIDDEN if has("ACCESS_TOKEN_SCOPE_INSUFFICIENT") => ExportFailureKind::Scope,
        StatusCode::FORBIDDEN if has("SERVICE_DISABLED") => ExportFailureKind::Disabled,
        // The service says why in its own words; a proxy has others.
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if error.status.is_empty() => ExportFailureKind::Answer,
        StatusCode::FORBIDDEN => ExportFailureKind::Permission,
        StatusCode::NOT_FOUND => ExportFailureKind::NoProject,
        StatusCode::TOO_MANY_REQUESTS => ExportFailureKind::Quota,
        StatusCode::REQUEST_TIMEOUT => ExportFailureKind::Timeout,
        status if status.is_server_error() => ExportFailureKind::Server,
        _ => ExportFailureKind::Answer,
    };
    let said = [error.status.as_str(), error.message.as_str()];
    let said = said.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ");
    let space = if said.is_empty() { "" } else { " " };
    let mut message = format!("status {}{space}{}", status.as_u16(), clean(&said, MESSAGE));
    if let Some(clock) = clock.filter(|_| kind == ExportFailureKind::Clock) {
        message = format!("{clock}; {message}");
    }
    let written = error.details.iter().map(|detail| detail.success_point_count).max().unwrap_or(0);
    Err(ExportFailure { kind, message, written })
}

/// How the clock of this host differs from that of the service at `now`, in words; `None` if it does not.
pub fn clock_difference<T>(answer: &Response<T>, now: Timestamp) -> Option<String> {
    let date = answer.headers().get(header::DATE)?;
    let there = DateTimeParser::new().parse_timestamp(date.as_bytes()).ok()?;
    let difference = i128::from(now.0) - there.as_nanosecond();
    if difference.unsigned_abs() <= u128::from(CLOCK_TOLERANCE) {
        return None;
    }
    let seconds = difference.unsigned_abs() / 1_000_000_000;
    let way = if difference > 0 { "ahead of" } else { "behind" };
    Some(format!("the clock of this host is {seconds} s {way} that of Cloud Monitoring"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_772_323_623_000_000_000);

    fn answer(status: u16, date: &str, body: &str) -> Response<String> {
        Response::builder().status(status).header("date", date).body(body.to_owned()).unwrap()
    }

    fn kind(status: u16, body: &str) -> (ExportFailureKind, String, u64) {
        let failure = check(&answer(status, "Sun, 01 Mar 2026 00:07:03 GMT", body), NOW).unwrap_err();
        (failure.kind, failure.message, failure.written)
    }

    fn refusal(reason: &str) -> String {
        serde_json::json!({"error": {
            "code": 403, "message": "No.\u{1b}[31m", "status": "PERMISSION_DENIED",
            "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}],
        }})
        .to_string()
    }

    #[test]
    fn an_answer_has_one_meaning() {
        use ExportFailureKind as Kind;
        assert_eq!(check(&answer(200, "x", "{}"), NOW), Ok(()));
        for (status, body, wanted) in [
            (200, "<html>Please log in</html>", Kind::Answer),
            (200, "", Kind::Answer),
            (302, "", Kind::Answer),
            (400, "garbage", Kind::Refused),
            (401, "{}", Kind::Account),
            (403, "<html>Blocked</html>", Kind::Answer),
            (403, &refusal("IAM_PERMISSION_DENIED"), Kind::Permission),
            (403, &refusal("ACCESS_TOKEN_SCOPE_INSUFFICIENT"), Kind::Scope),
            (403, &refusal("SERVICE_DISABLED"), Kind::Disabled),
            (404, "<html>Not found</html>", Kind::Answer),
            (404, r#"{"error": {"code": 404, "status": "NOT_FOUND"}}"#, Kind::NoProject),
            (408, "", Kind::Timeout),
            (429, r#"{"error": []}"#, Kind::Quota),
            (500, "", Kind::Server),
            (503, "{\"error\": 7}", Kind::Server),
        ] {
            assert_eq!(kind(status, body).0, wanted, "{status} {body}");
        }
        let (_, message, _) = kind(403, &refusal("x"));
        assert_eq!(message, "status 403 PERMISSION_DENIED: No.\u{fffd}[31m");
        assert_eq!(kind(503, "").1, "status 503");
        assert!(kind(400, &format!(r#"{{"error": {{"message": "{}"}}}}"#, "x".repeat(9999))).1.len() < 300);
    }

    #[test]
    fn points_that_were_written_beside_refused_ones_are_counted() {
        let body = r#"{"error": {"code": 400, "message": "One or more TimeSeries could not be written",
            "status": "INVALID_ARGUMENT", "details": [
            {"@type": "type.googleapis.com/google.monitoring.v3.CreateTimeSeriesSummary",
             "totalPointCount": 9, "successPointCount": 8, "errors": [{"status": {"code": 3}, "pointCount": 1}]}]}}"#;
        assert_eq!(kind(400, body).2, 8);
    }

    #[test]
    fn a_clock_that_is_an_hour_off_is_said_to_be() {
        for (date, says) in [
            ("Sat, 28 Feb 2026 23:07:03 GMT", "is 3600 s ahead of that"),
            ("Sun, 01 Mar 2026 01:07:03 GMT", "is 3600 s behind that"),
        ] {
            for status in [400, 401] {
                let failure = check(&answer(status, date, ""), NOW).unwrap_err();
                assert_eq!(failure.kind, ExportFailureKind::Clock);
                assert!(failure.message.contains(says), "{}", failure.message);
            }
            assert_eq!(check(&answer(429, date, ""), NOW).unwrap_err().kind, ExportFailureKind::Quota);
            assert!(clock_difference(&answer(200, date, "{}"), NOW).unwrap().contains(says));
        }
        for near in ["Sun, 01 Mar 2026 00:08:03 GMT", "Sun, 01 Mar 2026 00:06:03 GMT", "no date"] {
            assert_eq!(clock_difference(&answer(200, near, ""), NOW), None, "{near}");
        }
    }
}
