//! The least of any stretch of a sequence, in time that hardly grows with the stretch: step events may overlap
//! so that each of them holds every program.

use std::ops::Range;

/// Values, and the least of each pair, of each pair of pairs, and so on. What is `None` never is the least.
#[derive(Debug)]
pub(super) struct RangeMin<T> {
    /// A tree in an array: the values are the second half, and the parent of `at` is `at / 2`.
    tree: Vec<Option<T>>,
}

impl<T: Ord + Copy> RangeMin<T> {
    pub(super) fn of(values: &[Option<T>]) -> Self {
        let mut tree = vec![None; values.len()];
        tree.extend_from_slice(values);
        for at in (1..values.len()).rev() {
            tree[at] = least(tree[2 * at], tree[2 * at + 1]);
        }
        Self { tree }
    }

    /// The least value in `range`, which must lie within the values.
    pub(super) fn least(&self, range: Range<usize>) -> Option<T> {
        let leaves = self.tree.len() / 2;
        let (mut from, mut to) = (range.start + leaves, range.end + leaves);
        let mut found = None;
        while from < to {
            if from % 2 == 1 {
                found = least(found, self.tree[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                found = least(found, self.tree[to]);
            }
            from /= 2;
            to /= 2;
        }
        found
    }
}

fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local!(static COMPARED: Cell<usize> = const { Cell::new(0) });

    /// A number that counts how often it is compared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Counted(i64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn every_stretch_has_its_least() {
        for len in 0..20usize {
            let values: Vec<Option<i64>> =
                (0..len).map(|at| (at % 3 != 1).then(|| (at as i64 * 7 + 3) % 11)).collect();
            let tree = RangeMin::of(&values);
            for from in 0..=len {
                for to in from..=len {
                    let expected = values[from..to].iter().flatten().min().copied();
                    assert_eq!(tree.least(from..to), expected, "{from}..{to} of {len}");
                }
            }
        }
    }

    #[test]
    fn stretches_that_overlap_are_not_walked() {
        let values: Vec<_> = (0..1000).map(|value| Some(Counted(value))).collect();
        let tree = RangeMin::of(&values);
        for from in 0..1000 {
            assert_eq!(tree.least(from..1000), Some(Counted(from as i64)));
        }
        assert!(COMPARED.get() < 1000 + 1000 * 20, "{}", COMPARED.get());
    }
}
