//! The ledgers as series of the metrics page.
//!
//! Gauges: they fall when time that was productive turns out to be something else. Only jobs that have chips open have
//! series. Must never show a ratio of too little known time.

#![expect(clippy::cast_precision_loss, reason = "the values of Prometheus are f64")]

use std::sync::Arc;

use goodput::proxy::live::SecondState;
use model::{
    catalog,
    label::Labels,
    metric::Descriptor,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
};

use super::{LiveLedgers, job_ledger::JobLedger};

/// The name of the ledger that the figures come from.
pub const LEDGER: &str = "proxy";

impl LiveLedgers {
    /// A sample of every series, as they are at `at`.
    pub fn samples(&self, at: Timestamp) -> Vec<Sample> {
        let set = self.set();
        let running = set.jobs().filter(|job| job.is_running && !job.ledger().is_empty());
        running.flat_map(|job| samples(job, at)).collect()
    }
}

fn samples(job: &JobLedger, at: Timestamp) -> Vec<Sample> {
    let sample = |metric: &'static Descriptor, labels, value| Sample {
        metric: metric.into(),
        labels,
        value,
        origin: Origin::Agent,
        at,
        workload: Some(Arc::clone(&job.workload)),
    };
    let of_ledger = || Labels::one("ledger", LEDGER);
    let gauge = |metric, value| sample(metric, of_ledger(), SampleValue::Gauge(value));
    let counts = job.ledger().counts();
    let mut samples = vec![
        gauge(&catalog::TPU_JOB_GOODPUT_SECONDS, counts.productive() as f64),
        gauge(&catalog::TPU_JOB_GOODPUT_COVERAGE_RATIO, counts.coverage()),
        sample(
            &catalog::TPU_JOB_DISRUPTIONS_TOTAL,
            of_ledger(),
            SampleValue::Counter(job.ledger().disruptions() as f64),
        ),
    ];
    samples.extend(counts.goodput().map(|ratio| gauge(&catalog::TPU_JOB_GOODPUT_RATIO, ratio)));
    samples.extend(
        counts.scheduling_goodput().map(|ratio| gauge(&catalog::TPU_JOB_SCHEDULING_GOODPUT_RATIO, ratio)),
    );
    let lost = SecondState::ALL.into_iter().filter(|state| state.is_known() && !state.is_productive());
    samples.extend(lost.map(|state| {
        let labels = of_ledger().with("reason", state.name());
        sample(&catalog::TPU_JOB_BADPUT_SECONDS, labels, SampleValue::Gauge(counts.of(state) as f64))
    }));
    samples
}
