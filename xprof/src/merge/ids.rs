//! Metadata ids: each segment's own, and the merged plane's.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

/// What a metadata entry says, as a number that no two different entries share.
pub(super) type ContentId = [u8; 16];

/// The [`ContentId`] of some bytes.
pub(super) fn digest(bytes: &[u8]) -> ContentId {
    let hash = Sha256::digest(bytes);
    let mut id = ContentId::default();
    let (head, _) = hash.split_at(size_of::<ContentId>());
    id.copy_from_slice(head);
    id
}

/// The merged plane's entries, by what they say.
#[derive(Debug, Default)]
pub(super) struct Table {
    by_content: HashMap<ContentId, i64>,
    taken: HashSet<i64>,
    /// Where the search for a free id begins.
    next: i64,
}

impl Table {
    /// The merged id of an entry, and whether it is new. An entry keeps its id where nobody else has it.
    pub(super) fn assign(&mut self, id: i64, content: ContentId) -> (i64, bool) {
        if let Some(&known) = self.by_content.get(&content) {
            return (known, false);
        }
        let merged = if self.taken.contains(&id) { self.free() } else { id };
        self.taken.insert(merged);
        self.by_content.insert(content, merged);
        (merged, true)
    }

    /// An id that stands for nothing, for what refers to nothing.
    fn dangling(&mut self, id: i64) -> i64 {
        if self.taken.contains(&id) { self.free() } else { id }
    }

    fn free(&mut self) -> i64 {
        self.next = self.next.max(self.taken.len() as i64 + 1);
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        self.next
    }
}

/// From a segment's ids to the merged plane's.
#[derive(Debug)]
pub(super) struct IdMap {
    /// Ids from 0 on, below `room`; [`NONE`] where there is no entry. Real ids are small and dense.
    dense: Vec<i64>,
    /// How many ids may be looked up by index: more the more entries there are, so that one large id alone
    /// takes no more memory than a small one.
    room: usize,
    /// How many entries were inserted.
    entries: usize,
    sparse: HashMap<i64, i64>,
    /// Ids without an entry.
    dangling: HashMap<i64, i64>,
}

const NONE: i64 = i64::MIN;
/// The most places in the dense table for each entry.
const MOST_ROOM: usize = 4;

impl IdMap {
    pub(super) fn new() -> Self {
        Self { dense: Vec::new(), room: 0, entries: 0, sparse: HashMap::new(), dangling: HashMap::new() }
    }

    pub(super) fn insert(&mut self, id: i64, merged: i64) {
        self.entries += 1;
        // Twice the room each time: the map is gone through a few times only, whatever the ids' order.
        if self.entries * MOST_ROOM >= 2 * self.room {
            self.room = self.entries * MOST_ROOM;
            self.settle();
        }
        match self.place(id) {
            Some(at) if merged != NONE => self.set(at, merged),
            _ => {
                self.sparse.insert(id, merged);
            }
        }
    }

    /// Where `id` lies in the dense table, if there is room for it.
    fn place(&self, id: i64) -> Option<usize> {
        usize::try_from(id).ok().filter(|&at| at < self.room)
    }

    fn set(&mut self, at: usize, merged: i64) {
        if at >= self.dense.len() {
            self.dense.resize(at + 1, NONE);
        }
        self.dense[at] = merged;
    }

    /// Moves to the dense table what there is room for by now.
    fn settle(&mut self) {
        for (id, merged) in std::mem::take(&mut self.sparse) {
            match self.place(id) {
                Some(at) if merged != NONE => self.set(at, merged),
                _ => {
                    self.sparse.insert(id, merged);
                }
            }
        }
    }

    /// The merged id of `id`. What has no entry in its segment must have none in the merged plane.
    #[inline]
    pub(super) fn get(&mut self, id: i64, table: &mut Table) -> i64 {
        if let Some(&merged) = usize::try_from(id).ok().and_then(|at| self.dense.get(at))
            && merged != NONE
        {
            return merged;
        }
        self.unusual(id, table)
    }

    #[cold]
    fn unusual(&mut self, id: i64, table: &mut Table) -> i64 {
        if let Some(&merged) = self.sparse.get(&id) {
            return merged;
        }
        *self.dangling.entry(id).or_insert_with(|| table.dangling(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_ids_unless_another_has_it() {
        let mut table = Table::default();
        assert_eq!(table.assign(7, digest(b"a")), (7, true));
        assert_eq!(table.assign(9, digest(b"a")), (7, false));
        assert_eq!(table.assign(7, digest(b"b")), (2, true));
        assert_eq!(table.assign(2, digest(b"c")), (3, true));
        assert_eq!(table.assign(-5, digest(b"d")), (-5, true));
    }

    #[test]
    fn a_table_is_as_large_as_its_entries_not_as_their_ids() {
        let mut table = Table::default();
        let mut map = IdMap::new();
        let largest = (1 << 20) - 1;
        map.insert(largest, 7);
        assert_eq!(map.dense.len(), 0);
        assert_eq!(map.get(largest, &mut table), 7);
        // Ids without holes end up in the table, whatever their order.
        for id in (0..1000).rev() {
            map.insert(id, id + 1);
        }
        assert_eq!((map.dense.len(), map.sparse.len()), (1000, 1));
        assert!((0..1000).all(|id| map.get(id, &mut table) == id + 1));
        assert_eq!(map.get(largest, &mut table), 7);
        // The last of two entries of one id counts, as in any map of protobuf.
        map.insert(largest, 8);
        assert_eq!(map.get(largest, &mut table), 8);
    }

    #[test]
    fn what_refers_to_nothing_still_does() {
        let mut table = Table::default();
        table.assign(1, digest(b"a"));
        let mut map = IdMap::new();
        map.insert(i64::MAX, 1);
        assert_eq!(map.get(i64::MAX, &mut table), 1);
        assert_eq!(map.get(5, &mut table), 5);
        let none = map.get(1, &mut table);
        assert_ne!(none, 1, "1 belongs to another segment's entry");
        assert_eq!(map.get(1, &mut table), none);
    }
}
