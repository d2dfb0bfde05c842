//! The sampler: reads every source at its interval, and publishes the result as a batch.
//!
//! ```text
//! source ──tick──▶ reading ──▶ batch ──▶ view (latest, by source)  ──▶ export, api
//!                                   ├──▶ history (fixed in bytes)  ──▶ api
//!                                   └──▶ listeners (bounded queue)
//! ```
//!
//! One task a source. Ticks lie on an absolute schedule: they do not drift, reads of one source never overlap, and a
//! tick that would start during the previous read is skipped and counted. Must never let one source wait for another.

mod batch;
mod clock_steps;
mod failures;
mod history;
mod view;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::{
    liveness::Liveness,
    pace::Pace,
    sample::Origin,
    schedule::Schedule,
    snapshot::HostSnapshot,
    time::{Clock, Timestamp},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use batch::BatchPublisher;
use failures::FailureLog;

use crate::{
    own_metrics::SourceMetrics,
    settings,
    sources::{Absence, Reading, Source, Tick},
};

pub use batch::{Batch, BatchListener, Delivery};
pub use clock_steps::ClockSteps;
pub use history::{History, HistoryPoint, HistorySeries, RangeQuery, SeriesKey, Statistic};
pub use view::{FreshSample, SourceCounters, SourceView, View};

/// A read that takes longer has missed its deadlines and is cancelled.
const OVERRUN: Duration = Duration::from_secs(5);

/// The sampler; clones share it.
#[derive(Clone)]
pub struct Sampler(Arc<SharedSampler>);

struct SharedSampler {
    clock: Arc<dyn Clock>,
    steps: Mutex<ClockSteps>,
    stale_after: u32,
    /// The interval of an idle host.
    idle: Duration,
    view: RwLock<Arc<View>>,
    history: Mutex<History>,
    batches: BatchPublisher,
    /// Of the sources that are read most often, whose interval in milliseconds this is.
    liveness: Liveness,
    often: AtomicU64,
    first: watch::Sender<bool>,
    /// What all schedules count from: ticks that fall together wake the process once.
    epoch: Instant,
}

impl Sampler {
    /// A sampler without samples yet.
    pub fn new(settings: &settings::sampler::Settings, clock: Arc<dyn Clock>) -> Self {
        let epoch = Instant::now();
        Self(Arc::new(SharedSampler {
            steps: Mutex::new(ClockSteps::new(&*clock)),
            clock,
            stale_after: settings.stale_after,
            // Simulated chips are read as often as real ones.
            idle: if settings.sim_chips > 0 { Duration::ZERO } else { settings.idle_interval.get() },
            view: RwLock::default(),
            history: Mutex::new(History::new(settings.history.as_usize(), settings.history_step.get())),
            batches: BatchPublisher::new(),
            liveness: Liveness::new(epoch),
            often: AtomicU64::new(u64::MAX),
            first: watch::Sender::new(false),
            epoch,
        }))
    }

    /// The current values.
    pub fn view(&self) -> Arc<View> {
        self.follow_clock();
        self.0.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The history of one metric.
    pub fn history(&self, query: &RangeQuery<'_>) -> Vec<HistorySeries> {
        self.follow_clock();
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner).query(query)
    }

    /// Every batch from now on. A subscriber that is too slow loses the oldest batches and receives their number.
    pub fn batches(&self) -> BatchListener {
        self.0.batches.subscribe()
    }

    /// Bytes and series of the history.
    pub fn history_size(&self) -> (usize, usize) {
        let history = self.0.history.lock().unwrap_or_else(PoisonError::into_inner);
        (history.bytes(), history.series())
    }

    /// Whether no tick has come for too long.
    pub fn is_late(&self) -> bool {
        self.0.liveness.is_late()
    }

    /// What all ticks count from.
    pub fn epoch(&self) -> Instant {
        self.0.epoch
    }

    /// The pace for an `interval` of the settings.
    pub fn pace(&self, interval: Duration) -> Pace {
        Pace::new(interval, self.0.idle)
    }

    /// Returns after the first reading that has a value.
    pub async fn first_sample(&self) {
        // The sender lives as long as the sampler.
        let _ = self.0.first.subscribe().wait_for(|seen| *seen).await;
    }

    /// Reads `source` at the pace of `interval` until `stop`; the first time at once.
    pub async fn drive(
        &self,
        mut source: Box<dyn Source>,
        interval: Duration,
        mut snapshot: watch::Receiver<HostSnapshot>,
        stop: CancellationToken,
    ) {
        let pace = self.pace(interval);
        let milliseconds = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        self.0.often.fetch_min(milliseconds, Ordering::Relaxed);
        let mut schedule = Schedule::new(self.0.epoch, pace.interval(&snapshot.borrow()));
        let mut view = Arc::new(SourceView::new(source.origin()));
        let metrics = SourceMetrics::new(source.origin());
        let mut failures = FailureLog::default();
        while stop.run_until_cancelled(turn(&mut schedule, pace, &mut snapshot)).await.is_some() {
            let host = snapshot.borrow().clone();
            let stepped_before = self.follow_clock();
            let lasting = schedule.interval().saturating_mul(self.0.stale_after.max(1));
            let tick = Tick { at: self.due_time(schedule.due()), host };
            let start = Instant::now();
            let read = timeout(OVERRUN, source.read(&tick));
            let Some(read) = stop.run_until_cancelled(read).await else { return };
            let (mut reading, overran) =
                read.map_or_else(|_| (overrun(source.origin()), 1), |reading| (reading, 0));
            let stepped = self.follow_clock().saturating_sub(stepped_before);
            let at = tick.at.stepped(stepped);
            reading.samples.iter_mut().for_each(|sample| sample.at = sample.at.stepped(stepped));
            view = self.shown(source.origin()).unwrap_or(view);
            let counters = SourceCounters {
                reads: view.counters.reads + 1,
                overruns: view.counters.overruns + overran,
                missed: view.counters.missed + schedule.advance(Instant::now()),
                read_at: Some(at),
                duration: start.elapsed(),
                ..view.counters
            };
            let batch = Arc::new(Batch {
                origin: source.origin(),
                at,
                fresh_until: at.plus(lasting),
                samples: reading.samples,
                absent: reading.absent,
                unused: reading.unused,
            });
            let next = self.publish(&view, batch, counters);
            // The failures of libtpu are those of its process: that source logs them itself.
            if source.origin() != Origin::Libtpu {
                failures.note(source.origin(), next.absent(), start);
            }
            view = next;
            debug!(
                source = source.origin().as_str(),
                series = view.samples(at).count(),
                missing = view.absent().len(),
                duration = ?counters.duration,
                "read"
            );
            metrics.read(&view.counters);
            if milliseconds <= self.0.often.load(Ordering::Relaxed) {
                self.0.liveness.expect(schedule.due(), schedule.interval());
            }
        }
    }

    /// Moves what is kept with the wall clock where that was stepped: how long ago everything was stays the same.
    /// Returns the nanoseconds of all steps.
    fn follow_clock(&self) -> i64 {
        let mut steps = self.0.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(by_ns) = steps.look(&*self.0.clock) {
            self.0.history.lock().unwrap_or_else(PoisonError::into_inner).step(by_ns / 1_000_000);
            let mut view = self.0.view.write().unwrap_or_else(PoisonError::into_inner);
            *view = Arc::new(view.stepped(by_ns));
            info!(seconds = by_ns / 1_000_000_000, "the wall clock was stepped; past samples keep their age");
        }
        steps.total_ns()
    }

    /// The part of a source in the view.
    fn shown(&self, origin: Origin) -> Option<Arc<SourceView>> {
        let view = self.0.view.read().unwrap_or_else(PoisonError::into_inner);
        view.sources.iter().find(|source| source.origin == origin).cloned()
    }

    /// The wall clock's time of an instant that has just passed.
    fn due_time(&self, due: Instant) -> Timestamp {
        let late = Instant::now().duration_since(due);
        let late = i64::try_from(late.as_nanos()).unwrap_or(0);
        Timestamp(self.0.clock.now().0.saturating_sub(late))
    }

    /// Hands a batch to the history, the view and all listeners.
    fn publish(&self, before: &SourceView, batch: Arc<Batch>, counters: SourceCounters) -> Arc<SourceView> {
        let has_samples = !batch.samples.is_empty();
        if has_samples {
            let mut history = self.0.history.lock().unwrap_or_else(PoisonError::into_inner);
            batch.samples.iter().for_each(|sample| history.push(sample));
        }
        let after = Arc::new(before.after(batch.clone(), counters));
        {
            let mut view = self.0.view.write().unwrap_or_else(PoisonError::into_inner);
            *view = Arc::new(view.with(after.clone()));
        }
        self.0.batches.publish(batch);
        if has_samples && !*self.0.first.borrow() {
            self.0.first.send_replace(true);
        }
        after
    }
}

/// Returns when a tick is due, at the pace of the snapshot as it changes.
async fn turn(schedule: &mut Schedule, pace: Pace, snapshot: &mut watch::Receiver<HostSnapshot>) {
    loop {
        let interval = pace.interval(&snapshot.borrow_and_update());
        schedule.set_interval(interval, Instant::now());
        tokio::select! {
            biased;
            () = sleep_until(schedule.due()) => return,
            Ok(()) = snapshot.changed() => {}
        }
    }
}

fn overrun(origin: Origin) -> Reading {
    let why = format!("the read was cancelled after {} s", OVERRUN.as_secs());
    let absent = vec![Absence::new(origin.as_str(), why)];
    Reading { absent, ..Reading::default() }
}

#[cfg(test)]
mod tests;
