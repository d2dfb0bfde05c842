//! Spreads events that overlap without nesting over several lanes: a viewer's track holds nested slices only,
//! and drops what does not fit.

use std::cmp::Reverse;

/// How many lanes one line gets; what overlaps even more goes to the last one.
const MOST_LANES: usize = 32;

/// How many events an unsorted line may have to be laid out as if it were sorted: their times are held.
pub(super) const MOST_UNSORTED: u64 = 1 << 19;

/// The lanes of one line's events, asked for in the file's order.
#[derive(Debug)]
pub(super) enum LineLanes {
    /// The events are sorted by start, enclosing ones first.
    Sorted(Lanes),
    /// They are not, but it is known where each belongs.
    Known {
        /// The lanes of those still to come, last one first.
        rest: Vec<u8>,
        overfull: u64,
    },
    /// They are not, and are too many: all are in one lane.
    One { before: (u64, u64), latest_end: u64, overfull: u64 },
}

impl LineLanes {
    pub(super) fn sorted() -> Self {
        Self::Sorted(Lanes::default())
    }

    /// The lanes of slices in any order.
    pub(super) fn of(slices: &[(u64, u64)]) -> Self {
        let mut order: Vec<u32> = (0..slices.len() as u32).collect();
        order.sort_by_key(|&at| (slices[at as usize].0, Reverse(slices[at as usize].1)));
        let (mut lanes, mut rest) = (Lanes::default(), vec![0; slices.len()]);
        for at in order {
            let (start, end) = slices[at as usize];
            // Less than `MOST_LANES`.
            rest[slices.len() - 1 - at as usize] = lanes.place(start, end) as u8;
        }
        Self::Known { rest, overfull: lanes.overfull() }
    }

    pub(super) fn one() -> Self {
        Self::One { before: (0, 0), latest_end: 0, overfull: 0 }
    }

    /// The lane of the next slice.
    #[inline]
    pub(super) fn next(&mut self, start: u64, end: u64) -> usize {
        match self {
            Self::Sorted(lanes) => lanes.place(start, end),
            Self::Known { rest, .. } => rest.pop().unwrap_or_default().into(),
            Self::One { before, latest_end, overfull } => {
                // The markers of a thread are written as they end, outer ones after inner ones.
                let nests = start <= before.0 && before.1 <= end || before.0 <= start && end <= before.1;
                *overfull += u64::from(start < *latest_end && !nests);
                *before = (start, end);
                *latest_end = end.max(*latest_end);
                0
            }
        }
    }

    /// How many slices may not be seen in their lane.
    pub(super) fn overfull(&self) -> u64 {
        match self {
            Self::Sorted(lanes) => lanes.overfull(),
            Self::Known { overfull, .. } | Self::One { overfull, .. } => *overfull,
        }
    }
}

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
    fn slices_out_of_order_get_the_lanes_of_sorted_ones() {
        let slices = [(5, 12), (1, 4), (0, 10), (11, 20), (4, 10)];
        let mut lanes = LineLanes::of(&slices);
        assert_eq!(slices.map(|(start, end)| lanes.next(start, end)), [1, 0, 0, 0, 0]);
        assert_eq!(lanes.overfull(), 0);
    }

    #[test]
    fn in_one_lane_nested_markers_are_seen_and_others_counted() {
        let mut lanes = LineLanes::one();
        for (start, end) in [(1, 4), (4, 8), (0, 10), (10, 12), (10, 20)] {
            assert_eq!(lanes.next(start, end), 0);
        }
        assert_eq!(lanes.overfull(), 0);
        lanes.next(15, 25);
        lanes.next(30, 40);
        lanes.next(21, 35);
        assert_eq!(lanes.overfull(), 2);
    }

    #[test]
    fn there_are_not_more_lanes_than_allowed() {
        let mut lanes = Lanes::default();
        let last = (0..100).map(|i| lanes.place(i, 1000 + i)).max();
        assert_eq!(last, Some(MOST_LANES - 1));
        assert_eq!(lanes.overfull(), 100 - MOST_LANES as u64);
    }
}
