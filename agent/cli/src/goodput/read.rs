//! Reading an exported log: lines or one array, in bounded memory, whatever else the file holds.
//!
//! The entries of one job are kept; all other lines are counted. A line that is not a JSON object is an error
//! that names its number. A file that ends within an entry gives a warning.

use std::{
    fmt, fs,
    io::{self, BufRead, BufReader, Read as _},
    os::unix::fs::FileTypeExt,
    path::Path,
};

use goodput::{
    entry::{EntryParser, LineError, LogEntry, ParsedLine},
    splitter::{LogEnd, LogSplitter, SplitError, SplitFault},
};
use indicatif::{ProgressBar, ProgressDrawTarget};

use super::{
    json,
    skipped::{LogForm, SkippedLines},
};
use crate::{
    exit::Exit,
    failure::Failure,
    output::{self, one_line},
    remedies::{self, LogFault, OtherEncoding},
};

/// The maximum number of entries of one job, and their maximum size. With the answer: less than 1.5 GiB.
const KEPT: KeptLimit = KeptLimit { entries: 4_000_000, bytes: 640 << 20 };
/// The maximum number of lines without the job's name that are parsed for the names of other jobs.
const PARSED_OTHERS: u64 = 100_000;
/// The size of the read buffer in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
struct KeptLimit {
    entries: usize,
    bytes: usize,
}

/// The content of a log file.
#[derive(Debug, Default)]
pub(super) struct LogRead {
    /// Entries of the job, in the order of the file.
    pub(super) entries: Vec<LogEntry>,
    /// All other lines.
    pub(super) skipped: SkippedLines,
    array: bool,
    kept_bytes: usize,
    cut: Option<u64>,
}

impl LogRead {
    /// Warnings for the user.
    pub(super) fn warnings(&self) -> Vec<String> {
        let cut =
            self.cut.map(|line| format!("the file ends within line {line}; the lines before it are used"));
        cut.into_iter().chain(self.skipped.warnings()).collect()
    }

    /// The form of the file.
    pub(super) fn form(&self) -> LogForm {
        LogForm { array: self.array, cut: self.cut.is_some() }
    }
}

/// Opens a file.
fn open(file: &Path) -> Result<fs::File, Failure> {
    // Such an open waits until a program opens the FIFO for writing. A shell's `<(…)` has its writer.
    if fs::metadata(file).is_ok_and(|meta| meta.file_type().is_fifo()) && !file.starts_with("/dev") {
        output::print_error(&format!(
            "waiting for the writer of the FIFO {}",
            one_line(&file.display().to_string())
        ));
    }
    let opened = fs::File::open(file).and_then(|opened| {
        let folder = opened.metadata()?.is_dir();
        if folder { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(opened) }
    });
    opened.map_err(|error| remedies::unreadable_input(file, &error))
}

/// Reads a whole file of at most `limit` bytes; `-` is stdin. `option` names the file on the command line.
pub(super) fn small(option: &str, file: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let source: Box<dyn io::Read> =
        if file == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(open(file)?) };
    source
        .take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|error| remedies::unreadable_input(file, &error))?;
    if text.len() as u64 > limit {
        return Err(Failure::new(
            Exit::TooLarge,
            format_args!("{}: the file is larger than {} MiB", file.display(), limit >> 20),
        ));
    }
    if let Some(encoding) = other_encoding(&text) {
        return Err(remedies::other_encoding(encoding, file.display(), file, option));
    }
    if text.trim_ascii().is_empty() {
        return Err(Failure::new(
            Exit::BadInput,
            format_args!("{} line 1: the file is empty", file.display()),
        ));
    }
    Ok(text)
}

/// Reads the entries of `job`; `-` is stdin.
pub(super) fn entries(file: &Path, job: &str) -> Result<LogRead, Failure> {
    if file == Path::new("-") {
        return LogScan::new(file, job, None).run(io::stdin().lock());
    }
    let opened = open(file)?;
    let bytes = opened.metadata().ok().filter(fs::Metadata::is_file).map(|meta| meta.len());
    LogScan::new(file, job, bytes).run(BufReader::with_capacity(CHUNK_BYTES, opened))
}

/// The encoding of a file that is not UTF-8 text.
fn other_encoding(text: &[u8]) -> Option<OtherEncoding> {
    const GZIP: &[u8] = b"\x1f\x8b";
    const ZIP: &[u8] = b"PK\x03\x04";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
    match text {
        _ if text.starts_with(GZIP) => Some(OtherEncoding::Gzip),
        _ if text.starts_with(ZIP) => Some(OtherEncoding::Zip),
        _ if text.starts_with(ZSTD) => Some(OtherEncoding::Zstd),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{' | b'[', 0, ..] | [0, b'{' | b'[', ..] => {
            Some(OtherEncoding::Utf16)
        }
        _ => None,
    }
}

struct LogScan<'a> {
    file: &'a Path,
    parser: EntryParser,
    /// Lines without this name are of other jobs. `None` if JSON may write the name with escapes.
    name: Option<memchr::memmem::Finder<'a>>,
    read: LogRead,
    progress: ProgressBar,
    limit: KeptLimit,
}

/// An error in the structure of the file, or a failure of one entry.
enum ScanError {
    Split(SplitError),
    Entry(Failure),
}

impl From<SplitError> for ScanError {
    fn from(error: SplitError) -> Self {
        ScanError::Split(error)
    }
}

impl<'a> LogScan<'a> {
    fn new(file: &'a Path, job: &'a str, bytes: Option<u64>) -> Self {
        let plain = job.bytes().all(|b| b.is_ascii_graphic() && !b"\"\\".contains(&b)) && !job.is_empty();
        let target = ProgressDrawTarget::stderr_with_hz(4);
        Self {
            file,
            parser: EntryParser::new(job),
            name: plain.then(|| memchr::memmem::Finder::new(job)),
            read: LogRead::default(),
            progress: ProgressBar::with_draw_target(bytes, target),
            limit: KEPT,
        }
    }

    fn run(mut self, mut source: impl BufRead) -> Result<LogRead, Failure> {
        let (mut splitter, mut bytes) = (LogSplitter::new(), 0);
        loop {
            let chunk = source.fill_buf().map_err(|error| remedies::unreadable_input(self.file, &error))?;
            if chunk.is_empty() {
                break;
            }
            if bytes == 0 {
                self.check_kind(chunk)?;
            }
            let mut each = |line, item: &[u8]| self.entry(line, item).map_err(ScanError::Entry);
            splitter.push(chunk, &mut each).map_err(|error| match error {
                ScanError::Split(error) => self.misformed(&error),
                ScanError::Entry(failure) => failure,
            })?;
            let length = chunk.len();
            source.consume(length);
            bytes += length as u64;
            self.progress.set_position(bytes);
        }
        self.progress.finish_and_clear();
        self.read.array = splitter.is_array();
        self.finish(splitter)
    }

    /// A line without a line feed at the end of the file may be incomplete.
    fn finish(mut self, splitter: LogSplitter) -> Result<LogRead, Failure> {
        match splitter.finish().map_err(|error| self.misformed(&error))? {
            LogEnd::Complete => {}
            LogEnd::Cut { line } => self.read.cut = Some(line),
            LogEnd::LastLine { line, text } => match self.entry(line, &text) {
                Err(failure) if failure.exit == Exit::TooLarge => return Err(failure),
                Err(_) => self.read.cut = Some(line),
                Ok(()) => {}
            },
        }
        Ok(self.read)
    }

    fn check_kind(&self, first: &[u8]) -> Result<(), Failure> {
        if let Some(encoding) = other_encoding(first) {
            let at = format_args!("{} line 1", self.file.display());
            return Err(remedies::other_encoding(encoding, at, self.file, "--from-log"));
        }
        if first.starts_with(b"---") {
            return Err(self.bad(1, LogFault::Yaml, "the file is YAML, not JSON"));
        }
        Ok(())
    }

    fn entry(&mut self, line: u64, item: &[u8]) -> Result<(), Failure> {
        let item = item.trim_ascii();
        if item.is_empty() {
            return Ok(());
        }
        if self.is_of_another_job(item) {
            let reason = match self.reads_other_names().then(|| self.parser.parse(item)) {
                Some(Ok(ParsedLine::Skipped(reason))) => Some(reason),
                _ => None,
            };
            self.read.skipped.count(reason);
            return Ok(());
        }
        match self.parser.parse(item) {
            Ok(ParsedLine::Entry(entry)) => self.keep(line, *entry),
            Ok(ParsedLine::Skipped(reason)) => {
                self.read.skipped.count(Some(reason));
                Ok(())
            }
            Err(LineError::Json(error)) => {
                let fault = if error.is_eof() { LogFault::CutEntry } else { LogFault::Malformed };
                let what = json::message(&error, item);
                Err(self.bad(line, fault, format_args!("not a log entry: {what}")))
            }
            Err(error) => Err(self.bad(line, LogFault::Malformed, error)),
        }
    }

    /// The names of other jobs matter only for a log that has no entry of the job.
    fn reads_other_names(&self) -> bool {
        self.read.entries.is_empty() && self.read.skipped.total() < PARSED_OTHERS
    }

    fn keep(&mut self, line: u64, entry: LogEntry) -> Result<(), Failure> {
        self.read.kept_bytes += entry.bytes();
        if self.read.entries.len() >= self.limit.entries || self.read.kept_bytes > self.limit.bytes {
            return Err(remedies::log_too_large(format_args!(
                "{} line {line}: the job has more than {} entries or {} MiB of them",
                self.file.display(),
                self.limit.entries,
                self.limit.bytes >> 20
            )));
        }
        self.read.entries.push(entry);
        Ok(())
    }

    /// Whether the item is a whole object without the job's name and without any escape.
    fn is_of_another_job(&self, item: &[u8]) -> bool {
        item.starts_with(b"{")
            && item.ends_with(b"}")
            && self
                .name
                .as_ref()
                .is_some_and(|name| name.find(item).is_none() && memchr::memchr(b'\\', item).is_none())
    }

    fn misformed(&self, error: &SplitError) -> Failure {
        let fault = if error.fault == SplitFault::Empty { LogFault::Empty } else { LogFault::Malformed };
        self.bad(error.line, fault, error.fault)
    }

    fn bad(&self, line: u64, fault: LogFault, what: impl fmt::Display) -> Failure {
        remedies::log_line(self.file, line, fault, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_a_limit_and_other_jobs_do_not_count() {
        let line = |job: &str, id: &str| {
            format!(
                "{{\"timestamp\":\"2026-03-01T00:00:00Z\",\"insertId\":\"{id}\",\
                 \"jsonPayload\":{{\"job_name\":\"{job}\",\"job_start_time\":1.0}}}}\n"
            )
        };
        let scan = |text: &str, limit: KeptLimit| {
            let mut scan = LogScan::new(Path::new("log"), "j", None);
            scan.limit = limit;
            scan.run(text.as_bytes()).map(|read| read.entries.len())
        };
        let text = line("k", "a").repeat(100) + &line("j", "a").repeat(10);
        let (entries, bytes) = (10, 1 << 20);
        assert_eq!(scan(&text, KeptLimit { entries, bytes }).unwrap(), 10);
        let failure = scan(&text, KeptLimit { entries: 9, bytes }).unwrap_err();
        assert_eq!(failure.exit, Exit::TooLarge);
        assert!(failure.what.contains("line 110: the job has more than 9 entries"), "{failure}");
        let long = line("j", &"x".repeat(300_000)).repeat(4);
        assert_eq!(scan(&long, KeptLimit { entries, bytes }).unwrap_err().exit, Exit::TooLarge);
        assert_eq!(scan(long.trim_end(), KeptLimit { entries, bytes }).unwrap_err().exit, Exit::TooLarge);
    }
}
