//! When to try again what failed: at once, then ever later, for as long as the agent lives.

use std::time::Duration;

use tokio::time::Instant;

/// The longest wait: what appears is picked up within seconds.
const LONGEST: Duration = Duration::from_secs(4);
const FIRST: Duration = Duration::from_millis(500);

/// Waits that double up to [`LONGEST`], each shortened by a random part, so that many never try in step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backoff {
    failures: u32,
    next: Option<Instant>,
}

impl Backoff {
    /// Whether it is time to try.
    pub(super) fn due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// It worked.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// It failed.
    pub(super) fn failed(&mut self, now: Instant) {
        let wait = FIRST.saturating_mul(1 << self.failures.min(8)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.next = Some(now + wait.mul_f64(0.75 + 0.25 * fastrand::f64()));
    }

    /// Nothing is to be tried before `until`.
    pub(super) fn rest(&mut self, until: Instant) {
        self.next = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_end_with_success() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        assert!(backoff.due(now));
        backoff.failed(now);
        assert!(!backoff.due(now) && backoff.due(now + FIRST));
        for _ in 0..1000 {
            backoff.failed(now);
        }
        assert!(!backoff.due(now + LONGEST.mul_f64(0.7)) && backoff.due(now + LONGEST));
        backoff.succeeded();
        assert!(backoff.due(now));
        backoff.rest(now + LONGEST * 9);
        assert!(!backoff.due(now + LONGEST * 8));
    }
}
