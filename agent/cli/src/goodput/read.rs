//! Reading an exported log: lines or one array, in bounded memory, whatever else the file holds.
//!
//! Kept are the entries of one job; all else is counted and forgotten. A line that is no JSON object is an
//! error with its number, except at the very end of a file that was cut: that is a warning.

use std::{
    io::{self, BufRead, BufReader, Read as _},
    path::{Path, PathBuf},
};

use goodput::entry::{Entry, Line, LineFault, Reader};
use indicatif::{ProgressBar, ProgressDrawTarget};

use super::{json, open};
use crate::{exit::Exit, failure::Failure};

/// The longest entry. Cloud Logging's own limit is 256 KiB.
const ENTRY_BYTES: usize = 1 << 20;
/// So many entries of one job are kept, and so many bytes of them: with the answer, less than 1.5 GiB.
const KEPT: Limit = Limit { entries: 4_000_000, bytes: 640 << 20 };
/// How a gzip file begins.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// How much is read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// How much of a log is kept.
#[derive(Debug, Clone, Copy)]
struct Limit {
    entries: usize,
    bytes: usize,
}

/// What a log holds.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Entries of the job, in the order of the file.
    pub(super) entries: Vec<Entry>,
    kept_bytes: usize,
    others: u64,
    cut: Option<u64>,
}

impl Read {
    /// What the user should know.
    pub(super) fn warnings(&self) -> Vec<String> {
        let cut = self.cut.map(|line| format!("the file is cut in line {line}; what is before it was used"));
        cut.into_iter().collect()
    }
}

/// Reads a whole file of at most `limit` bytes; `-` is stdin.
pub(super) fn small(file: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let source: Box<dyn io::Read> =
        if file == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(open(file)?) };
    source.take(limit + 1).read_to_end(&mut text).map_err(|error| unreadable(file, &error))?;
    if text.len() as u64 > limit {
        return Err(Failure::new(
            Exit::TooLarge,
            format_args!("{}: more than {} MiB", file.display(), limit >> 20),
        ));
    }
    if text.starts_with(GZIP) {
        return Err(Failure::new(Exit::BadInput, format_args!("{}: gzip", file.display()))
            .remedy(format_args!("gunzip -c {} | … -", file.display())));
    }
    Ok(text)
}

/// Reads the entries of `job`; `-` is stdin.
pub(super) fn entries(file: &Path, job: &str) -> Result<Read, Failure> {
    let read = if file == Path::new("-") {
        Scan::new(file, job, None).run(io::stdin().lock())?
    } else {
        let opened = open(file)?;
        let bytes = opened.metadata().ok().map(|meta| meta.len());
        Scan::new(file, job, bytes).run(BufReader::with_capacity(CHUNK_BYTES, opened))?
    };
    if read.entries.is_empty() {
        return Err(Failure::new(
            Exit::NotFound,
            format_args!(
                "{}: no entry of job {job:?} among {} entries{}",
                file.display(),
                read.others,
                if read.cut.is_some() { "; the file is cut" } else { "" }
            ),
        )
        .remedy("--job is the job_name in the entries' jsonPayload"));
    }
    Ok(read)
}

fn unreadable(file: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Internal, format_args!("{}: {error}", file.display()))
}

/// Where the scan is in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first byte that means something.
    Start,
    /// Collecting a line.
    Lines,
    /// Inside the array, between entries; whether a comma is due first.
    Between,
    /// Inside an entry of the array.
    Inside { depth: usize, text: bool, escaped: bool },
    /// After the array.
    Done,
}

struct Scan<'a> {
    file: &'a Path,
    reader: Reader,
    /// Lines without this name need no closer look; `None` if the name may be written with escapes.
    name: Option<memchr::memmem::Finder<'a>>,
    place: Place,
    line: u64,
    item: Vec<u8>,
    item_line: u64,
    bytes: u64,
    read: Read,
    progress: ProgressBar,
    limit: Limit,
}

impl<'a> Scan<'a> {
    fn new(file: &'a Path, job: &'a str, bytes: Option<u64>) -> Self {
        let plain = job.bytes().all(|b| b.is_ascii_graphic() && !b"\"\\".contains(&b)) && !job.is_empty();
        let target = ProgressDrawTarget::stderr_with_hz(4);
        Self {
            file,
            reader: Reader::new(job),
            name: plain.then(|| memchr::memmem::Finder::new(job)),
            place: Place::Start,
            line: 1,
            item: Vec::new(),
            item_line: 1,
            bytes: 0,
            read: Read::default(),
            progress: ProgressBar::with_draw_target(bytes, target),
            limit: KEPT,
        }
    }

    fn run(mut self, mut source: impl BufRead) -> Result<Read, Failure> {
        loop {
            let chunk = source.fill_buf().map_err(|error| unreadable(self.file, &error))?;
            if chunk.is_empty() {
                break;
            }
            let length = chunk.len();
            self.chunk(chunk)?;
            source.consume(length);
            self.bytes += length as u64;
            self.progress.set_position(self.bytes);
        }
        self.progress.finish_and_clear();
        self.finish()
    }

    fn chunk(&mut self, mut chunk: &[u8]) -> Result<(), Failure> {
        while !chunk.is_empty() {
            chunk = match self.place {
                Place::Start => self.start(chunk)?,
                Place::Lines => self.lines(chunk)?,
                Place::Between => self.between(chunk)?,
                Place::Inside { .. } => self.inside(chunk)?,
                Place::Done => self.done(chunk)?,
            };
        }
        Ok(())
    }

    /// The first byte that means something decides what the file is.
    fn start<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], Failure> {
        const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
        let chunk = if self.bytes == 0 { chunk.strip_prefix(UTF8_MARK).unwrap_or(chunk) } else { chunk };
        if self.bytes == 0 {
            self.other_kinds(chunk)?;
        }
        let Some(at) = self.skip_space(chunk) else { return Ok(&[]) };
        self.item_line = self.line;
        match chunk[at] {
            b'[' => {
                self.place = Place::Between;
                Ok(&chunk[at + 1..])
            }
            b'{' => {
                self.place = Place::Lines;
                Ok(&chunk[at..])
            }
            _ => Err(self.bad("no log: it begins with neither { nor [")),
        }
    }

    fn other_kinds(&self, chunk: &[u8]) -> Result<(), Failure> {
        let name = self.file.display();
        match chunk {
            _ if chunk.starts_with(GZIP) => {
                Err(self.bad("gzip").remedy(format_args!("gunzip -c {name} | … --from-log -")))
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{' | b'[', 0, ..] | [0, b'{' | b'[', ..] => Err(self
                .bad("UTF-16, not UTF-8")
                .remedy(format_args!("iconv -f UTF-16 -t UTF-8 {name} | … --from-log -"))),
            _ => Ok(()),
        }
    }

    /// The place of the first byte that is no white space; counts lines.
    fn skip_space(&mut self, chunk: &[u8]) -> Option<usize> {
        let at = chunk.iter().position(|b| !b.is_ascii_whitespace());
        let space = &chunk[..at.unwrap_or(chunk.len())];
        self.line += memchr::memchr_iter(b'\n', space).count() as u64;
        at
    }

    fn lines<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], Failure> {
        let Some(end) = memchr::memchr(b'\n', chunk) else {
            self.collect(chunk)?;
            return Ok(&[]);
        };
        let (line, rest) = (&chunk[..end], &chunk[end + 1..]);
        if self.item.is_empty() && line.len() <= ENTRY_BYTES {
            self.entry(line)?;
        } else {
            self.collect(line)?;
            let item = std::mem::take(&mut self.item);
            self.entry(&item)?;
            self.item = item;
            self.item.clear();
        }
        self.line += 1;
        self.item_line = self.line;
        Ok(rest)
    }

    fn between<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], Failure> {
        let Some(at) = self.skip_space(chunk) else { return Ok(&[]) };
        match chunk[at] {
            b',' => Ok(&chunk[at + 1..]),
            b']' => {
                self.place = Place::Done;
                Ok(&chunk[at + 1..])
            }
            b'{' => {
                self.place = Place::Inside { depth: 0, text: false, escaped: false };
                self.item_line = self.line;
                Ok(&chunk[at..])
            }
            _ => {
                self.item_line = self.line;
                Err(self.bad("an array of something else than log entries"))
            }
        }
    }

    fn inside<'b>(&mut self, chunk: &'b [u8]) -> Result<&'b [u8], Failure> {
        let Place::Inside { mut depth, mut text, mut escaped } = self.place else { return Ok(chunk) };
        for (at, byte) in chunk.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if text => escaped = true,
                b'"' => text = !text,
                b'\n' => self.line += 1,
                b'{' | b'[' if !text => depth += 1,
                b'}' | b']' if !text => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.collect(&chunk[..=at])?;
                let item = std::mem::take(&mut self.item);
                self.entry(&item)?;
                self.item = item;
                self.item.clear();
                self.place = Place::Between;
                return Ok(&chunk[at + 1..]);
            }
        }
        self.place = Place::Inside { depth, text, escaped };
        self.collect(chunk)?;
        Ok(&[])
    }

    fn done<'b>(&mut self, chunk: &[u8]) -> Result<&'b [u8], Failure> {
        if self.skip_space(chunk).is_some() {
            self.item_line = self.line;
            return Err(self.bad("more after the end of the array"));
        }
        Ok(&[])
    }

    fn collect(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.item.len() + bytes.len() > ENTRY_BYTES {
            let what = format!("an entry of more than {} KiB: no exported log has such", ENTRY_BYTES >> 10);
            return Err(self.bad(&what));
        }
        self.item.extend_from_slice(bytes);
        Ok(())
    }

    fn entry(&mut self, item: &[u8]) -> Result<(), Failure> {
        let item = item.trim_ascii();
        if item.is_empty() {
            return Ok(());
        }
        if self.is_foreign(item) {
            self.read.others += 1;
            return Ok(());
        }
        match self.reader.line(item) {
            Ok(Line::Ours(entry)) => self.keep(*entry)?,
            Ok(Line::Foreign) => self.read.others += 1,
            Err(LineFault::Json(error)) => {
                let words = json::words(&error, item);
                return Err(self.bad(&format!("not a log entry: {words}")));
            }
            Err(fault) => return Err(self.bad(&fault.to_string())),
        }
        Ok(())
    }

    fn keep(&mut self, entry: Entry) -> Result<(), Failure> {
        self.read.kept_bytes += entry.bytes();
        if self.read.entries.len() >= self.limit.entries || self.read.kept_bytes > self.limit.bytes {
            return Err(Failure::new(
                Exit::TooLarge,
                format_args!(
                    "{} line {}: more than {} entries or {} MiB of one job",
                    self.file.display(),
                    self.item_line,
                    self.limit.entries,
                    self.limit.bytes >> 20
                ),
            )
            .remedy("export less of it: gcloud logging read '… AND timestamp>=\"…\" AND timestamp<\"…\"'"));
        }
        self.read.entries.push(entry);
        Ok(())
    }

    /// Whole objects without the job's name, and without anything that could spell it otherwise.
    fn is_foreign(&self, item: &[u8]) -> bool {
        item.starts_with(b"{")
            && item.ends_with(b"}")
            && self
                .name
                .as_ref()
                .is_some_and(|name| name.find(item).is_none() && memchr::memchr(b'\\', item).is_none())
    }

    /// At the end of the file: what was not finished is cut.
    fn finish(mut self) -> Result<Read, Failure> {
        match self.place {
            Place::Start => return Err(self.bad("empty")),
            Place::Lines => {
                let item = std::mem::take(&mut self.item);
                match self.entry(&item) {
                    Err(failure) if failure.exit == Exit::TooLarge => return Err(failure),
                    Err(_) => self.read.cut = Some(self.item_line),
                    Ok(()) => {}
                }
            }
            Place::Between | Place::Inside { .. } => self.read.cut = Some(self.line),
            Place::Done => {}
        }
        Ok(self.read)
    }

    fn bad(&self, what: &str) -> Failure {
        let file: PathBuf = self.file.to_owned();
        Failure::new(Exit::BadInput, format_args!("{} line {}: {what}", file.display(), self.item_line)).remedy(
            "a line is {\"timestamp\": RFC 3339, \"insertId\": \"…\", \"jsonPayload\": {…}}, or all are in one JSON array",
        )
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
        let scan = |text: &str, limit: Limit| {
            let mut scan = Scan::new(Path::new("log"), "j", None);
            scan.limit = limit;
            scan.run(text.as_bytes()).map(|read| read.entries.len())
        };
        let text = line("k", "a").repeat(100) + &line("j", "a").repeat(10);
        let (entries, bytes) = (10, 1 << 20);
        assert_eq!(scan(&text, Limit { entries, bytes }).unwrap(), 10);
        let failure = scan(&text, Limit { entries: 9, bytes }).unwrap_err();
        assert_eq!(failure.exit, Exit::TooLarge);
        assert!(failure.what.contains("line 110: more than 9 entries"), "{failure}");
        let long = line("j", &"x".repeat(300_000)).repeat(4);
        assert_eq!(scan(&long, Limit { entries, bytes }).unwrap_err().exit, Exit::TooLarge);
        assert_eq!(scan(long.trim_end(), Limit { entries, bytes }).unwrap_err().exit, Exit::TooLarge);
    }
}
