//! The lines that were not read as entries of the job: how many, why, and what they say about the job's name.
//!
//! Must never keep a line: only counts and a bounded number of names.

use std::{collections::BTreeMap, path::Path};

use goodput::entry::SkipReason;
use serde::Serialize;

use crate::{
    failure::Failure,
    output::one_line,
    remedies::{self, NoEntry},
};

/// The maximum number of job names and of severities that are kept.
const MAX_NAMES: usize = 1_000;
/// The maximum number of job names in a message.
const SHOWN_NAMES: usize = 3;
/// The maximum number of characters of a name in a message.
const SHOWN_CHARS: usize = 60;

/// Counts of skipped lines by reason.
#[derive(Debug, Default)]
pub(super) struct SkippedLines {
    total: u64,
    severities: BTreeMap<Box<str>, u64>,
    text_payloads: u64,
    python_payloads: u64,
    other_texts: u64,
    other_jobs: BTreeMap<Box<str>, u64>,
}

/// The entries of the job that were not read, for `--json`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct SkippedEntries<'a> {
    severities: &'a BTreeMap<Box<str>, u64>,
    text_payloads: u64,
}

/// Why a log gives no answer, for `--json`.
#[derive(Debug, Serialize)]
pub(super) struct NoEntries<'a> {
    error: &'static str,
    message: String,
    remedy: String,
    job: &'a str,
    lines: u64,
    severities: &'a BTreeMap<Box<str>, u64>,
    text_payloads: u64,
    other_texts: u64,
    nearest_job_names: Vec<&'a str>,
}

impl SkippedLines {
    /// Counts a line.
    pub(super) fn count(&mut self, reason: Option<SkipReason>) {
        self.total += 1;
        match reason {
            Some(SkipReason::OtherJob(name)) => add(&mut self.other_jobs, name),
            Some(SkipReason::Severity(name)) => add(&mut self.severities, name),
            Some(SkipReason::TextPayload) => self.text_payloads += 1,
            Some(SkipReason::PythonPayload) => self.python_payloads += 1,
            Some(SkipReason::OtherText) => self.other_texts += 1,
            Some(SkipReason::NoJobName) | None => {}
        }
    }

    /// The entries of the job among them.
    pub(super) fn entries(&self) -> SkippedEntries<'_> {
        SkippedEntries {
            severities: &self.severities,
            text_payloads: self.text_payloads + self.python_payloads,
        }
    }

    /// The number of lines.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// How many entries of the job were skipped, and why.
    fn of_the_job(&self) -> impl Iterator<Item = (u64, String)> {
        let severities = self
            .severities
            .iter()
            .map(|(severity, count)| (*count, format!("severity {}; only INFO is read", one_line(severity))));
        let texts = (self.text_payloads > 0)
            .then(|| (self.text_payloads, "a textPayload and no jsonPayload".to_owned()));
        let dicts = (self.python_payloads > 0).then(|| {
            (self.python_payloads, "a textPayload that is a Python dict, and no jsonPayload".to_owned())
        });
        severities.take(SHOWN_NAMES).chain(texts).chain(dicts)
    }

    /// Warnings about entries of the job that were skipped beside others that were read.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.of_the_job().map(|(count, what)| match count {
            1 => format!("1 entry of the job has {what}"),
            _ => format!("{count} entries of the job have {what}"),
        })
    }

    /// What makes the skipped entries of the job readable.
    fn conversion<'a>(&self, file: &'a Path, array: bool) -> Option<NoEntry<'a>> {
        if self.python_payloads > 0 {
            return Some(NoEntry::PythonDicts { file, array });
        }
        let change = match (self.severities.is_empty(), self.text_payloads) {
            (false, 0) => ".severity = \"INFO\"",
            (true, 1..) => "if .textPayload then .jsonPayload = (.textPayload | fromjson? // {}) else . end",
            (false, 1..) => {
                "if .textPayload then .jsonPayload = (.textPayload | fromjson? // {}) else . end | .severity = \"INFO\""
            }
            (true, 0) => return None,
        };
        let each = if array { ".[] | " } else { "" };
        Some(NoEntry::Convertible { file, filter: format!("{each}{change}") })
    }

    /// The job names that are most like `job`, the nearest first.
    fn nearest<'a>(&'a self, job: &str) -> Vec<&'a str> {
        let mut names: Vec<(usize, &str)> =
            self.other_jobs.keys().map(|name| (distance(job, name), &**name)).collect();
        names.sort_unstable();
        names.into_iter().take(SHOWN_NAMES).map(|(_, name)| name).collect()
    }

    /// A failure that says why the log has no entry of `job`, and the same for `--json`.
    pub(super) fn no_entries<'a>(
        &'a self,
        file: &Path,
        job: &'a str,
        form: LogForm,
    ) -> (Failure, NoEntries<'a>) {
        let nearest = self.nearest(job);
        let cut = if form.cut { "; the file is cut" } else { "" };
        let (what, why) = if let Some(conversion) = self.conversion(file, form.array) {
            let reasons: Vec<String> = self
                .of_the_job()
                .map(|(count, what)| match count {
                    1 => format!("its 1 entry has {what}"),
                    _ => format!("its {count} entries have {what}"),
                })
                .collect();
            (format!("no entry of job {} can be read: {}", quoted(job), reasons.join("; ")), conversion)
        } else {
            (
                match self.total {
                    1 => format!("no entry of job {}: the log has 1 entry{cut}", quoted(job)),
                    total => format!("no entry of job {} among {total} entries{cut}", quoted(job)),
                },
                self.suggestion(job, &nearest),
            )
        };
        let message = format!("{}: {what}", file.display());
        let failure = remedies::no_entry(&message, &why);
        let json = NoEntries {
            error: "NoEntries",
            message,
            remedy: failure.remedy.clone(),
            job,
            lines: self.total,
            severities: &self.severities,
            text_payloads: self.text_payloads + self.python_payloads,
            other_texts: self.other_texts,
            nearest_job_names: nearest,
        };
        (failure, json)
    }

    fn suggestion(&self, job: &str, nearest: &[&str]) -> NoEntry<'static> {
        let Some(first) = nearest.first() else {
            return NoEntry::NoJobName { texts: self.other_texts, all: self.total };
        };
        // One wrong letter in a short name, one in every four of a long one.
        if distance(job, first) <= (job.chars().count() / 4).max(1) {
            return NoEntry::SimilarName(quoted(first));
        }
        let shown = nearest.iter().map(|name| quoted(name)).collect();
        NoEntry::OtherNames { shown, more: self.other_jobs.len() - nearest.len() }
    }
}

/// The form of the file that a log was read from.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogForm {
    /// The file is one JSON array.
    pub(super) array: bool,
    /// The file ends within an entry.
    pub(super) cut: bool,
}

/// How many letters of two names differ; capitals count as small ones.
fn distance(job: &str, name: &str) -> usize {
    strsim::osa_distance(&job.to_lowercase(), &name.to_lowercase())
}

fn add(counts: &mut BTreeMap<Box<str>, u64>, name: Box<str>) {
    if let Some(count) = counts.get_mut(&name) {
        *count += 1;
    } else if counts.len() < MAX_NAMES {
        counts.insert(name, 1);
    }
}

fn quoted(name: &str) -> String {
    let short: String = name.chars().take(SHOWN_CHARS).collect();
    let more = if short.len() < name.len() { "…" } else { "" };
    format!("\"{}{more}\"", one_line(&short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(job: &str, names: &[&str]) -> String {
        let mut skipped = SkippedLines::default();
        names.iter().for_each(|name| skipped.count(Some(SkipReason::OtherJob((*name).into()))));
        let form = LogForm { array: false, cut: false };
        skipped.no_entries(Path::new("log"), job, form).0.remedy
    }

    #[test]
    fn a_name_is_suggested_when_one_letter_is_off() {
        for job in ["dmo", "demoo", "Demo", "DEMO", "deom", "dem0"] {
            assert_eq!(remedy(job, &["other", "demo"]), "did you mean --job \"demo\"?", "{job}");
        }
        assert_eq!(remedy("x", &["b-run", "a-run"]), "the log has entries of job \"a-run\", \"b-run\"");
        let more = remedy("gemma-7b", &["aaaa", "bbbb", "llama-7b", "cccc"]);
        assert_eq!(more, "the log has entries of job \"llama-7b\", \"aaaa\", \"bbbb\" and 1 more");
        assert!(remedy("x", &[]).starts_with("no entry has a job_name"));
        let mut texts = SkippedLines::default();
        (0..3).for_each(|_| texts.count(Some(SkipReason::OtherText)));
        let remedy = texts.no_entries(Path::new("log"), "x", LogForm { array: false, cut: false }).0.remedy;
        assert!(remedy.starts_with("3 of the 3 entries have a textPayload"), "{remedy}");
    }

    #[test]
    fn names_are_bounded() {
        let mut skipped = SkippedLines::default();
        for at in 0..2 * MAX_NAMES {
            skipped.count(Some(SkipReason::OtherJob(at.to_string().into())));
        }
        assert_eq!((skipped.total(), skipped.other_jobs.len()), (2_000, MAX_NAMES));
        assert_eq!(quoted(&"x".repeat(100)), format!("\"{}…\"", "x".repeat(60)));
    }
}
