//! Why a job was idle, from what Orbax and Grain serve: the seconds in which a checkpoint was written or read, or the
//! next element of the input was not ready.
//!
//! The endpoint is read every few seconds and gives how long the last write, read or wait took. So what is known is how
//! long something lasted and between which two reads it ended: the seconds are named to within this interval. Pure. Must
//! never name a second without a change of a value that says so.

use model::{
    catalog,
    metric::Descriptor,
    sample::{Sample, SampleValue},
};

use goodput::proxy::live::StallCause;

/// A shorter wait for the input belongs to the step.
const LEAST_WAIT: f64 = 1.0;
/// The longest write, read or wait that is believed, in seconds.
const LONGEST: u16 = 7200;

/// What the endpoint of a workload served at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct StallValues {
    /// Seconds for which the last checkpoint write blocked the training.
    write: Option<f64>,
    /// Writes started.
    writes: Option<f64>,
    /// Seconds for which the last checkpoint read blocked.
    read: Option<f64>,
    /// Reads started.
    reads: Option<f64>,
    /// Seconds of the last wait for the next element.
    next: Option<f64>,
    /// Elements that are ready.
    ready: Option<f64>,
}

impl StallValues {
    /// Takes a sample, if it is one of these.
    pub(super) fn take(&mut self, sample: &Sample) {
        let (SampleValue::Gauge(value) | SampleValue::Counter(value)) = sample.value else { return };
        let is = |metric: &'static Descriptor| std::ptr::eq::<Descriptor>(&*sample.metric, metric);
        let field = match () {
            () if is(&catalog::JAX_CHECKPOINT_WRITE_ASYNC_BLOCKING_DURATION_SECONDS) => &mut self.write,
            () if is(&catalog::JAX_ORBAX_WRITE_ASYNC_START_TOTAL) => &mut self.writes,
            () if is(&catalog::JAX_ORBAX_READ_BLOCKING_DURATION_SECONDS) => &mut self.read,
            () if is(&catalog::JAX_ORBAX_READ_ASYNC_START_TOTAL) => &mut self.reads,
            () if is(&catalog::GRAIN_PYTHON_DATASET_NEXT_DURATION_SECONDS) => &mut self.next,
            () if is(&catalog::GRAIN_PYTHON_DATASET_PREFETCH_BUFFER_READY_ELEMENTS) => &mut self.ready,
            () => return,
        };
        *field = Some(value);
    }
}

/// Seconds with a cause, since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CausedSeconds {
    pub(super) cause: StallCause,
    pub(super) from: i64,
    pub(super) until: i64,
}

/// What the endpoint of a job said last.
#[derive(Debug, Default)]
pub(super) struct CauseReader {
    last: Option<(i64, StallValues)>,
    /// Since when a write or a read is under way.
    writing: Option<i64>,
    reading: Option<i64>,
}

impl CauseReader {
    /// Takes what was read in a second; says what follows.
    pub(super) fn read(&mut self, at: i64, now: StallValues) -> Vec<CausedSeconds> {
        let Some((before_at, before)) = self.last.replace((at, now)) else { return Vec::new() };
        // A clock that was stepped, or one page that was read twice.
        if at <= before_at {
            return Vec::new();
        }
        let interval = ReadInterval { from: before_at, to: at };
        let mut caused = Vec::new();
        let write =
            interval.blocking((before.writes, now.writes), (before.write, now.write), &mut self.writing);
        caused.extend(write.map(|range| range.of(StallCause::Save)));
        let read = interval.blocking((before.reads, now.reads), (before.read, now.read), &mut self.reading);
        caused.extend(read.map(|range| range.of(StallCause::Restore)));
        let waited = changed(before.next, now.next).filter(|seconds| *seconds >= LEAST_WAIT);
        caused.extend(waited.map(|seconds| interval.ended_after(seconds).of(StallCause::Input)));
        if before.ready == Some(0.0) && now.ready == Some(0.0) {
            caused.push(interval.of(StallCause::Input));
        }
        caused
    }

    /// The clock was stepped.
    pub(super) fn step(&mut self, by: i64) {
        let at = self.last.as_mut().map(|last| &mut last.0);
        for second in at.into_iter().chain(&mut self.writing).chain(&mut self.reading) {
            *second = second.saturating_add(by);
        }
    }
}

/// The new value, if it is another one. The first value after none is one.
fn changed(before: Option<f64>, now: Option<f64>) -> Option<f64> {
    now.filter(|now| before != Some(*now) && (0.0..=f64::from(LONGEST)).contains(now))
}

/// The time between two reads, or a part of what came before and in it.
#[derive(Debug, Clone, Copy)]
struct ReadInterval {
    from: i64,
    to: i64,
}

impl ReadInterval {
    /// All seconds in which something was that lasted so long and ended between the two reads.
    #[expect(clippy::cast_possible_truncation, reason = "at most LONGEST")]
    fn ended_after(self, seconds: f64) -> Self {
        Self { from: self.from.saturating_sub(seconds.ceil() as i64), to: self.to }
    }

    /// The seconds of something that blocks: `started` counts its starts, and `lasted` is how long the last one blocked.
    fn blocking(
        self,
        started: (Option<f64>, Option<f64>),
        lasted: (Option<f64>, Option<f64>),
        since: &mut Option<i64>,
    ) -> Option<Self> {
        if let (Some(before), Some(now)) = started
            && now > before
        {
            since.get_or_insert(self.from);
        }
        if let Some(seconds) = changed(lasted.0, lasted.1) {
            *since = None;
            return Some(self.ended_after(seconds));
        }
        // It goes on: its end has not come yet.
        let from = since.filter(|since| self.to.saturating_sub(*since) <= i64::from(LONGEST))?;
        Some(Self { from, to: self.to })
    }

    fn of(self, cause: StallCause) -> CausedSeconds {
        CausedSeconds { cause, from: self.from, until: self.to.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reader: &mut CauseReader, at: i64, values: StallValues) -> Vec<(StallCause, i64, i64)> {
        reader.read(at, values).into_iter().map(|it| (it.cause, it.from, it.until)).collect()
    }

    #[test]
    fn a_write_is_named_while_it_goes_on_and_by_its_length_when_it_is_over() {
        let mut reader = CauseReader::default();
        let idle = StallValues { writes: Some(3.0), write: Some(2.0), ..StallValues::default() };
        assert_eq!(all(&mut reader, 100, idle), [], "what was before is not known");
        assert_eq!(all(&mut reader, 110, idle), []);
        let started = StallValues { writes: Some(4.0), ..idle };
        assert_eq!(all(&mut reader, 120, started), [(StallCause::Save, 110, 121)]);
        assert_eq!(all(&mut reader, 130, started), [(StallCause::Save, 110, 131)]);
        let over = StallValues { write: Some(17.5), ..started };
        assert_eq!(all(&mut reader, 140, over), [(StallCause::Save, 112, 141)]);
        assert_eq!(all(&mut reader, 150, over), []);
        // Start and end between two reads.
        let next = StallValues { writes: Some(5.0), write: Some(4.0), ..over };
        assert_eq!(all(&mut reader, 160, next), [(StallCause::Save, 146, 161)]);
    }

    #[test]
    fn the_input_is_named_by_a_long_wait_and_by_an_empty_buffer() {
        let mut reader = CauseReader::default();
        let at = |next, ready| StallValues { next: Some(next), ready: Some(ready), ..StallValues::default() };
        all(&mut reader, 100, at(0.001, 8.0));
        assert_eq!(all(&mut reader, 110, at(0.9, 0.0)), [], "part of a step");
        assert_eq!(all(&mut reader, 120, at(0.9, 0.0)), [(StallCause::Input, 110, 121)]);
        assert_eq!(all(&mut reader, 130, at(25.0, 6.0)), [(StallCause::Input, 95, 131)]);
        assert_eq!(all(&mut reader, 140, at(1e9, 6.0)), [], "not believed");
        assert_eq!(all(&mut reader, 140, at(3.0, 6.0)), [], "the same second");
    }

    #[test]
    fn a_step_of_the_clock_moves_what_is_remembered() {
        let mut reader = CauseReader::default();
        let values = |reads| StallValues { reads: Some(reads), ..StallValues::default() };
        all(&mut reader, 10_000, values(0.0));
        all(&mut reader, 10_010, values(1.0));
        reader.step(-3600);
        assert_eq!(all(&mut reader, 6420, values(1.0)), [(StallCause::Restore, 6400, 6421)]);
    }
}
