//! What each exporter costs beside the sampler: both in one process, in the same seconds, with 8 chips of one job behind one
//! port that marks a step each second. The sampler has the main thread, an exporter a thread of its own; the service that
//! takes the points is another process.
//!
//! The promise is a ratio to the sampler of the same run, with the exporter's default interval. Connections are in plain
//! text. `EXPORTERS_BENCH_SECONDS` is how long each runs (default 180). Then the peak memory of whole agents, each with one
//! exporter on, beside one without: it is printed, and part of the promise of the agent's memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines},
    process::{ChildStdout, Command, ExitCode, Stdio},
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use benches::{
    daemon::{Daemon, Watch},
    owned_host, promise,
    services::{self, CHIPS, Services, fake_tpu_host},
};
use export::{
    OwnMetrics,
    cloud_monitoring::{self, CloudMonitoringInputs, settings::CloudMonitoringSettings},
    otlp::{
        ExportingHost, OtlpExporter,
        settings::{OtlpEndpoint, OtlpSettings},
    },
    tensorboard::{
        live::{self, EventFileInputs},
        settings::TensorBoardSettings,
    },
};
use fakes::{
    fake_collector::{FakeCollector, metrics, points},
    fake_gcs::FakeGcs,
    fake_host::FakeHost,
    fake_monitoring::FakeMonitoring,
    harness::artifact,
};
use jobs::ledger::{LedgerInputs, LiveLedgers};
use marks::ledgers::MarkLedgers;
use model::{
    device::Generation,
    job::JobKind,
    snapshot::HostSnapshot,
    time::{Clock, SystemClock, Timestamp},
    workload::{EndpointKind, WorkloadId},
};
use sampling::{sampler::Sampler, settings::sampler::Settings, sources::runtime::RuntimeSource};
use serde_json::Value;
use store::{
    ledgers::Ledgers,
    marks::{MarkBatch, MarkLimits, Marks, NewMark},
    settings::MinFree,
    state::StateDb,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An exporter's CPU, as a share of the sampler's.
const SHARE: f64 = 0.05;
/// The argument that makes this program the service that takes the points.
const SERVICE: &str = "--service";
/// How long the agents run whose memory is measured: some rounds of each exporter.
const MEMORY: Duration = Duration::from_secs(35);
/// The thread for what blocks.
const BLOCKING: &str = "blocking";

fn main() -> ExitCode {
    if env::args().any(|argument| argument == SERVICE) {
        serve();
    }
    let seconds = env::var("EXPORTERS_BENCH_SECONDS").map_or(180, |text| text.parse().expect("seconds"));
    let kept = [cloud_monitoring(seconds), otlp(seconds), event_files(seconds)];
    memory();
    if kept == [true; 3] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Serves until this process is killed.
fn serve() -> ! {
    let monitoring = FakeMonitoring::start();
    println!("{}", monitoring.url());
    let mut written = 0;
    loop {
        sleep(Duration::from_secs(1));
        assert!(monitoring.violations().is_empty(), "{:?}", monitoring.violations());
        if monitoring.series().len() > written {
            written = monitoring.series().len();
            println!("{written}");
        }
    }
}

/// The service in a process of its own, its URL, and the counts of points that were written.
fn service() -> (Daemon, String, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(env::current_exe().unwrap());
    let mut child = command.arg(SERVICE).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = lines.next().unwrap().unwrap();
    (Daemon::from(child), url, lines)
}

fn cloud_monitoring(seconds: u64) -> bool {
    let (_service, url, mut lines) = service();
    let host = MarkingHost::start();
    let key = host.folder.path().join("key.json");
    fs::write(&key, FakeGcs::key_file(&url).to_string()).unwrap();
    let settings = CloudMonitoringSettings {
        enabled: true,
        project: "project".into(),
        location: "us-central1-a".into(),
        accelerator_type: "TPU-v6e".into(),
        rolling_windows: vec!["10m".parse().unwrap()],
        distributions: true,
        credentials: key,
        endpoint: url,
        ..CloudMonitoringSettings::default()
    };
    let cost = host.run("monitoring", seconds, |inputs, stop| {
        let inputs = CloudMonitoringInputs {
            settings,
            host: "host".into(),
            marks: inputs.marks,
            ledgers: inputs.ledgers,
            workloads: inputs.workloads,
            sampler: inputs.sampler,
            clock: inputs.clock,
            remedy: |_| "",
        };
        tokio::spawn(async move { cloud_monitoring::run(inputs, stop).await.unwrap() });
    });
    let points: u64 = lines.next().map_or(0, |line| line.unwrap().parse().unwrap());
    assert!(points > 20, "{points} points in the first round");
    println!("{seconds} s, {CHIPS} chips behind one port, CPU time:");
    println!("  sampler                 {:9.1} ms", cost.sampler);
    println!("  Cloud Monitoring        {:9.1} ms, {points} points each minute", cost.exporter);
    let share = cost.exporter / cost.sampler;
    promise::at_most("the exporter to Cloud Monitoring, as a share of the sampler's CPU", share, SHARE)
}

fn event_files(seconds: u64) -> bool {
    let host = MarkingHost::start();
    let directory = host.folder.path().join("boards");
    fs::create_dir(&directory).unwrap();
    let settings = TensorBoardSettings { directory: directory.clone(), ..TensorBoardSettings::default() };
    let cost = host.run(BLOCKING, seconds, |inputs, stop| {
        let inputs = EventFileInputs {
            settings,
            host: "host".into(),
            marks: inputs.marks,
            mark_ledgers: inputs.ledgers,
            ledgers: inputs.live,
            clock: inputs.clock,
            remedy: |_| "",
        };
        tokio::spawn(async move { live::run(inputs, stop).await.unwrap() });
    });
    let files = |job: &str, run: &str| {
        let runs = fs::read_dir(directory.join(job)).unwrap().map(|run| run.unwrap().path());
        let run = runs.into_iter().find(|path| path.ends_with(run)).expect("a run");
        fs::read_dir(run).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let bytes = files("train-u0", "goodput") + files("slurm-7-u0", "proxy-host");
    println!("{seconds} s, {CHIPS} chips behind one port, CPU time:");
    println!("  sampler                 {:9.1} ms", cost.sampler);
    println!("  event files             {:9.1} ms, {bytes} bytes", cost.exporter);
    let share = cost.exporter / cost.sampler;
    promise::at_most("event files for TensorBoard, as a share of the sampler's CPU", share, SHARE)
}

/// The collector is a thread of this process, which neither pays for.
fn otlp(seconds: u64) -> bool {
    let collector = FakeCollector::start();
    let endpoint = OtlpEndpoint::try_from(format!("http://{}", collector.address())).unwrap();
    let url = endpoint.url().unwrap().clone();
    let settings = OtlpSettings { endpoint, ..OtlpSettings::default() };
    let cost = MarkingHost::start().run("otlp", seconds, |inputs, stop| {
        let ExporterInputs { sampler, clock, .. } = inputs;
        let host = ExportingHost { host: "host".into(), started: clock.now() };
        let exporting = move || {
            let own = OwnMetrics::default();
            let mut exporter = OtlpExporter::new(settings, url, &host, |_| "");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(stop.run_until_cancelled(exporter.run(|take| {
                let now = clock.now();
                take(&sampler.view().samples(now), &own, now);
            })));
        };
        std::thread::Builder::new().name("otlp".into()).spawn(exporting).unwrap();
    });
    let messages = collector.take();
    let last: usize = metrics(&messages[messages.len() - 1..]).map(points).sum();
    assert!(last > 50, "{last} points in the last message");
    println!("{seconds} s, {CHIPS} chips behind one port, CPU time:");
    println!("  sampler                 {:9.1} ms", cost.sampler);
    println!(
        "  OTLP                    {:9.1} ms, {} messages, {last} points in the last one",
        cost.exporter,
        messages.len()
    );
    let share = cost.exporter / cost.sampler;
    promise::at_most("the exporter over OTLP, as a share of the sampler's CPU", share, SHARE)
}

/// Prints the peak memory of an agent without an exporter, and with each.
fn memory() {
    let host = FakeHost::with(Generation::V6e, CHIPS.try_into().unwrap());
    let (services, collector) = (Services::start(&host, 1), FakeCollector::start());
    let (_service, url, _lines) = service();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.json");
    fs::write(&key, FakeGcs::key_file(&url).to_string()).unwrap();
    let monitoring = [
        "enabled=true".to_owned(),
        "project=project".to_owned(),
        "location=us-central1-a".to_owned(),
        "accelerator_type=TPU-v6e".to_owned(),
        "distributions=true".to_owned(),
        "interval=10s".to_owned(),
        format!("credentials={}", key.display()),
        format!("endpoint={url}"),
    ];
    let otlp = [format!("endpoint=http://{}", collector.address()), "interval=10s".to_owned()];
    let boards = [format!("directory={}", folder.path().display()), "interval=10s".to_owned()];
    let (none, names) = ([], ["no exporter", "Cloud Monitoring", "OTLP", "event files"]);
    let settings: [(&str, &[String]); 4] =
        [("", &none), ("cloud_monitoring", &monitoring), ("otlp", &otlp), ("tensorboard", &boards)];
    let agents = settings.map(|(section, settings)| {
        let (mut command, http, folder) = services::agent(&host, &services.endpoints);
        for setting in settings {
            command.args(["--set", &format!("export.{section}.{setting}")]);
        }
        let ready = |answer: &str| answer.starts_with("HTTP/1.1 200");
        (Daemon::start_until(&mut command, http, "/readyz", ready).0, folder)
    });
    let watch = Watch::start(&agents.each_ref().map(|(daemon, _)| daemon));
    sleep(MEMORY);
    let used = watch.end();
    println!("peak memory of the whole agent, {CHIPS} chips behind one port, {} s:", MEMORY.as_secs());
    for (name, used_by) in names.into_iter().zip(&used) {
        println!("  {name:<23} {:6.1} MiB ({:+.1})", used_by.mib, used_by.mib - used[0].mib);
    }
}

/// CPU times in milliseconds.
struct ExporterCost {
    sampler: f64,
    exporter: f64,
}

/// What exporters read.
struct ExporterInputs {
    marks: Arc<Marks>,
    ledgers: Arc<MarkLedgers>,
    workloads: watch::Receiver<HostSnapshot>,
    sampler: Sampler,
    live: Arc<LiveLedgers>,
    clock: Arc<dyn Clock>,
}

/// A host of 8 chips that one job has open, which marks.
struct MarkingHost {
    folder: tempfile::TempDir,
    runtime: String,
    _services: Daemon,
}

impl MarkingHost {
    fn start() -> Self {
        let mut command = Command::new(artifact("fake-tpu-host"));
        command.args(["--runtime", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
        let (services, addresses): (_, Value) = fake_tpu_host(&mut command);
        let runtime = addresses["runtime"][0].as_str().unwrap().to_owned();
        Self { folder: tempfile::tempdir().unwrap(), runtime, _services: services }
    }

    fn snapshot(&self) -> HostSnapshot {
        owned_host::snapshot(&[(EndpointKind::RuntimeMetrics, &self.runtime)])
    }

    /// Runs the sampler on this thread, and what `start` starts, whose thread has this name.
    fn run(
        &self,
        thread: &str,
        seconds: u64,
        start: impl FnOnce(ExporterInputs, CancellationToken),
    ) -> ExporterCost {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let db = Arc::new(StateDb::new(self.folder.path(), Arc::clone(&clock)));
        let limits =
            MarkLimits { keep: Duration::from_secs(3600), max_bytes: 64 << 20, min_free: MinFree::Share(0) };
        let live = LiveLedgers::new(Ledgers::new(Arc::clone(&db)), Arc::clone(&clock));
        let marks = Arc::new(Marks::new(self.folder.path(), db, limits, Arc::clone(&clock)));
        let marking = marking(Arc::clone(&marks), seconds);
        let settings = Settings::default();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // One thread for what blocks, which keeps its CPU time to the end.
        runtime.max_blocking_threads(1).thread_name(BLOCKING).thread_keep_alive(Duration::from_secs(3600));
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let sampler = Sampler::new(&settings, Arc::clone(&clock));
            let (_set, workloads) = watch::channel(self.snapshot());
            let stop = CancellationToken::new();
            let inputs = ExporterInputs {
                ledgers: Arc::new(MarkLedgers::new(Arc::clone(&marks), Arc::clone(&clock))),
                marks,
                workloads: workloads.clone(),
                sampler: sampler.clone(),
                live: Arc::clone(&live),
                clock,
            };
            let batches = sampler.batches();
            let listened = LedgerInputs { batches, host: workloads.clone(), epoch: sampler.epoch() };
            let listening = listening(live, listened, stop.clone());
            start(inputs, stop.clone());
            let (source, interval) = (Box::new(RuntimeSource::default()), settings.interval.get());
            let reading = tokio::spawn({
                let (sampler, stop) = (sampler.clone(), stop.clone());
                async move { sampler.drive(source, interval, workloads, stop).await }
            });
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let cost = ExporterCost { sampler: own_thread_ms(), exporter: thread_ms(thread) };
            stop.cancel();
            reading.await.unwrap();
            marking.join().unwrap();
            listening.join().unwrap();
            cost
        })
    }
}

/// A thread with the ledgers of the chips, as the agent keeps them: neither the sampler nor an exporter pays for it.
fn listening(
    ledgers: Arc<LiveLedgers>,
    inputs: LedgerInputs,
    stop: CancellationToken,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ledgers.run(inputs, stop));
    })
}

/// A thread that marks a step each second, as the agent's writer does: neither the sampler nor an exporter pays for it.
fn marking(marks: Arc<Marks>, seconds: u64) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let start = SystemClock.now().0 / 1_000_000_000;
        let mark = |second: i64, payload: String| {
            let workload = Some(WorkloadId { kind: JobKind::Slurm, job: "7".into() });
            let at = Timestamp(second * 1_000_000_000);
            let mark = NewMark { job: "train".into(), workload, at, payload };
            let batch = MarkBatch { uid: 0, numbered: None, marks: vec![Some(mark)] };
            marks.append(&[batch]).unwrap();
        };
        mark(start, format!(r#"{{"job_start_time": {start}.0}}"#));
        for step in 0..i64::try_from(seconds).unwrap() {
            let second = start + step;
            mark(second, format!(r#"{{"step_count": {step}, "step_start_time": {second}.0}}"#));
            sleep(Duration::from_secs(1));
        }
    })
}

/// CPU time of this thread in milliseconds.
fn own_thread_ms() -> f64 {
    let time: Duration =
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into();
    time.as_secs_f64() * 1e3
}

/// CPU time of the thread of this process with this name, in milliseconds.
fn thread_ms(name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let named = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let path = tasks.into_iter().find(named).expect("the exporter runs");
    // Nanoseconds on a processor are the first of three figures.
    let text = fs::read_to_string(path.join("schedstat")).unwrap();
    let nanoseconds: u64 = text.split_whitespace().next().unwrap().parse().unwrap();
    nanoseconds as f64 / 1e6
}
