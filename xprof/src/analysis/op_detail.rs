//! What the compiler said of an operation: where it comes from, and how much work one execution is.
//!
//! Texts are held once each and within a budget: a program has tens of thousands of operations, and many share a
//! source line.

use std::collections::HashMap;

use crate::{
    reader::{OwnedValue, PlaneIndex, Stat, StatNames, StatValue},
    wire::{FieldValue, Fields},
};

/// How many bytes of texts one host keeps.
const MAX_BYTES: usize = 4 << 20;
/// How much of one text is kept.
const LONGEST: usize = 256;
/// What a text costs beside its own bytes, which are held twice.
const OVERHEAD: usize = 64;
/// The memory space of a chip's HBM, as the compiler numbers them.
const HBM: u64 = 1;

/// Texts by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Texts {
    numbers: HashMap<Box<str>, u32>,
    texts: Vec<Box<str>>,
    bytes: usize,
}

impl Texts {
    /// The number of a text; none for an empty one, and for a new one beyond the budget.
    fn number(&mut self, text: &str) -> Option<u32> {
        let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(end, _)| end);
        let text = &text[..end];
        if text.is_empty() {
            return None;
        }
        if let Some(&number) = self.numbers.get(text) {
            return Some(number);
        }
        let cost = 2 * text.len() + OVERHEAD;
        if self.bytes + cost > MAX_BYTES {
            return None;
        }
        self.bytes += cost;
        let number = self.texts.len() as u32;
        self.numbers.insert(text.into(), number);
        self.texts.push(text.into());
        Some(number)
    }

    /// The text of a number.
    pub(super) fn get(&self, number: Option<u32>) -> Option<&str> {
        self.texts.get(number? as usize).map(AsRef::as_ref)
    }
}

/// What the compiler said of one operation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OpDetail {
    /// File and line, a number of [`Texts`].
    pub(super) source: Option<u32>,
    /// The framework's name for it, a number of [`Texts`].
    pub(super) framework_op: Option<u32>,
    /// Floating-point operations of one execution.
    pub(super) flops: Option<u64>,
    /// Bytes that one execution reads and writes, in all memories.
    pub(super) bytes: Option<u64>,
    /// Of these, bytes in HBM.
    pub(super) hbm_bytes: Option<u64>,
}

/// The ids of the stats that say it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DetailStats {
    source: Option<i64>,
    framework_op: Option<i64>,
    flops: Option<i64>,
    bytes: Option<i64>,
    breakdown: Option<i64>,
}

impl DetailStats {
    pub(super) fn of(names: &StatNames) -> Self {
        Self {
            source: names.id("source"),
            framework_op: names.id("tf_op"),
            flops: names.id("flops"),
            bytes: names.id("bytes_accessed"),
            breakdown: names.id("memory_access_breakdown"),
        }
    }

    pub(super) fn read(&self, stat: Stat<'_>, names: &StatNames, texts: &mut Texts, detail: &mut OpDetail) {
        let id = Some(stat.metadata_id);
        if id == self.source {
            detail.source = stat.value.text(names).and_then(|text| texts.number(&text));
        } else if id == self.framework_op {
            // The framework's name is followed by its type, which JAX leaves empty.
            let text = stat.value.text(names);
            detail.framework_op = text.and_then(|text| texts.number(text.trim_end_matches(':')));
        } else if id == self.flops {
            detail.flops = count(stat.value);
        } else if id == self.bytes {
            detail.bytes = count(stat.value);
        } else if id == self.breakdown
            && let StatValue::Bytes(bytes) = stat.value
        {
            detail.hbm_bytes = hbm_bytes(bytes);
        }
    }
}

/// A count; negative ones say that it is not known.
fn count(value: StatValue<'_>) -> Option<u64> {
    u64::try_from(value.int()?).ok()
}

/// The bytes in HBM of a `memory_access_breakdown`; none where it says nothing.
fn hbm_bytes(breakdown: &[u8]) -> Option<u64> {
    let mut sum = None;
    let mut accesses = Fields::new(breakdown, 0);
    while let Ok(Some(access)) = accesses.next_field() {
        let (1, FieldValue::Bytes(access)) = (access.number, access.value) else { continue };
        let (mut space, mut bytes) = (0, 0);
        let mut fields = Fields::new(access, 0);
        while let Ok(Some(field)) = fields.next_field() {
            match (field.number, field.value) {
                (2, FieldValue::Varint(value)) => space = value,
                (3, FieldValue::Varint(value)) => bytes = value,
                _ => {}
            }
        }
        let known: u64 = sum.unwrap_or(0);
        sum = Some(if space == HBM { known.saturating_add(bytes) } else { known });
    }
    sum
}

/// The work of many executions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) flops: f64,
    pub(super) hbm_bytes: f64,
}

impl Work {
    pub(super) fn add(&mut self, one: &OpDetail, times: u64) {
        self.flops += one.flops.unwrap_or(0) as f64 * times as f64;
        self.hbm_bytes += one.hbm_bytes.unwrap_or(0) as f64 * times as f64;
    }
}

/// What a core can do at most.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Peaks {
    /// Floating-point operations a second.
    pub flops: Option<f64>,
    /// Bytes a second to and from HBM.
    pub hbm: Option<f64>,
}

impl Peaks {
    /// As the plane of a core says.
    pub(super) fn of(plane: &PlaneIndex) -> Self {
        let peak = |name, unit: f64| match plane.stat(name) {
            Some(OwnedValue::Double(value)) if *value > 0.0 && value.is_finite() => Some(value * unit),
            _ => None,
        };
        Self {
            flops: peak("peak_teraflops_per_second", 1e12),
            hbm: peak("peak_hbm_bw_gigabytes_per_second", 1e9),
        }
    }

    /// What both say.
    pub(super) fn common(self, other: Self) -> Self {
        let same = |one: Option<f64>, other| one.filter(|_| one == other);
        Self { flops: same(self.flops, other.flops), hbm: same(self.hbm, other.hbm) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_accesses_to_hbm_count() {
        // A read of 300 bytes from HBM, a write of 5 bytes to another memory.
        let breakdown = [0x0a, 7, 8, 1, 16, 1, 24, 0xac, 2, 0x0a, 6, 8, 2, 16, 3, 24, 5];
        assert_eq!(hbm_bytes(&breakdown), Some(300));
        assert_eq!(hbm_bytes(&[]), None);
        assert_eq!(hbm_bytes(&[0x0a, 200]), None);
    }

    #[test]
    fn texts_are_held_once_and_within_their_budget() {
        let mut texts = Texts::default();
        let one = texts.number("a.py:1");
        assert_eq!(texts.number("a.py:1"), one);
        assert_eq!(texts.get(one), Some("a.py:1"));
        assert_eq!(texts.number(""), None);
        let long = |at: usize| format!("{at:0>200}");
        let kept = (0..).take_while(|&at| texts.number(&long(at)).is_some()).count();
        assert!(kept * 400 <= MAX_BYTES && texts.bytes <= MAX_BYTES, "{kept}");
        assert_eq!(texts.number("a.py:1"), one);
    }
}
