//! Lookups by metadata id: a table where ids are small, as real files have them, a map where they are not.

use std::collections::HashMap;

/// Ids below this lie in the table.
const TABLE: usize = 1 << 20;

/// Values by metadata id.
#[derive(Debug, Clone)]
pub(super) struct ById<T> {
    table: Vec<Option<T>>,
    others: HashMap<i64, T>,
}

impl<T: Copy> Default for ById<T> {
    fn default() -> Self {
        Self { table: Vec::new(), others: HashMap::new() }
    }
}

impl<T: Copy> ById<T> {
    /// Sets the value of `id`.
    pub(super) fn set(&mut self, id: i64, value: T) {
        match usize::try_from(id) {
            Ok(at) if at < TABLE => {
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
    pub(super) fn get(&self, id: i64) -> Option<T> {
        match self.table.get(id as usize) {
            Some(value) if id >= 0 => *value,
            _ if self.others.is_empty() => None,
            _ => self.others.get(&id).copied(),
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
            assert_eq!(ids.get(id), Some(id));
        }
        for id in [1, 6, -5, i64::MIN, i64::MAX] {
            assert_eq!(ids.get(id), None);
        }
    }
}
