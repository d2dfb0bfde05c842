//! Answers, before they are sent, and the error bodies of the service.

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{Response, StatusCode, body::Frame};
use jiff::Timestamp;

use super::{
    access::{ACCOUNT, Refusal},
    buckets::GcsObject,
    content::RangeReader,
    multipart::BadList,
};

/// The body of an answer on its way.
pub(super) type GcsBody = BoxBody<Bytes, io::Error>;

/// One answer.
pub(super) struct GcsReply {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: ReplyBody,
    /// Whether the call stored or removed something.
    pub(super) committed: bool,
}

/// What an answer carries.
pub(super) enum ReplyBody {
    /// Text; empty where there is nothing to say.
    Text(String),
    /// Bytes of an object, and how many.
    Content(RangeReader, u64),
    /// Nothing but the length that GET would give.
    Head(u64),
}

impl GcsReply {
    pub(super) fn new(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self { status, headers: Vec::new(), body: ReplyBody::Text(String::new()), committed: false }
    }

    pub(super) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn text(mut self, kind: &str, text: impl Into<String>) -> Self {
        self.body = ReplyBody::Text(text.into());
        self.header("content-type", kind)
    }

    pub(super) fn xml(self, text: impl Into<String>) -> Self {
        self.text("application/xml; charset=UTF-8", text)
    }

    pub(super) fn committed(mut self) -> Self {
        self.committed = true;
        self
    }

    /// What a finished call says of an object's version.
    pub(super) fn version(self, object: &GcsObject) -> Self {
        self.header("etag", object.etag.clone())
            .header("x-goog-generation", object.generation.to_string())
            .header("x-goog-metageneration", "1")
    }

    /// Its checksums: in one header, or, as some answers of the service have them, in one each.
    pub(super) fn hashes(mut self, object: &GcsObject, joined: bool) -> Self {
        let mut hashes = vec![format!("crc32c={}", base64(&object.crc32c.to_be_bytes()))];
        hashes.extend(object.md5.map(|md5| format!("md5={}", base64(&md5))));
        if joined {
            hashes = vec![hashes.join(",")];
        }
        self.headers.extend(hashes.into_iter().map(|hash| ("x-goog-hash".to_owned(), hash)));
        self
    }

    /// Sends it, the whole body or the first half of it, after which the connection ends.
    pub(super) fn send(self, date: Timestamp, half: bool) -> Result<Response<GcsBody>, io::Error> {
        let cut = || io::Error::new(io::ErrorKind::ConnectionReset, "cut by the test");
        let length = match &self.body {
            ReplyBody::Text(text) => text.len() as u64,
            ReplyBody::Content(_, length) | ReplyBody::Head(length) => *length,
        };
        if half && (length < 2 || matches!(self.body, ReplyBody::Head(_))) {
            return Err(cut());
        }
        let mut response = Response::builder()
            .status(self.status)
            .header("date", http_date(date))
            .header("server", "UploadServer");
        if self.status != StatusCode::NO_CONTENT && self.status != StatusCode::NOT_MODIFIED {
            response = response.header("content-length", length);
        }
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        let body = match self.body {
            ReplyBody::Text(text) if !half => whole(text),
            ReplyBody::Text(text) => {
                let first = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
                stream([Ok(first), Err(cut())].into_iter())
            }
            ReplyBody::Content(pieces, _) if !half => stream(pieces),
            ReplyBody::Content(pieces, _) => {
                let mut left = length / 2;
                stream(pieces.map(move |piece| {
                    let piece = piece?;
                    left = left.checked_sub(piece.len() as u64).ok_or_else(cut)?;
                    Ok(piece)
                }))
            }
            ReplyBody::Head(_) => whole(String::new()),
        };
        response.body(body).map_err(io::Error::other)
    }
}

fn whole(text: String) -> GcsBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}

fn stream(pieces: impl Iterator<Item = io::Result<Bytes>> + Send + Sync + 'static) -> GcsBody {
    BodyExt::boxed(StreamBody::new(tokio_stream::iter(pieces.map(|piece| piece.map(Frame::data)))))
}

/// An error as the service words it.
pub(super) fn error(status: u16, code: &str, message: &str, details: &str) -> GcsReply {
    let details = match details {
        "" => String::new(),
        details => format!("<Details>{}</Details>", escape(details)),
    };
    GcsReply::new(status).xml(format!(
        "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{}</Message>{details}</Error>",
        escape(message)
    ))
}

/// The error body that goes with a status of the service itself.
pub(super) fn trouble(status: u16) -> GcsReply {
    let (code, message) = match status {
        401 => return refused(&Refusal::Unauthenticated),
        408 => ("RequestTimeout", "Your socket connection to the server was not read from or written to."),
        429 => ("SlowDown", "The rate of requests exceeds the limit. Please reduce your request rate."),
        500 => ("InternalError", "We encountered an internal error. Please try again."),
        503 => ("ServiceUnavailable", "Service unavailable. Please try again."),
        504 => ("GatewayTimeout", "The gateway did not answer in time."),
        _ => ("Unspecified", "The request failed."),
    };
    error(status, code, message, "")
}

pub(super) fn refused(refusal: &Refusal) -> GcsReply {
    match refusal {
        Refusal::Unauthenticated => error(401, "AuthenticationRequired", "Authentication required.", "")
            .header("www-authenticate", "Bearer realm=\"https://accounts.google.com/\""),
        Refusal::Forbidden(permission) => error(
            403,
            "AccessDenied",
            "Access denied.",
            &format!(
                "{ACCOUNT} does not have {permission} access to the Google Cloud Storage object. Permission \
                 '{permission}' denied on resource (or it may not exist)."
            ),
        ),
    }
}

pub(super) fn no_bucket() -> GcsReply {
    error(404, "NoSuchBucket", "The specified bucket does not exist.", "")
}

pub(super) fn no_object(bucket: &str, object: &str) -> GcsReply {
    error(
        404,
        "NoSuchKey",
        "The specified key does not exist.",
        &format!("No such object: {bucket}/{object}"),
    )
}

pub(super) fn no_upload() -> GcsReply {
    error(404, "NoSuchUpload", "The requested upload was not found.", "")
}

pub(super) fn precondition_failed(header: &str) -> GcsReply {
    error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.", header)
}

pub(super) fn bad_list(bad: BadList) -> GcsReply {
    match bad {
        BadList::Malformed => error(400, "MalformedCompleteMultipartUpload", "The list cannot be read.", ""),
        BadList::InvalidPart => error(400, "InvalidPart", "One or more of the parts could not be found.", ""),
        BadList::InvalidOrder => error(400, "InvalidPartOrder", "The parts were not in ascending order.", ""),
        BadList::TooSmall => {
            error(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum.", "")
        }
    }
}

/// Text inside XML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `Last-Modified` and `Date`.
pub(super) fn http_date(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}
