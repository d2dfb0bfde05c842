//! What the export over OTLP costs beside the sampler: the sampler on the thread of the caller, the exporter on one of its own
//! with its default interval, the collector on a third. Each thread's CPU time is that of its own clock.

use std::{process::Command, sync::Arc, thread, time::Duration};

use export::{
    OwnMetrics,
    otlp::{
        ExportingHost, OtlpExporter,
        settings::{OtlpEndpoint, OtlpSettings},
    },
};
use fakes::{
    fake_collector::{FakeCollector, metrics, points},
    harness::artifact,
};
use model::{
    snapshot::HostSnapshot,
    time::{Clock, SystemClock},
    workload::{Endpoint, EndpointKind, EndpointOrigin, Owner, Workloads},
};
use nix::time::{ClockId, clock_gettime};
use sampling::{sampler::Sampler, settings::sampler::Settings, sources::runtime::RuntimeSource};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::services::{CHIPS, fake_tpu_host};

/// What both cost in the same seconds.
#[derive(Debug, Clone, Copy)]
pub struct OtlpCost {
    /// CPU time of the sampler.
    pub sampler: Duration,
    /// CPU time of the exporter, its connection included.
    pub exporter: Duration,
    /// Messages that the collector got.
    pub messages: usize,
    /// Points of the last one.
    pub points: usize,
}

/// Runs both for so many seconds, with 8 chips behind one port.
///
/// # Panics
/// If the collector gets nothing.
pub fn cost(seconds: u64) -> OtlpCost {
    let mut command = Command::new(artifact("fake-tpu-host"));
    command.args(["--runtime", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
    let (_services, addresses) = fake_tpu_host(&mut command);
    let runtime = addresses["runtime"][0].as_str().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let collector = FakeCollector::start();
    let settings = Settings::default();
    let length = Duration::from_secs(seconds);
    let sampler = current_thread().block_on(async {
        let sampler = Sampler::new(&settings, Arc::clone(&clock));
        let exporting = export_of(sampler.clone(), clock, &collector, length);
        let (_set, workloads) = watch::channel(host(runtime));
        let stop = CancellationToken::new();
        let source = Box::new(RuntimeSource::default());
        let reading = sampler.drive(source, settings.interval.get(), workloads, stop);
        let before = thread_time();
        // The sampler goes on until it is dropped.
        let _ = timeout(length, reading).await;
        (thread_time().saturating_sub(before), exporting)
    });
    let (sampler, exporting) = sampler;
    let exporter = exporting.join().unwrap();
    let messages = collector.take();
    let points = metrics(&messages[messages.len() - 1..]).map(points).sum();
    OtlpCost { sampler, exporter, messages: messages.len(), points }
}

/// A thread that exports for so long, and gives its CPU time.
fn export_of(
    sampler: Sampler,
    clock: Arc<dyn Clock>,
    collector: &FakeCollector,
    length: Duration,
) -> thread::JoinHandle<Duration> {
    let endpoint = OtlpEndpoint::try_from(format!("http://{}", collector.address())).unwrap();
    let url = endpoint.url().unwrap().clone();
    let settings = OtlpSettings { endpoint, ..OtlpSettings::default() };
    let host = ExportingHost { host: "host".into(), started: clock.now() };
    thread::spawn(move || {
        let own = OwnMetrics::default();
        let mut exporter = OtlpExporter::new(settings, url, &host, |_| "");
        current_thread().block_on(async {
            let exporting = exporter.run(|take| {
                let now = clock.now();
                take(&sampler.view().samples(now), &own, now);
            });
            let _ = timeout(length, exporting).await;
        });
        thread_time()
    })
}

/// A host whose workload serves metrics here.
fn host(runtime: &str) -> HostSnapshot {
    let endpoint = Endpoint {
        kind: EndpointKind::RuntimeMetrics,
        address: runtime.parse().unwrap(),
        origin: EndpointOrigin::Config,
        listeners: Vec::new(),
        unreachable: None,
    };
    let owner = Owner { shares_our_network: true, endpoints: vec![endpoint], ..Owner::default() };
    let workloads = Workloads { owners: vec![owner], ..Workloads::default() };
    HostSnapshot { workloads: Arc::new(workloads), ..HostSnapshot::default() }
}

fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
