//! When a step begins, from a step that was seen and the mean time of a step. Pure.
//!
//! Must never give an instant for a step that has begun, or one that is too far ahead to be worth a wait.

use std::time::Duration;

use thiserror::Error;

/// The furthest ahead that a step is waited for.
pub const FURTHEST: Duration = Duration::from_secs(24 * 3600);
/// A window begins half a step before its step, but not earlier than this: so the step is whole in it although the prediction is
/// not exact.
const MOST_MARGIN: Duration = Duration::from_secs(1);

/// A step that was seen, and the time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenStep {
    /// Its number.
    pub number: i64,
    /// How long ago it began.
    pub age: Duration,
    /// The mean time from one step to the next.
    pub step: Duration,
}

/// What is predicted of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPrediction {
    /// From now until the window is to begin.
    pub window_in: Duration,
    /// From now until the step begins.
    pub step_in: Duration,
}

/// Why a step cannot be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Unpredictable {
    /// It has begun, or begins too early for a window.
    #[error(
        "step {wanted} has passed, or begins now: about step {now} runs, and the earliest that can be captured is {earliest}"
    )]
    Passed {
        /// The step.
        wanted: i64,
        /// The one that runs now.
        now: i64,
        /// The first that can be waited for.
        earliest: i64,
    },
    /// It is too far ahead.
    #[error("step {wanted} is expected in {:.0} h, more than the {:.0} h that a capture waits: about step {now} runs", .after.as_secs_f64() / 3600.0, FURTHEST.as_secs_f64() / 3600.0)]
    TooFar {
        /// The step.
        wanted: i64,
        /// The one that runs now.
        now: i64,
        /// In how long it is expected.
        after: Duration,
    },
}

impl SeenStep {
    /// The step that runs now, as far as is known.
    pub fn now(&self) -> i64 {
        self.number.saturating_add(steps(nanoseconds(self.age) / self.step_ns()))
    }

    /// When step `wanted` begins. `lead` is what a window needs to begin.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn predict(&self, wanted: i64, lead: Duration) -> Result<StepPrediction, Unpredictable> {
        let begin = i128::from(wanted) - i128::from(self.number);
        let until = begin.saturating_mul(self.step_ns()).saturating_sub(nanoseconds(self.age));
        let margin = (self.step / 2).min(MOST_MARGIN);
        let window = until.saturating_sub(nanoseconds(margin));
        if window < nanoseconds(lead) {
            let earliest = self.first_after(self.age + lead + margin);
            return Err(Unpredictable::Passed { wanted, now: self.now(), earliest });
        }
        let after = duration(until);
        if after > FURTHEST {
            return Err(Unpredictable::TooFar { wanted, now: self.now(), after });
        }
        Ok(StepPrediction { window_in: duration(window), step_in: after })
    }

    /// The first step that begins so long after the seen one, or later.
    fn first_after(&self, time: Duration) -> i64 {
        let step = self.step_ns();
        self.number.saturating_add(steps((nanoseconds(time) + step - 1) / step))
    }

    fn step_ns(&self) -> i128 {
        nanoseconds(self.step).max(1)
    }
}

fn steps(count: i128) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn nanoseconds(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

fn duration(nanoseconds: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanoseconds.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAD: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_window_begins_half_a_step_before_its_step() {
        let seen = SeenStep { number: 100, age: ms(3050), step: ms(100) };
        assert_eq!(seen.now(), 130);
        let expected = StepPrediction { window_in: ms(6900), step_in: ms(6950) };
        assert_eq!(seen.predict(200, LEAD), Ok(expected));
        // Of a long step not half.
        let long = SeenStep { number: 100, age: ms(0), step: ms(8000) };
        assert_eq!(long.predict(101, LEAD).map(|it| it.window_in), Ok(ms(7000)));
    }

    #[test]
    fn what_has_passed_or_is_too_far_is_refused() {
        let seen = SeenStep { number: 100, age: ms(3050), step: ms(100) };
        let passed = |wanted| Err(Unpredictable::Passed { wanted, now: 130, earliest: 141 });
        assert_eq!(seen.predict(100, LEAD), passed(100));
        assert_eq!(seen.predict(i64::MIN, LEAD), passed(i64::MIN));
        assert_eq!(seen.predict(140, LEAD), passed(140));
        assert!(seen.predict(141, LEAD).is_ok());
        let day = 24 * 3600 * 10;
        assert!(seen.predict(130 + day, LEAD).is_ok());
        let far = seen.predict(140 + day, LEAD).unwrap_err();
        assert!(matches!(far, Unpredictable::TooFar { now: 130, .. }), "{far}");
        assert!(matches!(seen.predict(i64::MAX, LEAD), Err(Unpredictable::TooFar { .. })));
    }

    proptest! {
        /// A job with steps of one length: wherever it is looked at, a step that can be waited for begins when it is
        /// predicted, and the earliest that is named can be waited for.
        #[test]
        fn a_steady_job_is_predicted_exactly(
            number in -1_000_000_000..1_000_000_000_i64,
            step in 1..20_000_000_000_u64,
            age in 0..200_000_000_000_u64,
            ahead in -1000..100_000_i64,
            waited in 0..100_000_000_000_u64,
        ) {
            let seen = SeenStep { number, age: Duration::from_nanos(age), step: Duration::from_nanos(step) };
            let wanted = number + ahead;
            match seen.predict(wanted, LEAD) {
                Ok(now) => {
                    prop_assert_eq!(
                        now.step_in.as_nanos(),
                        u128::from(step) * u128::from(ahead.unsigned_abs()) - u128::from(age)
                    );
                    prop_assert!(now.window_in >= LEAD && now.window_in <= now.step_in);
                    // Later the same instant is predicted, or it is too late.
                    let later = SeenStep { age: seen.age + Duration::from_nanos(waited), ..seen };
                    match later.predict(wanted, LEAD) {
                        Ok(then) => prop_assert_eq!(then.step_in + Duration::from_nanos(waited), now.step_in),
                        Err(Unpredictable::Passed { .. }) => {
                            prop_assert!(Duration::from_nanos(waited) + LEAD > now.window_in);
                        }
                        Err(far) => prop_assert!(false, "{}", far),
                    }
                }
                Err(Unpredictable::Passed { now, earliest, .. }) => {
                    prop_assert!(now <= earliest && wanted < earliest, "{} {} {}", wanted, now, earliest);
                    prop_assert!(seen.predict(earliest, LEAD).is_ok());
                }
                Err(Unpredictable::TooFar { after, .. }) => prop_assert!(after > FURTHEST),
            }
        }

        #[test]
        fn nothing_is_too_large(number: i64, age: u64, step: u64, wanted: i64) {
            let seen = SeenStep { number, age: Duration::from_nanos(age), step: Duration::from_nanos(step) };
            let _ = seen.predict(wanted, LEAD);
            let _ = seen.now();
        }
    }
}
