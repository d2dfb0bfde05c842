//! The steps of the workloads, from traces that were read.
//!
//! It reads no trace itself: whoever does puts what it tells into a table, and this source shows it while it is fresh. Must never show the
//! steps of a process that is gone.

use std::{collections::BTreeSet, future::Future, pin::Pin, sync::Arc};

use model::{
    catalog::{
        TPU_STEP_AGE_SECONDS, TPU_STEP_BUSY_RATIO, TPU_STEP_INPUT_RATIO, TPU_STEP_MEAN_SECONDS,
        TPU_STEP_MEDIAN_SECONDS, TPU_STEP_NUMBER, TPU_STEP_PACE_SECONDS,
    },
    label::Labels,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    step_times::{StepTimes, WorkloadSteps},
    time::Timestamp,
    workload::Workload,
};

use super::{Reading, Source, Tick};

/// The source.
pub struct TraceStepsSource(Arc<StepTimes>);

impl TraceStepsSource {
    /// Shows what is in `steps`.
    pub fn new(steps: Arc<StepTimes>) -> Self {
        Self(steps)
    }

    fn reading(&self, tick: &Tick) -> Reading {
        self.0.retain(&tick.host.workloads.owners.iter().map(|owner| owner.process).collect::<BTreeSet<_>>());
        let mut samples = Vec::new();
        let mut without = Vec::new();
        for workload in &*tick.host.running {
            match self.0.of(&workload.owners) {
                Ok(steps) => samples.extend(of_workload(workload, &steps, tick.at)),
                Err(why) => without.push(format!("{}: {why}", workload.label)),
            }
        }
        // A job without a trace is no fault.
        let unused = samples.is_empty().then(|| match without.is_empty() {
            true => "no workload".to_owned(),
            false => without.join("; "),
        });
        Reading { samples, unused, ..Reading::default() }
    }
}

/// The samples of one workload.
#[expect(clippy::cast_precision_loss, reason = "the values of samples are f64")]
fn of_workload<'a>(
    workload: &'a Arc<Workload>,
    steps: &WorkloadSteps,
    now: Timestamp,
) -> impl Iterator<Item = Sample> + use<'a> {
    let of_trace: [(&'static Descriptor, Option<f64>); 6] = [
        (&TPU_STEP_MEDIAN_SECONDS, Some(steps.median.as_secs_f64())),
        (&TPU_STEP_MEAN_SECONDS, Some(steps.mean.as_secs_f64())),
        (&TPU_STEP_PACE_SECONDS, steps.pace.map(|pace| pace.as_secs_f64())),
        (&TPU_STEP_NUMBER, steps.last.map(|last| last.number as f64)),
        (&TPU_STEP_INPUT_RATIO, steps.input_share),
        (&TPU_STEP_BUSY_RATIO, steps.busy_share),
    ];
    // What was measured in the trace has its time; an age is one of now.
    let age = (&TPU_STEP_AGE_SECONDS, steps.last.map(|last| last.age.as_secs_f64()));
    let of_trace = of_trace.map(|value| (value, steps.at));
    of_trace.into_iter().chain([(age, now)]).filter_map(|((metric, value), at)| {
        Some(Sample {
            metric: metric.into(),
            labels: Labels::none(),
            value: SampleValue::Gauge(value?),
            origin: Origin::Trace,
            at,
            workload: Some(Arc::clone(workload)),
        })
    })
}

impl Source for TraceStepsSource {
    fn origin(&self) -> Origin {
        Origin::Trace
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async { self.reading(tick) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{
        job::{Job, JobKind},
        snapshot::HostSnapshot,
        step_times::{NumberedSteps, ReadTrace, TraceSteps},
        time::{Clock, ManualClock},
        workload::{Owner, ProcessKey, WorkloadId, Workloads},
    };

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn tick(at: Timestamp, process: ProcessKey) -> Tick {
        let owner = Owner { process, ..Owner::default() };
        let workload = Workload {
            id: WorkloadId { kind: JobKind::Slurm, job: "7".into(), uid: 0 },
            label: "7".into(),
            job: Job::default(),
            owners: vec![process],
        };
        let workloads = Workloads { owners: vec![owner], ..Workloads::default() };
        let running = [Arc::new(workload)].into();
        Tick { at, host: HostSnapshot { workloads: workloads.into(), running, ..HostSnapshot::default() } }
    }

    #[test]
    fn steps_are_shown_while_they_are_fresh_and_their_process_runs() {
        let clock = Arc::new(ManualClock::at(Timestamp(0)));
        clock.advance(Duration::from_secs(100));
        let table = StepTimes::new(clock.clone());
        let source = TraceStepsSource::new(table.clone());
        let (process, other) = (ProcessKey { pid: 1, start_ticks: 1 }, ProcessKey { pid: 2, start_ticks: 1 });
        let unused = source.reading(&tick(clock.now(), process)).unused.unwrap();
        assert!(unused.starts_with("7: no trace of it was read"), "{unused}");
        let numbered =
            NumberedSteps { first: 0, last: 9, first_start_ns: 98 * SECOND, last_start_ns: 98 * SECOND + 9 };
        let steps = TraceSteps {
            count: 10,
            median_ns: 200_000_000,
            mean_ns: 300_000_000,
            numbered: Some(numbered),
            busy_ppm: Some(500_000),
            ..TraceSteps::default()
        };
        let stop = Timestamp(99 * SECOND);
        let trace = ReadTrace { steps: Some(steps), stop, fresh_for: Duration::from_secs(30) };
        table.put(process, trace);
        let shown = source.reading(&tick(clock.now(), process));
        let values: Vec<_> = shown
            .samples
            .iter()
            .map(|sample| (sample.metric.name.as_ref(), sample.value.clone(), sample.at))
            .collect();
        let gauge = |name, value| (name, SampleValue::Gauge(value), stop);
        assert_eq!(
            values[..4],
            [
                gauge("tpu_step_median_seconds", 0.2),
                gauge("tpu_step_mean_seconds", 0.3),
                gauge("tpu_step_number", 9.0),
                gauge("tpu_step_busy_ratio", 0.5)
            ]
        );
        assert_eq!((values[4].0, values[4].2, values.len()), ("tpu_step_age_seconds", clock.now(), 5));
        assert_eq!((shown.unused, shown.absent.len()), (None, 0));
        clock.advance(Duration::from_secs(30));
        let stale = source.reading(&tick(clock.now(), process));
        assert!(stale.samples.is_empty() && stale.unused.unwrap().contains("its last trace is 31 s old"));
        table.put(process, ReadTrace { stop: clock.now(), ..trace });
        assert!(source.reading(&tick(clock.now(), other)).samples.is_empty());
        assert!(source.reading(&tick(clock.now(), process)).samples.is_empty(), "it was gone");
    }
}
