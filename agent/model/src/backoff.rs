//! How long to wait before trying again what failed. Pure: no clock, and randomness is passed in.

use std::time::Duration;

/// Waits that grow twofold with each failure up to a limit, spread at random over the whole range so that many hosts do
/// not retry in step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// No failure yet. The wait after the first failure is at most `first`; no wait is longer than `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a success: the next failure is a first one again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns the wait before the next attempt: at least half of `first`, because nothing that
    /// failed is retried at once. `random` is from 0 to 1.
    pub fn failed(&mut self, random: f64) -> Duration {
        let doublings = self.failures.min(31);
        self.failures = self.failures.saturating_add(1);
        let most = self.first.saturating_mul(1 << doublings).min(self.longest);
        spread(self.first / 2, most, random)
    }
}

/// A wait from `least` to `most`; `random` is from 0 to 1.
pub fn spread(least: Duration, most: Duration, random: f64) -> Duration {
    let random = if random.is_nan() { 1.0 } else { random.clamp(0.0, 1.0) };
    let least = least.min(most);
    least + (most - least).mul_f64(random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_double_to_a_limit_and_begin_again_after_a_success() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second);
        let waits: Vec<_> = (0..5).map(|_| backoff.failed(1.0).as_secs()).collect();
        assert_eq!((waits, backoff.failures()), (vec![1, 2, 4, 5, 5], 5));
        assert_eq!(backoff.failed(0.0), second / 2);
        backoff.succeeded();
        assert_eq!((backoff.failures(), backoff.failed(1.0)), (0, second));
    }

    proptest! {
        #[test]
        fn every_wait_is_within_its_bounds(
            first in 2..100_000u64,
            longest in 1..10_000_000u64,
            randoms in prop::collection::vec(prop_oneof![any::<f64>(), 0.0..=1.0], 1..100),
        ) {
            let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
            let mut backoff = Backoff::new(first, longest);
            for (failures, random) in randoms.into_iter().enumerate() {
                let most = first.saturating_mul(1 << failures.min(31)).min(longest);
                let wait = backoff.failed(random);
                prop_assert!(wait >= (first / 2).min(longest) && wait <= most, "{wait:?} of {most:?}");
                prop_assert_eq!(backoff.failures() as usize, failures + 1);
            }
        }

        #[test]
        fn randomness_uses_the_whole_range(most in 1..1_000_000u64, a in 0.0..=1.0f64, b in 0.0..=1.0f64) {
            let most = Duration::from_millis(most);
            let spread = |random| spread(Duration::ZERO, most, random);
            prop_assert_eq!((spread(0.0), spread(1.0)), (Duration::ZERO, most));
            prop_assert!(a > b || spread(a) <= spread(b));
        }
    }
}
