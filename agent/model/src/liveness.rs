//! Whether a task that ticks still does.
//!
//! Each tick says when the next is due, so that a slower pace is no standstill and a faster one no alarm. Must never
//! count by the wall clock, which may be set.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Within its own deadlines a read takes no longer than this.
const READ: Duration = Duration::from_secs(6);

/// By when the next tick has come, in good health.
#[derive(Debug)]
pub struct Liveness {
    epoch: Instant,
    /// Milliseconds after the epoch.
    by: AtomicU64,
}

impl Liveness {
    /// The liveness of a task that is about to tick for the first time.
    pub fn new(epoch: Instant) -> Self {
        let liveness = Self { epoch, by: AtomicU64::new(0) };
        liveness.expect(epoch, Duration::ZERO);
        liveness
    }

    /// The next tick is due then, the following ones every `interval`: two that fail are no standstill.
    pub fn expect(&self, due: Instant, interval: Duration) {
        let by = due.saturating_duration_since(self.epoch) + interval.saturating_mul(2) + READ;
        self.by.fetch_max(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether no tick has come for too long.
    pub fn is_late(&self) -> bool {
        self.epoch.elapsed() > Duration::from_millis(self.by.load(Ordering::Relaxed))
    }
}
