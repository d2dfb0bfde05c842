//! Puts the events of one line in order: by start, enclosing ones first.
//!
//! Must never hold more than [`MOST_HELD`] events: of a longer line that is out of order the order is approximate.

use std::cmp::Reverse;

/// How many events of an unsorted line are held to be sorted.
const MOST_HELD: usize = 1 << 18;

/// The events of one line on their way.
#[derive(Debug)]
pub(super) struct InOrder<T> {
    sorted: bool,
    held: Vec<(i64, Reverse<i64>, T)>,
    approximate: bool,
}

impl<T> InOrder<T> {
    /// For a line whose events come in order already, or not.
    pub(super) fn new(sorted: bool) -> Self {
        Self { sorted, held: Vec::new(), approximate: false }
    }

    /// Takes the next event of the line; `emit` gets events in order.
    #[inline]
    pub(super) fn push(&mut self, start: i64, end: i64, what: T, mut emit: impl FnMut(i64, i64, T)) {
        if self.sorted {
            return emit(start, end, what);
        }
        self.held.push((start, Reverse(end), what));
        if self.held.len() > MOST_HELD {
            self.approximate = true;
            self.finish(emit);
        }
    }

    /// Emits what is still held.
    pub(super) fn finish(&mut self, mut emit: impl FnMut(i64, i64, T)) {
        self.held.sort_by_key(|&(start, end, _)| (start, end));
        for (start, Reverse(end), what) in self.held.drain(..) {
            emit(start, end, what);
        }
    }

    /// Whether the order is approximate.
    pub(super) fn is_approximate(&self) -> bool {
        self.approximate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enclosing_events_come_first() {
        let mut line = InOrder::new(false);
        let mut seen = Vec::new();
        for (start, end, what) in [(5, 6, 'c'), (0, 3, 'b'), (0, 10, 'a')] {
            line.push(start, end, what, |_, _, _| panic!("held until the line ends"));
        }
        line.finish(|_, _, what| seen.push(what));
        assert_eq!(seen, ['a', 'b', 'c']);
        assert!(!line.is_approximate());
    }
}
