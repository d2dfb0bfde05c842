//! What recorded traces tell of the steps of the jobs, for the samples and the status.

use std::time::Duration;

use model::step_times::ReadTrace;
use store::{
    StateError,
    segments::{SegmentQuery, StoredSegment},
};

use super::Recorder;

/// The figures of a trace hold until so many further ones are missing.
const MISSING: u32 = 3;

impl Recorder {
    /// Notes the steps of a segment. The next one is due after `every`.
    pub(super) fn note_steps(&self, segment: &StoredSegment, every: Duration) {
        let fresh_for = every.saturating_mul(MISSING);
        let trace = ReadTrace { steps: segment.facts.steps, stop: segment.stop, fresh_for };
        self.steps.put(segment.process.process, trace);
    }

    /// Notes the steps that an earlier agent read, if they are not old. Blocks.
    ///
    /// # Errors
    /// If the database refuses.
    pub(super) fn restore_steps(&self) -> Result<(), StateError> {
        let every = self.settings().recorder.every.get();
        let old = i64::try_from(every.saturating_mul(MISSING).as_nanos()).unwrap_or(i64::MAX);
        let from = Some(self.clock.now().stepped(old.saturating_neg()));
        let mut segments = self.segments.list(&SegmentQuery { from, ..SegmentQuery::default() })?;
        segments.sort_by_key(|segment| segment.order);
        segments.iter().for_each(|segment| self.note_steps(segment, every));
        Ok(())
    }
}
