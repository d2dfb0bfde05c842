//! Why an export failed, in one line, and whether it may be tried again.
//!
//! Must never show a header: it may be a secret.

use std::{error::Error, io, iter, time::Duration};

use cluster::identity::tls_fault::{TlsFault, TlsFaultKind};
use model::untrusted::{MESSAGE, clean};
use prost::Message;
use proto::google::rpc;
use tonic::{Code, Status};

use super::{collector_files::CollectorFileError, encoded_codec::UnreadableAnswer, pacing::ExportEnd};

/// How the library of gRPC begins its status for an answer that is longer than the limit of this side.
const TOO_LONG: &str = "Error, decoded message length too large";

/// What kind of fault it is; each has its own remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFault {
    /// A file of the settings cannot be used.
    Files,
    /// Nobody accepts the connection.
    Connection,
    /// The two sides do not agree on TLS.
    Tls,
    /// The other end does not speak TLS, or another version.
    NoTls,
    /// The other end closed the connection, or sent what is not gRPC.
    Lost,
    /// The answer is none of a collector.
    Answer,
    /// No answer within the timeout.
    Silent,
    /// The service is unknown there.
    NoService,
    /// The collector wants other credentials.
    Credentials,
    /// The collector has too much to do.
    Overloaded,
    /// The collector cannot take anything at the moment.
    Unavailable,
    /// The collector refuses the message.
    Refused,
    /// The collector took the message without some of its points, or with a warning.
    Rejected,
}

impl ExportFault {
    /// Its name in labels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Connection => "connection",
            Self::Tls => "tls",
            Self::NoTls => "no_tls",
            Self::Lost => "lost",
            Self::Answer => "answer",
            Self::Silent => "timeout",
            Self::NoService => "no_service",
            Self::Credentials => "credentials",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
        }
    }
}

/// An export that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct OtlpError {
    pub(super) fault: ExportFault,
    /// One line.
    what: String,
    /// The wait that the collector asked for; `None`: it must not be retried.
    retry: Option<Duration>,
}

impl OtlpError {
    /// No answer within the timeout.
    pub(super) fn silent(limit: Duration) -> Self {
        let what = format!("the collector did not answer within {limit:?}");
        Self { fault: ExportFault::Silent, what, retry: Some(Duration::ZERO) }
    }

    /// The collector took a message without some of its points, or took all with a warning.
    pub(super) fn rejected(points: i64, of: u64, message: &str) -> Self {
        let message = clean(message, MESSAGE);
        let what = match points {
            0 => format!("the collector warns: {message}"),
            points => format!("the collector rejected {points} of {of} points: {message}"),
        };
        Self { fault: ExportFault::Rejected, what, retry: None }
    }

    /// How the export ended.
    pub(super) fn end(&self) -> ExportEnd {
        self.retry.map_or(ExportEnd::Refused, ExportEnd::Retry)
    }

    /// An answer that this side does not take.
    fn unreadable(why: impl std::fmt::Display) -> Self {
        Self::local(ExportFault::Answer, format!("the answer of the collector cannot be read: {why}"))
    }

    fn local(fault: ExportFault, what: String) -> Self {
        Self { fault, what: clean(&what, MESSAGE), retry: Some(Duration::ZERO) }
    }

    /// Why no answer came. The cause is at the end of the chain: what is above it says only which step it was.
    fn of_connection(status: &Status, cause: &(dyn Error + 'static)) -> Self {
        let of_tls = chain(cause).find_map(|error| error.downcast_ref::<rustls::Error>());
        let last = chain(cause).last().unwrap_or(cause);
        match of_tls {
            Some(error) => {
                let TlsFault { kind, reason } = TlsFault::of(error);
                let fault = match kind {
                    TlsFaultKind::NotTls => ExportFault::NoTls,
                    _ => ExportFault::Tls,
                };
                Self::local(fault, format!("TLS with the collector failed: {reason}"))
            }
            None if cause.is::<UnreadableAnswer>() => Self::unreadable(cause),
            // Only what failed before there was a connection.
            None if status.code() == Code::Unavailable => {
                Self::local(ExportFault::Connection, format!("no connection to the collector: {last}"))
            }
            None => Self::local(ExportFault::Lost, format!("the connection to the collector ended: {last}")),
        }
    }
}

/// An error and its causes. One of the system may have another one in it, which it does not give as its source.
fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.map_or_else(|| Error::source(*error), |inner| Some(inner as &(dyn Error + 'static)))
    })
}

impl From<CollectorFileError> for OtlpError {
    fn from(error: CollectorFileError) -> Self {
        Self::local(ExportFault::Files, error.to_string())
    }
}

impl From<Status> for OtlpError {
    fn from(status: Status) -> Self {
        // Only errors of this side have a source.
        if let Some(cause) = status.source() {
            return Self::of_connection(&status, cause);
        }
        // The library's own words for an answer that is longer than it may be.
        if status.code() == Code::OutOfRange && status.message().starts_with(TOO_LONG) {
            return Self::unreadable("it is too long");
        }
        let asked = retry_delay(status.details());
        let always = Some(asked.unwrap_or_default());
        let (fault, retry) = match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => (ExportFault::Credentials, None),
            Code::Unimplemented => (ExportFault::NoService, None),
            // It may be retried only if the collector says when.
            Code::ResourceExhausted => (ExportFault::Overloaded, asked),
            Code::Unavailable
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::DataLoss => (ExportFault::Unavailable, always),
            _ => (ExportFault::Refused, None),
        };
        let what = format!("the collector answers {:?}: {}", status.code(), clean(status.message(), MESSAGE));
        Self { fault, what, retry }
    }
}

/// The wait that the details of an error ask for.
fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = rpc::Status::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = rpc::RetryInfo::decode(&*info.value).ok()?.retry_delay?;
    // Its own conversion overflows at the least number of seconds.
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u64::try_from(delay.nanos).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost_types::Any;
    use proto::opentelemetry::proto::collector::metrics::v1::ExportMetricsServiceResponse;

    use super::{super::encoded_codec::unreadable, *};

    fn with_delay(code: Code, seconds: i64) -> Status {
        let delay = prost_types::Duration { seconds, nanos: 0 };
        let info = rpc::RetryInfo { retry_delay: Some(delay) };
        let any = |name: &str, value| Any { type_url: format!("type.googleapis.com/{name}"), value };
        let details =
            vec![any("google.rpc.Help", vec![1, 2]), any("google.rpc.RetryInfo", info.encode_to_vec())];
        let status = rpc::Status { code: code.into(), message: String::new(), details };
        Status::with_details(code, "full", status.encode_to_vec().into())
    }

    #[test]
    fn what_may_be_retried_is_what_the_protocol_says() {
        let of = |status: Status| {
            let error = OtlpError::from(status);
            (error.fault, error.end())
        };
        let now = ExportEnd::Retry(Duration::ZERO);
        for code in [
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Aborted,
            Code::OutOfRange,
            Code::Unavailable,
            Code::DataLoss,
        ] {
            assert_eq!(of(Status::new(code, "")), (ExportFault::Unavailable, now), "{code:?}");
        }
        for code in
            [Code::InvalidArgument, Code::Internal, Code::Unknown, Code::NotFound, Code::FailedPrecondition]
        {
            assert_eq!(of(Status::new(code, "")), (ExportFault::Refused, ExportEnd::Refused), "{code:?}");
        }
        for code in [Code::Unauthenticated, Code::PermissionDenied] {
            assert_eq!(of(Status::new(code, "")), (ExportFault::Credentials, ExportEnd::Refused));
        }
        assert_eq!(of(Status::new(Code::Unimplemented, "")), (ExportFault::NoService, ExportEnd::Refused));
        let exhausted = Code::ResourceExhausted;
        assert_eq!(of(Status::new(exhausted, "")), (ExportFault::Overloaded, ExportEnd::Refused));
        let in_30 = ExportEnd::Retry(Duration::from_secs(30));
        assert_eq!(of(with_delay(exhausted, 30)), (ExportFault::Overloaded, in_30));
        assert_eq!(of(with_delay(Code::Unavailable, 30)), (ExportFault::Unavailable, in_30));
        // A wait of less than nothing is none.
        assert_eq!(of(with_delay(exhausted, -5)), (ExportFault::Overloaded, ExportEnd::Refused));
        let garbage = Status::with_details(exhausted, "", vec![0xff; 40].into());
        assert_eq!(of(garbage), (ExportFault::Overloaded, ExportEnd::Refused));
    }

    #[test]
    fn what_this_side_finds_is_not_said_to_be_the_collectors_word() {
        let of = |status: Status| {
            let error = OtlpError::from(status);
            (error.fault, error.to_string())
        };
        let garbage = ExportMetricsServiceResponse::decode(&b"\xff\xff"[..]).unwrap_err();
        let (fault, text) = of(unreadable(garbage.into()));
        assert_eq!(fault, ExportFault::Answer);
        assert!(text.starts_with("the answer of the collector cannot be read: "), "{text}");
        let long =
            Status::out_of_range(format!("{TOO_LONG}: found 3000000 bytes, the limit is: 65536 bytes"));
        let wanted =
            (ExportFault::Answer, "the answer of the collector cannot be read: it is too long".to_owned());
        assert_eq!(of(long), wanted);
        let tls = |error: rustls::Error| {
            let mut status = Status::unavailable("x");
            status.set_source(std::sync::Arc::new(error));
            of(status).0
        };
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert_eq!(tls(plain), ExportFault::NoTls);
        assert_eq!(tls(rustls::CertificateError::UnknownIssuer.into()), ExportFault::Tls);
    }

    #[test]
    fn a_fault_is_one_harmless_line() {
        let long = format!("line one\nline two\u{1b}[31m {}", "x".repeat(5000));
        let error = OtlpError::from(Status::new(Code::ResourceExhausted, long)).to_string();
        assert!(
            error.starts_with("the collector answers ResourceExhausted: line one\u{fffd}line two"),
            "{error}"
        );
        assert!(error.len() < 300 && !error.contains('\n') && !error.contains('\u{1b}'), "{error}");
        let rejected = OtlpError::rejected(3, 10, "too old\n").to_string();
        assert_eq!(rejected, "the collector rejected 3 of 10 points: too old\u{fffd}");
        assert_eq!(OtlpError::rejected(0, 10, "old names").to_string(), "the collector warns: old names");
    }

    proptest! {
        /// Whatever a collector puts into the details, the wait is one that can be waited for.
        #[test]
        fn any_details_are_read_without_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            seconds in any::<i64>(),
            nanos in any::<i32>(),
        ) {
            let _ = retry_delay(&bytes);
            let info = rpc::RetryInfo { retry_delay: Some(prost_types::Duration { seconds, nanos }) };
            let type_url = "type.googleapis.com/google.rpc.RetryInfo".to_owned();
            let details = vec![Any { type_url, value: info.encode_to_vec() }];
            let status = rpc::Status { code: 8, message: String::new(), details };
            let asked = retry_delay(&status.encode_to_vec());
            prop_assert_eq!(asked.is_some(), seconds >= 0 && nanos >= 0);
            prop_assert!(asked.is_none_or(|asked| asked.as_secs() >= seconds.unsigned_abs()));
        }
    }
}
