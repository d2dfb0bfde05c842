//! The status of a gRPC call in its headers.
//!
//! For calls that are read by hand. Must never keep more of a peer's text than [`MAX_MESSAGE`] bytes.

use http::HeaderMap;

/// The longest message that is kept, in bytes.
pub const MAX_MESSAGE: usize = 500;

/// gRPC's UNKNOWN: also a code that is no number.
const UNKNOWN: u32 = 2;

/// How a call ended, as the peer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcStatus {
    /// 0: the call succeeded.
    pub code: u32,
    /// The peer's text, percent-decoded. Not escaped.
    pub message: String,
}

impl GrpcStatus {
    /// The status in trailers, or in the head of an answer without a body; `None` where there is none.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?;
        let code = code.to_str().ok().and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
        let message = headers.get("grpc-message").map(|text| percent_decoded(text.as_bytes()));
        Some(Self { code, message: message.unwrap_or_default() })
    }
}

fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len().min(MAX_MESSAGE));
    let mut rest = text;
    while let (Some((&byte, after)), true) = (rest.split_first(), bytes.len() < MAX_MESSAGE) {
        let escaped = after.get(..2).filter(|_| byte == b'%').and_then(|digits| {
            std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
        });
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn status(code: &str, message: &str) -> Option<GrpcStatus> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", code.parse().expect("a header"));
        headers.insert("grpc-message", HeaderValue::from_str(message).expect("a header"));
        GrpcStatus::of(&headers)
    }

    #[test]
    fn a_message_is_percent_decoded() {
        let message = "50% of%zz%".to_owned();
        assert_eq!(status("13", "50%25 of%zz%"), Some(GrpcStatus { code: 13, message }));
        assert_eq!(status("nonsense", ""), Some(GrpcStatus { code: UNKNOWN, message: String::new() }));
        assert_eq!(GrpcStatus::of(&HeaderMap::new()), None);
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(status("2", &"x".repeat(5000)).expect("a status").message.len(), MAX_MESSAGE);
    }
}
