//! Events: decoded in place, their stats only when asked for.

use super::stat::Stats;
use crate::wire::{Error, FieldValue, Fields, Found, varint};

/// One event of a line.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceEvent<'a> {
    /// What it is: an id of the plane's event metadata.
    pub metadata_id: i64,
    /// Its start, counted from the line's timestamp; 0 where the file has none.
    pub offset_ps: i64,
    /// How long it took.
    pub duration_ps: i64,
    /// How often it happened, for an aggregated event (which has no offset).
    pub occurrences: Option<i64>,
    /// The XEvent as it stands in the file.
    pub raw: &'a [u8],
    /// Where it lies in the input.
    pub at: u64,
    stats_from: Option<usize>,
}

impl<'a> TraceEvent<'a> {
    /// The event in `raw`, which lies at `at`.
    #[inline]
    pub fn decode(raw: &'a [u8], at: u64) -> Result<Self, Error> {
        let mut event = TraceEvent { raw, at, ..TraceEvent::default() };
        let mut pos = 0;
        while pos < raw.len() {
            let tag_at = pos;
            let tag = raw[pos];
            pos += 1;
            match tag {
                0x08 => event.metadata_id = number(raw, &mut pos, at)? as i64,
                0x10 => event.offset_ps = number(raw, &mut pos, at)? as i64,
                0x18 => event.duration_ps = number(raw, &mut pos, at)? as i64,
                0x28 => event.occurrences = Some(number(raw, &mut pos, at)? as i64),
                0x22 => {
                    let len = number(raw, &mut pos, at)?;
                    let left = (raw.len() - pos) as u64;
                    if len > left {
                        let found = Found::Length { claimed: len, left };
                        return Err(Error::damaged(at + tag_at as u64, "a stat within its event", found));
                    }
                    event.stats_from.get_or_insert(tag_at);
                    pos += len as usize;
                }
                _ => pos = event.unusual(tag_at)?,
            }
        }
        Ok(event)
    }

    /// Any other field, or a known one with a tag of unusual length; gives the position behind it.
    #[cold]
    fn unusual(&mut self, tag_at: usize) -> Result<usize, Error> {
        let mut fields = Fields::new(&self.raw[tag_at..], self.at + tag_at as u64);
        if let Some(field) = fields.next_field()? {
            match (field.number, field.value) {
                (1, FieldValue::Varint(value)) => self.metadata_id = value as i64,
                (2, FieldValue::Varint(value)) => self.offset_ps = value as i64,
                (3, FieldValue::Varint(value)) => self.duration_ps = value as i64,
                (5, FieldValue::Varint(value)) => self.occurrences = Some(value as i64),
                (4, FieldValue::Bytes(_)) => {
                    self.stats_from.get_or_insert(tag_at);
                }
                (1..=5, _) => {
                    return Err(Error::damaged(field.at, "an event's field", Found::OtherType));
                }
                _ => {}
            }
        }
        Ok((fields.position() - self.at) as usize)
    }

    /// Whether it has stats at all.
    #[inline]
    pub fn has_stats(&self) -> bool {
        self.stats_from.is_some()
    }

    /// Its stats.
    #[inline]
    pub fn stats(&self) -> Stats<'a> {
        let from = self.stats_from.unwrap_or(self.raw.len());
        Stats::new(&self.raw[from..], self.at + from as u64, 4)
    }
}

#[inline]
fn number(raw: &[u8], pos: &mut usize, base: u64) -> Result<u64, Error> {
    let at = *pos;
    varint(raw, pos).ok_or_else(|| Error::damaged(base + at as u64, "a number", Found::Varint))
}
