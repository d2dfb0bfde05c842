//! Steps of the wall clock, seen by comparison with the time since boot.
//!
//! Must never take a drift, a slew or a suspended machine for a step: only what is between two looks counts, and the time
//! since boot goes on while the machine is suspended.

use std::time::Duration;

use model::time::{Clock, Timestamp};

/// A smaller difference is none: the clock drifts or is slewed.
const LEAST_NS: i64 = 500_000_000;
/// Both clocks are read within this time, or not compared: the thread may lose the processor in between.
const LONGEST_LOOK: Duration = Duration::from_millis(50);

/// The steps that were seen.
#[derive(Debug)]
pub struct ClockSteps {
    /// The time since boot and the wall clock at the last look.
    seen: (Duration, Timestamp),
    /// Of all steps, in nanoseconds.
    total_ns: i64,
}

impl ClockSteps {
    /// None so far.
    pub fn new(clock: &dyn Clock) -> Self {
        Self { seen: (clock.uptime(), clock.now()), total_ns: 0 }
    }

    /// By how many nanoseconds the wall clock was stepped since the last look, if it was.
    pub fn look(&mut self, clock: &dyn Clock) -> Option<i64> {
        let (before, now, uptime) = (clock.uptime(), clock.now(), clock.uptime());
        if uptime.saturating_sub(before) > LONGEST_LOOK {
            return None;
        }
        let expected = self.seen.1.plus(uptime.saturating_sub(self.seen.0));
        self.seen = (uptime, now);
        let by = now.0.saturating_sub(expected.0);
        (by.saturating_abs() >= LEAST_NS).then(|| {
            self.total_ns = self.total_ns.saturating_add(by);
            by
        })
    }

    /// By how many nanoseconds it was stepped in all.
    pub fn total_ns(&self) -> i64 {
        self.total_ns
    }
}

#[cfg(test)]
mod tests {
    use model::time::ManualClock;

    use super::*;

    #[test]
    fn only_a_step_is_one() {
        let clock = ManualClock::at(Timestamp(1_800_000_000_000_000_000));
        let mut steps = ClockSteps::new(&clock);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(steps.look(&clock), None);
        // A slew of 500 ppm over an hour, a second at a time.
        for _ in 0..3600 {
            clock.advance(Duration::from_secs(1));
            clock.step(500_000);
            assert_eq!(steps.look(&clock), None);
        }
        clock.advance(Duration::from_secs(1));
        for by in [3_600_000_000_000, -7_200_000_000_000] {
            clock.step(by);
            assert_eq!(steps.look(&clock), Some(by));
            assert_eq!(steps.look(&clock), None);
        }
        assert_eq!(steps.total_ns(), -3_600_000_000_000);
    }
}
