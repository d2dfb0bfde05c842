//! Whether the wall clock may decide about the age of sessions. Pure.
//!
//! It may not before it is synchronised, nor for a day after it stepped by more than an hour: a clock that is wrong makes
//! every session old.

use std::time::Duration;

use model::time::Timestamp;
use tokio::time::Instant;

/// A larger difference between two clocks is a step.
const STEP: Duration = Duration::from_secs(3600);
/// How long the clock is not trusted after a step.
const PAUSE: Duration = Duration::from_secs(24 * 3600);

/// The clock, as it was seen at each look.
#[derive(Debug, Default)]
pub(crate) struct ClockTrust {
    last: Option<(Timestamp, Instant)>,
    stepped: Option<Timestamp>,
}

impl ClockTrust {
    /// Looks at the wall clock. Returns true if it has stepped since the last look.
    pub(crate) fn look(&mut self, wall: Timestamp, monotonic: Instant) -> bool {
        let stepped = self.last.is_some_and(|(last_wall, last)| {
            let passed = monotonic.saturating_duration_since(last);
            let expected = last_wall.plus(passed);
            expected.age(wall).max(wall.age(expected)) > STEP
        });
        self.last = Some((wall, monotonic));
        if stepped {
            self.stepped = Some(wall);
        }
        stepped
    }

    /// A step of which an earlier process knew.
    pub(crate) fn remember(&mut self, stepped: Option<Timestamp>) {
        self.stepped = self.stepped.or(stepped);
    }

    /// Whether the time `wall` may decide about ages.
    pub(crate) fn trusts(&self, wall: Timestamp, synchronised: bool) -> bool {
        let paused = self.stepped.is_some_and(|stepped| wall < stepped || stepped.age(wall) < PAUSE);
        synchronised && !paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NOW: Timestamp = Timestamp(1_800_000_000_000_000_000);

    #[test]
    fn a_clock_is_trusted_when_it_is_synchronised_and_did_not_step() {
        let start = Instant::now();
        let mut trust = ClockTrust::default();
        assert!(!trust.look(NOW, start));
        assert!(trust.trusts(NOW, true) && !trust.trusts(NOW, false));
        // It runs on, and is corrected by less than an hour.
        assert!(!trust.look(NOW.plus(30 * HOUR), start + 30 * HOUR));
        assert!(!trust.look(NOW.plus(31 * HOUR + HOUR / 2), start + 31 * HOUR));
        assert!(trust.trusts(NOW.plus(32 * HOUR), true));
    }

    #[test]
    fn a_step_in_either_direction_pauses_for_a_day() {
        for step in [-2 * 3600, 2 * 3600, 10 * 365 * 24 * 3600] {
            let start = Instant::now();
            let mut trust = ClockTrust::default();
            trust.look(NOW, start);
            let stepped = Timestamp(NOW.0 + step * 1_000_000_000);
            assert!(trust.look(stepped, start));
            assert!(!trust.trusts(stepped.plus(23 * HOUR), true), "{step}");
            assert!(trust.trusts(stepped.plus(24 * HOUR), true), "{step}");
            let mut next = ClockTrust::default();
            next.remember(Some(stepped));
            assert!(!next.trusts(stepped.plus(HOUR), true) && next.trusts(stepped.plus(25 * HOUR), true));
            // Set back to before the step.
            assert!(!next.trusts(Timestamp(stepped.0 - 1), true));
        }
    }
}
