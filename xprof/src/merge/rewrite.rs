//! Copies XEvents, XStats and metadata entries with their ids and times changed, all else as it stands.

use std::collections::BTreeMap;

use prost::encoding::encode_varint;

use super::ids::{IdMap, Table};
use crate::{
    reader::{Stat, StatNames, TraceEvent},
    wire::{Error, Field, FieldValue, Fields, Found, varint},
};

/// A device clock within a minute of the line clock counts from the session's start, as the line clock does;
/// anything else is a counter of its own, which a merge must not move.
const SAME_CLOCK_PS: i64 = 60_000_000_000_000;

/// One segment's ids on their way into one merged plane.
#[derive(Debug)]
pub(super) struct Maps {
    pub(super) stats: IdMap,
    pub(super) events: IdMap,
}

/// The merged plane's ids.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) stats: Table,
    pub(super) events: Table,
}

/// How far the events of one line of one segment move, and which of their stats tell more than themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move<'a> {
    /// Added to offsets.
    pub(super) offset_ps: i64,
    /// Added to the device clock.
    pub(super) session_ps: i64,
    /// Where the line's events count from, on the segment's own time line.
    pub(super) line_start_ps: i64,
    /// The segment's stats that matter.
    pub(super) stats: MovedStats,
    /// The numbers of its devices in the merged trace, where they are others.
    pub(super) devices: Option<&'a BTreeMap<i64, i64>>,
}

/// A segment's ids of the stats that matter.
#[derive(Debug, Clone, Copy)]
pub(super) struct MovedStats {
    device_offset: Option<i64>,
    step_num: Option<i64>,
    device_ordinal: Option<i64>,
}

impl MovedStats {
    pub(super) fn of(names: &StatNames) -> Self {
        Self {
            device_offset: names.id("device_offset_ps"),
            step_num: names.id("step_num"),
            device_ordinal: names.id("device_ordinal"),
        }
    }
}

#[inline]
fn varint_field(number: u8, mut value: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; 11];
    bytes[0] = number << 3;
    let mut len = 1;
    while value >= 0x80 {
        bytes[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value as u8;
    out.extend_from_slice(&bytes[..=len]);
}

/// Writes field `number` with what `write` writes, its length before it.
#[inline]
fn nested<T>(number: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    out.push(number << 3 | 2);
    let at = out.len();
    out.push(0);
    let result = write(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
    } else {
        let mut prefix = Vec::with_capacity(10);
        encode_varint(len as u64, &mut prefix);
        out.splice(at..=at, prefix);
    }
    result
}

/// A field as it stands in `raw`, tag included.
fn whole<'a>(raw: &'a [u8], base: u64, field: &Field<'_>, fields: &Fields<'_>) -> &'a [u8] {
    &raw[(field.at - base) as usize..(fields.position() - base) as usize]
}

/// Writes `event` as a field of its line, moved. Returns its merged metadata id and its step number, if any.
pub(super) fn event(
    event: &TraceEvent<'_>,
    by: &Move<'_>,
    maps: &mut Maps,
    tables: &mut Tables,
    out: &mut Vec<u8>,
) -> Result<(i64, Option<i64>), Error> {
    let id = maps.events.get(event.metadata_id, &mut tables.events);
    let start_ps = by.line_start_ps.saturating_add(event.offset_ps);
    let mut step = None;
    nested(4, out, |out| {
        varint_field(1, id as u64, out);
        if event.occurrences.is_none() {
            let offset = event.offset_ps.saturating_add(by.offset_ps);
            if offset != 0 {
                varint_field(2, offset as u64, out);
            }
        }
        // Most events are three numbers: those need no general reader.
        let rest = plain_fields(event.raw, out);
        let mut fields = Fields::new(&event.raw[rest..], event.at + rest as u64);
        while let Some(field) = fields.next_field()? {
            match (field.number, field.value) {
                (1 | 2, _) => {}
                (4, FieldValue::Bytes(raw)) => {
                    let at = fields.offset_of(raw);
                    nested(4, out, |out| event_stat(raw, at, start_ps, by, maps, tables, &mut step, out))?;
                }
                _ => out.extend_from_slice(whole(event.raw, event.at, &field, &fields)),
            }
        }
        Ok::<_, Error>(())
    })?;
    Ok((id, step))
}

/// Goes over the numbers that an event begins with, and copies its duration. Returns where it stopped.
#[inline]
fn plain_fields(raw: &[u8], out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    while let Some(tag @ (0x08 | 0x10 | 0x18)) = raw.get(at) {
        let mut end = at + 1;
        if varint(raw, &mut end).is_none() {
            break;
        }
        if *tag == 0x18 {
            out.extend_from_slice(&raw[at..end]);
        }
        at = end;
    }
    at
}

#[expect(clippy::too_many_arguments, reason = "one call in the hottest loop")]
#[inline]
fn event_stat(
    raw: &[u8],
    at: u64,
    start_ps: i64,
    by: &Move<'_>,
    maps: &mut Maps,
    tables: &mut Tables,
    step: &mut Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut id = 0;
    let from = out.len();
    stat_fields(raw, at, maps, tables, out, |old| id = old)?;
    if Some(id) == by.stats.step_num {
        *step = Stat::decode(raw, at)?.value.int();
    } else if Some(id) == by.stats.device_offset
        && let Some(device_ps) = Stat::decode(raw, at)?.value.int()
        && device_ps.abs_diff(start_ps) <= SAME_CLOCK_PS as u64
    {
        let moved = device_ps.saturating_add(by.session_ps);
        out.truncate(from);
        varint_field(1, maps.stats.get(id, &mut tables.stats) as u64, out);
        varint_field(3, moved as u64, out);
    } else if let Some(devices) = by.devices
        && Some(id) == by.stats.device_ordinal
        && let Some(&device) = Stat::decode(raw, at)?.value.int().and_then(|old| devices.get(&old))
    {
        out.truncate(from);
        varint_field(1, maps.stats.get(id, &mut tables.stats) as u64, out);
        varint_field(4, device as u64, out);
    }
    Ok(())
}

/// Writes the fields of an XStat with its ids mapped.
pub(super) fn stat(
    raw: &[u8],
    at: u64,
    maps: &mut Maps,
    tables: &mut Tables,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    stat_fields(raw, at, maps, tables, out, |_| {})
}

#[inline]
fn stat_fields(
    raw: &[u8],
    at: u64,
    maps: &mut Maps,
    tables: &mut Tables,
    out: &mut Vec<u8>,
    mut on_id: impl FnMut(i64),
) -> Result<(), Error> {
    let mut has_id = false;
    let mut fields = Fields::new(raw, at);
    while let Some(field) = fields.next_field()? {
        match (field.number, field.value) {
            (1, FieldValue::Varint(id)) => {
                has_id = true;
                on_id(id as i64);
                varint_field(1, maps.stats.get(id as i64, &mut tables.stats) as u64, out);
            }
            (7, FieldValue::Varint(id)) => {
                varint_field(7, maps.stats.get(id as i64, &mut tables.stats) as u64, out);
            }
            _ => out.extend_from_slice(whole(raw, at, &field, &fields)),
        }
    }
    // An id of 0 is not written, and may have another number in the merged plane.
    if !has_id {
        let id = maps.stats.get(0, &mut tables.stats);
        if id != 0 {
            varint_field(1, id as u64, out);
        }
    }
    Ok(())
}

/// A map entry taken apart.
#[derive(Debug, Default)]
pub(super) struct Entry<'a> {
    pub(super) key: i64,
    pub(super) value: &'a [u8],
    pub(super) at: u64,
}

/// Takes the map entry in `raw` apart; `raw` begins with the entry's own tag and length.
pub(super) fn entry(raw: &[u8], base: u64) -> Result<Entry<'_>, Error> {
    let mut outer = Fields::new(raw, base);
    let mut entry = Entry::default();
    if let Some(field) = outer.next_field()? {
        let body = field.bytes("a map entry")?;
        let mut fields = Fields::new(body, outer.offset_of(body));
        while let Some(field) = fields.next_field()? {
            match field.number {
                1 => entry.key = field.varint("a map key")? as i64,
                2 => {
                    entry.value = field.bytes("a metadata entry")?;
                    entry.at = fields.offset_of(entry.value);
                }
                _ => {}
            }
        }
    }
    Ok(entry)
}

/// Writes a map entry `number` of a plane: `id` and the fields in `body`.
pub(super) fn put_entry(number: u8, id: i64, body: &[u8], out: &mut Vec<u8>) {
    nested(number, out, |out| {
        varint_field(1, id as u64, out);
        nested(2, out, |out| {
            varint_field(1, id as u64, out);
            out.extend_from_slice(body);
        });
    });
}

/// The fields of an XStatMetadata without its id.
pub(super) fn stat_metadata(entry: &Entry<'_>) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(entry.value.len());
    let mut fields = Fields::new(entry.value, entry.at);
    while let Some(field) = fields.next_field()? {
        if field.number != 1 {
            out.extend_from_slice(whole(entry.value, entry.at, &field, &fields));
        }
    }
    Ok(out)
}

/// The fields of an XEventMetadata without its id and children, stats mapped; and the children as they were.
pub(super) fn event_metadata(
    entry: &Entry<'_>,
    maps: &mut Maps,
    tables: &mut Tables,
) -> Result<(Vec<u8>, Vec<i64>), Error> {
    let mut out = Vec::with_capacity(entry.value.len());
    let mut children = Vec::new();
    let mut fields = Fields::new(entry.value, entry.at);
    while let Some(field) = fields.next_field()? {
        match (field.number, field.value) {
            (1, _) => {}
            (5, FieldValue::Bytes(raw)) => {
                let at = fields.offset_of(raw);
                nested(5, &mut out, |out| stat(raw, at, maps, tables, out))?;
            }
            (6, FieldValue::Varint(child)) => children.push(child as i64),
            (6, FieldValue::Bytes(packed)) => children.extend(unpack(packed, fields.offset_of(packed))?),
            _ => out.extend_from_slice(whole(entry.value, entry.at, &field, &fields)),
        }
    }
    Ok((out, children))
}

/// The numbers of a packed field.
fn unpack(packed: &[u8], at: u64) -> Result<Vec<i64>, Error> {
    let mut numbers = Vec::new();
    let mut pos = 0;
    while pos < packed.len() {
        let number = varint(packed, &mut pos).ok_or_else(|| Error::Damaged {
            offset: at + pos as u64,
            expected: "a child's id",
            found: Found::Varint,
        })?;
        numbers.push(number as i64);
    }
    Ok(numbers)
}

/// Adds `children`, already mapped, to the fields of an XEventMetadata.
pub(super) fn put_children(children: &[i64], body: &mut Vec<u8>) {
    for &child in children {
        varint_field(6, child as u64, body);
    }
}

/// Writes a plane's stat with this value as field 6.
pub(super) fn bytes_stat(old: i64, value: &[u8], maps: &mut Maps, tables: &mut Tables, out: &mut Vec<u8>) {
    nested(6, out, |out| {
        varint_field(1, maps.stats.get(old, &mut tables.stats) as u64, out);
        nested(6, out, |out| out.extend_from_slice(value));
    });
}

/// Writes a plane's stat as field 6; `number` replaces its value where given.
pub(super) fn plane_stat(
    raw: &[u8],
    at: u64,
    number: Option<u64>,
    maps: &mut Maps,
    tables: &mut Tables,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    nested(6, out, |out| match number {
        Some(value) => {
            let id = Stat::decode(raw, at)?.metadata_id;
            varint_field(1, maps.stats.get(id, &mut tables.stats) as u64, out);
            varint_field(3, value, out);
            Ok(())
        }
        None => stat(raw, at, maps, tables, out),
    })
}
