//! The log of one job in memory, and the library's rule for what a query reads of it.
//!
//! Entries are read in the order of log time and insert id; the log never sorts by payload times. Two entries
//! with the same log time and insert id are one entry, as in Cloud Logging: the one that came first is kept.
//! An entry without an insert id is never a repetition.

use crate::{
    entry::LogEntry,
    time::{Micros, Nanos},
};

/// The number of an entry in order of arrival.
pub type EntryId = u32;

/// Where the last read ended: log time and insert id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadCursor {
    /// The last entry's log time.
    pub time: Nanos,
    /// The last entry's insert id.
    pub id: Box<str>,
}

/// Where a read starts.
#[derive(Debug, Clone, Copy)]
pub enum ReadFrom<'a> {
    /// After this log time.
    After(Nanos),
    /// After this entry.
    Cursor(&'a ReadCursor),
}

/// All entries of one job.
#[derive(Debug, Default)]
pub struct EventLog {
    entries: Vec<LogEntry>,
    order: Vec<EntryId>,
    elastic: bool,
    repeated: u64,
}

/// The log has more entries than it can number.
#[derive(Debug, thiserror::Error)]
#[error("more than {} entries of one job", EntryId::MAX)]
pub struct LogFull;

impl EventLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry, unless it is a repetition. Entries of equal time and id keep their order of arrival.
    ///
    /// # Errors
    /// If the log is full.
    pub fn push(&mut self, entry: LogEntry) -> Result<(), LogFull> {
        let id = EntryId::try_from(self.entries.len()).map_err(|_| LogFull)?;
        let key = key_of(&entry);
        let in_order = self.order.last().is_none_or(|&last| self.key(last) <= key);
        let at = if in_order {
            self.order.len()
        } else {
            self.order.partition_point(|&other| self.key(other) <= key)
        };
        let before = at.checked_sub(1).map(|before| self.entry(self.order[before]));
        if before.is_some_and(|before| is_repetition(before, &entry)) {
            self.repeated += 1;
            return Ok(());
        }
        self.elastic |= entry.is_elastic();
        self.order.insert(at, id);
        self.entries.push(entry);
        Ok(())
    }

    /// Builds the log of many entries with one sort. Repetitions are left out.
    ///
    /// # Errors
    /// If there are too many.
    pub fn from_entries(entries: Vec<LogEntry>) -> Result<Self, LogFull> {
        let count = EntryId::try_from(entries.len()).map_err(|_| LogFull)?;
        let elastic = entries.iter().any(LogEntry::is_elastic);
        let mut log = Self { entries, order: (0..count).collect(), elastic, repeated: 0 };
        let entries = &log.entries;
        let key = |id: &EntryId| key_of(&entries[*id as usize]);
        if !log.order.is_sorted_by_key(key) {
            log.order.sort_by(|a, b| key(a).cmp(&key(b)));
        }
        let read = log.order.len();
        log.order
            .dedup_by(|later, first| is_repetition(&entries[*first as usize], &entries[*later as usize]));
        log.repeated = (read - log.order.len()) as u64;
        Ok(log)
    }

    fn key(&self, id: EntryId) -> (Nanos, &str) {
        key_of(self.entry(id))
    }

    /// The entry with the number `id`.
    pub fn entry(&self, id: EntryId) -> &LogEntry {
        &self.entries[id as usize]
    }

    /// The number of entries, without repetitions.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether the log has no entry.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The number of entries that were left out as repetitions.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Whether an entry is one that only elastic jobs write.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// All entries in reading order.
    pub fn iter(&self) -> impl Iterator<Item = &LogEntry> {
        self.order.iter().map(|&id| self.entry(id))
    }

    /// The entries after `from` and at or before `end`, in reading order.
    pub fn read(&self, from: ReadFrom<'_>, end: Micros) -> &[EntryId] {
        let end = Nanos::from(end);
        let first = match from {
            ReadFrom::After(time) => self.order.partition_point(|&id| self.entry(id).time <= time),
            ReadFrom::Cursor(cursor) if cursor.id.is_empty() => {
                self.order.partition_point(|&id| self.entry(id).time <= cursor.time)
            }
            ReadFrom::Cursor(cursor) => {
                self.order.partition_point(|&id| self.key(id) <= (cursor.time, &*cursor.id))
            }
        };
        let last = self.order.partition_point(|&id| self.entry(id).time <= end);
        &self.order[first..last.max(first)]
    }

    /// The cursor at an entry.
    pub fn cursor(&self, id: EntryId) -> ReadCursor {
        let entry = self.entry(id);
        ReadCursor { time: entry.time, id: entry.id.clone() }
    }
}

fn key_of(entry: &LogEntry) -> (Nanos, &str) {
    (entry.time, &entry.id)
}

fn is_repetition(first: &LogEntry, later: &LogEntry) -> bool {
    !later.id.is_empty() && key_of(first) == key_of(later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{EntryEvents, JobEvent, PayloadTime};

    fn entry(time: i64, id: &str, at: f64) -> LogEntry {
        let events = EntryEvents::One(JobEvent::JobStart(at));
        LogEntry { time: Nanos(time), id: id.into(), payload_time: PayloadTime::At(at), events }
    }

    #[test]
    fn equal_time_and_id_are_one_entry() {
        let all = [
            entry(2, "a", 1.0),
            entry(1, "a", 2.0),
            entry(2, "a", 3.0),
            entry(2, "", 4.0),
            entry(2, "", 5.0),
            entry(2, "b", 6.0),
            entry(1, "a", 7.0),
        ];
        let mut pushed = EventLog::new();
        all.iter().for_each(|entry| pushed.push(entry.clone()).unwrap());
        for log in [pushed, EventLog::from_entries(all.to_vec()).unwrap()] {
            let starts: Vec<f64> = log.iter().filter_map(LogEntry::job_start).collect();
            assert_eq!(starts, [2.0, 4.0, 5.0, 1.0, 6.0]);
            assert_eq!((log.len(), log.repeated()), (5, 2));
        }
    }
}
