//! What the ledgers of jobs cost beside the sampler that feeds them: both in one process, on one thread, in the same
//! seconds, with 8 chips of one job behind one port. The CPU time of each is that of its polls; writing runs on a thread of
//! its own, which does nothing else. The start of the job, with its connections, its database and its first write, is over
//! when the measurement begins.
//!
//! The promise is a ratio to the sampler of the same run. `LEDGER_BENCH_MINUTES` is how long is measured (default 2): a
//! ledger is written every two minutes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
use std::{
    env,
    future::Future,
    pin::Pin,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use benches::{
    owned_host, promise,
    services::{CHIPS, fake_tpu_host},
};
use fakes::harness::artifact;
use jobs::ledger::{LedgerInputs, LedgerQuestion, LiveLedgers};
use model::{
    time::{Clock, SystemClock},
    workload::EndpointKind,
};
use nix::time::{ClockId, clock_gettime};
use sampling::{
    sampler::Sampler,
    settings::sampler::Settings,
    sources::{Source, orbax_grain::OrbaxGrainSource, runtime::RuntimeSource},
};
use store::{ledgers::Ledgers, state::StateDb};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The ledgers' CPU, as a share of the sampler's.
const SHARE: f64 = 0.05;

/// The first write of a job comes ten seconds after its start.
const START: Duration = Duration::from_secs(15);

/// CPU times so far.
#[derive(Clone, Copy)]
struct CpuTimes {
    sampling: Duration,
    listening: Duration,
    writing: Duration,
}

impl CpuTimes {
    /// By the polls of two tasks; nothing else runs beside the thread of the tasks.
    fn now(sampling: &AtomicU64, listening: &AtomicU64) -> Self {
        let of = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        let writing = process_time().saturating_sub(thread_time());
        Self { sampling: of(sampling), listening: of(listening), writing }
    }

    fn since(self, before: Self) -> Self {
        Self {
            sampling: self.sampling - before.sampling,
            listening: self.listening - before.listening,
            writing: self.writing.saturating_sub(before.writing),
        }
    }
}

/// A future that adds the CPU time of its polls.
struct Timed<F> {
    inner: Pin<Box<F>>,
    nanoseconds: Arc<AtomicU64>,
}

impl<F: Future> Timed<F> {
    fn new(inner: F, nanoseconds: &Arc<AtomicU64>) -> Self {
        Self { inner: Box::pin(inner), nanoseconds: Arc::clone(nanoseconds) }
    }
}

impl<F: Future> Future for Timed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let start = thread_time();
        let polled = self.inner.as_mut().poll(context);
        let took = thread_time().saturating_sub(start);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap(), Ordering::Relaxed);
        polled
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// CPU time of this process.
fn process_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

fn main() -> ExitCode {
    let minutes: u64 = env::var("LEDGER_BENCH_MINUTES").map_or(2, |text| text.parse().expect("minutes"));
    let mut command = Command::new(artifact("fake-tpu-host"));
    command.args(["--runtime", "127.0.0.1:0", "--orbax", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
    let (_services, addresses) = fake_tpu_host(&mut command);
    let (runtime, orbax) = (addresses["runtime"][0].as_str().unwrap(), addresses["orbax"].as_str().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let db = Arc::new(StateDb::new(folder.path(), Arc::clone(&clock)));
    let (sampling, listened) = (Arc::default(), Arc::default());
    let runtime_of = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings::default();
    let (answer, cpu) = runtime_of.block_on(async {
        let sampler = Sampler::new(&settings, Arc::clone(&clock));
        let ledgers = LiveLedgers::new(Ledgers::new(db), clock);
        let endpoints = [(EndpointKind::RuntimeMetrics, runtime), (EndpointKind::OrbaxGrain, orbax)];
        let (_set, snapshot) = watch::channel(owned_host::snapshot(&endpoints));
        let stop = CancellationToken::new();
        let inputs =
            LedgerInputs { batches: sampler.batches(), host: snapshot.clone(), epoch: sampler.epoch() };
        let listening = tokio::spawn(Timed::new(Arc::clone(&ledgers).run(inputs, stop.clone()), &listened));
        let sources: [(Box<dyn Source>, Duration); 2] = [
            (Box::new(RuntimeSource::default()), settings.interval.get()),
            (Box::new(OrbaxGrainSource::default()), settings.orbax_grain_interval.get()),
        ];
        let mut reading = Vec::new();
        for (source, interval) in sources {
            let (sampler, snapshot, stop) = (sampler.clone(), snapshot.clone(), stop.clone());
            let drive = async move { sampler.drive(source, interval, snapshot, stop).await };
            reading.push(tokio::spawn(Timed::new(drive, &sampling)));
        }
        tokio::time::sleep(START).await;
        let before = CpuTimes::now(&sampling, &listened);
        tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
        let cpu = CpuTimes::now(&sampling, &listened).since(before);
        stop.cancel();
        listening.await.unwrap();
        for task in reading {
            task.await.unwrap();
        }
        (ledgers.ask(LedgerQuestion::default(), |_| true).await.unwrap().remove(0), cpu)
    });
    assert!(answer.counts.productive() > 60 * minutes, "{:?}", answer.counts);
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{minutes} min, {CHIPS} chips behind one port, CPU time:");
    println!("  sampler                 {:9.2} ms", milliseconds(cpu.sampling));
    println!("  ledgers, listening      {:9.2} ms", milliseconds(cpu.listening));
    println!("  ledgers, writing        {:9.2} ms", milliseconds(cpu.writing));
    let share = (cpu.listening + cpu.writing).as_secs_f64() / cpu.sampling.as_secs_f64();
    if promise::at_most("the ledgers' CPU, as a share of the sampler's", share, SHARE) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
