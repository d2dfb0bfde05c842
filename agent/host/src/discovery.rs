//! The discovery task: scans the host's chips and their owners at its own pace and publishes one snapshot for all
//! sources.
//!
//! Everything that reads a file runs on a blocking thread. Must never delay the sampler: while a scan hangs, the last
//! snapshot stays, and the discovery is late.

use std::{
    path::PathBuf,
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
use tracing::debug;

use crate::{
    changes::ChangeLog,
    chip_list::{ChipList, KnownChips},
    chips,
    expected_chips::ExpectedChips,
    own_metrics,
    settings::{device, paths::Paths, workload},
    workloads::OwnerScanner,
};

/// Chips come and go with reboots and re-attachments only.
const CHIPS_EVERY: Duration = Duration::from_secs(60);
/// Minimum time between two scans that callers ask for.
const REQUESTED_EVERY: Duration = Duration::from_secs(1);

/// Events that wait for a listener.
const EVENTS: usize = 64;

/// What to look at.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// The roots below which the agent reads.
    pub paths: Paths,
    /// Chips beyond the table.
    pub device: device::Settings,
    /// Which processes to look for.
    pub workload: workload::Settings,
    /// Where the indices of the chips are kept.
    pub state_dir: PathBuf,
}

/// The discovery task and what it has found; clones share it.
#[derive(Clone)]
pub struct Discovery(Arc<SharedDiscovery>);

struct SharedDiscovery {
    config: DiscoveryConfig,
    clock: Arc<dyn Clock>,
    snapshot: watch::Sender<HostSnapshot>,
    notes: watch::Sender<Vec<String>>,
    events: broadcast::Sender<WorkloadEvent>,
    ticks: AtomicU64,
    liveness: Liveness,
    /// Number of requested scans, and of those that are done.
    requested: watch::Sender<u64>,
    completed: watch::Sender<u64>,
}

/// State that is kept between two ticks.
struct ScanState {
    scanner: OwnerScanner,
    registry: WorkloadRegistry,
    chips: ChipList,
    chips_due: Instant,
    /// When the next requested scan may start.
    request_due: Instant,
    log: ChangeLog,
}

impl Discovery {
    /// A discovery that has not scanned yet.
    pub fn new(config: DiscoveryConfig, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(SharedDiscovery {
            config,
            clock,
            snapshot: watch::Sender::default(),
            notes: watch::Sender::default(),
            events: broadcast::Sender::new(EVENTS),
            ticks: AtomicU64::new(0),
            liveness: Liveness::new(Instant::now()),
            requested: watch::Sender::default(),
            completed: watch::Sender::default(),
        }))
    }

    /// The chips and their owners.
    pub fn snapshot(&self) -> watch::Receiver<HostSnapshot> {
        self.0.snapshot.subscribe()
    }

    /// What could not be read of the chips, as text for a person.
    pub fn notes(&self) -> watch::Receiver<Vec<String>> {
        self.0.notes.subscribe()
    }

    /// Every start and end of a workload from now on. A listener that is too slow loses the oldest and is told how
    /// many.
    pub fn workload_events(&self) -> broadcast::Receiver<WorkloadEvent> {
        self.0.events.subscribe()
    }

    /// Whether the task has stopped making progress.
    pub fn is_late(&self) -> bool {
        self.0.liveness.is_late()
    }

    /// Returns after the first scan.
    pub async fn first_scan(&self) {
        // The sender lives as long as `self`.
        let _ = self.snapshot().wait_for(|_| self.0.ticks.load(Ordering::Relaxed) > 0).await;
    }

    /// Scans all processes now rather than when it is due. Returns when the scan is done, or after `within`.
    /// Concurrent callers share one scan, and there is at most one a second.
    pub async fn scan_now(&self, within: Duration) {
        let mut wanted = 0;
        self.0.requested.send_modify(|requested| {
            *requested += 1;
            wanted = *requested;
        });
        let mut completed = self.0.completed.subscribe();
        // Without a scan in time the last snapshot stays.
        let _ = tokio::time::timeout(within, completed.wait_for(|completed| *completed >= wanted)).await;
    }

    /// Scans at once and then at this pace from `epoch` on, until `stop`. An error says that a scan panicked.
    pub async fn run(&self, epoch: Instant, pace: Pace, stop: CancellationToken) -> Result<(), String> {
        let DiscoveryConfig { paths, workload, device, state_dir } = self.0.config.clone();
        let scanner = OwnerScanner::new(paths, workload, Arc::from([]));
        let interval = || pace.interval(&self.0.snapshot.borrow());
        let mut schedule = Schedule::new(epoch, interval());
        let mut state = ScanState {
            scanner,
            registry: WorkloadRegistry::default(),
            chips: ChipList::new(state_dir, ExpectedChips::new(&device.tpu_env)),
            chips_due: schedule.due(),
            request_due: schedule.due(),
            log: ChangeLog::default(),
        };
        loop {
            self.0.liveness.expect(schedule.due(), schedule.interval());
            if stop
                .run_until_cancelled(self.0.wait_for_turn(schedule.due(), state.request_due))
                .await
                .is_none()
            {
                return Ok(());
            }
            let served = self.0.take_request(&mut state);
            if !self.0.has_nothing_to_read(&mut state) {
                let shared = self.0.clone();
                let tick = tokio::task::spawn_blocking(move || shared.tick(state));
                let Some(done) = stop.run_until_cancelled(tick).await else { return Ok(()) };
                state = done.map_err(|error| error.to_string())?;
            }
            if let Some(served) = served {
                self.0.completed.send_replace(served);
            }
            let now = Instant::now();
            state.log.flush(now);
            if schedule.due() <= now {
                schedule.advance(now);
            }
            schedule.set_interval(interval(), now);
        }
    }
}

impl SharedDiscovery {
    /// Returns when a tick is due, or when a scan was requested and may start.
    async fn wait_for_turn(&self, due: Instant, request_due: Instant) {
        let completed = *self.completed.borrow();
        let mut requests = self.requested.subscribe();
        let request = async {
            // The sender lives as long as `self`.
            let _ = requests.wait_for(|requested| *requested > completed).await;
            sleep_until(request_due).await;
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = request => {}
        }
    }

    /// Makes the next tick a full scan if one was requested; returns how many requests it serves.
    fn take_request(&self, state: &mut ScanState) -> Option<u64> {
        let (requested, now) = (*self.requested.borrow(), Instant::now());
        if requested == *self.completed.borrow() || now < state.request_due {
            return None;
        }
        state.request_due = now + REQUESTED_EVERY;
        state.scanner.request_full_scan();
        Some(requested)
    }

    /// Whether a tick has nothing to read now, and so needs no blocking thread.
    fn has_nothing_to_read(&self, state: &mut ScanState) -> bool {
        let now = self.clock.now();
        Instant::now() < state.chips_due && (state.scanner.is_idle(now) || state.scanner.is_unchanged(now))
    }

    /// Logs an event and hands it to all listeners.
    fn publish(&self, event: WorkloadEvent, log: &mut ChangeLog) {
        log.workload(&event, Instant::now());
        // An error says that there is no subscriber.
        let _ = self.events.send(event);
    }

    /// Scans the chips and publishes them. Blocks.
    fn scan_chips(&self, state: &mut ScanState, now: Instant) {
        let mut scan = chips::scan(&self.config.paths, &self.config.device);
        let other_groups = std::mem::take(&mut scan.other_groups);
        let known = state.chips.after(scan);
        match &known.unknown {
            // The processes are compared with the nodes of before.
            Some(why) => state.log.chips_unknown(why, now),
            None => {
                state.scanner.set_chips(known.chips.clone().into(), other_groups);
                state.log.chips(&known.chips, now);
            }
        }
        self.notes.send_if_modified(|notes| replace(notes, known.notes.clone()));
        debug!(chips = known.chips.len(), notes = known.notes.len(), "chips scanned");
        self.snapshot.send_if_modified(|snapshot| replace_chips(snapshot, known));
    }

    /// Scans what is due, and publishes it. Blocks.
    fn tick(&self, mut state: ScanState) -> ScanState {
        let now = Instant::now();
        if state.chips_due <= now {
            state.chips_due = now + CHIPS_EVERY;
            self.scan_chips(&mut state, now);
        }
        let start = Instant::now();
        let at = self.clock.now();
        let workloads = state.scanner.tick(at);
        if state.scanner.was_full_scan() {
            own_metrics::scanned(start.elapsed());
            debug!(owners = workloads.owners.len(), duration = ?start.elapsed(), "processes scanned");
        }
        // Processes that cannot be seen have not ended.
        if state.scanner.sees_processes() {
            let before = Arc::clone(&self.snapshot.borrow().workloads);
            if !Arc::ptr_eq(&before, &workloads) {
                state.log.owners(&before.owners, &workloads.owners, now);
            }
            let events = state.registry.observe(&workloads.owners, at);
            events.into_iter().for_each(|event| self.publish(event, &mut state.log));
        }
        // The first scan is published even when it found nothing.
        let first = self.ticks.fetch_add(1, Ordering::Relaxed) == 0;
        self.snapshot.send_if_modified(|snapshot| {
            let changed = first || !Arc::ptr_eq(&snapshot.workloads, &workloads);
            if changed {
                snapshot.running = state.registry.running().cloned().collect();
            }
            snapshot.workloads = workloads;
            changed
        });
        own_metrics::found(&self.snapshot.borrow());
        state
    }
}

fn replace<T: PartialEq>(old: &mut T, new: T) -> bool {
    let changed = *old != new;
    *old = new;
    changed
}

fn replace_chips(snapshot: &mut HostSnapshot, known: KnownChips) -> bool {
    let KnownChips { chips, unknown, expected, .. } = known;
    let changed =
        *snapshot.chips != *chips || snapshot.chips_expected != expected || snapshot.chips_unknown != unknown;
    if changed {
        snapshot.chips = chips.into();
        snapshot.chips_expected = expected;
        snapshot.chips_unknown = unknown;
    }
    changed
}
