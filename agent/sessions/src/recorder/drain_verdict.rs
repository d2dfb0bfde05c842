//! What a drain shows of the workload: the interval of the next ones, and whether recording harms.

use std::time::Duration;

use store::segments::StoredSegment;
use tracing::info;

use super::{
    Recorder,
    continuous_recording::{ContinuousRecording, LEAST_EVERY, LONGEST_EVERY, Turn},
};
use crate::continuous::{
    ContinuousSession, ContinuousStrategy,
    growth::{DrainSeen, Harm, HarmVerdict, StepSeen},
};

/// Each drain cuts the step in flight: one in so many is lost.
const STEPS_A_DRAIN: u64 = 10;

impl ContinuousRecording {
    /// What the drain shows of the workload.
    pub(super) async fn judge(
        &mut self,
        recorder: &Recorder,
        (at, took): (Duration, Duration),
        segment: Option<&StoredSegment>,
        session: &mut ContinuousSession,
    ) -> Option<Turn> {
        let steps = segment.and_then(|segment| segment.facts.steps);
        if let Some(steps) = steps {
            let every = Duration::from_nanos(steps.median_ns.saturating_mul(STEPS_A_DRAIN));
            let every = whole_millis(every.clamp(LEAST_EVERY, LONGEST_EVERY));
            // A small change is not worth it.
            if every > self.every * 5 / 4 || every < self.every * 3 / 4 {
                self.every = every;
                session.set_every(every).await;
                self.watch.set_every(every);
                if self.strategy == ContinuousStrategy::Drain {
                    recorder.note_drains(&self.job.process, Some((every, self.level)));
                }
            }
        }
        let step = |number, begin_ns| StepSeen { number, begin_ns };
        let numbered = steps.and_then(|steps| steps.numbered);
        let seen = DrainSeen {
            at,
            took,
            steps: numbered.map(|steps| {
                (step(steps.first, steps.first_start_ns), step(steps.last, steps.last_start_ns))
            }),
        };
        let verdict = self.watch.drained(seen);
        if let Some(turn) = self.turn_of(verdict) {
            return Some(turn);
        }
        if self.strategy == ContinuousStrategy::Drain && self.watch.is_pause_due(at) {
            self.watch.pause(at);
            return Some(Turn::Control);
        }
        None
    }

    /// Whether more is written than the settings allow.
    pub(super) fn judge_writing(
        &mut self,
        recorder: &Recorder,
        segment: Option<&StoredSegment>,
    ) -> Option<Turn> {
        let rate = self.job.settings.recorder.max_write_rate.get();
        let unpaid = recorder.pay(segment.map_or(0, |segment| segment.bytes), rate);
        let verdict = self.watch.wrote(unpaid, self.epoch.elapsed());
        self.turn_of(verdict)
    }

    pub(super) fn harmed(&mut self, harm: Harm) -> Option<Turn> {
        let verdict = self.watch.harmed(harm, self.epoch.elapsed());
        self.turn_of(verdict)
    }

    fn turn_of(&mut self, verdict: HarmVerdict) -> Option<Turn> {
        match verdict {
            HarmVerdict::Fine => None,
            HarmVerdict::Stop(harm) => Some(Turn::GivenUp(harm.to_string())),
            HarmVerdict::Lower(level, harm) => {
                info!(pid = self.job.process.process.pid, %harm, level = level.as_str(), "less is recorded of a process");
                self.level = level;
                Some(Turn::Lower)
            }
        }
    }
}

/// A drain is described as a capture of whole milliseconds.
pub(super) fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use model::time::Timestamp;

    use super::*;
    use crate::{
        settings::Settings as CaptureLimits,
        spec::{CaptureParams, CaptureSpec, ParamsSource},
    };

    /// Steps of 0.7 s and longer make intervals that are not whole milliseconds.
    #[test]
    fn any_interval_of_drains_describes_a_segment() {
        for every in [15_445_932_160, 7_002_522_790, 30_002_633_760, 5_000_000_000_u64] {
            let duration = whole_millis(Duration::from_nanos(every));
            assert!(duration.as_nanos() >= u128::from(every), "{duration:?}");
            let params = CaptureParams { duration, ..CaptureParams::default() };
            let spec = CaptureSpec::new(params, ParamsSource::Agent, &CaptureLimits::default(), Timestamp(0));
            assert!(spec.is_ok(), "{duration:?}: {:?}", spec.err());
        }
    }
}
