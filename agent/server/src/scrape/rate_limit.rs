//! A token bucket: `burst` requests at once, one more each `interval`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The bucket; starts full.
pub(super) struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// The instant at which it would be full again.
    full_at: Mutex<Instant>,
}

impl TokenBucket {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, full_at: Mutex::new(Instant::now()) }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&self, now: Instant) -> bool {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (*full_at).max(now) + self.interval;
        let fits = next.saturating_duration_since(now) <= self.interval.saturating_mul(self.burst);
        if fits {
            *full_at = next;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_one_an_interval() {
        let bucket = TokenBucket::new(Duration::from_secs(1), 3);
        let now = Instant::now();
        assert_eq!((0..5).filter(|_| bucket.take(now)).count(), 3);
        let later = now + Duration::from_millis(1500);
        assert!(bucket.take(later) && !bucket.take(later));
        assert_eq!((0..9).filter(|_| bucket.take(now + Duration::from_secs(3600))).count(), 3);
    }
}
