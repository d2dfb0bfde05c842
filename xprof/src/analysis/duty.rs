//! How long a core was busy, over all its lines of operations: a core normally has one, but may have more.

use super::{
    busy::Busy,
    device_events::Interval,
    union::{self, Union},
};

/// How many pieces of busy time are kept of each line, where they are wanted.
const MOST_PIECES: usize = 1 << 18;

/// When a core was busy, by one definition of busy.
#[derive(Debug, Default)]
pub(super) struct Duty {
    busy: Busy,
    /// Of the line that is read.
    line: Union,
    /// Of the lines before it, where there are several.
    pieces: Vec<(i64, i64)>,
    whole: bool,
}

impl Duty {
    /// `keep` tells that the pieces of busy time are wanted, not only their length.
    pub(super) fn new(keep: bool) -> Self {
        Self { line: Self::union(keep), whole: true, ..Self::default() }
    }

    fn union(keep: bool) -> Union {
        if keep { Union::keeping(MOST_PIECES) } else { Union::default() }
    }

    #[inline]
    pub(super) fn push(&mut self, at: Interval, on_duty: bool) {
        self.busy.push(at.start, at.end, on_duty, &mut self.line);
    }

    /// Ends a line; another one that overlaps it may follow if the pieces are kept.
    pub(super) fn end_line(&mut self, keep: bool) {
        self.busy.finish(&mut self.line);
        if keep {
            let (pieces, whole) = self.line.pieces();
            self.pieces.extend(pieces);
            self.whole &= whole;
            self.line = Self::union(keep);
        }
    }

    /// How long the core was busy, the pieces if they were kept, and whether they are all.
    pub(super) fn finish(mut self) -> (i64, Vec<(i64, i64)>, bool) {
        if self.pieces.is_empty() {
            return (self.line.total(), Vec::new(), self.whole);
        }
        (union::length(self.pieces.clone()), self.pieces, self.whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_overlap_count_once() {
        let mut duty = Duty::new(true);
        for line in [[(0, 10), (20, 30)], [(5, 12), (28, 40)]] {
            line.iter().for_each(|&(start, end)| duty.push(Interval { start, end }, true));
            duty.end_line(true);
        }
        let (busy, pieces, whole) = duty.finish();
        assert_eq!((busy, pieces.len(), whole), (12 + 20, 4, true));
    }
}
