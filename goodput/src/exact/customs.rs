//! CustomEvent events: pairing starts with ends, and finding those inside a pair of steps.

use std::{collections::HashMap, sync::Arc};

use crate::{badput::Amount, entry::Boundary};

/// A custom event with a start and an end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CustomEvent {
    pub(super) start: f64,
    pub(super) end: f64,
    /// Index of its type in [`Customs::name`].
    pub(super) kind: u32,
    /// How many were closed before it.
    pub(super) number: u32,
}

impl CustomEvent {
    pub(super) fn seconds(&self) -> f64 {
        self.end - self.start
    }
}

/// Seconds by type, in the order in which the types were first counted.
#[derive(Debug, Clone, Default)]
pub(super) struct KindSums {
    sums: Vec<(u32, f64)>,
    positions: HashMap<u32, usize>,
}

impl KindSums {
    pub(super) fn add(&mut self, kind: u32, seconds: f64) {
        let position = *self.positions.entry(kind).or_insert(self.sums.len());
        match self.sums.get_mut(position) {
            Some((_, sum)) => *sum += seconds,
            None => self.sums.push((kind, seconds)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, f64)> {
        self.sums.iter().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

/// All custom events of a walk.
#[derive(Debug, Default)]
pub(super) struct Customs {
    kinds: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    open: HashMap<u32, f64>,
    /// By start.
    closed: Vec<CustomEvent>,
}

impl Customs {
    /// Adds a start or an end; returns the event that it ended.
    ///
    /// A start overwrites an open one of its type; an end without one is ignored, and so is an event that
    /// does not end after it starts.
    pub(super) fn push(&mut self, kind: &Arc<str>, boundary: Boundary, at: f64) -> Option<CustomEvent> {
        let kind = self.intern(kind);
        if boundary == Boundary::Start {
            self.open.insert(kind, at);
            return None;
        }
        let start = self.open.remove(&kind)?;
        if start >= at {
            return None;
        }
        let number = u32::try_from(self.closed.len()).unwrap_or(u32::MAX);
        let custom = CustomEvent { start, end: at, kind, number };
        let position = match self.closed.last() {
            Some(last) if last.start > start => self.closed.partition_point(|other| other.start <= start),
            _ => self.closed.len(),
        };
        self.closed.insert(position, custom);
        Some(custom)
    }

    fn intern(&mut self, kind: &Arc<str>) -> u32 {
        if let Some(&index) = self.kinds.get(kind) {
            return index;
        }
        let index = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(Arc::clone(kind));
        self.kinds.insert(Arc::clone(kind), index);
        index
    }

    /// The upper-cased type.
    fn name(&self, kind: u32) -> &str {
        &self.names[kind as usize]
    }

    /// The events inside `from..=to`; also counts the events read.
    pub(super) fn inside<'a>(
        &'a self,
        from: f64,
        to: f64,
        work: &mut u64,
    ) -> impl Iterator<Item = &'a CustomEvent> + use<'a> {
        let first = match self.closed.last() {
            Some(last) if last.start >= from => self.closed.partition_point(|custom| custom.start < from),
            _ => self.closed.len(),
        };
        let starting = self.closed[first..].partition_point(|custom| custom.start <= to);
        *work += starting as u64;
        self.closed[first..first + starting].iter().filter(move |custom| custom.end <= to)
    }

    /// Sums by type as the content of a bucket.
    pub(super) fn amount(&self, sums: &KindSums) -> Amount {
        Amount::Custom(sums.iter().map(|(kind, seconds)| (self.name(kind).to_owned(), seconds)).collect())
    }

    /// All events, by start.
    pub(super) fn by_start(&self) -> &[CustomEvent] {
        &self.closed
    }
}
