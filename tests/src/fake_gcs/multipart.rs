//! Multipart uploads: parts by number, made one object by the list that completes them.

use std::collections::BTreeMap;

use super::content::Segment;

/// The least size of a part that is not the last.
const SMALLEST_PART: u64 = 5 << 20;

/// The highest number of a part.
pub(super) const MOST_PARTS: u32 = 10_000;

/// An unfinished upload.
#[derive(Debug)]
pub(super) struct Multipart {
    /// The object it is for.
    pub(super) object: String,
    /// The headers that its start carried for the object.
    pub(super) headers: BTreeMap<String, String>,
    parts: BTreeMap<u32, Segment>,
}

/// Why the list of parts is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadList {
    /// No list, or it cannot be read.
    Malformed,
    /// A part that was not uploaded, or with another ETag.
    InvalidPart,
    /// The numbers do not rise.
    InvalidOrder,
    /// A part before the last is too small.
    TooSmall,
}

impl Multipart {
    pub(super) fn new(object: String, headers: BTreeMap<String, String>) -> Self {
        Self { object, headers, parts: BTreeMap::new() }
    }

    /// Stores a part, in place of one with the same number; gives its ETag.
    pub(super) fn store(&mut self, number: u32, segment: Segment) -> String {
        let etag = part_etag(number, &segment);
        self.parts.insert(number, segment);
        etag
    }

    /// The segments that a `CompleteMultipartUpload` names.
    pub(super) fn listed(&self, list: &str) -> Result<Vec<Segment>, BadList> {
        let wanted = parse_list(list).filter(|wanted| !wanted.is_empty()).ok_or(BadList::Malformed)?;
        let mut segments = Vec::with_capacity(wanted.len());
        let mut before = 0;
        for (number, etag) in wanted {
            if number <= before {
                return Err(BadList::InvalidOrder);
            }
            before = number;
            let part = self.parts.get(&number).filter(|part| part_etag(number, part) == etag);
            segments.push(part.ok_or(BadList::InvalidPart)?.clone());
        }
        let (_, all_but_last) = segments.split_last().expect("checked above");
        if all_but_last.iter().any(|part| part.length < SMALLEST_PART) {
            return Err(BadList::TooSmall);
        }
        Ok(segments)
    }
}

fn part_etag(number: u32, part: &Segment) -> String {
    format!("\"{:08x}{:08x}{number:04x}\"", part.crc32c, part.length)
}

fn parse_list(list: &str) -> Option<Vec<(u32, String)>> {
    let inner = between(list, "<CompleteMultipartUpload", "</CompleteMultipartUpload>")?;
    inner
        .split("<Part>")
        .skip(1)
        .map(|part| {
            let number = between(part, "<PartNumber>", "</PartNumber>")?.trim().parse().ok()?;
            let etag = between(part, "<ETag>", "</ETag>")?.trim().replace("&quot;", "\"");
            Some((number, etag))
        })
        .collect()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}
