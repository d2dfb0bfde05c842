//! Which windows of a process were due and did not begin, and why. Pure.
//!
//! Every look at a process says whether it is recorded, or why not. A window that was due between two looks and did not
//! begin is missed: for the reason of the look before; if the process was to be recorded then, because nobody looked in
//! time. So each missed window has the reason that was observed, and none is left out.
//!
//! Must never count a window twice, or one that began.

use std::time::Duration;

use model::time::Timestamp;

use super::schedule::WindowGrid;

/// Looks that are further apart mean that the agent did not run.
const STALLED: Duration = Duration::from_secs(10);
/// The wall clock may differ so much from the other one between two looks.
const STEPPED: Duration = Duration::from_secs(2);

/// One instant by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LookedAt {
    pub(super) now: Timestamp,
    /// By the clock that never steps.
    pub(super) uptime: Duration,
}

/// Windows that were due and did not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissedWindows {
    /// When the first of them was due.
    pub(super) first: Timestamp,
    /// When the last of them was due.
    pub(super) last: Timestamp,
    pub(super) count: u64,
    pub(super) reason: String,
}

/// The windows of one process so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WindowAccount {
    grid: WindowGrid,
    /// Windows that were due before have begun or are known as missed.
    until: Timestamp,
    looked: LookedAt,
    /// Why it was not recorded when it was looked at.
    absent: Option<String>,
}

impl WindowAccount {
    /// Of a process that is recorded from now on.
    pub(super) fn new(grid: WindowGrid, at: LookedAt) -> Self {
        Self { grid, until: at.now, looked: at, absent: None }
    }

    /// Of a process whose windows up to `until` an earlier agent had accounted for.
    pub(super) fn of_earlier_agent(grid: WindowGrid, until: Timestamp, at: LookedAt) -> Self {
        let absent = Some("the agent was not running".to_owned());
        Self { grid, until: until.min(at.now), looked: at, absent }
    }

    /// The window at `due` begins, or is left out for a reason that is noted.
    pub(super) fn accounted(&mut self, due: Timestamp) {
        self.until = self.until.max(due.plus(Duration::from_nanos(1)));
    }

    /// Looks at the process, which is recorded, or `absent` says why not. Returns what was missed since the last look.
    pub(super) fn look(
        &mut self,
        grid: WindowGrid,
        at: LookedAt,
        absent: Option<&str>,
    ) -> Option<MissedWindows> {
        let (before, looked) = (self.absent.take(), std::mem::replace(&mut self.looked, at));
        self.absent = absent.map(str::to_owned);
        // Windows of another grid were due at other instants.
        if grid != self.grid {
            (self.grid, self.until) = (grid, at.now);
            return None;
        }
        // What is due from now on is due again, by the clock that was set back.
        let expected = looked.now.plus(at.uptime.saturating_sub(looked.uptime));
        if at.now.age(expected) > STEPPED {
            self.until = at.now;
        }
        let (first, last, count) = grid.instants(self.until, at.now)?;
        self.until = at.now;
        let reason = before.unwrap_or_else(|| unseen(looked, at, absent));
        Some(MissedWindows { first, last, count, reason })
    }
}

/// Why a window did not begin of a process that was to be recorded.
fn unseen(looked: LookedAt, at: LookedAt, absent: Option<&str>) -> String {
    let passed = at.uptime.saturating_sub(looked.uptime);
    let wall = looked.now.age(at.now);
    match absent {
        _ if wall > passed + STEPPED => {
            format!("the clock was set forward by {:.0} s", (wall - passed).as_secs_f64())
        }
        _ if passed > STALLED => format!(
            "the agent did not run for {:.0} s: it was stopped (SIGSTOP), or the machine slept",
            passed.as_secs_f64()
        ),
        Some(absent) => absent.to_owned(),
        None => "the agent was too busy to begin in time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use model::{job::JobKind, workload::WorkloadId};
    use proptest::prelude::*;

    use super::*;

    const EVERY: Duration = Duration::from_secs(60);

    fn grid() -> WindowGrid {
        WindowGrid::new(EVERY, &WorkloadId { kind: JobKind::Run, job: "j".into() })
    }

    fn at(seconds: u64) -> LookedAt {
        let passed = Duration::from_secs(seconds);
        LookedAt { now: Timestamp(1_800_000_000_000_000_000).plus(passed), uptime: passed }
    }

    /// What a look finds, as windows and reason.
    fn found(account: &mut WindowAccount, seconds: u64, absent: Option<&str>) -> Option<(u64, String)> {
        account.look(grid(), at(seconds), absent).map(|missed| (missed.count, missed.reason))
    }

    #[test]
    fn each_missed_window_has_the_reason_that_was_seen() {
        let mut account = WindowAccount::new(grid(), at(0));
        let due = grid().first(at(0).now);
        assert_eq!(found(&mut account, 1, None), None);
        account.accounted(due);
        assert_eq!(found(&mut account, 5, None), None);
        // Nobody looks for five minutes.
        let (count, reason) = found(&mut account, 305, None).unwrap();
        assert!(count >= 4 && reason.starts_with("the agent did not run for 300 s"), "{count} {reason}");
        // It is switched off, and on again after ten.
        found(&mut account, 308, Some("it was switched off"));
        assert_eq!(
            found(&mut account, 608, Some("it was switched off")).unwrap(),
            (5, "it was switched off".into())
        );
        assert_eq!(found(&mut account, 908, None).unwrap(), (5, "it was switched off".into()));
        assert_eq!(found(&mut account, 909, None), None);
        // Another interval has other windows.
        let other = WindowGrid::new(EVERY / 2, &WorkloadId { kind: JobKind::Run, job: "j".into() });
        assert_eq!(account.look(other, at(1200), None), None);
    }

    #[test]
    fn an_agent_that_did_not_run_and_a_clock_that_was_set_are_told_apart() {
        let mut restarted = WindowAccount::of_earlier_agent(grid(), at(0).now, at(300));
        assert_eq!(found(&mut restarted, 300, None).unwrap(), (5, "the agent was not running".into()));
        let mut set = WindowAccount::new(grid(), at(0));
        let forward = LookedAt { uptime: Duration::from_secs(1), ..at(301) };
        let missed = set.look(grid(), forward, None).unwrap();
        assert_eq!((missed.count, missed.reason.as_str()), (5, "the clock was set forward by 300 s"));
        // Back again: what is over is not counted again, and what is missed from then on is.
        let back = |seconds: u64| LookedAt { uptime: Duration::from_secs(seconds + 1), ..at(seconds) };
        assert_eq!(set.look(grid(), back(2), Some("off")), None);
        let missed = set.look(grid(), back(122), Some("off")).unwrap();
        assert_eq!((missed.count, missed.reason.as_str()), (2, "off"));
    }

    proptest! {
        #[test]
        fn every_window_is_accounted_for_once(
            looks in prop::collection::vec((1..100_u64, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut account = WindowAccount::new(grid(), at(0));
            let (mut seconds, mut begun, mut missed) = (0, 0, 0);
            for (after, begins, is_on) in looks {
                seconds += after;
                missed += account.look(grid(), at(seconds), (!is_on).then_some("off")).map_or(0, |found| found.count);
                let due = grid().first(at(seconds).now);
                // As the recorder does: shortly before it is due.
                if begins && is_on && at(seconds).now.age(due) <= Duration::from_secs(1) && due >= account.until {
                    account.accounted(due);
                    begun += 1;
                }
            }
            let all = grid().instants(at(0).now, at(seconds).now.plus(Duration::from_secs(1))).map_or(0, |all| all.2);
            prop_assert!(begun + missed <= all && begun + missed + 1 >= all, "{begun} {missed} {all}");
        }
    }
}
