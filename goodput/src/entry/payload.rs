//! The payload of one entry without the line of an exported log around it.

use super::{
    fields::{JsonPayload, PayloadFields},
    line,
    log_entry::LogEntry,
};
use crate::time::Nanos;

/// Why a text is no payload.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// The text is not JSON.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is JSON of another type.
    #[error("not a JSON object")]
    NotAnObject,
}

/// The payload of one entry.
#[derive(Debug)]
pub struct Payload(PayloadFields);

impl Payload {
    /// Parses the text of one JSON object.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &[u8]) -> Result<Self, PayloadError> {
        match serde_json::from_slice(text)? {
            JsonPayload::Fields(fields) => Ok(Self(fields)),
            JsonPayload::Other => Err(PayloadError::NotAnObject),
        }
    }

    /// The job that the payload names.
    pub fn job(&self) -> Option<&str> {
        self.0.job()
    }

    /// Whether the payload has the key of the job's name, with whatever value.
    pub fn has_job(&self) -> bool {
        self.0.get("job_name").is_some()
    }

    /// The entry with this payload, the log's own time and id of it.
    pub fn entry(&self, time: Nanos, id: Box<str>) -> LogEntry {
        line::entry(time, id, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::JobEvent;

    #[test]
    fn a_payload_is_read_as_that_of_a_line() {
        let payload = Payload::parse(br#"{"job_name":"j","step_count":3,"step_start_time":7.5}"#).unwrap();
        assert_eq!(payload.job(), Some("j"));
        let entry = payload.entry(Nanos(9), "i".into());
        assert_eq!((entry.time, &*entry.id), (Nanos(9), "i"));
        assert_eq!(entry.events.as_slice(), [JobEvent::Step { step: 3, start: 7.5 }]);
        let other = Payload::parse(br#"{"job_name":7}"#).unwrap();
        assert_eq!((other.job(), other.has_job()), (None, true));
        assert!(matches!(Payload::parse(b"[1]"), Err(PayloadError::NotAnObject)));
        for bad in [&b"{\"a\":NaN}"[..], b"{\"a\":1e999}", b"{", b"{} {}", b"\xff"] {
            assert!(matches!(Payload::parse(bad), Err(PayloadError::Json(_))));
        }
    }
}
