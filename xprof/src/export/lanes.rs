//! Spreads events that overlap without nesting over several lanes: a viewer's track holds nested slices only,
//! and drops what does not fit.

/// How many lanes one line gets; what overlaps even more goes to the last one.
const MOST_LANES: usize = 32;

/// The lanes of one line, each with the ends of its open slices, outermost first.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Vec<u64>>,
    overfull: u64,
}

impl Lanes {
    /// The lane for a slice. Slices must come sorted by start, enclosing ones first.
    #[inline]
    pub(super) fn place(&mut self, start: u64, end: u64) -> usize {
        for (at, open) in self.lanes.iter_mut().enumerate() {
            while open.last().is_some_and(|&last| last <= start) {
                open.pop();
            }
            if open.last().is_none_or(|&last| end <= last) {
                open.push(end);
                return at;
            }
        }
        if self.lanes.len() == MOST_LANES {
            self.overfull += 1;
            return MOST_LANES - 1;
        }
        self.lanes.push(vec![end]);
        self.lanes.len() - 1
    }

    /// How many slices found no lane of their own.
    pub(super) fn overfull(&self) -> u64 {
        self.overfull
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_and_following_slices_share_a_lane() {
        let mut lanes = Lanes::default();
        let places: Vec<_> = [(0, 10), (1, 4), (4, 10), (5, 12), (10, 11), (11, 20)]
            .map(|(start, end)| lanes.place(start, end))
            .into();
        assert_eq!(places, [0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn there_are_not_more_lanes_than_allowed() {
        let mut lanes = Lanes::default();
        let last = (0..100).map(|i| lanes.place(i, 1000 + i)).max();
        assert_eq!(last, Some(MOST_LANES - 1));
        assert_eq!(lanes.overfull(), 100 - MOST_LANES as u64);
    }
}
