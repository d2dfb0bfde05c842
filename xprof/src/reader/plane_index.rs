//! One plane in the first pass: its lines, the names of its stats, and its own stats.
//!
//! Must never keep an event, nor decode one further than its time.

use std::{io::Read, ops::ControlFlow};

use super::{
    index::{LineIndex, MOST_LINES, PlaneIndex, read_text, skip_value, too_many},
    line,
    names::StatNames,
    stat::{OwnedValue, Stat, StatValue},
};
use crate::{
    loss::{DROP_EVENT, LAUNCH_EVENT},
    wire::{Error, Fields, Header, Scanner, Span},
};

/// How many stats of a plane are kept.
const MOST_STATS: usize = 1024;
/// The longest event metadata entry that is looked at here: marks have short ones, operations of large programs not.
const LONGEST_MARK: u64 = 256;
/// How much of one plane stat is kept.
const LONGEST_STAT: usize = 64 << 10;

pub(super) fn plane<R: Read>(
    scanner: &mut Scanner<R>,
    len: u64,
    lines: &mut usize,
) -> Result<PlaneIndex, Error> {
    let span = Span { offset: scanner.position(), len };
    let mut plane = PlaneIndex { span, ..PlaneIndex::default() };
    let mut stats = Vec::new();
    let mut run = span.offset;
    while let Some(header) = scanner.header(Some(span.end()))? {
        match header.number {
            1 => plane.id = header.varint("a plane's id")? as i64,
            2 => {
                header.len("a plane's name")?;
                plane.name = read_text(scanner, header)?.unwrap_or_default();
            }
            3 => {
                close_run(&mut plane.others, run, header.at);
                let span = Span { offset: scanner.position(), len: header.len("a line")? };
                *lines += 1;
                if *lines > MOST_LINES {
                    return Err(too_many(header.at, "lines", MOST_LINES));
                }
                plane.lines.push(line(scanner, span)?);
                run = scanner.position();
            }
            4 => {
                let len = header.len("an event metadata entry")?;
                plane.event_metadata += 1;
                match len {
                    ..=LONGEST_MARK => mark(scanner, len, &mut plane)?,
                    _ => scanner.skip(len)?,
                }
            }
            5 => stat_metadata(scanner, header, &mut plane.stat_names)?,
            6 => keep_stat(scanner, header, &mut stats)?,
            _ => skip_value(scanner, header)?,
        }
    }
    close_run(&mut plane.others, run, span.end());
    plane.stat_names.seal();
    plane.stats = stats.into_iter().filter_map(|(id, value)| named(&plane.stat_names, id, value)).collect();
    Ok(plane)
}

fn close_run(runs: &mut Vec<Span>, from: u64, to: u64) {
    if to > from {
        runs.push(Span { offset: from, len: to - from });
    }
}

fn line<R: Read>(scanner: &mut Scanner<R>, span: Span) -> Result<LineIndex, Error> {
    let mut index = LineIndex::at(span);
    let mut head = LineIndex::at(span);
    let mut before = (i64::MIN, i64::MAX);
    line::walk(
        scanner,
        span,
        |event| {
            index.count(event.offset_ps, event.duration_ps, &mut before);
            Ok(ControlFlow::Continue(()))
        },
        |scanner, header| line_field(scanner, header, &mut head),
    )?;
    if index.events == 0 {
        (index.first_ps, index.last_end_ps) = (0, 0);
    }
    Ok(LineIndex {
        events: index.events,
        first_ps: index.first_ps,
        last_end_ps: index.last_end_ps,
        longest_pause_ps: index.longest_pause_ps,
        sorted: index.sorted,
        ..head
    })
}

fn line_field<R: Read>(scanner: &mut Scanner<R>, header: Header, line: &mut LineIndex) -> Result<(), Error> {
    match header.number {
        1 => line.id = header.varint("a line's id")? as i64,
        3 => line.timestamp_ns = header.varint("a line's timestamp")? as i64,
        9 => line.duration_ps = header.varint("a line's duration")? as i64,
        10 => line.display_id = header.varint("a line's display id")? as i64,
        2 | 11 => {
            header.len("a line's name")?;
            let text = read_text(scanner, header)?.unwrap_or_default();
            *(if header.number == 2 { &mut line.name } else { &mut line.display_name }) = text;
        }
        _ => skip_value(scanner, header)?,
    }
    Ok(())
}

/// Notes an event that tells something of the whole plane by its name alone.
fn mark<R: Read>(scanner: &mut Scanner<R>, len: u64, plane: &mut PlaneIndex) -> Result<(), Error> {
    let base = scanner.position();
    let (id, name) = id_and_name(scanner.bytes(len, "an event metadata entry")?, base, "an event metadata")?;
    if name == DROP_EVENT.as_bytes() {
        plane.drop_event = Some(id);
    }
    plane.launches |= name == LAUNCH_EVENT.as_bytes();
    Ok(())
}

/// The key of a map entry, and the name in its value: field 2 of both kinds of metadata.
fn id_and_name<'a>(entry: &'a [u8], base: u64, what: &'static str) -> Result<(i64, &'a [u8]), Error> {
    let mut entry = Fields::new(entry, base);
    let (mut id, mut name) = (0, &[][..]);
    while let Some(field) = entry.next_field()? {
        match field.number {
            1 => id = field.varint("a map key")? as i64,
            2 => {
                let value = field.bytes(what)?;
                let mut fields = Fields::new(value, entry.offset_of(value));
                while let Some(field) = fields.next_field()? {
                    if field.number == 2 {
                        name = field.bytes("a name")?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((id, name))
}

fn stat_metadata<R: Read>(
    scanner: &mut Scanner<R>,
    header: Header,
    names: &mut StatNames,
) -> Result<(), Error> {
    let len = header.len("a stat metadata entry")?;
    let base = scanner.position();
    let (id, name) = id_and_name(scanner.bytes(len, "a stat metadata entry")?, base, "a stat metadata")?;
    names.push(id, name);
    Ok(())
}

/// A plane's stat before its name can be known: the names may come later.
enum Pending {
    Owned(OwnedValue),
    Ref(u64),
}

fn keep_stat<R: Read>(
    scanner: &mut Scanner<R>,
    header: Header,
    stats: &mut Vec<(i64, Pending)>,
) -> Result<(), Error> {
    let len = header.len("a plane's stat")?;
    if len > LONGEST_STAT as u64 || stats.len() == MOST_STATS {
        return scanner.skip(len);
    }
    let base = scanner.position();
    let stat = Stat::decode(scanner.bytes(len, "a plane's stat")?, base)?;
    let value = match stat.value {
        StatValue::None => return Ok(()),
        StatValue::Double(value) => Pending::Owned(OwnedValue::Double(value)),
        StatValue::Uint(value) => Pending::Owned(OwnedValue::Uint(value)),
        StatValue::Int(value) => Pending::Owned(OwnedValue::Int(value)),
        StatValue::Str(text) => Pending::Owned(OwnedValue::Text(String::from_utf8_lossy(text).into_owned())),
        StatValue::Bytes(bytes) => Pending::Owned(OwnedValue::Bytes(bytes.to_owned())),
        StatValue::Ref(id) => Pending::Ref(id),
    };
    stats.push((stat.metadata_id, value));
    Ok(())
}

fn named(names: &StatNames, id: i64, value: Pending) -> Option<(String, OwnedValue)> {
    let name = names.get(id)?.to_owned();
    match value {
        Pending::Owned(value) => Some((name, value)),
        Pending::Ref(id) => Some((name, OwnedValue::Text(names.get(id as i64)?.to_owned()))),
    }
}
