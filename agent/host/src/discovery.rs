//! The scout: looks at the host's chips and at who holds them, at its own pace, so that every source is told the
//! same snapshot.
//!
//! Looking blocks, and so happens on a thread of its own kind; a glance that finds nothing changed does not. Must never
//! hold the sampler up: a look that hangs leaves the last snapshot standing, and the scout late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::{
    liveness::Liveness,
    pace::Pace,
    registry::{WorkloadEvent, WorkloadRegistry},
    schedule::Schedule,
    snapshot::HostSnapshot,
    time::Clock,
};
use tokio::{
    sync::{broadcast, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    chips,
    settings::{device::Device, paths::Paths, workload::Workload},
    workloads::OwnerScanner,
};

/// Chips come and go with reboots and re-attachments only.
const CHIPS_EVERY: Duration = Duration::from_secs(60);
/// A look that somebody asks for is as dear as any other: this often at most.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// Events that wait for a listener.
const EVENTS: usize = 64;

/// What to look at.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// The roots.
    pub paths: Paths,
    /// Chips beyond the table.
    pub device: Device,
    /// Whom to look for.
    pub workload: Workload,
}

/// What the scout sees, for whoever wants to know; clones share it.
#[derive(Clone)]
pub struct Discovery(Arc<Shared>);

struct Shared {
    config: DiscoveryConfig,
    clock: Arc<dyn Clock>,
    snapshot: watch::Sender<HostSnapshot>,
    notes: watch::Sender<Vec<String>>,
    events: broadcast::Sender<WorkloadEvent>,
    looks: AtomicU64,
    liveness: Liveness,
    /// Full looks that were asked for, and as many of them as are done.
    asked: watch::Sender<u64>,
    answered: watch::Sender<u64>,
}

/// What is kept from one look to the next.
struct Memory {
    discovery: OwnerScanner,
    registry: WorkloadRegistry,
    chips_due: Instant,
    /// When a look may be had for the asking.
    asking_due: Instant,
}

impl Discovery {
    /// A scout that has seen nothing yet.
    pub fn new(config: DiscoveryConfig, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared {
            config,
            clock,
            snapshot: watch::Sender::default(),
            notes: watch::Sender::default(),
            events: broadcast::Sender::new(EVENTS),
            looks: AtomicU64::new(0),
            liveness: Liveness::new(Instant::now()),
            asked: watch::Sender::default(),
            answered: watch::Sender::default(),
        }))
    }

    /// The chips, and who holds them.
    pub fn snapshot(&self) -> watch::Receiver<HostSnapshot> {
        self.0.snapshot.subscribe()
    }

    /// What could not be seen of the chips, in words.
    pub fn notes(&self) -> watch::Receiver<Vec<String>> {
        self.0.notes.subscribe()
    }

    /// Every start and end of a workload from now on. A listener that is too slow loses the oldest and is told how
    /// many.
    pub fn workload_events(&self) -> broadcast::Receiver<WorkloadEvent> {
        self.0.events.subscribe()
    }

    /// Whether the scout stands still.
    pub fn is_late(&self) -> bool {
        self.0.liveness.is_late()
    }

    /// Returns after the first look.
    pub async fn first_scan(&self) {
        // The sender lives as long as the scout.
        let _ = self.snapshot().wait_for(|_| self.0.looks.load(Ordering::Relaxed) > 0).await;
    }

    /// Looks at every process now rather than when it is due, and returns when that is done, or after `within`.
    /// Several who ask get one look, and there is one a second at most.
    pub async fn scan_now(&self, within: Duration) {
        let mut wanted = 0;
        self.0.asked.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
        });
        let mut answered = self.0.answered.subscribe();
        // Without an answer in time the last snapshot stands.
        let _ = tokio::time::timeout(within, answered.wait_for(|answered| *answered >= wanted)).await;
    }

    /// Looks at once and then at this pace from `epoch` on, until `stop`. An error says that a look panicked.
    pub async fn run(&self, epoch: Instant, pace: Pace, stop: CancellationToken) -> Result<(), String> {
        let DiscoveryConfig { paths, workload, .. } = self.0.config.clone();
        let discovery = OwnerScanner::new(paths, workload, Arc::from([]));
        let interval = || pace.interval(&self.0.snapshot.borrow());
        let mut schedule = Schedule::new(epoch, interval());
        let mut memory = Memory {
            discovery,
            registry: WorkloadRegistry::default(),
            chips_due: schedule.due(),
            asking_due: schedule.due(),
        };
        loop {
            self.0.liveness.expect(schedule.due(), schedule.interval());
            if stop.run_until_cancelled(self.0.turn(schedule.due(), memory.asking_due)).await.is_none() {
                return Ok(());
            }
            let answers = self.0.take_request(&mut memory);
            if !self.0.glance(&mut memory) {
                let scout = self.0.clone();
                let look = tokio::task::spawn_blocking(move || scout.look(memory));
                let Some(looked) = stop.run_until_cancelled(look).await else { return Ok(()) };
                memory = looked.map_err(|error| error.to_string())?;
            }
            if let Some(answers) = answers {
                self.0.answered.send_replace(answers);
            }
            let now = Instant::now();
            if schedule.due() <= now {
                schedule.advance(now);
            }
            schedule.set_interval(interval(), now);
        }
    }
}

impl Shared {
    /// Returns when a look is due, or was asked for and may be had.
    async fn turn(&self, due: Instant, asking_due: Instant) {
        let answered = *self.answered.borrow();
        let mut requests = self.asked.subscribe();
        let asked = async {
            // The sender lives as long as the scout.
            let _ = requests.wait_for(|asked| *asked > answered).await;
            sleep_until(asking_due).await;
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = asked => {}
        }
    }

    /// Makes the next look a full one if somebody waits for it; gives how many requests it answers.
    fn take_request(&self, memory: &mut Memory) -> Option<u64> {
        let (asked, now) = (*self.asked.borrow(), Instant::now());
        if asked == *self.answered.borrow() || now < memory.asking_due {
            return None;
        }
        memory.asking_due = now + ASKED_EVERY;
        memory.discovery.look_at_all();
        Some(asked)
    }

    /// Whether there is nothing to be looked at more closely.
    fn glance(&self, memory: &mut Memory) -> bool {
        let quiet = Instant::now() < memory.chips_due && memory.discovery.is_quiet(self.clock.now());
        if quiet {
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
        quiet
    }

    /// Logs an event and hands it to all listeners.
    fn publish(&self, event: WorkloadEvent) {
        let (what, workload) = match &event {
            WorkloadEvent::Started { workload, .. } => ("started", workload),
            WorkloadEvent::Ended { workload, .. } => ("ended", workload),
        };
        let (job, kind) = (workload.id.job.as_str(), workload.id.kind.as_str());
        tracing::info!(job, kind, processes = workload.owners.len(), "workload {what}");
        // An error says that nobody listens.
        let _ = self.events.send(event);
    }

    fn look(&self, mut memory: Memory) -> Memory {
        let now = Instant::now();
        if memory.chips_due <= now {
            memory.chips_due = now + CHIPS_EVERY;
            let seen = chips::scan(&self.config.paths, &self.config.device);
            memory.discovery.set_chips(seen.chips.clone().into());
            self.notes.send_if_modified(|notes| replace(notes, seen.notes));
            self.snapshot.send_if_modified(|snapshot| replace_chips(snapshot, seen.chips));
        }
        let at = self.clock.now();
        let workloads = memory.discovery.tick(at);
        // Processes that cannot be seen have not ended.
        if memory.discovery.sees_processes() {
            let events = memory.registry.observe(&workloads.owners, at);
            events.into_iter().for_each(|event| self.publish(event));
        }
        // The first look is news even when it found nothing.
        let first = self.looks.fetch_add(1, Ordering::Relaxed) == 0;
        self.snapshot.send_if_modified(|snapshot| {
            let news = first || !Arc::ptr_eq(&snapshot.workloads, &workloads);
            if news {
                snapshot.running = memory.registry.running().cloned().collect();
            }
            snapshot.workloads = workloads;
            news
        });
        memory
    }
}

fn replace<T: PartialEq>(old: &mut T, new: T) -> bool {
    let news = *old != new;
    *old = new;
    news
}

fn replace_chips(snapshot: &mut HostSnapshot, chips: Vec<model::device::Chip>) -> bool {
    let news = *snapshot.chips != *chips;
    if news {
        snapshot.chips = chips.into();
    }
    news
}
