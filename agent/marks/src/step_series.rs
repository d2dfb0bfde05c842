//! The steps of marked workloads as series of the metrics page: how long they take, and how far the job is.
//!
//! Counted from the marks that were stored since the agent started, and bounded in workloads, recorders and steps. Must
//! never count a mark before the disk has it, or twice, or time in which steps do not follow each other.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use goodput::{
    entry::{JobEvent, Payload},
    exact::{DEVIATION_STEPS, StepInfo},
    time::Nanos,
};
use model::{
    catalog,
    distribution::{Distribution, Histogram},
    label::Labels,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::{Clock, Timestamp},
    workload::{Workload, WorkloadId},
};
use store::marks::{Appended, MarkBatch};

/// The name of the ledger that answers from marks.
pub(crate) const LEDGER: &str = "exact";
/// Upper bounds of the buckets of step times, in seconds.
const BOUNDS: [f64; 15] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];
/// The most workloads of which steps are kept; the one that marked longest ago goes first.
const MOST_WORKLOADS: usize = 32;
/// The most recorders of a workload whose last step is kept; the one that came first goes first.
const MOST_RECORDERS: usize = 8;
/// What only a payload with the start of a step has.
const STEP_KEY: &str = "step_start_time";

/// The steps of all workloads that mark them.
pub struct StepSeries {
    clock: Arc<dyn Clock>,
    kept: Mutex<KeptSteps>,
}

impl fmt::Debug for StepSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepSeries").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct KeptSteps {
    workloads: BTreeMap<WorkloadId, MarkedSteps>,
    /// Batches with steps so far.
    batches: u64,
}

impl StepSeries {
    /// Without any step.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// Counts the steps of a batch that is stored, without the marks that were stored before.
    pub(crate) fn stored(&self, batch: &MarkBatch, appended: &Appended) {
        let doubled = usize::try_from(appended.doubled).unwrap_or(usize::MAX);
        let marks = batch.marks.iter().skip(doubled).flatten();
        let steps: Vec<_> =
            marks.filter_map(|mark| Some((mark.workload.as_ref()?, step_of(&mark.payload)?))).collect();
        if steps.is_empty() {
            return;
        }
        let recorder = batch.numbered.as_ref().map_or("", |(id, _)| id.as_str());
        let now = self.clock.now();
        let mut kept = self.kept();
        kept.batches += 1;
        for (workload, (step, start)) in steps {
            let steps = kept.of(workload, now);
            steps.begin(recorder, step, start);
        }
    }

    /// The series of the workloads that run, as they are at `at`.
    pub fn samples(&self, running: &[Arc<Workload>], at: Timestamp) -> Vec<Sample> {
        let kept = self.kept();
        let known = running.iter().filter_map(|workload| Some((workload, kept.workloads.get(&workload.id)?)));
        known.flat_map(|(workload, steps)| steps.samples(workload, at)).collect()
    }

    fn kept(&self) -> MutexGuard<'_, KeptSteps> {
        // A step is a few assignments that cannot panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptSteps {
    /// The steps of a workload, for which others make room.
    fn of(&mut self, workload: &WorkloadId, now: Timestamp) -> &mut MarkedSteps {
        if !self.workloads.contains_key(workload) && self.workloads.len() >= MOST_WORKLOADS {
            let oldest = self.workloads.iter().min_by_key(|(_, steps)| steps.batch);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                self.workloads.remove(&oldest);
            }
        }
        let steps = self.workloads.entry(workload.clone()).or_insert_with(|| MarkedSteps::since(now));
        steps.batch = self.batches;
        steps
    }
}

/// The number and the start of the step that a payload marks, in epoch seconds.
fn step_of(payload: &str) -> Option<(i64, f64)> {
    if !payload.contains(STEP_KEY) {
        return None;
    }
    let entry = Payload::parse(payload.as_bytes()).ok()?.entry(Nanos(0), "".into());
    entry.events.as_slice().iter().find_map(|event| match event {
        JobEvent::Step { step, start } => Some((*step, *start)),
        _ => None,
    })
}

/// The last step of a recorder.
#[derive(Debug)]
struct RecorderStep {
    recorder: String,
    step: i64,
    start: f64,
}

/// The steps of one workload.
#[derive(Debug)]
struct MarkedSteps {
    /// When the counting started.
    since: Timestamp,
    /// Steps by bucket; one more than [`BOUNDS`].
    counts: Vec<u64>,
    sum: f64,
    /// Step and time of the last steps, in the order in which they were first marked.
    times: VecDeque<(i64, f64)>,
    recorders: Vec<RecorderStep>,
    last: i64,
    /// The last batch with a step of it.
    batch: u64,
}

impl MarkedSteps {
    fn since(since: Timestamp) -> Self {
        let counts = vec![0; BOUNDS.len() + 1];
        Self { since, counts, sum: 0.0, times: VecDeque::new(), recorders: Vec::new(), last: 0, batch: 0 }
    }

    /// A recorder marks that a step begins, and so the step before ends.
    fn begin(&mut self, recorder: &str, step: i64, start: f64) {
        self.last = step;
        let Some(known) = self.recorders.iter_mut().find(|known| known.recorder == recorder) else {
            if self.recorders.len() >= MOST_RECORDERS {
                self.recorders.remove(0);
            }
            return self.recorders.push(RecorderStep { recorder: recorder.to_owned(), step, start });
        };
        let (before, began) = (known.step, known.start);
        (known.step, known.start) = (step, start);
        let time = start - began;
        // A clock that was set back tells nothing.
        if before.checked_add(1) == Some(step) && time >= 0.0 {
            self.end(before, time);
        }
    }

    fn end(&mut self, step: i64, time: f64) {
        // A bucket includes its bound.
        self.counts[BOUNDS.partition_point(|bound| *bound < time)] += 1;
        self.sum += time;
        let is_next = self.times.back().is_none_or(|(last, _)| *last < step);
        let known = if is_next { None } else { self.times.iter_mut().find(|(known, _)| *known == step) };
        if let Some(repeated) = known {
            repeated.1 = time;
            return;
        }
        if self.times.len() >= DEVIATION_STEPS {
            self.times.pop_front();
        }
        self.times.push_back((step, time));
    }

    fn samples(&self, workload: &Arc<Workload>, at: Timestamp) -> Vec<Sample> {
        let sample = |metric: &'static Descriptor, value| Sample {
            metric: metric.into(),
            labels: Labels::one("ledger", LEDGER),
            value,
            origin: Origin::Agent,
            at,
            workload: Some(Arc::clone(workload)),
        };
        let (since, counts, sum) = (self.since, self.counts.clone(), self.sum);
        let times = Distribution::first(Histogram { since, bounds: BOUNDS.into(), counts, sum });
        let mut samples = vec![
            sample(&catalog::TPU_JOB_STEP_SECONDS, SampleValue::Distribution(Arc::new(times))),
            sample(&catalog::TPU_JOB_LAST_STEP, SampleValue::Gauge(self.last as f64)),
        ];
        if let Some(info) = StepInfo::of_list(self.times.iter().copied().collect()) {
            let deviation = info.from_baseline.cumulative;
            samples.extend([
                sample(&catalog::TPU_JOB_STEP_IDEAL_SECONDS, SampleValue::Gauge(info.ideal)),
                sample(&catalog::TPU_JOB_STEP_DEVIATION_SECONDS, SampleValue::Gauge(deviation)),
            ]);
        }
        samples
    }
}

#[cfg(test)]
mod tests;
