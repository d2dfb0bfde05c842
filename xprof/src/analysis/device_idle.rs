//! When no program ran on any core of a host, between its first and its last program: what the host does then holds
//! the device up, what it does while a program runs does not.

use super::{device_events::Interval, union::Union};

/// The gaps between the programs of all cores of a host, on the session's time line.
#[derive(Debug, Default)]
pub(super) struct DeviceIdle {
    /// Where each gap starts and ends, and how long the gaps before it are together.
    gaps: Vec<(i64, i64, i64)>,
    total_ps: i64,
    span_ps: i64,
}

impl DeviceIdle {
    /// The gaps between `programs`, which come in any order.
    pub(super) fn between(programs: impl Iterator<Item = Interval>) -> Self {
        let mut programs: Vec<Interval> = programs.collect();
        programs.sort_unstable_by_key(|program| program.start);
        let mut union = Union::keeping(programs.len() + 1);
        programs.iter().for_each(|program| union.add(program.start, program.end));
        let (pieces, _) = union.pieces();
        let mut idle = Self::default();
        for pair in pieces.windows(2) {
            let (start, end) = (pair[0].1, pair[1].0);
            idle.gaps.push((start, end, idle.total_ps));
            idle.total_ps = idle.total_ps.saturating_add(end.saturating_sub(start));
        }
        if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
            idle.span_ps = last.1.saturating_sub(first.0);
        }
        idle
    }

    /// How long the device was idle before `at`.
    #[inline]
    pub(super) fn before(&self, at: i64) -> i64 {
        match self.gaps.partition_point(|&(start, ..)| start <= at).checked_sub(1) {
            Some(gap) => {
                let (start, end, before) = self.gaps[gap];
                before.saturating_add(at.min(end).saturating_sub(start))
            }
            None => 0,
        }
    }

    /// How long it was idle in all.
    pub(super) fn total_ps(&self) -> i64 {
        self.total_ps
    }

    /// From the start of the first program to the end of the last.
    pub(super) fn span_ps(&self) -> i64 {
        self.span_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_programs_of_all_cores_is_idle() {
        let at = |start, end| Interval { start, end };
        let idle = DeviceIdle::between([at(50, 60), at(0, 10), at(5, 20), at(30, 50)].into_iter());
        assert_eq!((idle.total_ps(), idle.span_ps()), (10, 60));
        assert_eq!([0, 20, 25, 30, 99].map(|at| idle.before(at)), [0, 0, 5, 10, 10]);
        assert_eq!(DeviceIdle::between([].into_iter()).before(5), 0);
    }
}
