//! How a user names a job: `[KIND:]ID[#ATTEMPT]`, or the name that the job was given.

use std::{fmt, str::FromStr};

use model::{job::JobKind, untrusted::harmless};

use crate::record::JobRecord;

/// The longest text that may name a job.
const LONGEST: usize = 320;

/// Why a text names no job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadJobName {
    /// Nothing, or nothing but a kind or an attempt.
    #[error(
        "the name of the job is empty: expected [KIND:]ID[#ATTEMPT] or a name, such as slurm:12 or train#0"
    )]
    Empty,
    /// Too long.
    #[error("the name of the job has more than {LONGEST} characters")]
    TooLong,
    /// Characters that cannot be shown.
    #[error("the name of the job has a control character")]
    ControlCharacter,
}

/// The longest id of a run.
const LONGEST_RUN: usize = 64;

/// Why a text is no [`RunId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a letter or a digit, and then at most {} letters, digits and `. _ - /`", LONGEST_RUN - 1)]
pub struct BadRunId;

/// The id of a job of `tpuscope run`, which its user chooses: it stands in variables, labels and command lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunId(String);

impl RunId {
    /// An id for a run without a name.
    pub fn random(number: u32) -> Self {
        Self(format!("run-{number:08x}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunId {
    type Err = BadRunId;

    fn from_str(text: &str) -> Result<Self, BadRunId> {
        let sound = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_id = text.len() <= LONGEST_RUN
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(sound);
        if is_id { Ok(Self(text.to_owned())) } else { Err(BadRunId) }
    }
}

/// A job as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobName {
    whole: String,
    kind: Option<JobKind>,
    id: String,
    attempt: Option<u32>,
}

/// A job that a name is about, and the attempt that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedJob {
    /// The job.
    pub record: JobRecord,
    /// The attempt; `None`: the newest.
    pub attempt: Option<u32>,
}

impl FromStr for JobName {
    type Err = BadJobName;

    fn from_str(text: &str) -> Result<Self, BadJobName> {
        let text = text.trim();
        if text.chars().nth(LONGEST).is_some() {
            return Err(BadJobName::TooLong);
        }
        if !text.chars().all(harmless) {
            return Err(BadJobName::ControlCharacter);
        }
        let with_kind = text.split_once(':').and_then(|(kind, rest)| Some((JobKind::named(kind)?, rest)));
        let (kind, rest) = with_kind.map_or((None, text), |(kind, rest)| (Some(kind), rest));
        let with_attempt = rest.rsplit_once('#').and_then(|(id, attempt)| Some((id, attempt.parse().ok()?)));
        let (id, attempt) = with_attempt.map_or((rest, None), |(id, attempt)| (id, Some(attempt)));
        if id.is_empty() {
            return Err(BadJobName::Empty);
        }
        Ok(Self { whole: text.to_owned(), kind, id: id.to_owned(), attempt })
    }
}

impl JobName {
    /// The job without the attempt, and the attempt, if one is named.
    pub fn attempt(&self) -> Option<(String, u32)> {
        let attempt = self.attempt?;
        let kind = self.kind.map(|kind| format!("{}:", kind.as_str())).unwrap_or_default();
        Some((kind + &self.id, attempt))
    }

    /// The ids and names of jobs that it may be about: without kind and attempt, and as it was written, for names such as
    /// `train#2`.
    pub fn candidates(&self) -> impl Iterator<Item = &str> {
        let whole = Some(self.whole.as_str()).filter(|whole| *whole != self.id);
        std::iter::once(self.id.as_str()).chain(whole)
    }

    /// The job, if the name is about it. `with_names`: the caller may know its names; if not, only its id counts.
    pub fn of(&self, record: JobRecord, with_names: bool) -> Option<NamedJob> {
        let kind_is_right = self.kind.is_none_or(|kind| kind == record.key.kind);
        let is = |text: &str| {
            let names = record.attempts.iter().map(|attempt| &attempt.description);
            let mut names = names.flat_map(|told| told.name.iter().chain(&told.other_id));
            record.key.id == text || (with_names && names.any(|name| name == text))
        };
        if kind_is_right && is(&self.id) {
            return Some(NamedJob { record, attempt: self.attempt });
        }
        (is(&self.whole)).then_some(NamedJob { record, attempt: None })
    }
}

#[cfg(test)]
mod tests {
    use model::job::JobKey;

    use super::*;
    use crate::attempt::{Attempt, JobDescription};

    fn record(kind: JobKind, id: &str, name: &str) -> JobRecord {
        let told = JobDescription { name: Some(name.to_owned()), ..JobDescription::default() };
        let attempt = Attempt { description: told, ..Attempt::default() };
        JobRecord { key: JobKey { kind, id: id.into(), ..JobKey::default() }, attempts: vec![attempt] }
    }

    #[test]
    fn a_job_is_named_by_kind_id_and_attempt_or_by_its_name() {
        let job = record(JobKind::Slurm, "12", "train#2");
        let attempt = |text: &str, with_names| {
            let name: JobName = text.parse().unwrap();
            name.of(job.clone(), with_names).map(|named| named.attempt)
        };
        assert_eq!(attempt("12", false), Some(None));
        assert_eq!(attempt(" slurm:12#3 ", false), Some(Some(3)));
        assert_eq!(attempt("run:12", false), None);
        assert_eq!(attempt("train#2", true), Some(None), "the name as it is");
        assert_eq!(attempt("train#2", false), None, "the name of another user's job");
        assert_eq!(attempt("train", true), None);
        assert_eq!(attempt("12#x", true), None);
        let of = |text: &str| text.parse::<JobName>().unwrap().attempt();
        assert_eq!(of("slurm:12#3"), Some(("slurm:12".to_owned(), 3)));
        assert_eq!((of("a#b#3"), of("slurm:12")), (Some(("a#b".to_owned(), 3)), None));
    }

    #[test]
    fn the_id_of_a_run_is_a_plain_word() {
        for good in ["train", "llama-70b/lr_3e-4.v2", "7", RunId::random(7).as_str()] {
            assert_eq!(good.parse::<RunId>().map(|id| id.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "-x", "a b", "a#1", "a:1", "\u{e4}", "a\n", &"a".repeat(65)] {
            assert_eq!(bad.parse::<RunId>(), Err(BadRunId), "{bad}");
        }
    }

    #[test]
    fn what_names_no_job_is_refused() {
        let wrong = |text: &str| text.parse::<JobName>().unwrap_err();
        for empty in ["", "  ", "slurm:", "#3", "run:#0"] {
            assert_eq!(wrong(empty), BadJobName::Empty, "{empty}");
        }
        assert_eq!(wrong("a\u{1b}b"), BadJobName::ControlCharacter);
        assert_eq!(wrong(&"a".repeat(400)), BadJobName::TooLong);
        assert_eq!("ns/llm".parse::<JobName>().unwrap().candidates().collect::<Vec<_>>(), ["ns/llm"]);
        assert_eq!("x:1#2".parse::<JobName>().unwrap().candidates().collect::<Vec<_>>(), ["x:1", "x:1#2"]);
    }
}
