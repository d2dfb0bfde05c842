//! When a peer that failed is called again.

use std::time::Duration;

use model::backoff::Backoff;
use tokio::time::Instant;

/// The longest wait: a peer that appears is read within seconds.
const LONGEST: Duration = Duration::from_secs(4);
const FIRST: Duration = Duration::from_millis(500);

/// The failures of one peer, and the time before which it is not called.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    backoff: Backoff,
    next: Option<Instant>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { backoff: Backoff::new(FIRST, LONGEST), next: None }
    }
}

impl Retry {
    /// Whether the peer may be called.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// The call succeeded.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The call failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.next = Some(now + self.backoff.failed(fastrand::f64()));
    }

    /// The peer is not to be called before `until`.
    pub(super) fn rest(&mut self, until: Instant) {
        self.next = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_failed_is_called_later_and_one_that_succeeded_at_once() {
        let mut retry = Retry::default();
        let now = Instant::now();
        assert!(retry.due(now));
        retry.failed(now);
        assert!(!retry.due(now) && retry.due(now + FIRST));
        for _ in 0..1000 {
            retry.failed(now);
        }
        assert!(!retry.due(now) && retry.due(now + LONGEST));
        retry.succeeded();
        assert!(retry.due(now));
        retry.rest(now + LONGEST * 9);
        assert!(!retry.due(now + LONGEST * 8));
    }
}
