//! Checks an XSpace while it passes by: is the wire sound, and what is in it?
//!
//! A push parser: bytes come in pieces of any size, nothing is kept but the open messages and a bounded
//! summary. It follows the nesting space, plane, line, event; stats and metadata are only stepped over,
//! save the few that tell the window and what was lost. Unknown fields are carried past. Must never allocate what a length
//! on the wire claims.

mod open;
mod summary;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use summary::{PlaneSummary, TraceSummary};

use open::{Ends, OpenLine, OpenPlane, line_kind};

use crate::{
    loss::DROP_STAT,
    versions,
    wire::{PushedVarint, varint},
};

/// Planes that are described one by one; more are only counted.
const MAX_PLANES: usize = 1024;
/// Texts of one kind that are kept, and bytes of each.
const MAX_TEXTS: usize = 16;
const MAX_TEXT_BYTES: usize = 256;
/// Numeric stats of one plane that are kept until its end, when their names are known.
const MAX_STATS: usize = 64;

/// The bytes are no sound XSpace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("damaged at byte {offset}: {what}")]
pub struct Damage {
    /// Where, in bytes of the XSpace.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// The messages that are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    Plane,
    Line,
    Event,
    PlaneStat,
    StatName,
    StatMetadata,
    EventName,
    EventMetadata,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Space => "XSpace",
            Self::Plane => "XPlane",
            Self::Line => "XLine",
            Self::Event => "XEvent",
            Self::PlaneStat => "XStat",
            Self::StatName => "stat_metadata entry",
            Self::StatMetadata => "XStatMetadata",
            Self::EventName => "event_metadata entry",
            Self::EventMetadata => "XEventMetadata",
        }
    }
}

/// What a field holds, as far as it matters here.
enum Field {
    Message(Kind),
    Text,
    Varint,
    Blob,
    Other,
}

fn field(kind: Kind, number: u64) -> Field {
    match (kind, number) {
        (Kind::Space, 1) => Field::Message(Kind::Plane),
        (Kind::Plane, 3) => Field::Message(Kind::Line),
        (Kind::Plane, 4) => Field::Message(Kind::EventName),
        (Kind::Plane, 5) => Field::Message(Kind::StatName),
        (Kind::Plane, 6) => Field::Message(Kind::PlaneStat),
        (Kind::Line, 4) => Field::Message(Kind::Event),
        (Kind::StatName, 2) => Field::Message(Kind::StatMetadata),
        (Kind::EventName, 2) => Field::Message(Kind::EventMetadata),
        (Kind::Space, 2..=4)
        | (Kind::Plane | Kind::Line | Kind::StatMetadata | Kind::EventMetadata, 2)
        | (Kind::PlaneStat, 5) => Field::Text,
        (Kind::Line, 11) | (Kind::Event, 4) | (Kind::PlaneStat, 6) | (Kind::StatMetadata, 3) => Field::Blob,
        (Kind::Plane | Kind::StatName | Kind::StatMetadata | Kind::EventName, 1)
        | (Kind::Line, 1 | 3 | 9 | 10)
        | (Kind::Event, 1 | 2 | 3 | 5)
        | (Kind::PlaneStat, 1 | 3 | 4 | 7) => Field::Varint,
        _ => Field::Other,
    }
}

/// Where the parser stands between two bytes.
#[derive(Debug, Clone, Copy)]
enum ParserState {
    Tag(PushedVarint),
    Length { number: u64, varint: PushedVarint },
    Value { number: u64, varint: PushedVarint },
    Skip { left: u64 },
    Text { number: u64, left: u64 },
}

#[derive(Debug, Clone, Copy)]
struct OpenMessage {
    kind: Kind,
    end: u64,
}

/// The checker; see the module.
#[derive(Debug)]
pub struct Checker {
    at: u64,
    total: u64,
    open: Vec<OpenMessage>,
    state: ParserState,
    text: Vec<u8>,
    plane: OpenPlane,
    /// Per listed plane the ends of its lines, of its programs and operations, and the starts of its programs: made
    /// relative once the window is known.
    ends: Vec<[Ends; 3]>,
    summary: TraceSummary,
}

impl Checker {
    /// A checker of an XSpace of so many bytes.
    pub fn new(total: u64) -> Self {
        Self {
            at: 0,
            total,
            open: Vec::with_capacity(8),
            state: ParserState::Tag(PushedVarint::default()),
            text: Vec::new(),
            plane: OpenPlane::default(),
            ends: Vec::new(),
            summary: TraceSummary::default(),
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// If they cannot be part of an XSpace; nothing more may be pushed then.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        if bytes.len() as u64 > self.total - self.at {
            return Err(self.damage("more bytes than were announced"));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let used = match self.state {
                ParserState::Tag(varint) if !varint.is_open() && self.kind() == Kind::Line => {
                    match self.whole_events(rest) {
                        0 => self.step(rest)?,
                        used => used,
                    }
                }
                _ => self.step(rest)?,
            };
            self.at += used as u64;
            rest = &rest[used..];
            self.close_finished()?;
        }
        Ok(())
    }

    /// No more bytes: gives the summary.
    ///
    /// # Errors
    /// If a message or a field is still open.
    pub fn finish(mut self) -> Result<TraceSummary, Damage> {
        let between = matches!(self.state, ParserState::Tag(varint) if !varint.is_open());
        if !between || !self.open.is_empty() || self.at != self.total {
            return Err(self.damage(format!("cut short inside a {}", self.kind().name())));
        }
        self.summary.bytes = self.at;
        let start_ps = self.summary.window.map(|(start, _)| i128::from(start) * 1000);
        for (plane, [ends, core_ends, starts]) in self.summary.planes.iter_mut().zip(self.ends) {
            plane.end_ps = ends.since(start_ps);
            plane.core_end_ps = core_ends.since(start_ps);
            plane.longest_pause_ps = plane.longest_pause_ps.max(starts.since(start_ps).unwrap_or(0));
        }
        Ok(self.summary)
    }

    fn kind(&self) -> Kind {
        self.open.last().map_or(Kind::Space, |open| open.kind)
    }

    fn damage(&self, what: impl Into<String>) -> Damage {
        Damage { offset: self.at, what: what.into() }
    }

    /// The usual case: events of the open line, wholly in `rest`. 0 when the next one is not, or is unusual or
    /// damaged: the slow way then finds the right words.
    fn whole_events(&mut self, rest: &[u8]) -> usize {
        let left = usize::try_from(self.left()).unwrap_or(usize::MAX);
        let line = &rest[..left.min(rest.len())];
        let mut used = 0;
        let mut open = self.plane.line;
        while let Some((start, duration, next)) = whole_event(line, used) {
            open.count(start, duration);
            used = next;
        }
        self.plane.line = open;
        used
    }

    /// Takes at least one byte of `rest`, and says how many.
    fn step(&mut self, rest: &[u8]) -> Result<usize, Damage> {
        match self.state {
            ParserState::Tag(mut tag) => {
                let done = tag.push(rest[0]).map_err(|()| self.damage("a field's tag is too long"))?;
                self.state = match done {
                    None => ParserState::Tag(tag),
                    Some(tag) => self.begin_field(tag)?,
                };
                Ok(1)
            }
            ParserState::Length { number, mut varint } => {
                let done = varint.push(rest[0]).map_err(|()| self.damage("a length is too long"))?;
                match done {
                    None => self.state = ParserState::Length { number, varint },
                    Some(length) => self.begin_content(number, length)?,
                }
                Ok(1)
            }
            ParserState::Value { number, mut varint } => {
                let done = varint.push(rest[0]).map_err(|()| self.damage("a number is too long"))?;
                self.state = match done {
                    None => ParserState::Value { number, varint },
                    Some(value) => {
                        self.take_number(number, value);
                        ParserState::Tag(PushedVarint::default())
                    }
                };
                Ok(1)
            }
            ParserState::Skip { left } => {
                let used = left.min(rest.len() as u64);
                self.state = match left - used {
                    0 => ParserState::Tag(PushedVarint::default()),
                    left => ParserState::Skip { left },
                };
                Ok(used as usize)
            }
            ParserState::Text { number, left } => {
                let used = left.min(rest.len() as u64) as usize;
                let room = MAX_TEXT_BYTES.saturating_sub(self.text.len());
                self.text.extend_from_slice(&rest[..used.min(room)]);
                self.state = ParserState::Text { number, left: left - used as u64 };
                if left == used as u64 {
                    self.take_text(number);
                }
                Ok(used)
            }
        }
    }

    fn begin_field(&mut self, tag: u64) -> Result<ParserState, Damage> {
        let (number, wire) = (tag >> 3, tag & 7);
        let kind = self.kind();
        if number == 0 || number > 0x1fff_ffff {
            return Err(self.damage(format!("no field has number {number}")));
        }
        let fits = match field(kind, number) {
            Field::Message(_) | Field::Text | Field::Blob => wire == 2,
            Field::Varint => wire == 0,
            Field::Other => true,
        };
        if !fits {
            return Err(self.damage(format!("field {number} of {} has wire type {wire}", kind.name())));
        }
        match wire {
            0 => Ok(ParserState::Value { number, varint: PushedVarint::default() }),
            1 => self.skip(8),
            2 => Ok(ParserState::Length { number, varint: PushedVarint::default() }),
            5 => self.skip(4),
            _ => Err(self.damage(format!("wire type {wire} in {}", kind.name()))),
        }
    }

    fn skip(&self, length: u64) -> Result<ParserState, Damage> {
        if length > self.left().saturating_sub(1) {
            return Err(self.damage(format!("a field is longer than its {}", self.kind().name())));
        }
        Ok(ParserState::Skip { left: length })
    }

    /// Bytes to the end of the innermost open message, the byte that is being taken included.
    fn left(&self) -> u64 {
        self.open.last().map_or(self.total, |open| open.end) - self.at
    }

    fn begin_content(&mut self, number: u64, length: u64) -> Result<(), Damage> {
        let kind = self.kind();
        if length > self.left().saturating_sub(1) {
            return Err(self.damage(format!(
                "field {number} is {length} bytes long and its {} ends before",
                kind.name()
            )));
        }
        self.state = ParserState::Tag(PushedVarint::default());
        match field(kind, number) {
            Field::Message(inner) => self.begin_message(inner, length),
            Field::Text => {
                self.text.clear();
                self.state = ParserState::Text { number, left: length };
                if length == 0 {
                    self.take_text(number);
                }
            }
            _ if length > 0 => self.state = ParserState::Skip { left: length },
            _ => {}
        }
        Ok(())
    }

    fn begin_message(&mut self, kind: Kind, length: u64) {
        let end = self.at + 1 + length;
        match kind {
            Kind::Plane => self.plane = OpenPlane::default(),
            Kind::Line => self.plane.line = OpenLine::default(),
            Kind::Event => (self.plane.offset_ps, self.plane.duration_ps) = (0, 0),
            Kind::PlaneStat => (self.plane.stat, self.plane.stat_text) = ((0, 0), String::new()),
            Kind::StatName => (self.plane.key, self.plane.version_name) = (0, None),
            Kind::StatMetadata | Kind::EventName | Kind::EventMetadata | Kind::Space => {}
        }
        self.open.push(OpenMessage { kind, end });
    }

    fn take_number(&mut self, number: u64, value: u64) {
        match (self.kind(), number) {
            (Kind::Line, 3) => self.plane.line.timestamp_ns = value.cast_signed(),
            (Kind::Event, 2) => self.plane.offset_ps = value.cast_signed(),
            (Kind::Event, 3) => self.plane.duration_ps = value.cast_signed(),
            (Kind::PlaneStat, 1) => self.plane.stat.0 = value,
            (Kind::PlaneStat, 3 | 4) => self.plane.stat.1 = value,
            (Kind::StatName | Kind::StatMetadata, 1) => self.plane.key = value,
            _ => {}
        }
    }

    fn take_text(&mut self, number: u64) {
        self.state = ParserState::Tag(PushedVarint::default());
        match (self.kind(), number) {
            (Kind::Space, number) => {
                let texts = match number {
                    2 => &mut self.summary.errors,
                    3 => &mut self.summary.warnings,
                    _ => &mut self.summary.hostnames,
                };
                if texts.len() < MAX_TEXTS {
                    texts.push(String::from_utf8_lossy(&self.text).into_owned());
                }
            }
            (Kind::Plane, _) => self.plane.plane.name = String::from_utf8_lossy(&self.text).into_owned(),
            (Kind::Line, _) => self.plane.line.kind = line_kind(&self.text),
            (Kind::EventMetadata, _) => self.plane.take_event_name(&self.text),
            (Kind::PlaneStat, _) => self.plane.stat_text = String::from_utf8_lossy(&self.text).into_owned(),
            // The entry's key and the metadata's id are the same number; which comes first is free, so the
            // name is matched to it when the entry closes.
            _ if self.text == b"profile_start_time" => self.plane.start_id = Some(u64::MAX),
            _ if self.text == b"profile_stop_time" => self.plane.stop_id = Some(u64::MAX),
            _ if self.text == DROP_STAT.as_bytes() => self.plane.dropped_id = Some(u64::MAX),
            _ => {
                let name = std::str::from_utf8(&self.text).ok();
                self.plane.version_name = name.and_then(versions::library).map(str::to_owned);
            }
        }
    }

    /// Closes every message whose end is reached.
    fn close_finished(&mut self) -> Result<(), Damage> {
        while let Some(&OpenMessage { kind, end }) = self.open.last() {
            let between = matches!(self.state, ParserState::Tag(varint) if !varint.is_open());
            if self.at < end {
                return Ok(());
            }
            if !between {
                return Err(self.damage(format!("a {} ends inside a field", kind.name())));
            }
            self.open.pop();
            self.close(kind);
        }
        Ok(())
    }

    fn close(&mut self, kind: Kind) {
        let plane = &mut self.plane;
        match kind {
            Kind::Event => {
                plane.line.count(plane.offset_ps, plane.duration_ps);
            }
            Kind::Line => plane.close_line(),
            Kind::PlaneStat if plane.stats.len() < MAX_STATS => {
                plane.stats.push(plane.stat);
                if !plane.stat_text.is_empty() {
                    plane.texts.push((plane.stat.0, std::mem::take(&mut plane.stat_text)));
                }
            }
            Kind::StatName => {
                if let Some(name) =
                    plane.version_name.take().filter(|_| plane.version_names.len() < versions::MOST)
                {
                    plane.version_names.push((plane.key, name));
                }
                for id in [&mut plane.start_id, &mut plane.stop_id, &mut plane.dropped_id] {
                    if *id == Some(u64::MAX) {
                        *id = Some(plane.key);
                    }
                }
            }
            Kind::Plane => self.close_plane(),
            Kind::PlaneStat | Kind::StatMetadata | Kind::EventName | Kind::EventMetadata | Kind::Space => {}
        }
    }

    fn close_plane(&mut self) {
        let room = versions::MOST.saturating_sub(self.summary.versions.len());
        self.summary.versions.extend(self.plane.versions().take(room));
        let OpenPlane { mut plane, stats, start_id, stop_id, dropped_id, ends, core_ends, starts, .. } =
            std::mem::take(&mut self.plane);
        let stat = |id: Option<u64>| {
            id.and_then(|id| stats.iter().find(|(known, _)| *known == id)).map(|&(_, value)| value)
        };
        if let (Some(start), Some(stop)) = (stat(start_id), stat(stop_id)) {
            self.summary.window = Some((start, stop));
        }
        plane.dropped_traces = stat(dropped_id).unwrap_or(0);
        self.summary.plane_count += 1;
        self.summary.lines += plane.lines;
        self.summary.events += plane.events;
        if self.summary.planes.len() < MAX_PLANES {
            self.summary.planes.push(plane);
            self.ends.push([ends, core_ends, starts]);
        }
    }
}

/// Start and duration of the event at `at` of a line, and where the next field begins.
#[inline]
fn whole_event(line: &[u8], mut at: usize) -> Option<(i64, i64, usize)> {
    let number = |at: &mut usize| {
        let from = *at;
        // The longest ones are for the slow way, which refuses those of more than 64 bits.
        varint(line, at).filter(|_| *at - from < 10)
    };
    if *line.get(at)? != 0x22 {
        return None;
    }
    at += 1;
    let length = usize::try_from(number(&mut at)?).ok()?;
    let end = at.checked_add(length).filter(|&end| end <= line.len())?;
    let (mut offset, mut duration) = (0, 0_i64);
    while at < end {
        let tag = line[at];
        at += 1;
        let value = number(&mut at)?;
        match tag {
            0x08 | 0x28 => {}
            0x10 => offset = value.cast_signed(),
            0x18 => duration = value.cast_signed(),
            0x22 => at = at.checked_add(usize::try_from(value).ok()?)?,
            _ => return None,
        }
    }
    (at == end).then_some((offset, duration, end))
}
