//! Stats: the typed values that hang on planes, events and event metadata.

use std::borrow::Cow;

use super::names::StatNames;
use crate::wire::{Error, FieldValue, Fields, varint};

/// A value as the file has it; text and bytes are borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum StatValue<'a> {
    /// No value, or one of a kind that is not known.
    #[default]
    None,
    /// A floating-point number.
    Double(f64),
    /// An unsigned number.
    Uint(u64),
    /// A signed number.
    Int(i64),
    /// Text, meant to be UTF-8.
    Str(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// The id of a stat metadata entry whose name is the text.
    Ref(u64),
}

impl<'a> StatValue<'a> {
    /// The value as a signed number; unsigned ones keep their bits.
    pub fn int(self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(value),
            Self::Uint(value) => Some(value as i64),
            _ => None,
        }
    }

    /// The value as an unsigned number; signed ones keep their bits.
    pub fn uint(self) -> Option<u64> {
        self.int().map(|value| value as u64)
    }

    /// The value as a number of any kind.
    pub fn double(self) -> Option<f64> {
        match self {
            Self::Double(value) => Some(value),
            Self::Uint(value) => Some(value as f64),
            Self::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// The value as text, a reference looked up in `names`.
    pub fn text(self, names: &'a StatNames) -> Option<Cow<'a, str>> {
        match self {
            Self::Str(text) => Some(String::from_utf8_lossy(text)),
            Self::Ref(id) => names.get(id as i64).map(Cow::Borrowed),
            _ => None,
        }
    }
}

/// One stat.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stat<'a> {
    /// Which stat: an id of the plane's stat metadata.
    pub metadata_id: i64,
    /// Its value.
    pub value: StatValue<'a>,
}

impl<'a> Stat<'a> {
    /// The stat in `raw`, an XStat that lies at `base` in the input.
    #[inline]
    pub fn decode(raw: &'a [u8], base: u64) -> Result<Self, Error> {
        if let Some(stat) = Self::number(raw) {
            return Ok(stat);
        }
        let mut stat = Stat::default();
        let mut fields = Fields::new(raw, base);
        while let Some(field) = fields.next_field()? {
            match field.number {
                1 => stat.metadata_id = field.varint("a stat's metadata id")? as i64,
                2 => {
                    if let FieldValue::Fixed64(bits) = field.value {
                        stat.value = StatValue::Double(f64::from_bits(bits));
                    }
                }
                3 => stat.value = StatValue::Uint(field.varint("an unsigned stat value")?),
                4 => stat.value = StatValue::Int(field.varint("a signed stat value")? as i64),
                5 => stat.value = StatValue::Str(field.bytes("a stat's text")?),
                6 => stat.value = StatValue::Bytes(field.bytes("a stat's bytes")?),
                7 => stat.value = StatValue::Ref(field.varint("a stat's reference")?),
                _ => {}
            }
        }
        Ok(stat)
    }

    /// An id and then a number, as nearly all stats of device events are.
    #[inline]
    fn number(raw: &[u8]) -> Option<Self> {
        let mut at = 1;
        let metadata_id = if *raw.first()? == 0x08 { varint(raw, &mut at)? as i64 } else { return None };
        let tag = *raw.get(at)?;
        at += 1;
        let value = match tag {
            0x18 => StatValue::Uint(varint(raw, &mut at)?),
            0x20 => StatValue::Int(varint(raw, &mut at)? as i64),
            _ => return None,
        };
        (at == raw.len()).then_some(Self { metadata_id, value })
    }
}

/// The stats of one event, metadata entry or plane, decoded one at a time.
#[derive(Debug, Clone)]
pub struct Stats<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
    number: u32,
}

impl<'a> Stats<'a> {
    /// The stats in `raw`, a message at `base` whose field `number`, below 16, holds them.
    pub(super) fn new(raw: &'a [u8], base: u64, number: u32) -> Self {
        Self { bytes: raw, at: 0, base, number }
    }

    /// The next stat as it stands in the file, and where.
    #[inline]
    pub fn next_raw(&mut self) -> Result<Option<(&'a [u8], u64)>, Error> {
        let tag = (self.number << 3 | 2) as u8;
        while self.at < self.bytes.len() {
            let mut at = self.at + 1;
            if self.bytes[self.at] == tag
                && let Some(len) = varint(self.bytes, &mut at)
                && len <= (self.bytes.len() - at) as u64
            {
                self.at = at + len as usize;
                return Ok(Some((&self.bytes[at..self.at], self.base + at as u64)));
            }
            if let Some(found) = self.unusual()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Any other field, or a stat with a tag of unusual length: passed over unless it is a stat.
    #[cold]
    fn unusual(&mut self) -> Result<Option<(&'a [u8], u64)>, Error> {
        let mut fields = Fields::new(&self.bytes[self.at..], self.base + self.at as u64);
        let field = fields.next_field()?;
        self.at = (fields.position() - self.base) as usize;
        match field {
            Some(field) if field.number == self.number => {
                let raw = field.bytes("a stat")?;
                Ok(Some((raw, fields.offset_of(raw))))
            }
            _ => Ok(None),
        }
    }

    /// The next stat.
    #[inline]
    pub fn next_stat(&mut self) -> Result<Option<Stat<'a>>, Error> {
        match self.next_raw()? {
            Some((raw, at)) => Stat::decode(raw, at).map(Some),
            None => Ok(None),
        }
    }
}

/// A value that was kept: see [`StatValue`].
#[derive(Debug, Clone, PartialEq)]
pub enum OwnedValue {
    /// A floating-point number.
    Double(f64),
    /// An unsigned number.
    Uint(u64),
    /// A signed number.
    Int(i64),
    /// Text, or the text that a reference stood for.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl OwnedValue {
    /// The value as a signed number; unsigned ones keep their bits.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Uint(value) => Some(*value as i64),
            _ => None,
        }
    }

    /// The value as text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value as bytes.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}
