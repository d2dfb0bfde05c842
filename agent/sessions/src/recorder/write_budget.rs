//! What the recorder may write to the disk: a mean rate over time, for all processes of the host. Pure.

use std::time::Duration;

/// What was written, and until when that is more than the rate allows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct WriteBudget {
    /// When the bytes so far are within the rate, by the clock that never steps.
    paid_at: Duration,
}

impl WriteBudget {
    /// Whether a window may begin at `uptime`.
    pub(super) fn allows(&self, uptime: Duration) -> bool {
        uptime >= self.paid_at
    }

    /// How long the rate takes for what was written, beyond `uptime`.
    pub(super) fn unpaid(&self, uptime: Duration) -> Duration {
        self.paid_at.saturating_sub(uptime)
    }

    /// A window was written at `uptime`. `rate`: bytes per second; 0: no limit.
    pub(super) fn wrote(&mut self, bytes: u64, rate: u64, uptime: Duration) {
        if rate > 0 {
            let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
            let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
            self.paid_at = self.paid_at.max(uptime).saturating_add(takes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_mean_rate_is_kept(
            rate in 1_000..1_000_000_u64,
            windows in prop::collection::vec((0..10_000_u64, 0..10_000_000_u64), 1..50),
        ) {
            let mut budget = WriteBudget::default();
            let mut uptime = Duration::ZERO;
            let (mut written, mut last) = (0_u64, 0_u64);
            for (wait, bytes) in windows {
                uptime += Duration::from_millis(wait);
                if budget.allows(uptime) {
                    // All but the last window is paid for.
                    let allowed = u128::from(rate) * uptime.as_nanos() / 1_000_000_000;
                    prop_assert!(u128::from(written) <= allowed + u128::from(last) + 1);
                    budget.wrote(bytes, rate, uptime);
                    (written, last) = (written + bytes, bytes);
                }
            }
        }
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut budget = WriteBudget::default();
        budget.wrote(u64::MAX, 0, Duration::ZERO);
        assert!(budget.allows(Duration::ZERO));
    }
}
