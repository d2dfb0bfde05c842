//! The log of one job in memory, and the library's rule for what a query reads of it.
//!
//! Entries keep the number they arrived under, so that a reader may remember them; the reading order is
//! (log time, insert id). Nothing is ever sorted by what a payload says.

use crate::{
    entry::Entry,
    time::{Micros, Nanos},
};

/// The number an entry arrived under.
pub type EntryId = u32;

/// Where the last read ended: log time and insert id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The last entry's log time.
    pub time: Nanos,
    /// The last entry's insert id.
    pub id: Box<str>,
}

/// Where a read begins.
#[derive(Debug, Clone, Copy)]
pub enum From<'a> {
    /// After this log time.
    After(Nanos),
    /// After this entry.
    Cursor(&'a Cursor),
}

/// All entries of one job.
#[derive(Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
    order: Vec<EntryId>,
    elastic: bool,
}

/// More entries than the log can number.
#[derive(Debug, thiserror::Error)]
#[error("more than {} entries of one job", EntryId::MAX)]
pub struct Full;

impl Log {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry; entries of one time and id stay in the order they arrived.
    ///
    /// # Errors
    /// If the log is full.
    pub fn push(&mut self, entry: Entry) -> Result<(), Full> {
        let id = EntryId::try_from(self.entries.len()).map_err(|_| Full)?;
        self.elastic |= entry.is_elastic();
        let key = (entry.time, &*entry.id);
        let in_order = self.order.last().is_none_or(|&last| self.key(last) <= key);
        let at = if in_order {
            self.order.len()
        } else {
            self.order.partition_point(|&other| self.key(other) <= key)
        };
        self.order.insert(at, id);
        self.entries.push(entry);
        Ok(())
    }

    /// Builds the log of many entries at once: one sort, however disordered they come.
    ///
    /// # Errors
    /// If there are too many.
    pub fn from_entries(entries: Vec<Entry>) -> Result<Self, Full> {
        let count = EntryId::try_from(entries.len()).map_err(|_| Full)?;
        let elastic = entries.iter().any(Entry::is_elastic);
        let mut log = Self { entries, order: (0..count).collect(), elastic };
        let entries = &log.entries;
        let key = |id: &EntryId| (entries[*id as usize].time, &*entries[*id as usize].id);
        if !log.order.is_sorted_by_key(key) {
            log.order.sort_by(|a, b| key(a).cmp(&key(b)));
        }
        Ok(log)
    }

    fn key(&self, id: EntryId) -> (Nanos, &str) {
        let entry = self.entry(id);
        (entry.time, &entry.id)
    }

    /// The entry that arrived under `id`.
    pub fn entry(&self, id: EntryId) -> &Entry {
        &self.entries[id as usize]
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether some entry is one that only elastic jobs write.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// All entries in reading order.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.order.iter().map(|&id| self.entry(id))
    }

    /// The entries after `from` and at or before `end`, in reading order.
    pub fn read(&self, from: From<'_>, end: Micros) -> &[EntryId] {
        let end = Nanos::from(end);
        let first = match from {
            From::After(time) => self.order.partition_point(|&id| self.entry(id).time <= time),
            From::Cursor(cursor) if cursor.id.is_empty() => {
                self.order.partition_point(|&id| self.entry(id).time <= cursor.time)
            }
            From::Cursor(cursor) => {
                self.order.partition_point(|&id| self.key(id) <= (cursor.time, &*cursor.id))
            }
        };
        let last = self.order.partition_point(|&id| self.entry(id).time <= end);
        &self.order[first..last.max(first)]
    }

    /// The cursor that stands on an entry.
    pub fn cursor(&self, id: EntryId) -> Cursor {
        let entry = self.entry(id);
        Cursor { time: entry.time, id: entry.id.clone() }
    }
}
