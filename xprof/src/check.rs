//! Checks an XSpace while it passes by: is the wire sound, and what is in it?
//!
//! A push parser: bytes come in pieces of any size, nothing is kept but the open messages and a bounded
//! summary. It follows the nesting space, plane, line, event; stats and metadata are only stepped over,
//! save the few that tell the window. Unknown fields are carried past. Must never allocate what a length
//! on the wire claims.

use thiserror::Error;

use crate::wire::varint;

/// Planes that are described one by one; more are only counted.
const MAX_PLANES: usize = 1024;
/// Texts of one kind that are kept, and bytes of each.
const MAX_TEXTS: usize = 16;
const MAX_TEXT_BYTES: usize = 256;
/// Numeric stats of one plane that are kept until its end, when their names are known.
const MAX_STATS: usize = 64;
/// A line's `timestamp_ns` above this is absolute, not relative to the session's start.
const ABSOLUTE_NS: i64 = 9_200_000_000_000_000;

/// The bytes are no sound XSpace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("damaged at byte {offset}: {what}")]
pub struct Damage {
    /// Where, in bytes of the XSpace.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// What passed by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Bytes of the XSpace.
    pub bytes: u64,
    /// Its planes in order of appearance, at most 1024.
    pub planes: Vec<Plane>,
    /// All planes, listed or not.
    pub plane_count: u64,
    /// All lines.
    pub lines: u64,
    /// All events.
    pub events: u64,
    /// Begin and end of the profile, nanoseconds since the epoch by the host's clock.
    pub window: Option<(u64, u64)>,
    /// Hosts that it names.
    pub hostnames: Vec<String>,
    /// What the producer says went wrong.
    pub errors: Vec<String>,
    /// What the producer warns of.
    pub warnings: Vec<String>,
}

/// One plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plane {
    /// Its name, at most 256 bytes of it.
    pub name: String,
    /// Its lines.
    pub lines: u64,
    /// Their events.
    pub events: u64,
    /// End of its last event in picoseconds since the session's start; `None` without events.
    pub end_ps: Option<i128>,
}

impl Plane {
    /// Whether it is a TensorCore or another core of an accelerator.
    pub fn is_device(&self) -> bool {
        self.name.starts_with("/device:")
    }

    /// Whether it is a TPU's TensorCore: one per device that JAX shows.
    pub fn is_tensor_core(&self) -> bool {
        let ordinal = self.name.strip_prefix("/device:TPU:").unwrap_or_default();
        !ordinal.is_empty() && ordinal.bytes().all(|b| b.is_ascii_digit())
    }
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
        (Kind::Plane, 5) => Field::Message(Kind::StatName),
        (Kind::Plane, 6) => Field::Message(Kind::PlaneStat),
        (Kind::Line, 4) => Field::Message(Kind::Event),
        (Kind::StatName, 2) => Field::Message(Kind::StatMetadata),
        (Kind::Space, 2..=4) | (Kind::Plane | Kind::StatMetadata, 2) => Field::Text,
        (Kind::Plane, 4)
        | (Kind::Line, 2 | 11)
        | (Kind::Event, 4)
        | (Kind::PlaneStat, 5 | 6)
        | (Kind::StatMetadata, 3) => Field::Blob,
        (Kind::Plane | Kind::StatName | Kind::StatMetadata, 1)
        | (Kind::Line, 1 | 3 | 9 | 10)
        | (Kind::Event, 1 | 2 | 3 | 5)
        | (Kind::PlaneStat, 1 | 3 | 4 | 7) => Field::Varint,
        _ => Field::Other,
    }
}

/// Where the parser stands between two bytes.
#[derive(Debug, Clone, Copy)]
enum State {
    Tag(Varint),
    Length { number: u64, varint: Varint },
    Value { number: u64, varint: Varint },
    Skip { left: u64 },
    Text { number: u64, left: u64 },
}

/// A varint on its way in.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Varint {
    value: u64,
    bytes: u32,
}

impl Varint {
    /// Takes one byte; the value once complete; `Err` when it is too long.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<u64>, ()> {
        let bits = u64::from(byte & 0x7f);
        if self.bytes == 9 && bits > 1 || self.bytes > 9 {
            return Err(());
        }
        self.value |= bits << (7 * self.bytes);
        self.bytes += 1;
        Ok((byte < 0x80).then_some(self.value))
    }

    /// Whether it has begun.
    pub(crate) fn begun(self) -> bool {
        self.bytes > 0
    }
}

#[derive(Debug, Clone, Copy)]
struct Open {
    kind: Kind,
    end: u64,
}

/// What is known of the plane that is open.
#[derive(Debug, Default)]
struct OpenPlane {
    plane: Plane,
    stats: Vec<(u64, u64)>,
    start_id: Option<u64>,
    stop_id: Option<u64>,
    /// Of the open line.
    timestamp_ns: i64,
    line_end_ps: Option<i64>,
    /// Ends of the lines with absolute and with relative time.
    absolute_end: Option<i128>,
    relative_end: Option<i128>,
    /// Of the open event, stat, or metadata entry.
    offset_ps: i64,
    duration_ps: i64,
    stat: (u64, u64),
    key: u64,
}

/// The checker; see the module.
#[derive(Debug)]
pub struct Checker {
    at: u64,
    total: u64,
    open: Vec<Open>,
    state: State,
    text: Vec<u8>,
    plane: OpenPlane,
    /// Latest absolute end per listed plane: made relative once the window is known.
    absolute_ends: Vec<Option<i128>>,
    summary: Summary,
}

impl Checker {
    /// A checker of an XSpace of so many bytes.
    pub fn new(total: u64) -> Self {
        Self {
            at: 0,
            total,
            open: Vec::with_capacity(8),
            state: State::Tag(Varint::default()),
            text: Vec::new(),
            plane: OpenPlane::default(),
            absolute_ends: Vec::new(),
            summary: Summary::default(),
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
                State::Tag(varint) if !varint.begun() && self.kind() == Kind::Line => {
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
    pub fn finish(mut self) -> Result<Summary, Damage> {
        let between = matches!(self.state, State::Tag(varint) if !varint.begun());
        if !between || !self.open.is_empty() || self.at != self.total {
            return Err(self.damage(format!("cut short inside a {}", self.kind().name())));
        }
        self.summary.bytes = self.at;
        let start_ps = self.summary.window.map(|(start, _)| i128::from(start) * 1000);
        for (plane, absolute) in self.summary.planes.iter_mut().zip(self.absolute_ends) {
            if let (Some(absolute), Some(start_ps)) = (absolute, start_ps) {
                plane.end_ps = plane.end_ps.max(Some(absolute - start_ps));
            }
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
        let (mut events, mut last) = (0, self.plane.line_end_ps);
        while let Some((end, next)) = whole_event(line, used) {
            events += 1;
            last = last.max(Some(end));
            used = next;
        }
        self.plane.plane.events += events;
        self.plane.line_end_ps = last;
        used
    }

    fn count_event(&mut self, offset: i64, duration: i64) {
        self.plane.plane.events += 1;
        self.plane.line_end_ps = self.plane.line_end_ps.max(Some(offset.saturating_add(duration)));
    }

    /// Takes at least one byte of `rest`, and says how many.
    fn step(&mut self, rest: &[u8]) -> Result<usize, Damage> {
        match self.state {
            State::Tag(mut tag) => {
                let done = tag.push(rest[0]).map_err(|()| self.damage("a field's tag is too long"))?;
                self.state = match done {
                    None => State::Tag(tag),
                    Some(tag) => self.begin_field(tag)?,
                };
                Ok(1)
            }
            State::Length { number, mut varint } => {
                let done = varint.push(rest[0]).map_err(|()| self.damage("a length is too long"))?;
                match done {
                    None => self.state = State::Length { number, varint },
                    Some(length) => self.begin_content(number, length)?,
                }
                Ok(1)
            }
            State::Value { number, mut varint } => {
                let done = varint.push(rest[0]).map_err(|()| self.damage("a number is too long"))?;
                self.state = match done {
                    None => State::Value { number, varint },
                    Some(value) => {
                        self.take_number(number, value);
                        State::Tag(Varint::default())
                    }
                };
                Ok(1)
            }
            State::Skip { left } => {
                let used = left.min(rest.len() as u64);
                self.state = match left - used {
                    0 => State::Tag(Varint::default()),
                    left => State::Skip { left },
                };
                Ok(used as usize)
            }
            State::Text { number, left } => {
                let used = left.min(rest.len() as u64) as usize;
                let room = MAX_TEXT_BYTES.saturating_sub(self.text.len());
                self.text.extend_from_slice(&rest[..used.min(room)]);
                self.state = State::Text { number, left: left - used as u64 };
                if left == used as u64 {
                    self.take_text(number);
                }
                Ok(used)
            }
        }
    }

    fn begin_field(&mut self, tag: u64) -> Result<State, Damage> {
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
            0 => Ok(State::Value { number, varint: Varint::default() }),
            1 => self.skip(8),
            2 => Ok(State::Length { number, varint: Varint::default() }),
            5 => self.skip(4),
            _ => Err(self.damage(format!("wire type {wire} in {}", kind.name()))),
        }
    }

    fn skip(&self, length: u64) -> Result<State, Damage> {
        if length > self.left().saturating_sub(1) {
            return Err(self.damage(format!("a field is longer than its {}", self.kind().name())));
        }
        Ok(State::Skip { left: length })
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
        self.state = State::Tag(Varint::default());
        match field(kind, number) {
            Field::Message(inner) => self.begin_message(inner, length),
            Field::Text => {
                self.text.clear();
                self.state = State::Text { number, left: length };
                if length == 0 {
                    self.take_text(number);
                }
            }
            _ if length > 0 => self.state = State::Skip { left: length },
            _ => {}
        }
        Ok(())
    }

    fn begin_message(&mut self, kind: Kind, length: u64) {
        let end = self.at + 1 + length;
        match kind {
            Kind::Plane => self.plane = OpenPlane::default(),
            Kind::Line => (self.plane.timestamp_ns, self.plane.line_end_ps) = (0, None),
            Kind::Event => (self.plane.offset_ps, self.plane.duration_ps) = (0, 0),
            Kind::PlaneStat => self.plane.stat = (0, 0),
            Kind::StatName => self.plane.key = 0,
            Kind::StatMetadata | Kind::Space => {}
        }
        self.open.push(Open { kind, end });
    }

    fn take_number(&mut self, number: u64, value: u64) {
        match (self.kind(), number) {
            (Kind::Line, 3) => self.plane.timestamp_ns = value.cast_signed(),
            (Kind::Event, 2) => self.plane.offset_ps = value.cast_signed(),
            (Kind::Event, 3) => self.plane.duration_ps = value.cast_signed(),
            (Kind::PlaneStat, 1) => self.plane.stat.0 = value,
            (Kind::PlaneStat, 3 | 4) => self.plane.stat.1 = value,
            (Kind::StatName | Kind::StatMetadata, 1) => self.plane.key = value,
            _ => {}
        }
    }

    fn take_text(&mut self, number: u64) {
        self.state = State::Tag(Varint::default());
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
            // The entry's key and the metadata's id are the same number; which comes first is free, so the
            // name is matched to it when the entry closes.
            _ if self.text == b"profile_start_time" => self.plane.start_id = Some(u64::MAX),
            _ if self.text == b"profile_stop_time" => self.plane.stop_id = Some(u64::MAX),
            _ => {}
        }
    }

    /// Closes every message whose end is reached.
    fn close_finished(&mut self) -> Result<(), Damage> {
        while let Some(&Open { kind, end }) = self.open.last() {
            let between = matches!(self.state, State::Tag(varint) if !varint.begun());
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
                let (offset, duration) = (plane.offset_ps, plane.duration_ps);
                self.count_event(offset, duration);
            }
            Kind::Line => {
                plane.plane.lines += 1;
                if let Some(end) = plane.line_end_ps {
                    let end = Some(i128::from(plane.timestamp_ns) * 1000 + i128::from(end));
                    let absolute = plane.timestamp_ns > ABSOLUTE_NS;
                    let known = if absolute { &mut plane.absolute_end } else { &mut plane.relative_end };
                    *known = (*known).max(end);
                }
            }
            Kind::PlaneStat if plane.stats.len() < MAX_STATS => plane.stats.push(plane.stat),
            Kind::StatName => {
                for id in [&mut plane.start_id, &mut plane.stop_id] {
                    if *id == Some(u64::MAX) {
                        *id = Some(plane.key);
                    }
                }
            }
            Kind::Plane => self.close_plane(),
            Kind::PlaneStat | Kind::StatMetadata | Kind::Space => {}
        }
    }

    fn close_plane(&mut self) {
        let OpenPlane { mut plane, stats, start_id, stop_id, absolute_end, relative_end, .. } =
            std::mem::take(&mut self.plane);
        let stat = |id: Option<u64>| {
            id.and_then(|id| stats.iter().find(|(known, _)| *known == id)).map(|&(_, value)| value)
        };
        if let (Some(start), Some(stop)) = (stat(start_id), stat(stop_id)) {
            self.summary.window = Some((start, stop));
        }
        plane.end_ps = relative_end;
        self.summary.plane_count += 1;
        self.summary.lines += plane.lines;
        self.summary.events += plane.events;
        if self.summary.planes.len() < MAX_PLANES {
            self.summary.planes.push(plane);
            self.absolute_ends.push(absolute_end);
        }
    }
}

/// The end of the event at `at` of a line, in picoseconds of the line, and where the next field begins.
#[inline]
fn whole_event(line: &[u8], mut at: usize) -> Option<(i64, usize)> {
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
    (at == end).then(|| (duration.saturating_add(offset), end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;
    use proto::tensorflow::profiler::{
        XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata, x_event, x_stat::Value,
    };

    use super::*;

    fn check(bytes: &[u8], piece: usize) -> Result<Summary, Damage> {
        let mut checker = Checker::new(bytes.len() as u64);
        for piece in bytes.chunks(piece) {
            checker.push(piece)?;
        }
        checker.finish()
    }

    fn task_environment() -> XPlane {
        let mut plane = XPlane { name: "Task Environment".into(), ..XPlane::default() };
        for (id, name, value) in [
            (7, "profile_start_time", 1_700_000_000_000_000_000),
            (3, "profile_stop_time", 1_700_000_002_000_000_000),
        ] {
            plane.stats.push(XStat { metadata_id: id, value: Some(Value::Uint64Value(value)) });
            plane.stat_metadata.insert(id, XStatMetadata { id, name: name.into(), ..Default::default() });
        }
        plane
    }

    fn event(offset: i64, duration: i64) -> XEvent {
        XEvent {
            metadata_id: 1,
            data: Some(x_event::Data::OffsetPs(offset)),
            duration_ps: duration,
            stats: vec![XStat { metadata_id: 9, value: Some(Value::StrValue("x".into())) }],
        }
    }

    fn sample() -> XSpace {
        let device = XPlane {
            id: 2,
            name: "/device:TPU:0".into(),
            lines: vec![
                XLine { events: vec![event(5, 10), event(1_000, 2)], ..Default::default() },
                XLine {
                    timestamp_ns: 1_700_000_001_000_000_000,
                    events: vec![event(0, 1)],
                    ..Default::default()
                },
            ],
            event_metadata: [(1, XEventMetadata { id: 1, name: "op".into(), ..Default::default() })].into(),
            ..Default::default()
        };
        XSpace {
            planes: vec![device, task_environment()],
            hostnames: vec!["host-a".into()],
            errors: vec!["lost buffer".into()],
            warnings: vec![],
        }
    }

    #[test]
    fn counts_names_ends_and_window_in_pieces_of_any_size() {
        let bytes = sample().encode_to_vec();
        for piece in [1, 2, 3, 7, 64, bytes.len()] {
            let summary = check(&bytes, piece).expect("sound");
            assert_eq!((summary.plane_count, summary.lines, summary.events), (2, 2, 3));
            assert_eq!(summary.window, Some((1_700_000_000_000_000_000, 1_700_000_002_000_000_000)));
            assert_eq!(summary.hostnames, ["host-a"]);
            assert_eq!(summary.errors, ["lost buffer"]);
            assert_eq!(summary.bytes, bytes.len() as u64);
            let plane = &summary.planes[0];
            assert!(plane.is_device() && plane.is_tensor_core());
            // The absolute line ends 1 s after the start.
            assert_eq!(plane.end_ps, Some(1_000_000_000_001));
        }
    }

    #[test]
    fn a_cut_anywhere_is_damage() {
        let bytes = sample().encode_to_vec();
        for cut in 0..bytes.len() {
            let mut checker = Checker::new(bytes.len() as u64);
            assert!(checker.push(&bytes[..cut]).is_ok());
            assert!(checker.finish().is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn garbage_is_refused_at_once() {
        for (bytes, what) in [
            (&[0_u8; 64][..], "no field has number 0"),
            (&[0x0a, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0x01, 0x00], "ends before"),
            (&[0x0b], "wire type 3"),
            (&[0x08, 0x01], "field 1 of XSpace has wire type 0"),
            (&[0x0a, 0x02, 0x1a, 0x05], "ends before"),
            (b"HTTP/1.1 400 Bad Request", "wire type 4"),
            (&[0xff; 16], "too long"),
        ] {
            let error = check(bytes, 5).expect_err("garbage");
            assert!(error.what.contains(what), "{error} should say {what}");
            assert!(error.offset < 12, "{error}");
        }
    }

    #[test]
    fn unknown_fields_are_carried_past() {
        let mut bytes = sample().encode_to_vec();
        let known = check(&bytes, 16).expect("sound");
        // Field 100 as varint, fixed64, bytes, fixed32.
        bytes.extend([0xa0, 0x06, 0x01, 0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0xa2, 0x06, 0x02, 9, 9]);
        bytes.extend([0xa5, 0x06, 1, 2, 3, 4]);
        let summary = check(&bytes, 16).expect("sound");
        assert_eq!(summary.planes, known.planes);
    }

    proptest! {
        #[test]
        fn never_panics_and_pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1..50_usize) {
            prop_assert_eq!(check(&bytes, piece).is_ok(), check(&bytes, 1).is_ok());
        }

        #[test]
        fn one_changed_byte_never_panics(at in 0..400_usize, to in any::<u8>(), piece in 1..80_usize) {
            let mut bytes = sample().encode_to_vec();
            let at = at % bytes.len();
            bytes[at] = to;
            prop_assert_eq!(check(&bytes, piece), check(&bytes, 1));
        }
    }
}
