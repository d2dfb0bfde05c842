//! The sampler on made-up sources and a paused clock.

use std::{future::Future, pin::Pin};

use model::{
    catalog::TPU_HBM_USED_BYTES,
    label::Labels,
    sample::{Sample, SampleValue},
    time::ManualClock,
    workload::{Endpoint, EndpointKind, EndpointOrigin, Workloads},
};

use super::*;

/// Takes `takes[n]` at its n-th read, and notes when each began.
struct Paced {
    origin: Origin,
    takes: Vec<Duration>,
    starts: Arc<Mutex<Vec<Duration>>>,
    start: Instant,
}

impl Source for Paced {
    fn origin(&self) -> Origin {
        self.origin
    }

    fn read<'a>(&'a mut self, tick: &'a Tick) -> Pin<Box<dyn Future<Output = Reading> + Send + 'a>> {
        Box::pin(async move {
            let read = {
                let mut starts = self.starts.lock().unwrap();
                starts.push(self.start.elapsed());
                starts.len() - 1
            };
            tokio::time::sleep(self.takes.get(read).copied().unwrap_or_default()).await;
            let sample = Sample {
                metric: (&TPU_HBM_USED_BYTES).into(),
                labels: Labels::none(),
                value: SampleValue::Gauge(1.0),
                origin: self.origin,
                at: tick.at,
                workload: None,
            };
            Reading { samples: vec![sample], ..Reading::default() }
        })
    }
}

fn paced(origin: Origin, takes: &[u64]) -> (Box<Paced>, Arc<Mutex<Vec<Duration>>>) {
    let starts: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let takes = takes.iter().copied().map(Duration::from_millis).collect();
    (Box::new(Paced { origin, takes, starts: starts.clone(), start: Instant::now() }), starts)
}

fn sampler() -> Sampler {
    Sampler::new(&crate::settings::sampler::Settings::default(), Arc::new(ManualClock::at(Timestamp(0))))
}

/// A host with something to watch.
fn busy() -> HostSnapshot {
    let endpoint = Endpoint {
        kind: EndpointKind::HostService,
        address: "127.0.0.1:8353".parse().unwrap(),
        origin: EndpointOrigin::Config,
        listeners: Vec::new(),
        unreachable: None,
    };
    HostSnapshot {
        workloads: Arc::new(Workloads { endpoints: vec![endpoint], ..Workloads::default() }),
        ..HostSnapshot::default()
    }
}

/// Drives a source for `run` of paused time.
async fn drive(sampler: &Sampler, source: Box<Paced>, run: Duration) {
    let (_discovery, snapshot) = watch::channel(busy());
    let stop = CancellationToken::new();
    let driving = sampler.drive(source, Duration::from_secs(1), snapshot, stop.clone());
    let _ = timeout(run, driving).await;
}

fn milliseconds(starts: &Mutex<Vec<Duration>>) -> Vec<u128> {
    starts.lock().unwrap().iter().map(Duration::as_millis).collect()
}

#[tokio::test(start_paused = true)]
async fn ticks_do_not_drift_whatever_a_read_takes() {
    let (source, starts) = paced(Origin::Runtime, &[300; 100]);
    let sampler = sampler();
    drive(&sampler, source, Duration::from_millis(60_500)).await;
    let wanted: Vec<u128> = (0..=60).map(|tick| tick * 1000).collect();
    assert_eq!(milliseconds(&starts), wanted);
    assert_eq!(sampler.view().source(Origin::Runtime).unwrap().counters.reads, 61);
}

#[tokio::test(start_paused = true)]
async fn a_slow_read_skips_ticks_that_are_counted_and_overlaps_none() {
    let (source, starts) = paced(Origin::Runtime, &[0, 2500, 0, 1000, 0]);
    let sampler = sampler();
    drive(&sampler, source, Duration::from_millis(7_500)).await;
    assert_eq!(milliseconds(&starts), [0, 1000, 4000, 5000, 7000]);
    assert_eq!(sampler.view().source(Origin::Runtime).unwrap().counters.missed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_is_given_up_and_delays_no_other() {
    let (hung, _) = paced(Origin::Runtime, &[1_000_000; 10]);
    let (good, starts) = paced(Origin::Host, &[]);
    let sampler = sampler();
    let run = Duration::from_millis(10_500);
    tokio::join!(drive(&sampler, hung, run), drive(&sampler, good, run));
    assert_eq!(milliseconds(&starts).len(), 11);
    let view = sampler.view();
    let hung = view.source(Origin::Runtime).unwrap();
    assert!(hung.counters.overruns >= 1 && hung.counters.missed >= 5, "{:?}", hung.counters);
    assert_eq!(hung.absent()[0].why, "the read was cancelled after 5 s");
}

#[tokio::test(start_paused = true)]
async fn an_idle_host_is_asked_less_often_and_a_workload_at_once() {
    let (source, starts) = paced(Origin::Host, &[]);
    let sampler = sampler();
    let (snapshot, seen) = watch::channel(HostSnapshot::default());
    let changes = async {
        for (after, now) in [(12_300, busy()), (2_100, HostSnapshot::default())] {
            tokio::time::sleep(Duration::from_millis(after)).await;
            snapshot.send_replace(now);
        }
        tokio::time::sleep(Duration::from_millis(11_000)).await;
    };
    let driving = sampler.drive(source, Duration::from_secs(1), seen, CancellationToken::new());
    tokio::select! {
        () = driving => unreachable!("nobody stops it"),
        () = changes => {}
    }
    // The tick at 15 s was due when the snapshot changed for the second time: it is not put off, so that no value is
    // stale before the next.
    assert_eq!(milliseconds(&starts), [0, 5000, 10_000, 13_000, 14_000, 15_000, 20_000, 25_000]);
    let view = sampler.view();
    let view = view.source(Origin::Host).unwrap();
    assert_eq!(view.counters.missed, 0);
    let last = view.counters.read_at.unwrap();
    assert_eq!(view.samples(last.plus(Duration::from_secs(15))).count(), 1);
    assert_eq!(view.samples(last.plus(Duration::from_nanos(15_000_000_001))).count(), 0);
}

/// Whatever the snapshot does, and whenever one looks, a sampler that ticks is never late; one that does not, soon.
#[tokio::test(start_paused = true)]
async fn a_change_of_pace_is_no_standstill() {
    let idle = "10m".parse::<model::unit::Duration>().unwrap();
    let settings =
        crate::settings::sampler::Settings { idle_interval: idle.try_into().unwrap(), ..Default::default() };
    let sampler = Sampler::new(&settings, Arc::new(ManualClock::at(Timestamp(0))));
    let (snapshot, seen) = watch::channel(HostSnapshot::default());
    let (often, _) = paced(Origin::Host, &[]);
    let (seldom, _) = paced(Origin::OrbaxGrain, &[]);
    let stop = CancellationToken::new();
    let late = async {
        let mut late = Vec::new();
        for (seconds, now) in [(1500, busy()), (60, HostSnapshot::default()), (900, busy()), (30, busy())] {
            for _ in 0..seconds {
                tokio::time::sleep(Duration::from_secs(1)).await;
                late.push(sampler.is_late());
            }
            snapshot.send_replace(now);
            late.push(sampler.is_late());
        }
        stop.cancel();
        late
    };
    let (late, (), ()) = tokio::join!(
        late,
        sampler.drive(often, Duration::from_secs(1), seen.clone(), stop.clone()),
        sampler.drive(seldom, Duration::from_secs(10), seen, stop.clone()),
    );
    assert!(!late.contains(&true), "{late:?}");
    // What was promised while the host was idle holds once; then nobody ticks any more.
    tokio::time::sleep(Duration::from_secs(3 * 600 + 6)).await;
    assert!(sampler.is_late());
}

#[tokio::test(start_paused = true)]
async fn a_sampler_that_never_begins_is_late() {
    let sampler = sampler();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!sampler.is_late());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(sampler.is_late());
}

#[tokio::test(start_paused = true)]
async fn a_host_is_read_when_discovery_has_ended() {
    let (source, starts) = paced(Origin::Host, &[]);
    let (snapshot, seen) = watch::channel(busy());
    drop(snapshot);
    let sampler = sampler();
    let driving = sampler.drive(source, Duration::from_secs(1), seen, CancellationToken::new());
    let _ = timeout(Duration::from_millis(2500), driving).await;
    assert_eq!(milliseconds(&starts), [0, 1000, 2000]);
}

#[tokio::test(start_paused = true)]
async fn the_first_sample_is_announced() {
    let (source, _) = paced(Origin::Host, &[50]);
    let sampler = sampler();
    let starts = Instant::now();
    let first = async {
        sampler.first_sample().await;
        starts.elapsed()
    };
    let (seen, ()) = tokio::join!(first, drive(&sampler, source, Duration::from_millis(500)));
    assert_eq!(seen, Duration::from_millis(50));
}

#[tokio::test]
async fn stopping_ends_a_read_under_way() {
    let (source, _) = paced(Origin::Host, &[1_000_000]);
    let (_discovery, snapshot) = watch::channel(HostSnapshot::default());
    let stop = CancellationToken::new();
    let sampler = sampler();
    let driving = sampler.drive(source, Duration::from_secs(1), snapshot, stop.clone());
    let stopping = async {
        tokio::task::yield_now().await;
        stop.cancel();
    };
    let ended = timeout(Duration::from_secs(5), async { tokio::join!(driving, stopping) }).await;
    assert!(ended.is_ok());
}

#[tokio::test(start_paused = true)]
async fn every_listener_gets_every_batch_of_every_source() {
    let (runtime, _) = paced(Origin::Runtime, &[]);
    let (host, _) = paced(Origin::Host, &[]);
    let sampler = sampler();
    let mut listeners = [sampler.batches(), sampler.batches()];
    let run = Duration::from_millis(3500);
    tokio::join!(drive(&sampler, runtime, run), drive(&sampler, host, run));
    for listener in &mut listeners {
        let mut origins = Vec::new();
        for _ in 0..8 {
            let Some(Delivery::Batch(batch)) = listener.next().await else { panic!("a batch is missing") };
            assert_eq!((batch.samples.len(), batch.absent.len()), (1, 0));
            assert_eq!(batch.fresh_until, batch.at.plus(Duration::from_secs(3)));
            origins.push(batch.origin);
        }
        origins.sort_unstable();
        assert_eq!(origins, [[Origin::Runtime; 4], [Origin::Host; 4]].concat());
    }
}

/// A clock that goes with the runtime's, and whose wall time a test steps.
struct SteppedClock {
    start: Instant,
    by_ns: std::sync::atomic::AtomicI64,
}

impl SteppedClock {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), by_ns: 1_800_000_000_000_000_000.into() })
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        Timestamp(0).plus(self.uptime()).stepped(self.by_ns.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        self.start.elapsed()
    }
}

const HOUR_NS: i64 = 3_600_000_000_000;

#[tokio::test(start_paused = true)]
async fn a_stepped_clock_loses_no_history_and_falsifies_no_age() {
    let clock = SteppedClock::new();
    let sampler = Sampler::new(&crate::settings::sampler::Settings::default(), clock.clone());
    let (good, _) = paced(Origin::Host, &[]);
    // It fails all the time.
    let (hung, _) = paced(Origin::Runtime, &[1_000_000; 200]);
    let run = Duration::from_secs(400);
    let check = async {
        let failing_since = |view: &View, now: Timestamp| {
            let hung = view.source(Origin::Runtime).unwrap();
            hung.missing().next().map(|(_, since)| since.age(now))
        };
        for (turn, by) in [0, HOUR_NS, -2 * HOUR_NS, HOUR_NS].into_iter().enumerate() {
            clock.by_ns.fetch_add(by, Ordering::SeqCst);
            for second in 0..90 {
                let (now, view) = (clock.now(), sampler.view());
                if turn > 0 || second > 10 {
                    let age = view.source(Origin::Host).and_then(|source| source.age(now)).unwrap();
                    assert!(age <= Duration::from_secs(1), "turn {turn}, second {second}: {age:?}");
                    assert_eq!(view.samples(now).len(), 1, "turn {turn}, second {second}");
                    let failing = failing_since(&view, now).unwrap();
                    let since_start = clock.uptime();
                    assert!(
                        since_start - failing <= Duration::from_secs(6),
                        "{failing:?} of {since_start:?}"
                    );
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let query = RangeQuery {
                metric: "tpu_hbm_used_bytes",
                from: Timestamp(i64::MIN),
                to: clock.now(),
                points: usize::MAX,
            };
            let history = sampler.history(&query);
            let points = &history[0].points;
            assert!(points.len() + 1 >= 90 * (turn + 1), "turn {turn}: {}", points.len());
            let ordered = points.windows(2).all(|pair| {
                let gap = pair[1].at.0 - pair[0].at.0;
                (900_000_000..=1_100_000_000).contains(&gap)
            });
            assert!(ordered, "turn {turn}: {points:?}");
        }
    };
    let driving = async { tokio::join!(drive(&sampler, good, run), drive(&sampler, hung, run)) };
    tokio::select! {
        _ = driving => unreachable!("it runs longer"),
        () = check => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_stops_is_stale_although_the_clock_was_set_back() {
    let clock = SteppedClock::new();
    let sampler = Sampler::new(&crate::settings::sampler::Settings::default(), clock.clone());
    let (source, _) = paced(Origin::Host, &[]);
    drive(&sampler, source, Duration::from_millis(5_500)).await;
    assert_eq!(sampler.view().samples(clock.now()).len(), 1);
    clock.by_ns.fetch_sub(HOUR_NS, Ordering::SeqCst);
    assert_eq!(sampler.view().samples(clock.now()).len(), 1);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(sampler.view().samples(clock.now()).len(), 0);
}
