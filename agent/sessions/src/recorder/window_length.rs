//! How long the windows of a process are: a window that is shorter than a step shows none.
//!
//! Without a whole step in it, the next window is twice as long, up to the longest. If that shows none either, the job
//! marks no steps, or has longer ones: then windows are short again, and stay so until a step is seen. Pure.

use std::time::Duration;

use model::step_times::TraceSteps;

/// The shortest and the longest window of the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowBounds {
    /// Of the settings, and what every window begins with.
    pub(super) shortest: Duration,
    /// At least `shortest`.
    pub(super) longest: Duration,
}

/// Why a window has another length than the settings say, or shows no step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthReason {
    /// As the settings say.
    Settings,
    /// No whole step was seen so far.
    NoStepYet,
    /// A step takes this long.
    LongSteps(Duration),
    /// The longest window had no whole step.
    NoStepInLongest(Duration),
}

/// The length of the windows of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowLength {
    length: Duration,
    reason: LengthReason,
}

impl WindowLength {
    /// That of the settings.
    pub(super) fn new(bounds: WindowBounds) -> Self {
        Self { length: bounds.shortest, reason: LengthReason::Settings }
    }

    /// The next window's, within the bounds.
    pub(super) fn get(&self, bounds: WindowBounds) -> Duration {
        self.length.clamp(bounds.shortest, bounds.longest.max(bounds.shortest))
    }

    /// Why it has this length.
    pub(super) fn reason(&self) -> LengthReason {
        self.reason
    }

    /// A window of this length was recorded in full, and showed these steps.
    pub(super) fn seen(&mut self, window: Duration, steps: Option<&TraceSteps>, bounds: WindowBounds) {
        let longest = bounds.longest.max(bounds.shortest);
        (self.length, self.reason) = match (steps, self.reason) {
            (Some(steps), _) => {
                let step = Duration::from_nanos(steps.longest_ns);
                // Twice a step holds a whole one wherever the window begins.
                let wanted = Duration::from_millis(u64::try_from((step * 2).as_millis()).unwrap_or(u64::MAX));
                match wanted <= bounds.shortest {
                    true => (bounds.shortest, LengthReason::Settings),
                    false => (wanted.min(longest), LengthReason::LongSteps(step)),
                }
            }
            (None, LengthReason::LongSteps(step)) => (self.length, LengthReason::LongSteps(step)),
            (None, LengthReason::NoStepInLongest(tried)) => {
                (bounds.shortest, LengthReason::NoStepInLongest(tried))
            }
            (None, _) if window >= longest => (bounds.shortest, LengthReason::NoStepInLongest(window)),
            (None, _) => ((window * 2).min(longest), LengthReason::NoStepYet),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(longest: Duration) -> TraceSteps {
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap();
        TraceSteps { count: 1, median_ns: longest_ns, longest_ns, ..TraceSteps::default() }
    }

    /// The lengths of the windows of a job whose steps take so long. A window shows a step if a whole one fits wherever
    /// the window begins.
    fn lengths(step: Option<Duration>, bounds: WindowBounds, windows: usize) -> Vec<u64> {
        let mut length = WindowLength::new(bounds);
        let mut seen = Vec::new();
        for _ in 0..windows {
            let window = length.get(bounds);
            seen.push(u64::try_from(window.as_millis()).unwrap());
            let shown = step.filter(|step| window >= *step * 2).map(steps);
            length.seen(window, shown.as_ref(), bounds);
        }
        seen
    }

    #[test]
    fn windows_grow_until_a_step_fits_or_none_does() {
        let bounds = WindowBounds { shortest: Duration::from_secs(2), longest: Duration::from_secs(20) };
        let of = |step: Option<u64>| lengths(step.map(Duration::from_millis), bounds, 7);
        assert_eq!(of(Some(100)), [2000; 7]);
        assert_eq!(of(Some(8000)), [2000, 4000, 8000, 16000, 16000, 16000, 16000]);
        assert_eq!(of(Some(3000)), [2000, 4000, 8000, 6000, 6000, 6000, 6000]);
        assert_eq!(of(None), [2000, 4000, 8000, 16000, 20000, 2000, 2000]);
        let fixed = WindowBounds { longest: bounds.shortest, ..bounds };
        assert_eq!(lengths(Some(Duration::from_secs(8)), fixed, 3), [2000; 3]);
    }

    proptest! {
        #[test]
        fn windows_stay_within_the_bounds(
            shortest in 100..5000_u64,
            more in 0..60_000_u64,
            seen in prop::collection::vec(prop::option::of(1..40_000_u64), 0..30),
        ) {
            let ms = Duration::from_millis;
            let bounds = WindowBounds { shortest: ms(shortest), longest: ms(shortest + more) };
            let mut length = WindowLength::new(bounds);
            for step in seen {
                let window = length.get(bounds);
                prop_assert!(window >= bounds.shortest && window <= bounds.longest);
                prop_assert_eq!(window.subsec_nanos() % 1_000_000, 0, "profilers take whole milliseconds");
                length.seen(window, step.map(|step| steps(ms(step))).as_ref(), bounds);
            }
        }
    }
}
