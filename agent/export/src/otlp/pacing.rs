//! When the next export is due: on a grid of the interval, and after a failure when its wait is over. Pure.
//!
//! What failed is not kept: the next export has newer values of the same series, and sums and histograms count since their
//! start. Must never export more often than the collector asked for, or retry what it refused before the next interval.

use std::time::Duration;

use model::{backoff::Backoff, schedule::Schedule};
use tokio::time::Instant;

/// The first wait after a failure, at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that is not asked for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The longest wait that a collector may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(600);

/// How an export ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportEnd {
    /// The collector took it.
    Sent,
    /// It failed, and may be tried again, at the earliest after this time.
    Retry(Duration),
    /// The collector refused it, and would refuse it again.
    Refused,
}

/// The times of exports.
pub(super) struct Pacing {
    schedule: Schedule,
    backoff: Backoff,
}

impl Pacing {
    /// The first export is due now.
    pub(super) fn new(now: Instant, interval: Duration) -> Self {
        Self { schedule: Schedule::new(now, interval), backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT) }
    }

    /// When the export after one that ended so `now` is due. `random` is from 0 to 1.
    pub(super) fn next(&mut self, end: ExportEnd, now: Instant, random: f64) -> Instant {
        if self.schedule.due() <= now {
            self.schedule.advance(now);
        }
        let due = self.schedule.due();
        match end {
            ExportEnd::Sent => {
                self.backoff.succeeded();
                due
            }
            ExportEnd::Retry(asked) => now + self.backoff.failed(random).max(asked.min(LONGEST_ASKED)),
            ExportEnd::Refused => due.max(now + self.backoff.failed(random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_and_a_success_returns_to_the_grid() {
        let start = Instant::now();
        let mut pacing = Pacing::new(start, 15 * SECOND);
        let mut at = |end, now: Duration| pacing.next(end, start + now, 1.0) - start;
        assert_eq!(at(ExportEnd::Sent, SECOND), 15 * SECOND);
        assert_eq!(at(ExportEnd::Retry(Duration::ZERO), 15 * SECOND), 16 * SECOND);
        assert_eq!(at(ExportEnd::Retry(Duration::ZERO), 16 * SECOND), 18 * SECOND);
        assert_eq!(at(ExportEnd::Retry(30 * SECOND), 18 * SECOND), 48 * SECOND);
        // The grid goes on where it was, and what was missed is not made up for.
        assert_eq!(at(ExportEnd::Sent, 52 * SECOND), 60 * SECOND);
        assert_eq!(at(ExportEnd::Refused, 60 * SECOND), 75 * SECOND);
        for now in [75, 90, 105, 120, 150] {
            at(ExportEnd::Refused, now * SECOND);
        }
        assert_eq!(at(ExportEnd::Refused, 200 * SECOND), 260 * SECOND);
    }

    proptest! {
        /// Whatever a collector answers, exports are at least some time apart, and never further than what was asked for.
        #[test]
        fn the_wait_is_bounded(
            ends in prop::collection::vec(prop_oneof![
                Just(ExportEnd::Sent), Just(ExportEnd::Refused),
                (0..u64::MAX).prop_map(|seconds| ExportEnd::Retry(Duration::from_secs(seconds))),
            ], 1..40),
            random in 0.0..=1.0f64,
        ) {
            let mut now = Instant::now();
            let mut pacing = Pacing::new(now, SECOND);
            for end in ends {
                let due = pacing.next(end, now, random);
                let wait = due - now;
                match end {
                    ExportEnd::Sent => prop_assert!(wait <= SECOND),
                    ExportEnd::Refused => prop_assert!(wait <= LONGEST_WAIT.max(SECOND)),
                    ExportEnd::Retry(asked) => {
                        prop_assert!(wait >= (FIRST_WAIT / 2).max(asked.min(LONGEST_ASKED)));
                        prop_assert!(wait <= LONGEST_ASKED);
                    }
                }
                now = due;
            }
        }
    }
}
