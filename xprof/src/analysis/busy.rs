//! When a core was busy: at each instant the innermost operation of its nest decides.
//!
//! A loop that waits in a nested infeed is not busy, and an infeed around a copy is while the copy runs. What
//! overlaps only partly is no nest: both count for all of their time. So says XProf, too.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{nesting::DEEPEST, union::Union};

/// How many stretches wait for earlier ones. Only operations that overlap partly make any wait; beyond this
/// many the earliest no longer does, and what comes late to it may count for less.
const MOST_AHEAD: usize = 4096;

/// An operation that others may still be nested in.
#[derive(Debug, Clone, Copy)]
struct OpenInterval {
    start: i64,
    end: i64,
    /// From here on the time is its own, unless more is nested in it.
    from: i64,
    on_duty: bool,
}

/// The open operations of a line. They come by start, enclosing ones first.
#[derive(Debug, Default)]
pub(super) struct Busy {
    open: Vec<OpenInterval>,
    /// Stretches that begin after the latest start: shorter ones before them may follow.
    ahead: BinaryHeap<Reverse<(i64, i64)>>,
}

impl Busy {
    /// Takes the next operation, and adds the stretches that are known by now to `union`.
    #[inline]
    pub(super) fn push(&mut self, start: i64, end: i64, on_duty: bool, union: &mut Union) {
        while let Some(&top) = self.open.last() {
            if top.start <= start && end <= top.end && self.open.len() < DEEPEST {
                break;
            }
            self.open.pop();
            self.own(top, top.end, start, union);
        }
        if let Some(parent) = self.open.last_mut() {
            let before = *parent;
            parent.from = parent.from.max(end);
            self.own(before, start, start, union);
        }
        self.open.push(OpenInterval { start, end, from: start, on_duty });
        self.settle(start, union);
    }

    /// Ends everything that is open.
    pub(super) fn finish(&mut self, union: &mut Union) {
        while let Some(top) = self.open.pop() {
            self.own(top, top.end, i64::MAX, union);
        }
        self.settle(i64::MAX, union);
    }

    /// Counts the time of `op` from where it is its own to `end`; nothing that follows starts before `now`.
    #[inline]
    fn own(&mut self, op: OpenInterval, end: i64, now: i64, union: &mut Union) {
        if !op.on_duty || op.from >= end {
            return;
        }
        if op.from <= now && self.ahead.is_empty() {
            union.add(op.from, end);
            return;
        }
        self.ahead.push(Reverse((op.from, end)));
        if self.ahead.len() > MOST_AHEAD
            && let Some(Reverse((start, end))) = self.ahead.pop()
        {
            union.add(start, end);
        }
    }

    #[inline]
    fn settle(&mut self, now: i64, union: &mut Union) {
        while let Some(&Reverse((start, end))) = self.ahead.peek()
            && start <= now
        {
            self.ahead.pop();
            union.add(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: bool = true;
    const OFF: bool = false;

    fn busy(ops: &[(i64, i64, bool)]) -> i64 {
        let (mut busy, mut union) = (Busy::default(), Union::default());
        for &(start, end, on_duty) in ops {
            busy.push(start, end, on_duty, &mut union);
        }
        busy.finish(&mut union);
        union.total()
    }

    /// Each figure is what XProf 2.24.2 says of a trace with these operations.
    #[test]
    fn the_innermost_operation_decides() {
        assert_eq!(busy(&[(0, 100, ON), (20, 40, OFF)]), 80);
        assert_eq!(busy(&[(0, 100, ON), (20, 40, OFF), (50, 60, ON), (70, 130, ON)]), 110);
        assert_eq!(busy(&[(0, 100, ON), (0, 100, OFF)]), 0);
        assert_eq!(busy(&[(0, 100, ON), (0, 100, OFF), (0, 100, ON)]), 100);
        assert_eq!(busy(&[(0, 100, OFF), (20, 40, ON)]), 20);
        assert_eq!(busy(&[(0, 100, ON), (10, 90, OFF), (20, 30, ON)]), 30);
        assert_eq!(busy(&[(0, 100, ON), (20, 20, OFF)]), 100);
    }

    #[test]
    fn partial_overlaps_take_nothing_off() {
        assert_eq!(busy(&[(0, 60, ON), (40, 100, OFF)]), 60);
        assert_eq!(busy(&[(0, 100, ON), (90, 110, OFF)]), 100);
        assert_eq!(busy(&[(0, 60, ON), (40, 100, ON), (45, 55, OFF)]), 100);
        assert_eq!(busy(&[(0, 100, ON), (20, 55, OFF), (30, 70, ON)]), 90);
        assert_eq!(busy(&[(0, 100, ON), (20, 55, OFF), (30, 70, OFF)]), 50);
    }

    #[test]
    fn stretches_that_end_late_wait_for_earlier_ones() {
        assert_eq!(busy(&[(0, 100, ON), (10, 60, ON), (20, 55, OFF), (30, 70, ON)]), 90);
        assert_eq!(busy(&[(0, 100, ON), (20, 55, OFF), (30, 120, ON)]), 110);
        assert_eq!(busy(&[(0, 100, ON), (10, 50, OFF), (40, 120, ON), (60, 70, OFF)]), 90);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut busy, mut union) = (Busy::default(), Union::default());
        for at in 0..10 * MOST_AHEAD as i64 {
            // Each ends after the one before and waits for its child until long after the last start.
            busy.push(2 * at, 2 * at + 1_000_000_000, ON, &mut union);
            busy.push(2 * at + 1, 2 * at + 999_999_999, OFF, &mut union);
            assert!(busy.ahead.len() <= MOST_AHEAD && busy.open.len() <= 2);
        }
        busy.finish(&mut union);
        assert!(union.total() > 0);
    }
}
