//! Values by metadata id: a table where ids are dense, as real files have them, a map where they are not.
//!
//! Must never take memory for an id's size: one large id alone costs no more than a small one.

use std::collections::HashMap;

/// The most places in the table for each entry.
const MOST_ROOM: usize = 4;

/// Values by id; of two of one id the last counts, as in any map of protobuf.
#[derive(Debug, Clone)]
pub(crate) struct ById<T> {
    /// Of ids from 0 on, below `room`.
    table: Vec<Option<T>>,
    /// How many ids may lie in the table: more the more entries there are.
    room: usize,
    /// How many entries were set.
    entries: usize,
    others: HashMap<i64, T>,
}

impl<T> Default for ById<T> {
    fn default() -> Self {
        Self { table: Vec::new(), room: 0, entries: 0, others: HashMap::new() }
    }
}

impl<T: Clone> ById<T> {
    /// Sets the value of `id`.
    pub(crate) fn set(&mut self, id: i64, value: T) {
        self.entries += 1;
        // Twice the room each time: the map is gone through a few times only, whatever the ids' order.
        if self.entries * MOST_ROOM >= 2 * self.room {
            self.room = self.entries * MOST_ROOM;
            for (id, value) in std::mem::take(&mut self.others) {
                self.put(id, value);
            }
        }
        self.put(id, value);
    }

    fn put(&mut self, id: i64, value: T) {
        match usize::try_from(id) {
            Ok(at) if at < self.room => {
                if at >= self.table.len() {
                    self.table.resize(at + 1, None);
                }
                self.table[at] = Some(value);
            }
            _ => {
                self.others.insert(id, value);
            }
        }
    }

    /// The value of `id`.
    #[inline]
    pub(crate) fn get(&self, id: i64) -> Option<&T> {
        match usize::try_from(id).ok().and_then(|at| self.table.get(at)) {
            Some(Some(value)) => Some(value),
            _ if self.others.is_empty() => None,
            _ => self.others.get(&id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_large_and_negative_ids() {
        let mut ids = ById::default();
        for id in [0, 5, 1 << 40, -3] {
            ids.set(id, id);
        }
        for id in [0, 5, 1 << 40, -3] {
            assert_eq!(ids.get(id), Some(&id));
        }
        for id in [1, 6, -5, i64::MIN, i64::MAX] {
            assert_eq!(ids.get(id), None);
        }
    }

    #[test]
    fn the_table_is_as_large_as_its_entries_not_as_their_ids() {
        let mut ids = ById::default();
        let largest = (1 << 20) - 1;
        ids.set(largest, 7);
        assert_eq!(ids.table.len(), 0);
        assert_eq!(ids.get(largest), Some(&7));
        // Ids without holes end up in the table, whatever their order.
        for id in (0..1000).rev() {
            ids.set(id, id + 1);
        }
        assert_eq!((ids.table.len(), ids.others.len()), (1000, 1));
        assert!((0..1000).all(|id| ids.get(id) == Some(&(id + 1))));
        ids.set(largest, 8);
        assert_eq!(ids.get(largest), Some(&8));
    }
}
