//! What the ledgers of jobs cost beside the sampler that feeds them: both in one process, on one thread, in the same
//! seconds, with 8 chips of one job behind one port. The CPU time of each is that of its polls; writing runs on a thread of
//! its own, which does nothing else.
//!
//! The promise is a ratio to the sampler of the same run. `LEDGER_BENCH_SECONDS` is how long it runs (default 120).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a bench fails loudly")]
#![expect(clippy::cast_precision_loss, reason = "figures of a bench are rounded")]

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
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};
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
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap())
    };
    time(usage.user_time()) + time(usage.system_time())
}

fn main() -> ExitCode {
    let seconds = env::var("LEDGER_BENCH_SECONDS").map_or(120, |text| text.parse().expect("seconds"));
    let mut command = Command::new(artifact("fake-tpu-host"));
    command.args(["--runtime", "127.0.0.1:0", "--orbax", "127.0.0.1:0", "--chips", &CHIPS.to_string()]);
    let (_services, addresses) = fake_tpu_host(&mut command);
    let (runtime, orbax) = (addresses["runtime"][0].as_str().unwrap(), addresses["orbax"].as_str().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let db = Arc::new(StateDb::new(folder.path(), Arc::clone(&clock)));
    let (sampling, ledger) = (Arc::default(), Arc::default());
    let runtime_of = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings::default();
    let answer = runtime_of.block_on(async {
        let sampler = Sampler::new(&settings, Arc::clone(&clock));
        let ledgers = LiveLedgers::new(Ledgers::new(db), clock);
        let endpoints = [(EndpointKind::RuntimeMetrics, runtime), (EndpointKind::OrbaxGrain, orbax)];
        let (_set, snapshot) = watch::channel(owned_host::snapshot(&endpoints));
        let stop = CancellationToken::new();
        let inputs =
            LedgerInputs { batches: sampler.batches(), host: snapshot.clone(), epoch: sampler.epoch() };
        let listening = tokio::spawn(Timed::new(Arc::clone(&ledgers).run(inputs, stop.clone()), &ledger));
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
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stop.cancel();
        listening.await.unwrap();
        for task in reading {
            task.await.unwrap();
        }
        ledgers.ask(LedgerQuestion::default(), |_| true).await.unwrap().remove(0)
    });
    assert!(answer.counts.productive() + 10 > seconds, "{:?}", answer.counts);
    let milliseconds = |sum: &AtomicU64| sum.load(Ordering::Relaxed) as f64 / 1e6;
    // Nothing else runs beside the thread of the tasks.
    let writing = process_time().saturating_sub(thread_time()).as_secs_f64() * 1e3;
    let (sampling, ledger) = (milliseconds(&sampling), milliseconds(&ledger));
    println!("{seconds} s, {CHIPS} chips behind one port, CPU time:");
    println!("  sampler                 {sampling:9.1} ms");
    println!("  ledgers, listening      {ledger:9.1} ms");
    println!("  ledgers, writing        {writing:9.1} ms");
    let share = (ledger + writing) / sampling;
    if promise::at_most("the ledgers' CPU, as a share of the sampler's", share, SHARE) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
