//! What windows cost a job, as far as its numbered steps tell. Pure.
//!
//! Inside a window the mean step is the time between the starts of its first and its last step; between two windows it is
//! the time from the last step of the one to the first of the other, over their numbers. Without numbers nothing is known
//! of the steps outside, and nothing is said.

use model::step_times::NumberedSteps;
use store::segments::StoredSegment;

/// The mean steps inside the windows of a process and between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredCost {
    /// Inside, in nanoseconds.
    pub inside_step_ns: f64,
    /// Between, in nanoseconds.
    pub between_step_ns: f64,
    /// How many windows it comes from.
    pub windows: u64,
    /// How much longer the steps inside are: 0.1 is 10 %. Negative if they are shorter.
    pub slowdown: f64,
    /// What that is of the whole time: a window is a part of the time until the next one begins.
    pub share: f64,
}

/// The newest windows tell: a job changes.
const WINDOWS: usize = 30;

/// The cost for one process, from its segments in the order in which they were kept.
pub(super) fn measure(segments: &[&StoredSegment]) -> Option<MeasuredCost> {
    let newest = &segments[segments.len().saturating_sub(WINDOWS)..];
    let numbered: Vec<NumberedSteps> =
        newest.iter().filter_map(|segment| segment.facts.steps?.numbered).collect();
    let (mut inside, mut between) = (StepSum::default(), StepSum::default());
    for steps in &numbered {
        inside.add(steps.last - steps.first, steps.last_start_ns - steps.first_start_ns);
    }
    for pair in numbered.windows(2) {
        between.add(pair[1].first - pair[0].last, pair[1].first_start_ns - pair[0].last_start_ns);
    }
    let (inside_step_ns, between_step_ns) = (inside.mean()?, between.mean()?);
    let slowdown = inside_step_ns / between_step_ns - 1.0;
    // There is one stretch between less than there are windows.
    let (window, rest) = (inside.stretch()?, between.stretch()?);
    let share = slowdown * window / (window + rest);
    Some(MeasuredCost { inside_step_ns, between_step_ns, windows: numbered.len() as u64, slowdown, share })
}

#[derive(Default)]
struct StepSum {
    steps: i64,
    ns: i64,
    stretches: u32,
}

impl StepSum {
    /// A restart counts from the beginning again, and a clock may step: such a pair tells nothing.
    fn add(&mut self, steps: i64, ns: i64) {
        if steps > 0 && ns > 0 {
            self.steps = self.steps.saturating_add(steps);
            self.ns = self.ns.saturating_add(ns);
            self.stretches += 1;
        }
    }

    /// The mean length of what was added, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "means of measured times")]
    fn stretch(&self) -> Option<f64> {
        (self.stretches > 0).then(|| self.ns as f64 / f64::from(self.stretches))
    }

    #[expect(clippy::cast_precision_loss, reason = "means of measured times")]
    fn mean(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.ns as f64 / self.steps as f64)
    }
}

#[cfg(test)]
mod tests {
    use model::{
        job::JobKind,
        step_times::TraceSteps,
        time::Timestamp,
        workload::{ProcessKey, WorkloadId},
    };
    use store::segments::{RecordedProcess, SegmentFacts};

    use super::*;

    fn segment(numbered: Option<(i64, i64, i64, i64)>) -> StoredSegment {
        let numbered = numbered.map(|(first, last, first_start_ns, last_start_ns)| NumberedSteps {
            first,
            last,
            first_start_ns,
            last_start_ns,
        });
        let steps = Some(TraceSteps { numbered, ..TraceSteps::default() });
        StoredSegment {
            number: 1,
            order: 1,
            process: RecordedProcess {
                workload: WorkloadId { kind: JobKind::Process, job: "1".into() },
                process: ProcessKey::default(),
                port: 1,
                uid: 1,
            },
            start: Timestamp(0),
            stop: Timestamp(0),
            bytes: 1,
            trace_bytes: 1,
            facts: SegmentFacts { steps, ..SegmentFacts::default() },
        }
    }

    #[test]
    fn steps_inside_are_compared_with_those_between() {
        // 10 steps of 11 ns inside, 90 of 10 ns between.
        let all = [segment(Some((0, 10, 0, 110))), segment(Some((100, 110, 1010, 1120)))];
        let cost = measure(&all.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((cost.inside_step_ns, cost.between_step_ns, cost.windows), (11.0, 10.0, 2));
        // A window is 110 of 1010 ns, however many windows there are.
        assert!((cost.slowdown - 0.1).abs() < 1e-9 && (cost.share - 0.1 * 110.0 / 1010.0).abs() < 1e-9);
        let third = segment(Some((200, 210, 2020, 2130)));
        let of_three = measure(&all.iter().chain([&third]).collect::<Vec<_>>()).unwrap();
        assert!((of_three.share - cost.share).abs() < 1e-9, "{of_three:?}");
    }

    #[test]
    fn without_steps_outside_nothing_is_said() {
        let restart = [segment(Some((50, 60, 0, 110))), segment(Some((0, 10, 200, 310)))];
        for unknown in [&restart[..], &restart[..1], &[segment(None), segment(None)], &[]] {
            assert_eq!(measure(&unknown.iter().collect::<Vec<_>>()), None);
        }
    }
}
