//! Series of the exact ledger beside its answers.

use std::collections::BTreeMap;

use model::{
    job::{Job, JobKind},
    time::ManualClock,
};
use store::{
    marks::{MarkBatch, MarkLimits, NewMark},
    settings::MinFree,
    state::StateDb,
};
use tempfile::TempDir;

use super::*;

const START: i64 = 1_772_323_200;

struct MarkedHost {
    _folder: TempDir,
    clock: Arc<ManualClock>,
    marks: Arc<Marks>,
    series: Arc<LedgerSeries>,
    next: u64,
}

impl MarkedHost {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp(START * 1_000_000_000)));
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let keep = Duration::from_secs(86_400);
        let limits = MarkLimits { keep, max_bytes: 64 << 20, min_free: MinFree::Share(0) };
        let marks = Arc::new(Marks::new(folder.path(), db, limits, clock.clone()));
        let ledgers = Arc::new(MarkLedgers::new(Arc::clone(&marks), clock.clone()));
        let series = Arc::new(LedgerSeries::new(Arc::clone(&marks), ledgers, clock.clone()));
        Self { _folder: folder, clock, marks, series, next: 1 }
    }

    /// Marks of a workload, so many seconds after the start; `@` is that time. `None`: refused.
    fn mark(&mut self, job: &str, marks: &[Option<(i64, &str)>]) {
        let mark = |(second, payload): (i64, &str)| NewMark {
            job: format!("name of {job}"),
            workload: Some(workload(job).id.clone()),
            at: Timestamp((START + second) * 1_000_000_000),
            payload: payload.replace('@', &format!("{}.0", START + second)),
        };
        let marks: Vec<_> = marks.iter().map(|given| given.map(mark)).collect();
        let numbered = Some((job.to_owned(), self.next));
        self.next += marks.len() as u64;
        self.marks.append(&[MarkBatch { uid: 7, numbered, marks }]).unwrap();
    }

    /// Twenty seconds of initialization, five of preparation, and steps 0 to 9 of ten seconds.
    fn ten_steps(&mut self, job: &str) {
        let start = [
            Some((0, r#"{"job_start_time":@}"#)),
            Some((0, r#"{"tpu_init_start_time":@}"#)),
            Some((20, r#"{"tpu_init_end_time":@}"#)),
            Some((20, r#"{"training_prep_start_time":@}"#)),
            Some((25, r#"{"training_prep_end_time":@}"#)),
        ];
        self.mark(job, &start);
        for step in 0..11 {
            let payload = format!(r#"{{"step_count":{step},"step_start_time":@}}"#);
            self.mark(job, &[Some((25 + 10 * step, &payload))]);
        }
        self.clock.advance(Duration::from_secs(125));
    }

    /// What a page has of these workloads, once the computation that it starts is done.
    async fn page(&self, jobs: &[&str]) -> Vec<(String, BTreeMap<String, f64>)> {
        let running: Vec<_> = jobs.iter().map(|job| workload(job)).collect();
        let shown = self.series.samples(&running, Timestamp(5));
        while self.series.kept().is_computing {
            tokio::task::yield_now().await;
        }
        let of = |job: &&str| {
            let samples = shown.iter().filter(|sample| sample.workload_label().unwrap().workload == *job);
            ((*job).to_owned(), samples.map(figure).collect::<BTreeMap<_, _>>())
        };
        jobs.iter().map(of).filter(|(_, figures)| !figures.is_empty()).collect()
    }
}

fn workload(job: &str) -> Arc<Workload> {
    let id = WorkloadId { kind: JobKind::Slurm, job: job.to_owned() };
    Arc::new(Workload { id, label: job.to_owned(), job: Job::default(), owners: Vec::new() })
}

/// Name, or name and reason, and the value.
fn figure(sample: &Sample) -> (String, f64) {
    assert_eq!(sample.labels.get("ledger").unwrap().to_string(), "exact");
    let name = match sample.labels.get("reason") {
        Some(reason) => format!("{} {reason}", sample.metric.name),
        None => sample.metric.name.to_string(),
    };
    match sample.value {
        SampleValue::Gauge(value) | SampleValue::Counter(value) => (name, value),
        SampleValue::Distribution(_) => panic!("no distribution"),
    }
}

#[tokio::test]
async fn a_marked_workload_has_the_figures_of_its_exact_ledger_from_the_second_page_on() {
    let mut host = MarkedHost::new();
    host.ten_steps("7");
    assert_eq!(host.page(&["7", "8"]).await, [], "nothing is computed while a page waits");
    let pages = host.page(&["7", "8"]).await;
    let [(job, figures)] = &pages[..] else { panic!("{pages:?}") };
    assert_eq!(job, "7");
    for (name, wanted) in [
        ("tpu_job_goodput_seconds", 100.0),
        ("tpu_job_goodput_ratio", 0.8),
        ("tpu_job_goodput_coverage_ratio", 1.0),
        ("tpu_job_scheduling_goodput_ratio", 1.0),
        ("tpu_job_disruptions_total", 0.0),
        ("tpu_job_badput_seconds init", 20.0),
        ("tpu_job_badput_seconds prep", 5.0),
        ("tpu_job_badput_seconds recovery", 0.0),
        ("tpu_job_badput_seconds other", 0.0),
    ] {
        assert!((figures[name] - wanted).abs() < 1e-6, "{name}: {figures:?}");
    }
    assert!(!figures.keys().any(|name| name.contains("elastic")), "{figures:?}");

    // The job is down for a minute, and begins at step 8 again; a mark was refused.
    host.mark("7", &[Some((185, r#"{"job_start_time":@}"#)), None]);
    for (second, step) in [(195, 8), (205, 9), (215, 10), (225, 11)] {
        let payload = format!(r#"{{"step_count":{step},"step_start_time":@}}"#);
        host.mark("7", &[Some((second, &payload))]);
    }
    host.clock.advance(Duration::from_secs(100));
    host.page(&["7"]).await;
    let figures = host.page(&["7"]).await.remove(0).1;
    let (down, elapsed) = (figures["tpu_job_badput_seconds recovery"], 225.0);
    assert!(down >= 50.0 && figures["tpu_job_badput_seconds wasted"] >= 10.0, "{figures:?}");
    let up = figures["tpu_job_scheduling_goodput_ratio"];
    assert!((up - (1.0 - down / elapsed)).abs() < 1e-6, "{figures:?}");
    assert!((figures["tpu_job_disruptions_total"] - 1.0).abs() < 1e-9);
    assert!((figures["tpu_job_goodput_coverage_ratio"] - 21.0 / 22.0).abs() < 1e-9);
    let lost: f64 =
        figures.iter().filter(|(name, _)| name.contains("badput")).map(|(_, seconds)| seconds).sum();
    assert!((lost + figures["tpu_job_goodput_seconds"] - elapsed).abs() < 1e-6, "{figures:?}");
}

#[tokio::test]
async fn without_marks_nothing_is_computed_and_old_figures_are_not_shown() {
    let mut host = MarkedHost::new();
    assert_eq!(host.page(&[]).await, []);
    assert_eq!(host.series.kept().computed, None, "nothing runs");
    host.page(&["7"]).await;
    let computed = host.series.kept().computed;
    host.clock.advance(SHOWN);
    host.page(&["7"]).await;
    assert_eq!(host.series.kept().computed, computed, "no mark has come");
    host.ten_steps("7");
    host.page(&["7"]).await;
    assert_eq!(host.page(&["7"]).await.len(), 1);
    assert_eq!(host.page(&["8"]).await, [], "only of workloads that run");
    host.clock.advance(EVERY);
    host.page(&["7"]).await;
    assert_eq!(host.page(&["7"]).await.len(), 1);
    host.clock.advance(SHOWN + EVERY);
    assert_eq!(host.page(&["7"]).await, [], "nobody read the page meanwhile");
    assert_eq!(host.page(&["7"]).await.len(), 1);
}

#[tokio::test]
async fn workloads_with_more_marks_than_there_is_room_for_have_no_series() {
    let mut host = MarkedHost::new();
    host.ten_steps("7");
    let many: Vec<_> = (0..=MOST_MARKS).map(|_| Some((1, "{}"))).collect();
    host.mark("8", &many);
    host.page(&["8", "7"]).await;
    let shown: Vec<_> = host.page(&["8", "7"]).await.into_iter().map(|(job, _)| job).collect();
    assert_eq!(shown, ["7"]);
}
