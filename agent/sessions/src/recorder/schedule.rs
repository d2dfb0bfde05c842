//! When the windows of a job begin: at multiples of `every` in UTC, moved by an offset that comes from the job's id.
//!
//! All processes and hosts of a job compute the same instants without a word to each other: in a job whose hosts wait for
//! each other, windows at different times would slow down all of them several times, and only common windows can be
//! compared. Jobs have different offsets, so that a host with several is not busy with all at once.
//!
//! Pure. Must never depend on the host, put two windows closer than half of `every` whatever the clock does, or make up
//! for windows that were missed.

use std::time::Duration;

use model::{time::Timestamp, workload::WorkloadId};

/// The instants at which windows of one job may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowGrid {
    every_ns: i64,
    offset_ns: i64,
}

impl WindowGrid {
    /// The grid of a job.
    pub(super) fn new(every: Duration, job: &WorkloadId) -> Self {
        let every_ns = i64::try_from(every.as_nanos()).unwrap_or(i64::MAX).max(1);
        // Whole milliseconds: people compare these times.
        let offsets = (every_ns / MILLISECOND).max(1).unsigned_abs();
        let offset = i64::try_from(hash(job) % offsets).unwrap_or(0);
        Self { every_ns, offset_ns: offset * MILLISECOND }
    }

    /// The first instant of the grid at or after `at`.
    pub(super) fn first(&self, at: Timestamp) -> Timestamp {
        let past = at.0.saturating_sub(self.offset_ns).rem_euclid(self.every_ns);
        Timestamp(if past == 0 { at.0 } else { at.0.saturating_add(self.every_ns - past) })
    }

    /// The first and the last instant in `from..to`, and how many there are; `None` if there is none.
    pub(super) fn instants(&self, from: Timestamp, to: Timestamp) -> Option<(Timestamp, Timestamp, u64)> {
        let first = self.first(from);
        let more = to.0.checked_sub(first.0).filter(|left| *left > 0)?.saturating_sub(1) / self.every_ns;
        let last = Timestamp(first.0.saturating_add(more.saturating_mul(self.every_ns)));
        Some((first, last, more.unsigned_abs() + 1))
    }

    fn every(&self) -> Duration {
        Duration::from_nanos(self.every_ns.unsigned_abs())
    }
}

const MILLISECOND: i64 = 1_000_000;

/// FNV-1a: the same on all machines and in all versions.
fn hash(job: &WorkloadId) -> u64 {
    let bytes = job.kind.as_str().bytes().chain([0]).chain(job.job.bytes());
    let mixed = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // Its low bits differ little between ids that differ in the last digit.
    mixed ^ (mixed >> 32)
}

/// The windows of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WindowSchedule {
    /// When the last one began, by the clock that never steps.
    last: Option<Duration>,
}

impl WindowSchedule {
    /// When the next window begins: `now` and `uptime` are one instant by both clocks.
    pub(super) fn next(&self, grid: &WindowGrid, now: Timestamp, uptime: Duration) -> Timestamp {
        let due = grid.first(now);
        let Some(last) = self.last else { return due };
        let earliest = last + grid.every() / 2;
        let too_early = earliest.saturating_sub(uptime + now_to(due, now));
        if too_early.is_zero() { due } else { grid.first(due.plus(too_early)) }
    }

    /// The window at `due` is recorded.
    pub(super) fn begun(&mut self, due: Timestamp, now: Timestamp, uptime: Duration) {
        self.last = Some(uptime + now_to(due, now));
    }
}

fn now_to(due: Timestamp, now: Timestamp) -> Duration {
    now.age(due)
}

#[cfg(test)]
mod tests {
    use model::job::JobKind;
    use proptest::prelude::*;

    use super::*;

    fn job(id: &str) -> WorkloadId {
        WorkloadId { kind: JobKind::Slurm, job: id.to_owned(), uid: 0 }
    }

    #[test]
    fn a_jobs_windows_are_at_the_same_instants_for_ever() {
        let at = |id: &str, seconds: i64| {
            let grid = WindowGrid::new(Duration::from_secs(60), &job(id));
            grid.first(Timestamp(seconds * 1_000_000_000)).0
        };
        // What a version computes, each later one has to: hosts of one job may have different versions.
        assert_eq!([at("42", 0), at("43", 0)], [16_913_000_000, 5_350_000_000]);
        assert_eq!(at("42", 600), 616_913_000_000);
    }

    #[test]
    fn instants_are_counted() {
        let grid = WindowGrid { every_ns: 10, offset_ns: 3 };
        let of = |from, to| grid.instants(Timestamp(from), Timestamp(to)).map(|(a, b, n)| (a.0, b.0, n));
        assert_eq!(of(0, 3), None);
        assert_eq!(of(0, 4), Some((3, 3, 1)));
        assert_eq!(of(3, 13), Some((3, 3, 1)));
        assert_eq!(of(4, 34), Some((13, 33, 3)));
        assert_eq!(of(40, 4), None);
    }

    #[test]
    fn jobs_are_spread() {
        let grids = (0..100).map(|id| WindowGrid::new(Duration::from_secs(60), &job(&id.to_string())));
        let mut tenths: Vec<i64> = grids.map(|grid| grid.offset_ns / 6_000_000_000).collect();
        tenths.sort_unstable();
        tenths.dedup();
        assert_eq!(tenths.len(), 10, "{tenths:?}");
    }

    /// What happens between two looks at the clock.
    #[derive(Debug, Clone)]
    enum Passed {
        Time(u64),
        Step(i64),
    }

    fn passed() -> impl proptest::strategy::Strategy<Value = Passed> {
        prop_oneof![
            6 => (0..40_000_u64).prop_map(Passed::Time),
            1 => (-4_000_000..4_000_000_i64).prop_map(Passed::Step),
        ]
    }

    proptest! {
        #[test]
        fn windows_lie_on_the_grid_and_are_never_too_close(
            every_s in 5..3600_u64,
            id in "[a-z0-9]{1,12}",
            steps in prop::collection::vec(passed(), 1..200),
        ) {
            let every = Duration::from_secs(every_s);
            let grid = WindowGrid::new(every, &job(&id));
            let mut schedule = WindowSchedule::default();
            let (mut now, mut uptime) = (Timestamp(1_800_000_000_000_000_000), Duration::ZERO);
            let mut last: Option<Duration> = None;
            for step in steps {
                match step {
                    Passed::Time(ms) => {
                        now = now.plus(Duration::from_millis(ms));
                        uptime += Duration::from_millis(ms);
                    }
                    Passed::Step(ms) => now = now.stepped(ms * MILLISECOND),
                }
                let due = schedule.next(&grid, now, uptime);
                prop_assert!(due >= now && grid.first(due) == due);
                prop_assert!(now.age(due) < every * 2, "no window is put off for long");
                // It is recorded if it is near, as the recorder does.
                if now.age(due) < Duration::from_secs(1) {
                    let begins = uptime + now.age(due);
                    if let Some(last) = last {
                        prop_assert!(begins >= last + every / 2, "{last:?} {begins:?}");
                    }
                    last = Some(begins);
                    schedule.begun(due, now, uptime);
                }
            }
        }

        #[test]
        fn without_steps_of_the_clock_no_window_is_left_out(
            every_s in 5..3600_u64,
            id in "[a-z0-9]{1,12}",
            start in 0..1_000_000_000_000_i64,
        ) {
            let every = Duration::from_secs(every_s);
            let grid = WindowGrid::new(every, &job(&id));
            let mut schedule = WindowSchedule::default();
            let (mut now, mut uptime) = (Timestamp(start), Duration::from_secs(7));
            let first = schedule.next(&grid, now, uptime);
            for number in 0..20 {
                let due = schedule.next(&grid, now, uptime);
                prop_assert_eq!(due, first.plus(every * number));
                schedule.begun(due, now, uptime);
                // The next look comes soon after the window began.
                uptime += now.age(due) + Duration::from_millis(10);
                now = due.plus(Duration::from_millis(10));
            }
        }
    }
}
