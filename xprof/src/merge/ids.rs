//! Metadata ids: each segment's own, and the merged plane's.

use std::collections::{HashMap, HashSet};

use sha2::{Digest, Sha256};

use crate::reader::ById;

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

/// The merged plane's entries, by content.
#[derive(Debug, Default)]
pub(super) struct Table {
    by_content: HashMap<ContentId, i64>,
    taken: HashSet<i64>,
    /// Where the search for a free id begins.
    next: i64,
}

impl Table {
    /// The merged id of an entry, and whether it is new. An entry keeps its id where no other entry has it.
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
#[derive(Debug, Default)]
pub(super) struct IdMap {
    merged: ById<i64>,
    /// Ids without an entry.
    dangling: HashMap<i64, i64>,
}

impl IdMap {
    pub(super) fn insert(&mut self, id: i64, merged: i64) {
        self.merged.set(id, merged);
    }

    /// The merged id of `id`. What has no entry in its segment must have none in the merged plane.
    #[inline]
    pub(super) fn get(&mut self, id: i64, table: &mut Table) -> i64 {
        match self.merged.get(id) {
            Some(&merged) => merged,
            None => self.dangling(id, table),
        }
    }

    #[cold]
    fn dangling(&mut self, id: i64, table: &mut Table) -> i64 {
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
    fn what_refers_to_nothing_still_does() {
        let mut table = Table::default();
        table.assign(1, digest(b"a"));
        let mut map = IdMap::default();
        map.insert(i64::MAX, 1);
        assert_eq!(map.get(i64::MAX, &mut table), 1);
        assert_eq!(map.get(5, &mut table), 5);
        let none = map.get(1, &mut table);
        assert_ne!(none, 1, "1 belongs to another segment's entry");
        assert_eq!(map.get(1, &mut table), none);
    }
}
