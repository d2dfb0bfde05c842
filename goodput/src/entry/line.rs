//! One line of an exported log: `{"timestamp": RFC 3339, "insertId": …, "jsonPayload": {…}}`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{
    event_names,
    fields::{JsonPayload, PayloadFields},
    log_entry::{LogEntry, PayloadTime},
};
use crate::time::{Nanos, is_out_of_range};

/// Why a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not JSON, or not of the expected shape.
    #[error("not a log entry: {0}")]
    Json(#[from] serde_json::Error),
    /// An entry of the job has no timestamp.
    #[error("the entry has no timestamp")]
    NoTimestamp,
    /// The timestamp of an entry of the job is not RFC 3339.
    #[error("timestamp {0:?} is not RFC 3339")]
    Timestamp(String),
    /// The timestamp of an entry of the job is out of range.
    #[error("timestamp {0:?} is out of range; supported are the years 1678 to 2261")]
    Range(String),
}

/// A line after parsing.
#[derive(Debug)]
pub enum ParsedLine {
    /// An entry of the job.
    Entry(Box<LogEntry>),
    /// Not an entry of the job that a ledger reads.
    Skipped(SkipReason),
}

/// Why a line is not read as an entry of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// The entry belongs to this job.
    OtherJob(Box<str>),
    /// An entry of the job with this severity. The library reads only INFO.
    Severity(Box<str>),
    /// An entry of the job whose payload is JSON in `textPayload`, where the library does not look.
    TextPayload,
    /// An entry of the job whose payload is a Python dict in `textPayload`.
    PythonPayload,
    /// The entry has a `textPayload` in which no `job_name` can be read, and no `jsonPayload`.
    OtherText,
    /// The entry has no `jsonPayload` with a `job_name`.
    NoJobName,
}

#[derive(Deserialize)]
struct RawEntry<'a> {
    #[serde(borrow, default)]
    timestamp: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "insertId")]
    insert_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    severity: Option<Cow<'a, str>>,
    #[serde(default, rename = "jsonPayload")]
    payload: Option<JsonPayload>,
    #[serde(borrow, default, rename = "textPayload")]
    text: Option<Cow<'a, str>>,
}

/// Parses the entries of one job.
#[derive(Debug, Clone)]
pub struct EntryParser {
    job: String,
}

impl EntryParser {
    /// A parser of the entries whose `job_name` is `job`.
    pub fn new(job: impl Into<String>) -> Self {
        Self { job: job.into() }
    }

    /// Parses one line, which must be one JSON object.
    ///
    /// # Errors
    /// If it is not JSON of the expected shape, or an entry of the job without a readable timestamp.
    pub fn parse(&self, line: &[u8]) -> Result<ParsedLine, LineError> {
        let raw: RawEntry<'_> = serde_json::from_slice(line)?;
        let Some(JsonPayload::Fields(fields)) = raw.payload else {
            return Ok(ParsedLine::Skipped(self.without_payload(raw.text.as_deref())));
        };
        match fields.job() {
            Some(job) if job == self.job => {}
            Some(job) => return Ok(ParsedLine::Skipped(SkipReason::OtherJob(job.into()))),
            None => return Ok(ParsedLine::Skipped(SkipReason::NoJobName)),
        }
        if let Some(severity) = raw.severity.filter(|severity| severity != "INFO") {
            return Ok(ParsedLine::Skipped(SkipReason::Severity(severity.into())));
        }
        let timestamp = raw.timestamp.ok_or(LineError::NoTimestamp)?;
        let time = Nanos::parse(&timestamp).ok_or_else(|| {
            let kind = if is_out_of_range(&timestamp) { LineError::Range } else { LineError::Timestamp };
            kind(timestamp.into_owned())
        })?;
        Ok(ParsedLine::Entry(Box::new(entry(time, raw.insert_id.unwrap_or_default().into(), &fields))))
    }

    /// What a text says of its job. One that names none is another message.
    fn without_payload(&self, text: Option<&str>) -> SkipReason {
        let Some(text) = text else { return SkipReason::NoJobName };
        let json = serde_json::from_str::<JsonPayload>(text);
        let (job, ours) = match &json {
            Ok(JsonPayload::Fields(fields)) => (fields.job(), SkipReason::TextPayload),
            _ => (job_of_dict(text), SkipReason::PythonPayload),
        };
        match job {
            Some(job) if job == self.job => ours,
            Some(job) => SkipReason::OtherJob(job.into()),
            None => SkipReason::OtherText,
        }
    }
}

/// The `job_name` in a dict as Python prints it.
fn job_of_dict(text: &str) -> Option<&str> {
    let dict = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let (_, value) = dict.split_once("'job_name':")?;
    let value = value.trim_start();
    // Python quotes with double quotes what has single ones in it.
    let quote = value.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let (name, _) = value[1..].split_once(quote)?;
    Some(name)
}

pub(super) fn entry(time: Nanos, id: Box<str>, fields: &PayloadFields) -> LogEntry {
    let mut events = Vec::with_capacity(1);
    fields.recorded(&mut events);
    event_names::read(fields, &mut events);
    LogEntry { time, id, payload_time: PayloadTime::read(fields), events: events.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Boundary, EntryEvents, JobEvent, PayloadTime, StartupPhase};

    fn read(line: &str) -> LogEntry {
        match EntryParser::new("j").parse(line.as_bytes()) {
            Ok(ParsedLine::Entry(entry)) => *entry,
            other => panic!("not ours: {other:?}"),
        }
    }

    fn payload(payload: &str) -> Vec<JobEvent> {
        let line =
            format!(r#"{{"timestamp":"2026-03-01T00:00:00Z","jsonPayload":{{"job_name":"j",{payload}}}}}"#);
        read(&line).events.as_slice().to_vec()
    }

    /// Python reads the same numbers: `"1772345930.2355335".parse()` is exact.
    #[test]
    fn times_are_read_exactly() {
        for text in ["1772345930.2355335", "1772345930.1234567", "1767225600.3000002", "0.1", "1e-7"] {
            let exact = text.parse().unwrap();
            assert_eq!(payload(&format!(r#""job_start_time":{text}"#)), [JobEvent::JobStart(exact)]);
        }
    }

    #[test]
    fn integers_floats_and_numeric_steps() {
        assert_eq!(
            payload(r#""step_count":3.0,"step_start_time":7"#),
            [JobEvent::Step { step: 3, start: 7.0 }]
        );
        assert_eq!(
            payload(r#""step_count":"4","step_start_time":7.5"#),
            [JobEvent::Step { step: 4, start: 7.5 }]
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
            [JobEvent::Damaged(error)] => error.kind.name().to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
        assert_eq!(names, ["KeyError", "TypeError", "ValueError", "TypeError", "TypeError"]);
    }

    fn skipped(line: &str) -> SkipReason {
        match EntryParser::new("j").parse(line.as_bytes()) {
            Ok(ParsedLine::Skipped(reason)) => reason,
            other => panic!("not skipped: {other:?}"),
        }
    }

    #[test]
    fn lines_that_are_not_read_have_a_reason() {
        let other = SkipReason::OtherJob("k".into());
        let severity = SkipReason::Severity("DEFAULT".into());
        for (line, reason) in [
            (r#"{"timestamp":"x","jsonPayload":{"job_name":"k"}}"#, &other),
            (r#"{"jsonPayload":{"job_name":"k"},"severity":"DEFAULT"}"#, &other),
            (r#"{"textPayload":"{\"job_name\":\"k\"}"}"#, &other),
            (r#"{"jsonPayload":{"job_name":"j"},"severity":"DEFAULT"}"#, &severity),
            (r#"{"textPayload":"{\"job_name\":\"j\",\"step_count\":1}"}"#, &SkipReason::TextPayload),
            (r#"{"textPayload":"{'job_name': 'j', 'step_count': 1}"}"#, &SkipReason::PythonPayload),
            (r#"{"textPayload":"{'step_count': 1, 'job_name': 'k'}"}"#, &other),
            (r#"{"textPayload":"{'step_count': 1}"}"#, &SkipReason::OtherText),
            (r#"{"textPayload":"job j starts"}"#, &SkipReason::OtherText),
            (r#"{"jsonPayload":["job_name","j"]}"#, &SkipReason::NoJobName),
            (r#"{"jsonPayload":{"job_name":7}}"#, &SkipReason::NoJobName),
            ("{}", &SkipReason::NoJobName),
        ] {
            assert_eq!(skipped(line), *reason, "{line}");
        }
        assert!(EntryParser::new("j").parse(b"[1]").is_err());
        assert!(EntryParser::new("j").parse(b"{\"jsonPayload\":{\"job_name\":\"j\"}}").is_err());
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
        assert_eq!(entry.events.as_slice(), [JobEvent::JobStart(2.0)]);
    }

    #[test]
    fn names_of_the_newer_api() {
        assert_eq!(
            payload(r#""event":"STEP","step":2,"start_time":10.5,"end_time":11"#),
            [JobEvent::Step { step: 2, start: 10.5 }]
        );
        assert_eq!(
            payload(r#""event":"ACCELERATOR_INIT","start_time":"1970-01-01T00:00:01Z","end_time":3"#),
            [
                JobEvent::Phase(StartupPhase::TpuInit, Boundary::Start, 1.0),
                JobEvent::Phase(StartupPhase::TpuInit, Boundary::End, 3.0)
            ]
        );
        assert_eq!(
            payload(r#""event_type":"CUSTOM","name":"eval","start_time":1"#),
            [JobEvent::Custom("EVAL".into(), Boundary::Start, 1.0)]
        );
        assert!(
            matches!(&EntryEvents::from(payload(r#""event":"NOVELTY""#)), EntryEvents::Many(none) if none.is_empty())
        );
    }
}
