//! Places that are taken once each, by ranges that may overlap: a range goes over those that none took before it.

use std::ops::Range;

/// The places that are left.
#[derive(Debug)]
pub(super) struct Untaken {
    /// Per place: itself while it is left, else a later place at which to look further. One more at the end.
    next: Vec<usize>,
}

impl Untaken {
    pub(super) fn new(places: usize) -> Self {
        Self { next: (0..=places).collect() }
    }

    /// Takes what is left in `range`, which must lie within the places.
    pub(super) fn take(&mut self, range: Range<usize>, mut taken: impl FnMut(usize)) {
        let mut at = self.left_from(range.start);
        while at < range.end {
            taken(at);
            self.next[at] = at + 1;
            at = self.left_from(at + 1);
        }
    }

    /// Whether `place` is left.
    pub(super) fn is_left(&self, place: usize) -> bool {
        self.next[place] == place
    }

    /// The first place from `at` on that is left. What it went over becomes a shorter way each time.
    fn left_from(&mut self, mut at: usize) -> usize {
        while self.next[at] != at {
            let further = self.next[self.next[at]];
            self.next[at] = further;
            at = further;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_take_each_place_once() {
        let mut places = Untaken::new(100);
        let mut order = Vec::new();
        for range in [40..50, 45..60, 10..10, 30..41, 0..100, 20..70] {
            places.take(range, |at| order.push(at));
            assert!((0..100).all(|at| places.is_left(at) != order.contains(&at)));
        }
        assert_eq!(order, (40..60).chain(30..40).chain(0..30).chain(60..100).collect::<Vec<_>>());
    }
}
