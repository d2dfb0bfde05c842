//! Where the time of each job goes, live: the proxy ledger of every job that has chips open on this host.
//!
//! ```text
//! sampler ──batches──▶ set of ledgers ──every 2 min──▶ database (hours by the second, later by the minute)
//! discovery ─snapshot─▶      │
//!                            ├──▶ answers to questions
//!                            └──▶ gauges of the metrics page
//! ```
//!
//! One task listens; files are read and written on threads that may block. When the agent starts again, the ledger goes
//! on where it was kept, and the time between is unobserved. Must never delay the sampler, or count a second as
//! productive that nobody observed.

mod answer;
mod causes;
mod gauges;
mod job_ledger;
mod keeping;
mod ledger_set;
mod observed;

#[cfg(test)]
mod tests;

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    schedule::Schedule,
    snapshot::HostSnapshot,
    time::{Clock, Timestamp},
};
use sampling::sampler::{Batch, BatchListener, ClockSteps, Delivery};
use store::ledgers::Ledgers;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use answer::{JobGoodput, LedgerError, LedgerQuestion, LedgerSubject};
pub use gauges::LEDGER;

use keeping::Keeping;
use ledger_set::LedgerSet;
use observed::ObservedJob;

const SECOND: Duration = Duration::from_secs(1);
const SECOND_NS: i64 = 1_000_000_000;
/// So long a tick waits for the batch of its second: then one wake-up does for both.
const FOR_A_BATCH: Duration = Duration::from_millis(400);

/// The ledgers of this host.
pub struct LiveLedgers {
    set: Mutex<LedgerSet>,
    kept: Ledgers,
    clock: Arc<dyn Clock>,
}

/// What the ledgers listen to.
pub struct LedgerInputs {
    /// The batches of the sampler.
    pub batches: BatchListener,
    /// The chips and their owners, after a first scan.
    pub host: watch::Receiver<HostSnapshot>,
    /// What the ticks of the sampler count from.
    pub epoch: Instant,
}

/// The task between two ticks.
struct LedgerTask {
    ledgers: Arc<LiveLedgers>,
    host: watch::Receiver<HostSnapshot>,
    jobs: Vec<ObservedJob>,
    /// Whether all of them have their ledgers.
    has_all: bool,
    steps: WholeSteps,
    keeping: Keeping,
}

impl LiveLedgers {
    /// The ledgers of an agent that starts. Those of earlier agents are read when their jobs are seen.
    pub fn new(kept: Ledgers, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { set: Mutex::default(), kept, clock })
    }

    /// Listens until `stop`, and keeps what is not kept then.
    pub async fn run(self: Arc<Self>, inputs: LedgerInputs, stop: CancellationToken) {
        let LedgerInputs { mut batches, mut host, epoch } = inputs;
        host.mark_changed();
        let mut task = LedgerTask::new(self, host.clone());
        let mut schedule = Schedule::new(epoch, SECOND);
        // Made once: each is registered anew when it is made.
        let mut stopped = pin!(stop.cancelled());
        let mut without_batch = pin!(sleep_until(schedule.due()));
        loop {
            let is_idle = task.is_idle();
            tokio::select! {
                biased;
                () = &mut stopped => break,
                delivery = batches.next() => match delivery {
                    Some(Delivery::Batch(batch)) if is_idle => task.ledgers.set().idle(second_of(batch.at)),
                    Some(Delivery::Batch(batch)) => task.ledgers.batch(&batch),
                    // Seconds without a sample are not known.
                    Some(Delivery::Lost(_)) => {}
                    None => break,
                },
                () = &mut without_batch, if !is_idle => {}
                // An idle host has no ticks.
                Ok(()) = host.changed(), if is_idle => {}
            }
            let now = Instant::now();
            if !is_idle && now >= schedule.due() {
                schedule.advance(now);
                without_batch.as_mut().reset(schedule.due() + FOR_A_BATCH);
                task.tick().await;
            }
        }
        task.keeping.finish(&task.ledgers).await;
    }

    /// Takes a batch of the sampler.
    fn batch(&self, batch: &Batch) {
        self.set().batch(second_of(batch.at), batch);
    }

    fn set(&self) -> MutexGuard<'_, LedgerSet> {
        // Each second is settled in one step: after a panic the ledgers are those of the second before.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerTask {
    fn new(ledgers: Arc<LiveLedgers>, host: watch::Receiver<HostSnapshot>) -> Self {
        Self {
            steps: WholeSteps::new(&*ledgers.clock),
            keeping: Keeping::new(ledgers.kept.clone()),
            ledgers,
            host,
            jobs: Vec::new(),
            has_all: true,
        }
    }

    /// Whether no job has a chip open, and all of those that had one are kept.
    fn is_idle(&self) -> bool {
        self.ledgers.set().is_empty() && self.host.borrow().running.is_empty()
    }

    async fn tick(&mut self) {
        let clock = Arc::clone(&self.ledgers.clock);
        if let Some(by) = self.steps.look(&*clock) {
            self.ledgers.set().step(by);
        }
        if self.host.has_changed().unwrap_or(false) {
            self.jobs = observed::jobs(&self.host.borrow_and_update());
            self.has_all = false;
        }
        let second = second_of(clock.now());
        if !self.has_all {
            self.open_missing(second).await;
        }
        self.ledgers.set().tick(second, &self.jobs);
        self.keeping.tick(&self.ledgers).await;
    }

    /// Opens the ledgers of jobs that have none.
    async fn open_missing(&mut self, second: i64) {
        let missing: Vec<ObservedJob> = self.ledgers.set().missing(&self.jobs).into_iter().cloned().collect();
        for job in missing {
            if let Some(ledger) = self.keeping.open(&job, second).await {
                self.ledgers.set().insert(ledger);
            }
        }
        self.has_all = self.ledgers.set().has_all(&self.jobs);
    }
}

fn second_of(at: Timestamp) -> i64 {
    at.0.div_euclid(SECOND_NS)
}

/// Steps of the clock in whole seconds.
struct WholeSteps {
    steps: ClockSteps,
    seconds: i64,
}

impl WholeSteps {
    fn new(clock: &dyn Clock) -> Self {
        Self { steps: ClockSteps::new(clock), seconds: 0 }
    }

    /// By how many seconds the clock was stepped since the last look. What is less than a second is part of a later step.
    fn look(&mut self, clock: &dyn Clock) -> Option<i64> {
        self.steps.look(clock)?;
        let total = self.steps.total_ns().saturating_add(SECOND_NS / 2).div_euclid(SECOND_NS);
        let by = total - self.seconds;
        self.seconds = total;
        (by != 0).then_some(by)
    }
}
