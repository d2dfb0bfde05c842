//! Tests of the series of marked steps.

use model::{
    job::{Job, JobKind},
    time::ManualClock,
};
use store::marks::NewMark;

use super::*;

fn id(job: &str) -> WorkloadId {
    WorkloadId { kind: JobKind::Slurm, job: job.to_owned(), uid: 7 }
}

fn workload(job: &str) -> Arc<Workload> {
    let (label, owners) = (job.to_owned(), Vec::new());
    Arc::new(Workload { id: id(job), label, job: Job::default(), owners })
}

/// The marks of steps that begin at these times, by a recorder.
fn batch(job: &str, recorder: &str, steps: &[(i64, f64)]) -> MarkBatch {
    let mark = |(step, start): &(i64, f64)| {
        let payload = serde_json::json!({ "step_count": step, "step_start_time": start }).to_string();
        Some(NewMark { job: "j".into(), workload: Some(id(job)), at: Timestamp(5), payload })
    };
    MarkBatch {
        uid: 7,
        numbered: Some((recorder.into(), 1)),
        marks: steps.iter().map(mark).collect(),
        refused_of: Vec::new(),
    }
}

fn series() -> StepSeries {
    StepSeries::new(Arc::new(ManualClock::at(Timestamp(9))))
}

fn all_new() -> Appended {
    Appended::default()
}

/// The histogram of the workload `j`, and its gauges by name.
fn shown(series: &StepSeries) -> (Histogram, BTreeMap<String, f64>) {
    let (mut histogram, mut gauges) = (None, BTreeMap::new());
    for sample in series.samples(&[workload("j")], Timestamp(0)) {
        assert_eq!(sample.labels, Labels::one("ledger", "exact"));
        match sample.value {
            SampleValue::Distribution(distribution) => histogram = Some(distribution.histogram.clone()),
            SampleValue::Gauge(value) => _ = gauges.insert(sample.metric.name.to_string(), value),
            SampleValue::Counter(_) => panic!("no counter"),
        }
    }
    (histogram.unwrap(), gauges)
}

#[test]
fn each_step_lasts_until_the_next_and_is_counted_once() {
    let series = series();
    assert_eq!(series.samples(&[workload("j")], Timestamp(0)), []);
    let steps = [(0, 100.0), (1, 102.0), (2, 104.5), (3, 107.0)];
    series.stored(&batch("j", "r", &steps), &all_new());
    // The same marks again, and one more.
    let again = [steps.as_slice(), &[(4, 109.5)]].concat();
    series.stored(&batch("j", "r", &again), &Appended { doubled: 4, ..all_new() });
    let (histogram, gauges) = shown(&series);
    assert_eq!((histogram.count(), histogram.sum, histogram.since), (4, 9.5, Timestamp(9)));
    // 2.5 is in the bucket up to 2.5.
    assert_eq!(histogram.counts[BOUNDS.iter().position(|bound| *bound == 2.5).unwrap()], 4);
    assert_eq!(gauges["tpu_job_last_step"], 4.0);
    // The median of 2.0, 2.5, 2.5 and 2.5 is 2.5, and so is what is not above it; the times below it count.
    assert_eq!(gauges["tpu_job_step_ideal_seconds"], 2.375);
    assert!((gauges["tpu_job_step_deviation_seconds"] - 0.1875).abs() < 1e-12);
}

#[test]
fn time_between_steps_that_do_not_follow_each_other_is_not_counted() {
    let series = series();
    series.stored(&batch("j", "r", &[(5, 10.0), (6, 12.0)]), &all_new());
    // Another life of the job, which goes on with the next step; then a jump, and a clock that is set back.
    series.stored(&batch("j", "s", &[(7, 900.0), (8, 902.0), (20, 950.0), (21, 940.0)]), &all_new());
    // Without a recorder, of another kind, and of a process without a workload.
    let mut others = batch("j", "t", &[(9, 1000.0), (10, 1001.0)]);
    others.marks.iter_mut().flatten().for_each(|mark| mark.workload = None);
    series.stored(&others, &all_new());
    let (histogram, gauges) = shown(&series);
    assert_eq!((histogram.count(), histogram.sum), (2, 4.0));
    assert_eq!(gauges["tpu_job_last_step"], 21.0);
}

#[test]
fn short_steps_have_times_and_no_ideal() {
    let series = series();
    series.stored(&batch("j", "r", &[(0, 1.0), (1, 1.25), (2, 1.5)]), &all_new());
    let (histogram, gauges) = shown(&series);
    assert_eq!((histogram.count(), gauges.len()), (2, 1));
}

#[test]
fn a_step_that_is_repeated_replaces_its_time_in_the_ideal_and_adds_to_the_histogram() {
    let series = series();
    series.stored(&batch("j", "r", &[(0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0)]), &all_new());
    series.stored(&batch("j", "s", &[(1, 50.0), (2, 56.0), (3, 58.0)]), &all_new());
    let (histogram, gauges) = shown(&series);
    assert_eq!((histogram.count(), histogram.sum), (5, 14.0));
    // 2.0, 6.0 and 2.0: the repeated step is an outlier.
    assert_eq!(gauges["tpu_job_step_ideal_seconds"], 2.0);
}

#[test]
fn workloads_recorders_and_steps_are_bounded() {
    let series = series();
    for job in 0..100 {
        series.stored(&batch(&format!("job-{job}"), "r", &[(0, 0.0)]), &all_new());
        series.stored(&batch("j", &format!("r-{job}"), &[(0, 0.0)]), &all_new());
    }
    let many: Vec<_> = (0..5000_i32).map(|step| (i64::from(step), f64::from(step) * 2.0)).collect();
    series.stored(&batch("j", "long", &many), &all_new());
    let kept = series.kept();
    assert_eq!(kept.workloads.len(), MOST_WORKLOADS);
    let steps = &kept.workloads[&id("j")];
    assert_eq!((steps.recorders.len(), steps.times.len()), (MOST_RECORDERS, DEVIATION_STEPS));
    assert_eq!(steps.counts.iter().sum::<u64>(), 4999);
    drop(kept);
    assert_eq!(series.samples(&[workload("job-0")], Timestamp(0)), [], "it marked longest ago");
    assert_eq!(series.samples(&[workload("job-99")], Timestamp(0)).len(), 2);
    let (_, gauges) = shown(&series);
    assert_eq!(gauges["tpu_job_step_deviation_seconds"], 0.0);
}
