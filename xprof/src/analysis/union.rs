//! How long at least one of many intervals lasts.

/// The union of intervals that come by start.
#[derive(Debug, Default, Clone)]
pub(super) struct Union {
    total: i64,
    open: Option<(i64, i64)>,
    kept: Option<Kept>,
}

/// The pieces of a union, for a later union with others.
#[derive(Debug, Default, Clone)]
struct Kept {
    pieces: Vec<(i64, i64)>,
    left: usize,
}

impl Union {
    /// A union that also keeps up to `pieces` of its pieces.
    pub(super) fn keeping(pieces: usize) -> Self {
        Self { kept: Some(Kept { pieces: Vec::new(), left: pieces }), ..Self::default() }
    }

    /// Adds an interval, which starts no earlier than the one before.
    #[inline]
    pub(super) fn add(&mut self, start: i64, end: i64) {
        match &mut self.open {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => {
                self.close();
                self.open = Some((start, end));
            }
        }
    }

    fn close(&mut self) {
        let Some((start, end)) = self.open.take() else { return };
        self.total = self.total.saturating_add(end.saturating_sub(start));
        if let Some(kept) = &mut self.kept
            && kept.left > 0
        {
            kept.left -= 1;
            kept.pieces.push((start, end));
        }
    }

    /// The length.
    pub(super) fn total(&mut self) -> i64 {
        self.close();
        self.total
    }

    /// The kept pieces, and whether they are all.
    pub(super) fn pieces(&mut self) -> (Vec<(i64, i64)>, bool) {
        self.close();
        self.kept.take().map_or((Vec::new(), false), |kept| (kept.pieces, kept.left > 0))
    }
}

/// The length of the union of `pieces`, in any order.
pub(super) fn length(mut pieces: Vec<(i64, i64)>) -> i64 {
    pieces.sort_unstable();
    let mut union = Union::default();
    for (start, end) in pieces {
        union.add(start, end);
    }
    union.total()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_count_once() {
        assert_eq!(length(vec![(5, 9), (0, 2), (1, 3), (9, 10), (6, 7)]), 3 + 5);
        assert_eq!(length(Vec::new()), 0);
    }
}
