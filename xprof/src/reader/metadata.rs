//! Event metadata: what events are. Visited, never held: a trace of a large program has a hundred megabytes.

use std::io::{Read, Seek};

use super::stat::Stats;
use crate::wire::{Error, FieldPayload, Fields, Scanner, Span};

/// Entries up to this size are read whole. In larger ones (a program's HLO is one stat) only the small fields
/// are read.
const WHOLE: u64 = 256 << 10;
/// What counts as small in a large entry.
const SMALL: u64 = 16 << 10;
/// How much of the small fields of one large entry is read.
const MOST_SMALL: usize = 256 << 10;

/// One event metadata entry.
#[derive(Debug, Clone, Copy)]
pub struct EventMetadata<'a> {
    /// The id that events refer to.
    pub id: i64,
    /// Its name.
    pub name: &'a [u8],
    /// The name to show, if another.
    pub display_name: &'a [u8],
    /// Where the whole XEventMetadata lies.
    pub span: Span,
    /// Whether fields were left out because they are large.
    pub reduced: bool,
    raw: &'a [u8],
    at: u64,
}

impl<'a> EventMetadata<'a> {
    fn decode(id: i64, raw: &'a [u8], at: u64, span: Span, reduced: bool) -> Result<Self, Error> {
        let mut entry = Self { id, name: &[], display_name: &[], span, reduced, raw, at };
        let mut fields = Fields::new(raw, at);
        while let Some(field) = fields.next_field()? {
            match field.number {
                2 => entry.name = field.bytes("an event's name")?,
                4 => entry.display_name = field.bytes("an event's display name")?,
                _ => {}
            }
        }
        Ok(entry)
    }

    /// Its stats.
    pub fn stats(&self) -> Stats<'a> {
        Stats::new(self.raw, self.at, 5)
    }
}

/// Reads the map entry of `len` bytes that `scanner` stands at. `id` and the message may come in any order.
pub(super) fn visit<R: Read + Seek, E: From<Error>>(
    scanner: &mut Scanner<R>,
    len: u64,
    visitor: &mut impl FnMut(&EventMetadata<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let end = scanner.position() + len;
    let (mut id, mut value) = (0, None);
    while let Some(header) = scanner.header(Some(end))? {
        match (header.number, header.kind) {
            (1, _) => id = header.varint("a map key")? as i64,
            (2, _) => {
                let len = header.len("an event metadata")?;
                value = Some(Span { offset: scanner.position(), len });
                scanner.skip(len)?;
            }
            (_, FieldPayload::Bytes(len)) => scanner.skip(len)?,
            _ => {}
        }
    }
    let span = value.unwrap_or(Span { offset: end, len: 0 });
    if span.len <= WHOLE {
        scanner.seek(span.offset)?;
        let raw = scanner.bytes(span.len, "an event metadata")?;
        visitor(&EventMetadata::decode(id, raw, span.offset, span, false)?)?;
    } else {
        let raw = small_fields(scanner, span)?;
        visitor(&EventMetadata::decode(id, &raw, span.offset, span, true)?)?;
    }
    scanner.seek(end)?;
    Ok(())
}

/// The small length-delimited fields of the message at `span`, as they stand there.
fn small_fields<R: Read + Seek>(scanner: &mut Scanner<R>, span: Span) -> Result<Vec<u8>, Error> {
    let mut raw = Vec::new();
    scanner.seek(span.offset)?;
    while let Some(header) = scanner.header(Some(span.end()))? {
        if let FieldPayload::Bytes(len) = header.kind {
            let whole = Span { offset: header.at, len: scanner.position() - header.at + len };
            let after = scanner.position() + len;
            if len <= SMALL && raw.len() + whole.len as usize <= MOST_SMALL {
                scanner.copy(whole, |piece| {
                    raw.extend_from_slice(piece);
                    Ok::<_, Error>(())
                })?;
            } else {
                scanner.seek(after)?;
            }
        }
    }
    Ok(raw)
}
