//! Logs, queries and observations of `tpuscope goodput`: what cannot be read, and what has no answer.

use std::{fmt, io, path::Path};

use goodput::{proxy, time::Micros};

use crate::{exit::Exit, failure::Failure};

/// The agent has no ledger of a job, or of several of this name.
pub(crate) fn no_ledger(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.remedy("`tpuscope goodput` without --job shows the jobs that run"),
        Exit::Usage => {
            failure.remedy("name one of them with its kind, such as --job slurm:7, or its user with --user")
        }
        _ => failure,
    }
}

/// No ledger of a job that has marks.
pub(crate) fn only_marks(failure: Failure) -> Failure {
    failure.remedy(
        "the job has marks: ask with --exact or --strict, or without --proxy, --explain, --hosts and a --window alone",
    )
}

/// The ledger of a job has no second of the time that was asked for; it ends at `nearest`, or begins there.
pub(crate) fn window_without_second(job: &str, from: Micros, until: Micros, nearest: Micros) -> Failure {
    let edge = if nearest <= from { "ends" } else { "begins" };
    Failure::new(
        Exit::NotFound,
        format_args!("the ledger of {job} has no second from {from} to {until}: it {edge} at {nearest}"),
    )
    .remedy("choose a window in its time, or leave the window out")
}

/// Hosts answered about several jobs.
pub(crate) fn several_ledgers(called: &[String]) -> Failure {
    Failure::new(Exit::Usage, format_args!("the hosts answer about several jobs: {}", called.join(", ")))
        .remedy("name one of them with --job")
}

/// A file that cannot be opened or read.
pub(crate) fn unreadable_input(file: &Path, error: &io::Error) -> Failure {
    let failure = |exit| Failure::new(exit, format_args!("{}: {error}", file.display()));
    match error.kind() {
        io::ErrorKind::NotFound => remote(file).unwrap_or_else(|| failure(Exit::NotFound)),
        io::ErrorKind::PermissionDenied => failure(Exit::Permission)
            .remedy("run the command as a user that may read the file, or pass it on stdin as -"),
        io::ErrorKind::IsADirectory => failure(Exit::BadInput),
        _ => failure(Exit::Internal),
    }
}

/// The path is a URL of remote storage.
fn remote(path: &Path) -> Option<Failure> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| {
        let what = format_args!("{text} is the address of remote storage: only local paths are read");
        let copy = match scheme {
            "gs" => format!("copy it first: gcloud storage cp -r {text} ."),
            _ => "copy it to this machine first".to_owned(),
        };
        Failure::new(Exit::Usage, what).remedy(copy)
    })
}

/// A file that is not UTF-8 text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherEncoding {
    Gzip,
    Zip,
    Zstd,
    Utf16,
}

impl fmt::Display for OtherEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "compressed (gzip)",
            Self::Zip => "a zip archive",
            Self::Zstd => "compressed (zstd)",
            Self::Utf16 => "UTF-16, not UTF-8",
        })
    }
}

/// The file of `option` is not UTF-8 text. `at` names the file, and the line where that is known.
pub(crate) fn other_encoding(
    encoding: OtherEncoding,
    at: impl fmt::Display,
    file: &Path,
    option: &str,
) -> Failure {
    let command = match encoding {
        OtherEncoding::Gzip => "gunzip -c",
        OtherEncoding::Zip => "unzip -p",
        OtherEncoding::Zstd => "zstd -dc",
        OtherEncoding::Utf16 => "iconv -f UTF-16 -t UTF-8",
    };
    let stdin = file == Path::new("-");
    let command = if stdin { format!("… | {command}") } else { format!("{command} {}", file.display()) };
    Failure::new(Exit::BadInput, format_args!("{at}: the file is {encoding}"))
        .remedy(format_args!("{command} | tpuscope goodput {option} - …"))
}

/// A part of a log that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFault {
    /// Any other.
    Malformed,
    /// An entry that ends too early.
    CutEntry,
    /// A log without any entry.
    Empty,
    /// YAML instead of JSON.
    Yaml,
}

/// A line of a log that cannot be read.
pub(crate) fn log_line(file: &Path, line: u64, fault: LogFault, what: impl fmt::Display) -> Failure {
    let remedy = match fault {
        LogFault::Malformed => {
            "expected lines {\"timestamp\": RFC 3339, \"insertId\": \"…\", \"jsonPayload\": {…}}, or one JSON array of them"
        }
        LogFault::CutEntry => "the entry is cut or takes several lines; `jq -c .` writes one entry per line",
        LogFault::Empty => "check the filter of the export",
        LogFault::Yaml => "export the log as JSON: gcloud logging read … --format=json",
    };
    Failure::new(Exit::BadInput, format_args!("{} line {line}: {what}", file.display())).remedy(remedy)
}

/// A log with more entries of the job than are kept.
pub(crate) fn log_too_large(what: impl fmt::Display) -> Failure {
    Failure::new(Exit::TooLarge, what)
        .remedy("export a shorter period: gcloud logging read '… AND timestamp>=\"…\" AND timestamp<\"…\"'")
}

/// Why a log has no entry of a job.
#[derive(Debug)]
pub(crate) enum NoEntry<'a> {
    /// The program `filter` of jq makes its entries readable.
    Convertible { file: &'a Path, filter: String },
    /// Its entries are readable once Python has read its dicts.
    PythonDicts { file: &'a Path, array: bool },
    /// No entry has the name of a job. `texts` of `all` have a text instead of a payload.
    NoJobName { texts: u64, all: u64 },
    /// A job with nearly the same name has entries. The name is quoted.
    SimilarName(String),
    /// Other jobs have entries. The names are quoted.
    OtherNames { shown: Vec<String>, more: usize },
}

/// A log without an entry of the job.
pub(crate) fn no_entry(what: &str, why: &NoEntry<'_>) -> Failure {
    let failure = Failure::new(Exit::NotFound, what);
    match why {
        NoEntry::Convertible { file, filter } => {
            let file = if *file == Path::new("-") { String::new() } else { format!(" {}", file.display()) };
            failure.remedy(format_args!(
                "convert the entries: jq -c '{filter}'{file} | tpuscope goodput --from-log - …"
            ))
        }
        NoEntry::PythonDicts { file, array } => {
            let file = if *file == Path::new("-") { String::new() } else { format!(" < {}", file.display()) };
            let entries = if *array { "json.load(sys.stdin)" } else { "map(json.loads, sys.stdin)" };
            failure.remedy(format_args!(
                "convert the entries: python3 -c '{}'{file} | tpuscope goodput --from-log - …",
                python_dicts(entries)
            ))
        }
        NoEntry::NoJobName { texts: texts @ 1.., all } => failure.remedy(format_args!(
            "{texts} of the {all} entries have a textPayload in which no job_name can be read, and no jsonPayload: check that the export is the recorder's log"
        )),
        NoEntry::NoJobName { .. } => failure.remedy(
            "no entry has a job_name in its jsonPayload: check that the export is the recorder's log",
        ),
        NoEntry::SimilarName(name) => failure.remedy(format_args!("did you mean --job {name}?")),
        NoEntry::OtherNames { shown, more } => {
            let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
            failure.remedy(format_args!("the log has entries of job {}{more}", shown.join(", ")))
        }
    }
}

/// A Python program that makes a `jsonPayload` of each dict in a `textPayload`.
fn python_dicts(entries: &str) -> String {
    let payload = r#"{"jsonPayload": ast.literal_eval(t)} if t.startswith("{") else {}"#;
    format!(
        r#"import ast, json, sys; [print(json.dumps({{**e, "severity": "INFO", **({payload})}})) for e in {entries} for t in [e.get("textPayload", "")]]"#
    )
}

/// The window ends before it starts.
pub(crate) fn reversed_window(start: Micros, end: Micros) -> Failure {
    Failure::new(Exit::Usage, format_args!("--start {start} is not before --end {end}"))
        .remedy("set --start to the earlier time")
}

/// An attempt did not run in the window.
pub(crate) fn window_without_attempt(job: &str, from: Option<Micros>, until: Option<Micros>) -> Failure {
    let at =
        |time: Option<Micros>, other: &str| time.map_or_else(|| other.to_owned(), |time| time.to_string());
    let (from, until) = (at(from, "an unknown time"), at(until, "now"));
    Failure::new(
        Exit::NotFound,
        format_args!("{job} did not run in the window: it ran from {from} to {until}"),
    )
    .remedy("choose a window in this time, or leave --start and --end out")
}

/// Queries that cannot be read.
pub(crate) fn bad_queries(file: &Path, what: impl fmt::Display) -> Failure {
    Failure::new(Exit::BadInput, format_args!("{} {what}", file.display())).remedy(
        "expected a JSON array of objects such as {\"kind\": \"cumulative\", \"now\": 1772323442.0}; see docs/goodput.md",
    )
}

/// Observations of a host that cannot be read.
pub(crate) fn bad_observations(file: &Path, what: impl fmt::Display) -> Failure {
    Failure::new(Exit::BadInput, format_args!("{} {what}", file.display())).remedy(
        "expected a JSON object with chips, now, opens, duty and, if known, hbm and steps, see docs/goodput.md; --from-log reads an event log",
    )
}

/// Observations of a host that give no ledger.
pub(crate) fn refused_observations(file: &Path, error: &proxy::Error) -> Failure {
    let (exit, remedy) = match error {
        proxy::Error::TooLong(_) | proxy::Error::TooManyChips { .. } => {
            (Exit::TooLarge, "leave out older observations, or split the chips over several files")
        }
        proxy::Error::Invalid(_) => (Exit::BadInput, "docs/goodput.md describes the fields"),
    };
    Failure::new(exit, format_args!("{}: {error}", file.display())).remedy(remedy)
}

/// Why a query has no answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NoAnswer {
    /// All entries of the job are outside the window.
    OutsideTheWindow { first: Micros, last: Micros },
    /// The time of the query is not after the first entry.
    NowIsBefore(Micros),
    /// The strict ledger has no answer.
    Strict,
    /// The library cannot assign the entry of this time to the window.
    WithoutEpochSeconds(Micros),
    /// The library does not look back to the first entry.
    NotLookedBackTo { first: Micros, lookback_days: u32, needed_days: i64 },
    /// Any other.
    Other,
}

/// A query without an answer.
pub(crate) fn no_answer_of_log(what: impl fmt::Display, why: NoAnswer) -> Failure {
    let failure = Failure::new(Exit::BadInput, what);
    match why {
        NoAnswer::OutsideTheWindow { first, last } => failure.remedy(format_args!(
            "the job's entries are from {first} to {last}: choose a window in this period"
        )),
        NoAnswer::NowIsBefore(first) => {
            failure.remedy(format_args!("the job's first entry is of {first}: check that --now is after it"))
        }
        NoAnswer::Strict => failure.remedy("check that the log has the job's start and its steps"),
        NoAnswer::WithoutEpochSeconds(at) => failure.remedy(format_args!(
            "the library selects the entries of a window by epoch seconds, which the entry of {at} does not have: use \
             --strict"
        )),
        NoAnswer::NotLookedBackTo { first, lookback_days, needed_days } => failure.remedy(format_args!(
            "the log starts at {first}, before the {lookback_days} days that the library looks back: set \
             --lookback-days {needed_days}, or use --strict"
        )),
        NoAnswer::Other => failure.remedy("try --strict, which lists its repairs"),
    }
}
