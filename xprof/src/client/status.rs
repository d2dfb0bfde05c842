//! What an HTTP/2 fault or a gRPC status means for us.

use http::HeaderMap;

use super::Error;
use crate::grpc_status::GrpcStatus;

/// The methods that not every profiler has, and that say by NOT_FOUND that continuous profiling does not run.
const CONTINUOUS: [&str; 4] =
    ["StartContinuousProfiling", "StopContinuousProfiling", "GetSnapshot", "GetSnapShot"];
const NOT_FOUND: u32 = 5;
const UNIMPLEMENTED: u32 = 12;
/// The code of a message that is larger than the sender may send.
const RESOURCE_EXHAUSTED: u32 = 8;

/// Whether the sender says that it cannot serialize its message: protobuf does not beyond 2 GiB.
fn says_unserializable(message: &str) -> bool {
    message.to_ascii_lowercase().contains("failed to serialize")
}

/// A fault before the answer began: the peer does not speak HTTP/2, or closed the connection.
pub(super) fn before_answer(error: h2::Error) -> Error {
    if error.is_io() {
        return Error::Broken("it closed the connection".to_owned());
    }
    if error.is_remote() {
        return Error::Broken(format!("it ended the call ({error})"));
    }
    // The library found bytes that are no HTTP/2, or the peer found ours strange.
    Error::NotAProfiler(format!("it does not speak gRPC ({error})"))
}

/// A fault in mid-answer.
pub(super) fn in_answer(error: h2::Error) -> Error {
    Error::Broken(error.to_string())
}

/// The head of an answer is that of gRPC.
pub(super) fn head<T>(response: &http::Response<T>) -> Result<(), Error> {
    if response.status() != http::StatusCode::OK {
        return Err(Error::NotAProfiler(format!(
            "it answers with HTTP status {}",
            response.status().as_u16()
        )));
    }
    let kind = response.headers().get("content-type").map(http::HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"application/grpc") {
        return Err(Error::NotAProfiler("its answer is not gRPC".to_owned()));
    }
    Ok(())
}

/// The status of a call of `method` in trailers, or in the head of an answer without a body; `None` where there is none.
pub(super) fn grpc(method: &'static str, headers: &HeaderMap) -> Option<Result<(), Error>> {
    let GrpcStatus { code, message } = GrpcStatus::of(headers)?;
    Some(Err(match code {
        0 => return Some(Ok(())),
        6 => Error::AlreadyExists(message),
        NOT_FOUND if CONTINUOUS.contains(&method) => Error::NoSession(message),
        UNIMPLEMENTED if CONTINUOUS.contains(&method) => Error::NoMethod(method),
        UNIMPLEMENTED => Error::NotAProfiler("it does not know tensorflow.ProfilerService".to_owned()),
        // A profiler asks for no credentials: this is another service, or a proxy before one.
        7 | 16 => Error::NotAProfiler(format!(
            "it asks for credentials, which a profiler does not (gRPC code {code}): {message}"
        )),
        // The busy error has no code of its own.
        _ if message.contains("Another profiling session active") => Error::Busy(message),
        code if code == RESOURCE_EXHAUSTED || says_unserializable(&message) => {
            Error::TooLargeToSend { code, message }
        }
        code => Error::Declined { code, message },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: &str, message: &'static str) -> Option<Result<(), Error>> {
        status_of("Profile", code, message)
    }

    fn status_of(method: &'static str, code: &str, message: &'static str) -> Option<Result<(), Error>> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", code.parse().expect("a header"));
        headers.insert("grpc-message", http::HeaderValue::from_static(message));
        grpc(method, &headers)
    }

    #[test]
    fn codes_and_texts_become_errors() {
        assert!(grpc("Profile", &HeaderMap::new()).is_none());
        assert!(matches!(status("0", ""), Some(Ok(()))));
        assert!(matches!(status("13", "Another profiling session active."), Some(Err(Error::Busy(_)))));
        assert!(matches!(status("6", ""), Some(Err(Error::AlreadyExists(_)))));
        assert!(matches!(status("12", ""), Some(Err(Error::NotAProfiler(_)))));
        for (code, message) in [("8", "Sent message larger than max"), ("13", "Failed to serialize message")]
        {
            assert!(matches!(status(code, message), Some(Err(Error::TooLargeToSend { .. }))), "{code}");
        }
        for method in CONTINUOUS {
            assert!(matches!(status_of(method, "5", ""), Some(Err(Error::NoSession(_)))), "{method}");
            assert!(matches!(status_of(method, "12", ""), Some(Err(Error::NoMethod(_)))), "{method}");
        }
        assert!(matches!(status("nonsense", ""), Some(Err(Error::Declined { code: 2, .. }))));
    }
}
