//! One mark as a program sends it: its time and one JSON object, which is an entry of ml-goodput-measurement or of Orbax.
//!
//! Must never let in what would make an answer about the whole job fail: a value that is no number, or a time or a step
//! that no job has.

use std::fmt;

use goodput::{
    entry::{JobEvent, Payload},
    time::Nanos,
};
use model::{time::Timestamp, untrusted};

/// The longest mark in bytes.
pub const MARK_BYTES: usize = 8 << 10;
/// What a program sends in the place of a mark that is longer.
const TOO_LONG: &str = "too_long";
/// The longest name of a job in bytes.
const JOB_BYTES: usize = 256;
/// Times from here on are absurd, in epoch seconds: 2^33, in the year 2242.
const LAST_TIME: f64 = 8_589_934_592.0;
/// Steps from here on are absurd: 2^53, where an `f64` does not count one by one any more.
const LAST_STEP: i64 = 1 << 53;
/// Durations and counts of slices above this are absurd: 30 years in seconds.
const MOST: f64 = 1e9;

/// Why a mark is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkFault {
    /// It is longer than [`MARK_BYTES`].
    TooLong,
    /// It does not begin with a time.
    NoTime,
    /// Its time is absurd.
    Time,
    /// It is not one JSON object.
    NotJson,
    /// It names no job, and its process has no workload.
    NoJob,
    /// The name of the job is no name.
    JobName,
    /// A value is missing, no number, or absurd.
    Value,
}

impl MarkFault {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::TooLong, Self::NoTime, Self::Time, Self::NotJson, Self::NoJob, Self::JobName, Self::Value];

    /// Its name in labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NoTime => "no_time",
            Self::Time => "time",
            Self::NotJson => "not_json",
            Self::NoJob => "no_job",
            Self::JobName => "job_name",
            Self::Value => "value",
        }
    }
}

/// What is wrong and what to do, for the program's author.
impl fmt::Display for MarkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a mark has at most {MARK_BYTES} bytes"),
            Self::NoTime => f.write_str("a mark begins with its time in nanoseconds and a space"),
            Self::Time => {
                f.write_str("the time of a mark is in nanoseconds since 1970, before the year 2242")
            }
            Self::NotJson => {
                f.write_str("a mark is one JSON object, in which NaN and Infinity are no numbers")
            }
            Self::NoJob => f.write_str(
                "the mark names no job (job_name), and its process is no workload that the agent knows",
            ),
            Self::JobName => {
                write!(f, "job_name is a text of 1 to {JOB_BYTES} bytes without control characters")
            }
            Self::Value => f.write_str(
                "a time, step or duration is missing, no number, negative, or beyond what a job can have",
            ),
        }
    }
}

/// A mark that may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkLine {
    /// The job that it names.
    pub job: Option<String>,
    /// The time that the program gives.
    pub at: Timestamp,
    /// One JSON object.
    pub payload: String,
}

impl MarkLine {
    /// Decodes `NANOSECONDS {…}`.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn parse(line: &[u8]) -> Result<Self, MarkFault> {
        if line.len() > MARK_BYTES {
            return Err(MarkFault::TooLong);
        }
        let line = std::str::from_utf8(line).map_err(|_| MarkFault::NotJson)?;
        let (time, payload) = line.split_once(' ').ok_or(MarkFault::NoTime)?;
        let digits = !time.is_empty() && time.bytes().all(|byte| byte.is_ascii_digit());
        if !digits {
            return Err(MarkFault::NoTime);
        }
        Self::new(time.parse().map_err(|_| MarkFault::Time)?, payload)
    }

    /// Checks a mark of this time in nanoseconds.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn new(at_ns: i64, payload: &str) -> Result<Self, MarkFault> {
        if payload.len() > MARK_BYTES || payload == TOO_LONG {
            return Err(MarkFault::TooLong);
        }
        #[expect(clippy::cast_precision_loss, reason = "compared with a bound far away")]
        if !plausible(at_ns as f64 / 1e9) {
            return Err(MarkFault::Time);
        }
        let read = Payload::parse(payload.as_bytes()).map_err(|_| MarkFault::NotJson)?;
        let job = named_job(&read)?;
        let entry = read.entry(Nanos(at_ns), "".into());
        if entry.events.as_slice().iter().all(is_plausible) {
            Ok(Self { job, at: Timestamp(at_ns), payload: payload.to_owned() })
        } else {
            Err(MarkFault::Value)
        }
    }
}

/// The job that a mark names, whatever else is wrong with it.
///
/// # Errors
/// If that cannot be read.
pub fn job_of(payload: &str) -> Result<Option<String>, MarkFault> {
    if payload.len() > MARK_BYTES {
        return Err(MarkFault::TooLong);
    }
    named_job(&Payload::parse(payload.as_bytes()).map_err(|_| MarkFault::NotJson)?)
}

fn named_job(read: &Payload) -> Result<Option<String>, MarkFault> {
    match read.job() {
        Some(job) => Ok(Some(job_name(job)?.to_owned())),
        None if read.has_job() => Err(MarkFault::JobName),
        None => Ok(None),
    }
}

/// Checks the name of a job.
///
/// # Errors
/// If it is none.
pub fn job_name(name: &str) -> Result<&str, MarkFault> {
    let sound = (1..=JOB_BYTES).contains(&name.len()) && name.chars().all(untrusted::harmless);
    if sound { Ok(name) } else { Err(MarkFault::JobName) }
}

fn plausible(seconds: f64) -> bool {
    (0.0..LAST_TIME).contains(&seconds)
}

fn is_plausible(event: &JobEvent) -> bool {
    let number = |number: f64| (0.0..=MOST).contains(&number);
    match event {
        JobEvent::Damaged(_) => false,
        JobEvent::Step { step, start } => (0..LAST_STEP).contains(step) && plausible(*start),
        JobEvent::Slices(slices) => {
            plausible(slices.at) && [slices.active, slices.available, slices.total].into_iter().all(number)
        }
        JobEvent::Checkpoint(checkpoint) => {
            checkpoint.fault.is_none()
                && checkpoint.seconds.is_none_or(number)
                && checkpoint.start.is_none_or(plausible)
        }
        other => other.at().is_none_or(plausible),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(payload: &str) -> Option<MarkFault> {
        MarkLine::parse(format!("5 {payload}").as_bytes()).err()
    }

    #[test]
    fn a_mark_is_kept_as_it_was_sent() {
        let text = r#"{"job_name":"j","step_count":3,"step_start_time":1772323200.25}"#;
        let mark = MarkLine::parse(format!("1772323200250000000 {text}").as_bytes()).unwrap();
        assert_eq!(mark.job.as_deref(), Some("j"));
        assert_eq!((mark.at, mark.payload.as_str()), (Timestamp(1_772_323_200_250_000_000), text));
        assert_eq!(MarkLine::parse(b"5 {}").unwrap().job, None);
    }

    #[test]
    fn times_and_forms_that_are_none_are_refused() {
        for (line, fault) in [
            (&b""[..], MarkFault::NoTime),
            (b"{}", MarkFault::NoTime),
            (b" {}", MarkFault::NoTime),
            (b"-5 {}", MarkFault::NoTime),
            (b"5.5 {}", MarkFault::NoTime),
            (b"nan {}", MarkFault::NoTime),
            (b"9223372036854775807 {}", MarkFault::Time),
            (b"9223372036854775808 {}", MarkFault::Time),
            (b"5 ", MarkFault::NotJson),
            (b"5 []", MarkFault::NotJson),
            (b"5 {}{}", MarkFault::NotJson),
            (b"5 \xff", MarkFault::NotJson),
        ] {
            assert_eq!(MarkLine::parse(line), Err(fault), "{:?}", String::from_utf8_lossy(line));
        }
        assert_eq!(fault(&format!(r#"{{"a":"{}"}}"#, "x".repeat(MARK_BYTES))), Some(MarkFault::TooLong));
        assert_eq!(MarkLine::new(-1, "{}"), Err(MarkFault::Time));
        // What is nested is not read, however deep.
        assert_eq!(fault(&format!(r#"{{"a":{}{}}}"#, "[".repeat(2000), "]".repeat(2000))), None);
    }

    #[test]
    fn names_are_texts() {
        for bad in ["7", "null", r#""""#, r#""a\nb""#, r#""a\u001b[31m""#, r#""\u202e""#] {
            assert_eq!(fault(&format!(r#"{{"job_name":{bad}}}"#)), Some(MarkFault::JobName), "{bad}");
        }
        assert_eq!(fault(&format!(r#"{{"job_name":"{}"}}"#, "x".repeat(257))), Some(MarkFault::JobName));
        assert_eq!(fault(r#"{"job_name":"größe 7%"}"#), None);
    }

    #[test]
    fn a_mark_that_was_too_long_to_be_sent_is_told_in_its_place() {
        assert_eq!(MarkLine::parse(b"1772323200000000000 too_long"), Err(MarkFault::TooLong));
    }

    #[test]
    fn numbers_that_no_job_has_are_refused() {
        for bad in ["NaN", "Infinity", "1e999"] {
            assert_eq!(fault(&format!(r#"{{"job_start_time":{bad}}}"#)), Some(MarkFault::NotJson), "{bad}");
        }
        for bad in ["-1", "-0.5", "1e300", "9223372036854775808", "null", r#""5""#, "[5]", "8589934592"] {
            for key in ["job_start_time", "job_end_time", "tpu_init_start_time", "data_loading_end_time"] {
                assert_eq!(fault(&format!(r#"{{"{key}":{bad}}}"#)), Some(MarkFault::Value), "{key} {bad}");
            }
        }
        for bad in ["-1", "9223372036854775808", "9223372036854775807", "1e300", "null", r#""x""#] {
            let step = format!(r#"{{"step_count":{bad},"step_start_time":5}}"#);
            assert_eq!(fault(&step), Some(MarkFault::Value), "{bad}");
        }
        assert_eq!(fault(r#"{"step_start_time":5}"#), Some(MarkFault::Value));
        assert_eq!(fault(r#"{"custom_badput_event_start_time":5}"#), Some(MarkFault::Value));
        assert_eq!(fault(r#"{"event_type":"save","step":1}"#), Some(MarkFault::Value));
        for good in ["0", "0.0", "1772323200.123456", "true"] {
            assert_eq!(fault(&format!(r#"{{"job_start_time":{good}}}"#)), None, "{good}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_a_mark_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MarkLine::parse(&line);
            let _ = MarkLine::parse(&[b"5 ", &line[..]].concat());
        }
    }
}
