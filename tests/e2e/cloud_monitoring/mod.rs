//! The exporter to Cloud Monitoring, against a double that refuses what the service refuses.

mod agent;
mod faults;
mod vectors;

use std::{fs, sync::Arc};

use export::cloud_monitoring::{
    CloudMonitoring, CloudMonitoringInputs, ExportFailure, settings::CloudMonitoringSettings,
};
use fakes::{fake_gcs::FakeGcs, fake_monitoring::FakeMonitoring};
use marks::ledgers::MarkLedgers;
use model::{
    snapshot::HostSnapshot,
    time::{ManualClock, Timestamp},
};
use sampling::sampler::Sampler;
use serde_json::Value;
use store::{
    marks::{MarkBatch, MarkLimits, Marks, NewMark},
    settings::MinFree,
    state::StateDb,
};
use tempfile::TempDir;
use tokio::sync::watch;

const SECOND: i64 = 1_000_000_000;

/// An exporter with marks of its own and a clock that stands still, and the service.
struct ExportingHost {
    monitoring: FakeMonitoring,
    clock: Arc<ManualClock>,
    marks: Arc<Marks>,
    exporter: CloudMonitoring,
    _workloads: watch::Sender<HostSnapshot>,
    _folder: TempDir,
}

impl ExportingHost {
    /// Where it is this time, with settings that are changed so.
    fn at(now: Timestamp, change: impl FnOnce(&mut CloudMonitoringSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let monitoring = FakeMonitoring::start();
        monitoring.set_now(jiff(now));
        let key = folder.path().join("key.json");
        fs::write(&key, FakeGcs::key_file(&monitoring.url()).to_string()).unwrap();
        let mut settings = CloudMonitoringSettings {
            enabled: true,
            project: "project".into(),
            location: "us-central1-a".into(),
            accelerator_type: "TPU-v6e".into(),
            credentials: key,
            endpoint: monitoring.url(),
            ..CloudMonitoringSettings::default()
        };
        change(&mut settings);
        let clock = Arc::new(ManualClock::at(now));
        let db = Arc::new(StateDb::new(folder.path(), clock.clone()));
        let limits = MarkLimits {
            keep: std::time::Duration::from_secs(3600),
            max_bytes: 64 << 20,
            min_free: MinFree::Share(0),
        };
        let marks = Arc::new(Marks::new(folder.path(), db, limits, clock.clone()));
        let (workloads, receiver) = watch::channel(HostSnapshot::default());
        let inputs = CloudMonitoringInputs {
            settings,
            host: "host-1".into(),
            marks: Arc::clone(&marks),
            ledgers: Arc::new(MarkLedgers::new(Arc::clone(&marks), clock.clone())),
            workloads: receiver,
            sampler: Sampler::new(&sampling::settings::sampler::Settings::default(), clock.clone()),
            clock: clock.clone(),
            remedy: |_| "",
        };
        let exporter = CloudMonitoring::new(inputs);
        Self { monitoring, clock, marks, exporter, _workloads: workloads, _folder: folder }
    }

    /// Stores marks, each with its time.
    fn mark(&self, job: &str, marks: impl IntoIterator<Item = (Timestamp, String)>) {
        let mark = |(at, payload)| Some(NewMark { job: job.to_owned(), workload: None, at, payload });
        let marks = marks.into_iter().map(mark).collect();
        self.marks.append(&[MarkBatch { uid: 7, numbered: None, marks, refused_of: Vec::new() }]).unwrap();
    }

    /// Marks the start of a job a minute ago, and three steps.
    fn three_steps(&self, job: &str) {
        let start = self.now().0 / SECOND - 60;
        let step = |number: i64| {
            let second = start + 10 + 10 * number;
            (
                Timestamp(second * SECOND),
                format!(r#"{{"step_count": {number}, "step_start_time": {second}.0}}"#),
            )
        };
        let begin = (Timestamp(start * SECOND), format!(r#"{{"job_start_time": {start}.0}}"#));
        self.mark(job, [begin].into_iter().chain((0..3).map(step)));
    }

    fn now(&self) -> Timestamp {
        model::time::Clock::now(&*self.clock)
    }

    /// Lets time go by here and there.
    fn pass(&self, seconds: u64) {
        self.clock.advance(std::time::Duration::from_secs(seconds));
        self.monitoring.set_now(jiff(self.now()));
    }

    async fn round(&mut self) -> Result<u64, ExportFailure> {
        self.exporter.round().await
    }
}

fn jiff(at: Timestamp) -> jiff::Timestamp {
    at.into()
}

/// The type of a metric without its prefix.
fn metric(series: &Value) -> &str {
    series["metric"]["type"].as_str().unwrap().rsplit('/').next().unwrap()
}
