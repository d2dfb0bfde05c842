//! The constant part of a plane's events, as JSON made ready once: names and what their metadata says.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    ops::Range,
};

use super::json;
use crate::{
    reader::{ById, EventMetadata, PlaneIndex, Reader, StatNames, StatValue, Stats},
    wire::Error,
};

/// How much of a name is shown.
const LONGEST_NAME: usize = 256;
/// How much of one text among the arguments.
const LONGEST_TEXT: usize = 256;
/// How long all arguments of one event, or of its metadata, may be.
const LONGEST_ARGS: usize = 768;
/// How much is kept for one plane; later events go by their number.
const MOST_BYTES: usize = 64 << 20;
/// How many names of arguments are kept for one plane.
const MOST_KEYS: usize = 1 << 20;

/// How an event ends.
pub(super) const END: &[u8] = b"},\n";

/// JSON fragments by metadata id.
#[derive(Debug, Default)]
pub(super) struct Names {
    text: Vec<u8>,
    fragments: ById<Fragment>,
    keys: HashMap<i64, Vec<u8>>,
}

/// `,"name":"x","args":{…}},` of an event without stats of its own, and where its parts are.
#[derive(Debug, Clone)]
struct Fragment {
    whole: Range<usize>,
    name_end: usize,
    args: Range<usize>,
}

/// The constant text of an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constant<'a> {
    /// From the comma before the name to the comma behind the event.
    pub(super) whole: &'a [u8],
    /// The name alone, with its key.
    pub(super) name: &'a [u8],
    /// The arguments alone, without braces.
    pub(super) args: &'a [u8],
}

impl Names {
    pub(super) fn of<R: Read + Seek>(reader: &mut Reader<R>, plane: &PlaneIndex) -> Result<Self, Error> {
        let mut names = Self::default();
        for (id, name) in plane.stat_names.iter() {
            if shown(name) && names.keys.len() < MOST_KEYS {
                let mut key = Vec::new();
                json::string(name.as_bytes(), LONGEST_NAME, &mut key);
                key.push(b':');
                names.keys.insert(id, key);
            }
        }
        reader.event_metadata(plane, |entry| names.add(entry, &plane.stat_names))?;
        Ok(names)
    }

    fn add(&mut self, entry: &EventMetadata<'_>, stat_names: &StatNames) -> Result<(), Error> {
        if self.text.len() > MOST_BYTES {
            return Ok(());
        }
        let (short, long) = match entry.display_name {
            [] => (entry.name, None),
            short => (short, (short != entry.name).then_some(entry.name)),
        };
        let mut text = std::mem::take(&mut self.text);
        let from = text.len();
        text.extend_from_slice(b",\"name\":");
        json::string(short, LONGEST_NAME, &mut text);
        let name_end = text.len();
        text.extend_from_slice(b",\"args\":{");
        let args_from = text.len();
        if let Some(long) = long {
            text.extend_from_slice(b"\"long_name\":");
            json::string(long, LONGEST_TEXT, &mut text);
        }
        let added = self.arguments(entry.stats(), stat_names, args_from, &mut text);
        let mut args = args_from..text.len();
        if args.is_empty() {
            text.truncate(name_end);
            args = name_end..name_end;
        } else {
            text.push(b'}');
        }
        text.extend_from_slice(END);
        let fragment = Fragment { whole: from..text.len(), name_end, args };
        self.text = text;
        added?;
        self.fragments.set(entry.id, fragment);
        Ok(())
    }

    /// What is constant of the events of a metadata id; none where it has no entry.
    #[inline]
    pub(super) fn get(&self, id: i64) -> Option<Constant<'_>> {
        let fragment = self.fragments.get(id)?;
        Some(Constant {
            whole: &self.text[fragment.whole.clone()],
            name: &self.text[fragment.whole.start..fragment.name_end],
            args: &self.text[fragment.args.clone()],
        })
    }

    /// Adds `"key":value` pairs to `out`, in which the arguments begin at `from`.
    pub(super) fn arguments(
        &self,
        mut stats: Stats<'_>,
        stat_names: &StatNames,
        from: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        while let Some(stat) = stats.next_stat()? {
            let Some(key) = self.keys.get(&stat.metadata_id) else { continue };
            let before = out.len();
            if before > from {
                out.push(b',');
            }
            out.extend_from_slice(key);
            if !value(stat.value, stat_names, out) || out.len() - from > LONGEST_ARGS {
                out.truncate(before);
            }
        }
        Ok(())
    }
}

/// Not shown: what only links events, and the device clock, which repeats the time of the slice.
fn shown(stat: &str) -> bool {
    !stat.starts_with('_') && !matches!(stat, "device_offset_ps" | "device_duration_ps")
}

/// Adds a value; false where it has no place in JSON.
fn value(value: StatValue<'_>, names: &StatNames, out: &mut Vec<u8>) -> bool {
    /// Beyond this a reader of JSON would round.
    const EXACT: u64 = 1 << 53;
    let number = |negative: bool, size: u64, out: &mut Vec<u8>| {
        let quoted = size > EXACT;
        out.extend(quoted.then_some(b'"'));
        out.extend(negative.then_some(b'-'));
        json::unsigned(size, out);
        out.extend(quoted.then_some(b'"'));
    };
    match value {
        StatValue::Uint(value) => number(false, value, out),
        StatValue::Int(value) => number(value < 0, value.unsigned_abs(), out),
        StatValue::Double(value) if value.is_finite() => out.extend_from_slice(format!("{value}").as_bytes()),
        StatValue::Str(text) => json::string(text, LONGEST_TEXT, out),
        StatValue::Ref(id) => match names.get(id as i64) {
            Some(text) => json::string(text.as_bytes(), LONGEST_TEXT, out),
            None => return false,
        },
        StatValue::Double(_) | StatValue::Bytes(_) | StatValue::None => return false,
    }
    true
}
