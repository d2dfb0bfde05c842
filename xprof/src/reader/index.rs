//! The first pass: what is in the file and where, so that everything else can be read in any order.
//!
//! Keeps a few numbers per line and the names of the stats, never an event. Needs no seeking, so that a
//! trace can be checked while it arrives.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    ops::ControlFlow,
};

use super::{
    line,
    names::StatNames,
    plane_index::plane,
    stat::OwnedValue,
    time::{ENVIRONMENT, EPOCH_NS, SessionTimes},
};
use crate::wire::{Error, FieldPayload, Header, Scanner, Span};

/// How many planes, lines of the whole file and texts of the file are held.
const MOST_PLANES: usize = 4096;
pub(super) const MOST_LINES: usize = 1 << 16;
const MOST_TEXTS: usize = 256;
/// How much of one name or text is kept.
const LONGEST_TEXT: usize = 1024;

/// What a file holds.
#[derive(Debug, Clone, Default)]
pub struct Index {
    /// The planes, in the file's order.
    pub planes: Vec<PlaneIndex>,
    /// The host names that the file carries; normally one.
    pub hostnames: Vec<String>,
    /// What the profiler could not do.
    pub errors: Vec<String>,
    /// What the profiler warned of.
    pub warnings: Vec<String>,
    /// The fields of the file that are no planes, each with its tag: to be copied as they are.
    pub others: Vec<Span>,
    /// How long the file is.
    pub len: u64,
    /// When the session ran.
    pub session: SessionTimes,
}

/// Why a file that is not damaged is no trace either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTrace {
    /// A file of 0 bytes.
    #[error("is empty (0 bytes)")]
    Empty,
    /// By chance well formed, and nothing in it is a trace's.
    #[error("is no trace: it has none of a trace's fields")]
    Foreign,
    /// The profiler's answer when nothing ran.
    #[error("is a trace without any plane")]
    NoPlane,
}

/// What a plane holds.
#[derive(Debug, Clone, Default)]
pub struct PlaneIndex {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its lines, in the file's order.
    pub lines: Vec<LineIndex>,
    /// The names of its stats.
    pub stat_names: StatNames,
    /// How many event metadata entries it has.
    pub event_metadata: u64,
    /// The metadata id of the event that marks dropped buffers, where the plane names it.
    pub drop_event: Option<i64>,
    /// Whether it names the event of a program's launch on a device.
    pub launches: bool,
    /// Its own stats, by name.
    pub stats: Vec<(String, OwnedValue)>,
    /// Where the XPlane lies.
    pub span: Span,
    /// The runs of fields that are no lines, tags included: see [`super::Reader::plane_fields`].
    pub others: Vec<Span>,
}

impl PlaneIndex {
    /// The plane's own stat of that name.
    pub fn stat(&self, name: &str) -> Option<&OwnedValue> {
        self.stats.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The lines of that name.
    pub fn lines_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LineIndex> {
        self.lines.iter().filter(move |line| line.name == name)
    }
}

/// What a line holds.
#[derive(Debug, Clone)]
pub struct LineIndex {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// The name to show, if another.
    pub display_name: String,
    /// The id to show, if another.
    pub display_id: i64,
    /// Where its events count from, as the file has it.
    pub timestamp_ns: i64,
    /// Its length, as the file has it.
    pub duration_ps: i64,
    /// How many events it has.
    pub events: u64,
    /// The least offset of an event.
    pub first_ps: i64,
    /// The greatest end of an event, counted from the line's timestamp.
    pub last_end_ps: i64,
    /// The longest time from the end of all events before to the start of one.
    pub longest_pause_ps: i64,
    /// How many events lie far outside the session, as after a flipped bit: they are not visited, and in no figure here
    /// but [`Self::events`].
    pub outside: u64,
    /// Whether each event starts no earlier than the one before it, enclosing ones first.
    pub sorted: bool,
    /// Where the XLine lies.
    pub span: Span,
}

impl LineIndex {
    pub(super) fn at(span: Span) -> Self {
        Self {
            id: 0,
            name: String::new(),
            display_name: String::new(),
            display_id: 0,
            timestamp_ns: 0,
            duration_ps: 0,
            events: 0,
            first_ps: i64::MAX,
            last_end_ps: i64::MIN,
            longest_pause_ps: 0,
            outside: 0,
            sorted: true,
            span,
        }
    }
}

impl LineIndex {
    /// Takes the next event; `before` is the one before it.
    pub(super) fn count(&mut self, offset_ps: i64, duration_ps: i64, before: &mut (i64, i64)) {
        if self.events > 0 {
            let pause = offset_ps.saturating_sub(self.last_end_ps);
            self.longest_pause_ps = self.longest_pause_ps.max(pause);
        }
        self.events += 1;
        self.first_ps = self.first_ps.min(offset_ps);
        self.last_end_ps = self.last_end_ps.max(offset_ps.saturating_add(duration_ps));
        let now = (offset_ps, duration_ps);
        self.sorted &= now.0 > before.0 || (now.0 == before.0 && now.1 <= before.1);
        *before = now;
    }

    /// The same line without its events outside `bounds`, unless those are most of it: then it has a time of its own.
    fn within<R: Read + Seek>(
        &self,
        scanner: &mut Scanner<R>,
        bounds: SessionSpan,
    ) -> Result<Option<Self>, Error> {
        let mut inside = Self::at(self.span);
        let mut before = (i64::MIN, i64::MAX);
        scanner.seek(self.span.offset)?;
        line::walk(
            scanner,
            self.span,
            |event| {
                if bounds.hold(event.offset_ps, event.duration_ps) {
                    inside.count(event.offset_ps, event.duration_ps, &mut before);
                }
                Ok(ControlFlow::Continue(()))
            },
            skip_value,
        )?;
        let outside = self.events - inside.events;
        Ok((inside.events > outside).then(|| Self {
            first_ps: inside.first_ps,
            last_end_ps: inside.last_end_ps,
            longest_pause_ps: inside.longest_pause_ps,
            sorted: inside.sorted,
            outside,
            ..self.clone()
        }))
    }
}

/// The least and the greatest time of an event of one line, counted from the line's timestamp.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionSpan(i64, i64);

impl SessionSpan {
    /// Whether an event lies within them.
    #[inline]
    pub(super) fn hold(self, offset_ps: i64, duration_ps: i64) -> bool {
        offset_ps >= self.0 && offset_ps.saturating_add(duration_ps.max(0)) <= self.1
    }
}

impl Index {
    /// The id of the process that was traced, where the file says it.
    pub fn process_id(&self) -> Option<i64> {
        self.planes.iter().find_map(|plane| plane.stat("process_id")?.int())
    }

    /// Finds the lines that have events far outside the session.
    pub(super) fn set_outside<R: Read + Seek>(&mut self, scanner: &mut Scanner<R>) -> Result<(), Error> {
        let session = self.session;
        for line in self.planes.iter_mut().flat_map(|plane| &mut plane.lines).filter(|line| line.events > 0) {
            let Some(bounds) = session.bounds_of(line) else { return Ok(()) };
            let reach = line.last_end_ps.saturating_sub(line.first_ps);
            if !bounds.hold(line.first_ps, reach)
                && let Some(inside) = line.within(scanner, bounds)?
            {
                *line = inside;
            }
        }
        Ok(())
    }

    /// The bounds of the lines that have events outside, by where the line lies.
    pub(super) fn outside(&self) -> HashMap<u64, SessionSpan> {
        let lines = self.planes.iter().flat_map(|plane| &plane.lines).filter(|line| line.outside > 0);
        lines.filter_map(|line| Some((line.span.offset, self.session.bounds_of(line)?))).collect()
    }

    /// Reads `input`, whose length is `len` if that is known, once from its start to its end.
    ///
    /// Without a length a cut that falls between two planes cannot be distinguished from the end.
    pub fn scan<R: Read>(input: R, len: Option<u64>) -> Result<Self, Error> {
        Self::scan_with(&mut Scanner::new(input, super::RECORD), len)
    }

    pub(super) fn scan_with<R: Read>(scanner: &mut Scanner<R>, len: Option<u64>) -> Result<Self, Error> {
        let mut index = Index::default();
        let mut lines = 0;
        while let Some(header) = scanner.header(len)? {
            match header.number {
                1 => {
                    let len = header.len("a plane")?;
                    if index.planes.len() == MOST_PLANES {
                        return Err(too_many(header.at, "planes", MOST_PLANES));
                    }
                    index.planes.push(plane(scanner, len, &mut lines)?);
                }
                number => {
                    if number <= 4 {
                        header.len("a text")?;
                    }
                    let text = read_text(scanner, header)?;
                    index.others.push(Span { offset: header.at, len: scanner.position() - header.at });
                    if index.others.len() > MOST_LINES {
                        return Err(too_many(header.at, "fields beside the planes", MOST_LINES));
                    }
                    match number {
                        2 => keep(&mut index.errors, text),
                        3 => keep(&mut index.warnings, text),
                        4 => keep(&mut index.hostnames, text),
                        _ => {}
                    }
                }
            }
        }
        index.len = scanner.position();
        index.session = times(&index.planes);
        Ok(index)
    }

    /// Why there is nothing to read, if so.
    pub fn no_trace(&self) -> Option<NoTrace> {
        let texts = [&self.hostnames, &self.errors, &self.warnings];
        match (self.len, self.planes.is_empty()) {
            (0, _) => Some(NoTrace::Empty),
            (_, true) if texts.iter().all(|texts| texts.is_empty()) => Some(NoTrace::Foreign),
            (_, true) => Some(NoTrace::NoPlane),
            _ => None,
        }
    }

    /// The planes of that name.
    pub fn planes_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (usize, &'a PlaneIndex)> {
        self.planes.iter().enumerate().filter(move |(_, plane)| plane.name == name)
    }
}

impl SessionTimes {
    fn bounds_of(&self, line: &LineIndex) -> Option<SessionSpan> {
        let (first, last) = self.bounds_ps()?;
        let start = self.line_start_ps(line);
        Some(SessionSpan(first.saturating_sub(start), last.saturating_sub(start)))
    }

    /// Where `line`'s events count from, in picoseconds on the session's time line.
    pub fn line_start_ps(&self, line: &LineIndex) -> i64 {
        self.relative_ps(line.timestamp_ns)
    }
}

fn times(planes: &[PlaneIndex]) -> SessionTimes {
    let environment = |name| {
        planes
            .iter()
            .filter(|plane| plane.name == ENVIRONMENT)
            .find_map(|plane| plane.stat(name)?.int())
            .filter(|&ns| ns > 0)
    };
    let earliest = planes
        .iter()
        .flat_map(|plane| &plane.lines)
        .filter(|line| line.timestamp_ns > EPOCH_NS && line.events > 0)
        .map(|line| line.timestamp_ns)
        .min();
    SessionTimes::new(environment("profile_start_time"), environment("profile_stop_time"), earliest)
}

#[cold]
pub(super) fn too_many(offset: u64, what: &'static str, limit: usize) -> Error {
    Error::TooLarge { offset, what, limit: limit as u64 }
}

fn keep(texts: &mut Vec<String>, text: Option<String>) {
    if texts.len() < MOST_TEXTS {
        texts.extend(text);
    }
}

/// Moves over a field, and gives its text if it is length-delimited.
pub(super) fn read_text<R: Read>(scanner: &mut Scanner<R>, header: Header) -> Result<Option<String>, Error> {
    let FieldPayload::Bytes(len) = header.kind else { return Ok(None) };
    let kept = len.min(LONGEST_TEXT as u64);
    let text = String::from_utf8_lossy(scanner.bytes(kept, "a text")?).into_owned();
    scanner.skip(len - kept)?;
    Ok(Some(text))
}

pub(super) fn skip_value<R: Read>(scanner: &mut Scanner<R>, header: Header) -> Result<(), Error> {
    match header.kind {
        FieldPayload::Bytes(len) => scanner.skip(len),
        _ => Ok(()),
    }
}
