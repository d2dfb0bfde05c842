//! The most bytes a second that all uploads of the agent send together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// The most bytes that are sent at a time.
const MAX_PIECE: usize = 64 << 10;

/// A rate that many requests share. Clones are one rate.
#[derive(Debug, Clone, Default)]
pub struct SendRate(Option<Arc<Limit>>);

#[derive(Debug)]
struct Limit {
    bytes_per_second: u64,
    /// When all that was taken so far is sent.
    free_at: Mutex<Option<Instant>>,
}

impl SendRate {
    /// So many bytes a second; 0: no limit.
    pub fn new(bytes_per_second: u64) -> Self {
        let limit = (bytes_per_second > 0).then(|| Limit { bytes_per_second, free_at: Mutex::default() });
        Self(limit.map(Arc::new))
    }

    /// The most bytes to take at a time: so few that the wait for them is far shorter than the idle time of a connection.
    pub(crate) fn piece(&self) -> usize {
        let quarter = |limit: &Arc<Limit>| usize::try_from(limit.bytes_per_second / 4).unwrap_or(MAX_PIECE);
        self.0.as_ref().map_or(MAX_PIECE, quarter).clamp(1, MAX_PIECE)
    }

    /// Takes `bytes` and waits until they may be sent.
    pub(crate) async fn wait(&self, bytes: usize) {
        if let Some(at) = self.take(bytes, Instant::now()) {
            sleep_until(at).await;
        }
    }

    /// Takes `bytes` and returns when they may be sent; `None`: at once.
    pub(crate) fn take(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let limit = self.0.as_ref()?;
        let mut free_at = limit.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        // What was not used before is not saved up.
        let start = free_at.map_or(now, |at| at.max(now));
        let nanoseconds = (bytes as u64).saturating_mul(1_000_000_000) / limit.bytes_per_second;
        *free_at = Some(start + Duration::from_nanos(nanoseconds));
        (start > now).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_together_send_no_more_than_the_rate() {
        let rate = SendRate::new(1000);
        let now = Instant::now();
        assert_eq!(rate.take(500, now), None);
        assert_eq!(rate.clone().take(500, now), Some(now + Duration::from_millis(500)));
        assert_eq!(rate.take(1, now), Some(now + Duration::from_secs(1)));
        let later = now + Duration::from_secs(60);
        assert_eq!(rate.take(1000, later), None);
        assert_eq!(rate.take(1000, later), Some(later + Duration::from_secs(1)));
        assert_eq!(SendRate::new(0).take(usize::MAX, now), None);
        let piece = |rate| SendRate::new(rate).piece();
        assert_eq!([0, 1, 1000, 100 << 20].map(piece), [MAX_PIECE, 1, 250, MAX_PIECE]);
    }
}
