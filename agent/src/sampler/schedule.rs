//! When something that is done every so often is due. Must never drift, nor make up for what was missed.

use std::time::Duration;

use tokio::time::Instant;

/// When the ticks are: at once, and then at whole multiples of the interval after the epoch.
pub(super) struct Schedule {
    due: Instant,
    tick: u32,
    epoch: Instant,
    interval: Duration,
}

impl Schedule {
    pub(super) fn new(epoch: Instant, interval: Duration) -> Self {
        let due = Instant::now();
        Self { due, tick: passed(epoch, due, interval), epoch, interval }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Goes to the next tick that is not over; gives how many are.
    pub(super) fn advance(&mut self, now: Instant) -> u64 {
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
