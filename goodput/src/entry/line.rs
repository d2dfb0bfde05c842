//! One line of an exported log: `{"timestamp": RFC 3339, "insertId": …, "jsonPayload": {…}}`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Entry, payload::Payload};
use crate::time::{Nanos, is_out_of_range};

/// Why a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineFault {
    /// Not JSON, or not of the expected shape.
    #[error("not a log entry: {0}")]
    Json(#[from] serde_json::Error),
    /// An entry of the job without a time.
    #[error("an entry of the job without a timestamp")]
    NoTimestamp,
    /// An entry of the job whose time is no RFC 3339.
    #[error("timestamp {0:?} is not RFC 3339")]
    Timestamp(String),
    /// An entry of the job whose time is too far off.
    #[error("timestamp {0:?} is out of range: only the years 1678 to 2261 are read")]
    Range(String),
}

/// What a line holds.
#[derive(Debug)]
pub enum Line {
    /// An entry of the job.
    Ours(Box<Entry>),
    /// Something else: another job, another severity, no JSON payload.
    Foreign,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    timestamp: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "insertId")]
    insert_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    severity: Option<Cow<'a, str>>,
    #[serde(default, rename = "jsonPayload")]
    payload: Option<Payload>,
}

/// Reads the lines of one job.
#[derive(Debug, Clone)]
pub struct Reader {
    job: String,
}

impl Reader {
    /// A reader of the entries whose `job_name` is `job`.
    pub fn new(job: impl Into<String>) -> Self {
        Self { job: job.into() }
    }

    /// Reads one line, which must be one JSON object.
    ///
    /// # Errors
    /// If it is not JSON of the expected shape, or an entry of the job without a readable time.
    pub fn line(&self, line: &[u8]) -> Result<Line, LineFault> {
        let raw: Raw<'_> = serde_json::from_slice(line)?;
        if raw.severity.is_some_and(|severity| severity != "INFO") {
            return Ok(Line::Foreign);
        }
        let Some(Payload::Fields(fields)) = raw.payload else { return Ok(Line::Foreign) };
        if !fields.is_of(&self.job) {
            return Ok(Line::Foreign);
        }
        let timestamp = raw.timestamp.ok_or(LineFault::NoTimestamp)?;
        let time = Nanos::parse(&timestamp).ok_or_else(|| {
            let kind = if is_out_of_range(&timestamp) { LineFault::Range } else { LineFault::Timestamp };
            kind(timestamp.into_owned())
        })?;
        Ok(Line::Ours(Box::new(Entry {
            time,
            id: raw.insert_id.unwrap_or_default().into(),
            payload_time: fields.payload_time(),
            events: fields.events(),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Edge, Event, Events, PayloadTime, Phase};

    fn read(line: &str) -> Entry {
        match Reader::new("j").line(line.as_bytes()) {
            Ok(Line::Ours(entry)) => *entry,
            other => panic!("not ours: {other:?}"),
        }
    }

    fn payload(payload: &str) -> Vec<Event> {
        let line =
            format!(r#"{{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{{"job_name":"j",{payload}}}}}"#);
        read(&line).events.as_slice().to_vec()
    }

    /// As Python reads it: `"1772345930.2355335".parse()` is exact, too.
    #[test]
    fn times_are_read_exactly() {
        for text in ["1772345930.2355335", "1772345930.1234567", "1767225600.3000002", "0.1", "1e-7"] {
            let exact = text.parse().unwrap();
            assert_eq!(payload(&format!(r#""job_start_time":{text}"#)), [Event::JobStart(exact)]);
        }
    }

    #[test]
    fn integers_floats_and_numeric_steps() {
        assert_eq!(payload(r#""step_count":3.0,"step_start_time":7"#), [Event::Step { step: 3, start: 7.0 }]);
        assert_eq!(
            payload(r#""step_count":"4","step_start_time":7.5"#),
            [Event::Step { step: 4, start: 7.5 }]
        );
    }

    #[test]
    fn what_cannot_be_used_keeps_the_library_s_error() {
        let names: Vec<String> = [
            r#""step_start_time":1.0"#,
            r#""step_count":null,"step_start_time":1.0"#,
            r#""step_count":"x","step_start_time":1.0"#,
            r#""job_start_time":"1.0""#,
            r#""job_end_time":null"#,
        ]
        .iter()
        .map(|text| match &payload(text)[..] {
            [Event::Damaged(error)] => error.kind.name().to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
        assert_eq!(names, ["KeyError", "TypeError", "ValueError", "TypeError", "TypeError"]);
    }

    #[test]
    fn other_jobs_severities_and_shapes_are_foreign() {
        for line in [
            r#"{"timestamp":"x","jsonPayload":{"job_name":"k"}}"#,
            r#"{"jsonPayload":{"job_name":"j"},"severity":"ERROR"}"#,
            r#"{"textPayload":"hello"}"#,
            r#"{"jsonPayload":["job_name","j"]}"#,
            r#"{"jsonPayload":{"job_name":7}}"#,
        ] {
            assert!(matches!(Reader::new("j").line(line.as_bytes()), Ok(Line::Foreign)), "{line}");
        }
        assert!(Reader::new("j").line(b"[1]").is_err());
        assert!(Reader::new("j").line(b"{\"jsonPayload\":{\"job_name\":\"j\"}}").is_err());
    }

    #[test]
    fn the_first_key_with_time_in_its_name_cuts_windows() {
        let entry = read(
            r#"{"timestamp":"2026-03-01T00:00:00Z","insertId":"i","jsonPayload":
                {"event_type":"save","job_name":"j","wait_start_time":null,"x_time":5}}"#,
        );
        assert!(matches!(entry.payload_time, PayloadTime::Damaged(_)));
        assert_eq!(&*entry.id, "i");
    }

    #[test]
    fn a_repeated_key_has_its_first_place_and_its_last_value() {
        let entry = read(
            r#"{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":
                {"a_time":null,"job_start_time":1,"job_name":"k","a_time":5,"job_start_time":2,"job_name":"j"}}"#,
        );
        assert_eq!(entry.payload_time, PayloadTime::At(5.0));
        assert_eq!(entry.events.as_slice(), [Event::JobStart(2.0)]);
    }

    #[test]
    fn names_of_the_newer_api() {
        assert_eq!(
            payload(r#""event":"STEP","step":2,"start_time":10.5,"end_time":11"#),
            [Event::Step { step: 2, start: 10.5 }]
        );
        assert_eq!(
            payload(r#""event":"ACCELERATOR_INIT","start_time":"1970-01-01T00:00:01Z","end_time":3"#),
            [Event::Phase(Phase::TpuInit, Edge::Start, 1.0), Event::Phase(Phase::TpuInit, Edge::End, 3.0)]
        );
        assert_eq!(
            payload(r#""event_type":"CUSTOM","name":"eval","start_time":1"#),
            [Event::Custom("EVAL".into(), Edge::Start, 1.0)]
        );
        assert!(
            matches!(&Events::from(payload(r#""event":"NOVELTY""#)), Events::Many(none) if none.is_empty())
        );
    }
}
