//! The names of a plane's stats, and the texts that `ref_value`s stand for, packed into one string.

/// How many bytes of names one plane keeps. What comes later is counted and forgotten.
const MOST_BYTES: usize = 16 << 20;
/// How many names one plane keeps.
const MOST_NAMES: usize = 1 << 19;
/// How much of one name is kept.
const LONGEST: usize = 4 << 10;

/// Stat metadata ids and their names.
#[derive(Debug, Clone, Default)]
pub struct StatNames {
    text: String,
    /// Sorted by id once [`Self::seal`] ran: id, where the name starts and ends in `text`.
    entries: Vec<(i64, u32, u32)>,
    dropped: u64,
}

impl StatNames {
    /// Adds a name; a later one of the same id replaces it.
    pub(super) fn push(&mut self, id: i64, name: &[u8]) {
        let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST)]);
        if self.entries.len() >= MOST_NAMES || self.text.len() + name.len() > MOST_BYTES {
            self.dropped += 1;
            return;
        }
        let start = self.text.len() as u32;
        self.text.push_str(&name);
        self.entries.push((id, start, self.text.len() as u32));
    }

    /// Sorts what was pushed.
    pub(super) fn seal(&mut self) {
        // Stable, so that of equal ids the last one pushed stays last and wins.
        self.entries.sort_by_key(|entry| entry.0);
        self.entries.reverse();
        self.entries.dedup_by_key(|entry| entry.0);
        self.entries.reverse();
        self.entries.shrink_to_fit();
        self.text.shrink_to_fit();
    }

    /// The name of `id`.
    pub fn get(&self, id: i64) -> Option<&str> {
        let at = self.entries.binary_search_by_key(&id, |entry| entry.0).ok()?;
        let (_, start, end) = self.entries[at];
        self.text.get(start as usize..end as usize)
    }

    /// Every id and name, by id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &str)> {
        self.entries.iter().map(|&(id, start, end)| (id, &self.text[start as usize..end as usize]))
    }

    /// The id of a name, where the plane has it. Goes through all names: not for every line or event.
    pub fn id(&self, name: &str) -> Option<i64> {
        #[cfg(test)]
        SEARCHES.set(SEARCHES.get() + 1);
        self.iter().find(|&(_, known)| known == name).map(|(id, _)| id)
    }

    /// How many names were over the limit and forgotten.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
thread_local! {
    /// How often [`StatNames::id`] was asked.
    pub(crate) static SEARCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_of_an_id_wins() {
        let mut names = StatNames::default();
        for (id, name) in [(7, "a"), (3, "b"), (7, "c")] {
            names.push(id, name.as_bytes());
        }
        names.seal();
        assert_eq!(names.iter().collect::<Vec<_>>(), [(3, "b"), (7, "c")]);
        assert_eq!(names.get(7), Some("c"));
        assert_eq!(names.get(8), None);
        assert_eq!(names.id("b"), Some(3));
    }
}
