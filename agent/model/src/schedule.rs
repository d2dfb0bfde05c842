//! When something that is done every so often is due. Must never drift, nor make up for what was missed, nor put off
//! what was already due because the interval got longer.

use std::time::Duration;

use tokio::time::Instant;

/// When the ticks are: at once, and then at whole multiples of the interval after the epoch.
pub struct Schedule {
    due: Instant,
    tick: u32,
    epoch: Instant,
    interval: Duration,
}

impl Schedule {
    /// The first tick is due at once.
    pub fn new(epoch: Instant, interval: Duration) -> Self {
        let due = Instant::now();
        Self { due, tick: passed(epoch, due, interval), epoch, interval }
    }

    /// When the next tick is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The time between two ticks.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// From now on every `interval`: the next tick comes when it was due, or sooner if the new interval says so.
    pub fn set_interval(&mut self, interval: Duration, now: Instant) {
        if interval == self.interval {
            return;
        }
        self.interval = interval;
        let sooner =
            self.epoch + interval.saturating_mul(passed(self.epoch, now, interval).saturating_add(1));
        self.due = self.due.min(sooner);
        self.tick = passed(self.epoch, self.due, interval);
    }

    /// Goes to the next tick that is not over; gives how many are.
    pub fn advance(&mut self, now: Instant) -> u64 {
        let next = self.tick.saturating_add(1);
        self.tick = next.max(passed(self.epoch, now, self.interval).saturating_add(1));
        self.due = self.epoch + self.interval.saturating_mul(self.tick);
        (self.tick - next).into()
    }
}

/// Whole intervals from `epoch` to `now`.
fn passed(epoch: Instant, now: Instant, interval: Duration) -> u32 {
    let intervals = now.saturating_duration_since(epoch).as_nanos() / interval.as_nanos().max(1);
    u32::try_from(intervals).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn milliseconds() -> impl Strategy<Value = Duration> {
        (250..20_000u64).prop_map(Duration::from_millis)
    }

    proptest! {
        /// A new interval never puts off what is due, nor makes anything due at once; ticks lie on the grid of an
        /// interval that held.
        #[test]
        fn the_interval_may_change_at_any_time(
            first in milliseconds(),
            steps in prop::collection::vec((0..5_000u64, prop::option::of(milliseconds())), 1..50),
        ) {
            let mut now = Instant::now();
            let epoch = now;
            let mut schedule = Schedule::new(epoch, first);
            for (wait, change) in steps {
                now += Duration::from_millis(wait);
                let before = schedule.due();
                if let Some(interval) = change {
                    schedule.set_interval(interval, now);
                    prop_assert!(schedule.due() == before || (now < schedule.due() && schedule.due() < before));
                } else if before <= now {
                    schedule.advance(now);
                    prop_assert!(now < schedule.due() && schedule.due() <= now + schedule.interval());
                }
                if schedule.due() != before {
                    let offset = schedule.due() - epoch;
                    prop_assert_eq!(offset.as_nanos() % schedule.interval().as_nanos(), 0);
                }
            }
        }
    }
}
