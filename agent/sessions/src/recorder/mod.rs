//! The recorder: the trace of the minutes before. It records a window of each wanted process every so often, keeps it as
//! a segment, and makes a session of the segments when somebody asks.
//!
//! ```text
//! eligibility   which processes, and why not       window         one window of one process: lease, profile, segment
//! schedule      when windows begin                 step_notes     what its trace tells of the job's steps
//! window_length how long they are                  snapshot       segments to a session
//! write_budget  what the disk takes                status, cost   what is known of each process
//! ```
//!
//! `continuous_recording` records with the strategies drain and ring, whose sessions are always open.
//!
//! It is a client of the profilers' tasks like any capture, and a capture goes first. A new way to record plugs in at
//! [`Strategy`]: what is planned, and what is done when a window is due.
//! Must never touch a session of another program, record a process that was found in use by one again unless its owner
//! asks, or delay anything else: all that blocks runs on threads for that.

mod arriving_trace;
mod choose;
mod continuous_recording;
mod cost;
mod eligibility;
mod schedule;
pub mod settings;
mod snapshot;
mod snapshot_part;
mod status;
mod step_notes;
mod strategy;
mod window;
mod window_length;
mod write_budget;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{
    snapshot::HostSnapshot,
    step_times::StepTimes,
    time::{Clock, Timestamp},
    workload::{Owner, ProcessKey, WorkloadId},
};
use store::{
    AsyncStore, StateError,
    segments::{RecordedProcess, RecorderChoice, SegmentGap, Segments},
    uploads::Uploads,
};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use xprof::{client::Target, session::HostName};

pub use arriving_trace::ArrivingTrace;
pub use choose::{ChoiceRefused, ChoiceRequest};
pub use cost::MeasuredCost;
pub use eligibility::{NotRecorded, RecordingPlan};
pub use settings::RecorderSettings;
pub use snapshot::{JobAndUser, SnapshotJob, SnapshotProgress, WantedPast};
pub use status::{ProcessRecording, RecorderStatus};
pub use strategy::Strategy;
pub use window_length::LengthReason;

use crate::{
    continuous::Continuous, profiler::Profilers, settings::Settings as CaptureLimits, target,
    trace_reading::TraceReader,
};
use continuous_recording::{ContinuousJob, RingRequest};
use schedule::{WindowGrid, WindowSchedule};
use window::WindowJob;
use window_length::{WindowBounds, WindowLength};
use write_budget::WriteBudget;

/// How long before a window its profiler is reserved and probed.
const PREPARE: Duration = Duration::from_secs(1);
/// The clock may step: it is looked at so often while a process is recorded.
const LOOK: Duration = Duration::from_secs(5);
/// The most processes of a host that are recorded.
const MAX_PROCESSES: usize = 64;
/// The most traces that are read and compressed at the same time.
const MAX_DISK_THREADS: usize = 2;
/// After so many failures in a row no further windows are left out.
const MAX_BACKOFF: u32 = 6;

/// What a recorder works with.
pub struct RecorderInputs {
    /// Its settings.
    pub settings: RecorderSettings,
    /// The limits of captures, which hold for windows too.
    pub limits: CaptureLimits,
    /// The name of this host in sessions.
    pub host: HostName,
    /// The profilers of this program.
    pub profilers: Arc<Profilers>,
    /// Continuous profiling, for the strategies that keep a session open.
    pub continuous: Arc<Continuous>,
    /// The past.
    pub segments: Arc<Segments>,
    /// Reads what was recorded.
    pub reader: Arc<TraceReader>,
    /// Where the steps go that it shows.
    pub steps: Arc<StepTimes>,
    /// Where snapshots go.
    pub store: AsyncStore,
    /// Where they go next.
    pub uploads: Uploads,
    /// The workloads of this host.
    pub workloads: watch::Receiver<HostSnapshot>,
    /// The clock of this host.
    pub clock: Arc<dyn Clock>,
}

/// The recorder of this host.
pub struct Recorder {
    settings: Mutex<ActiveSettings>,
    host: HostName,
    profilers: Arc<Profilers>,
    continuous: Arc<Continuous>,
    segments: Arc<Segments>,
    reader: Arc<TraceReader>,
    steps: Arc<StepTimes>,
    store: AsyncStore,
    uploads: Uploads,
    workloads: watch::Receiver<HostSnapshot>,
    clock: Arc<dyn Clock>,
    state: Mutex<RecorderState>,
    /// Settings or choices have changed.
    changed: Notify,
    /// The same, and ends of recordings, for all who wait: `changed` wakes one.
    activity: watch::Sender<()>,
    /// One snapshot at a time: each unpacks its segments on the disk.
    snapshots: Arc<Semaphore>,
    /// Threads that write windows.
    disk: Arc<Semaphore>,
}

/// The settings in force.
#[derive(Debug, Clone)]
struct ActiveSettings {
    recorder: RecorderSettings,
    limits: CaptureLimits,
}

impl ActiveSettings {
    fn bounds(&self) -> WindowBounds {
        let half = self.recorder.every.get() / 2;
        let most = half.min(self.limits.max_duration.get());
        let shortest = self.recorder.window.get().min(most);
        WindowBounds { shortest, longest: self.recorder.max_window.get().min(most).max(shortest) }
    }
}

/// What the recorder knows of the processes.
#[derive(Debug, Default)]
struct RecorderState {
    choices: BTreeMap<(WorkloadId, u32), RecorderChoice>,
    foreign_uses: BTreeMap<ProcessKey, String>,
    processes: BTreeMap<RecordedProcess, ProcessState>,
    budget: WriteBudget,
    /// Processes that continuous profiling harmed, and how.
    given_up: BTreeMap<ProcessKey, String>,
    /// The memory of processes before their first session of continuous profiling, in bytes.
    memory_before: BTreeMap<ProcessKey, u64>,
    /// Where to ask for what the rings hold.
    rings: BTreeMap<RecordedProcess, mpsc::Sender<RingRequest>>,
}

/// What is known of one process that is recorded.
#[derive(Debug)]
struct ProcessState {
    schedule: WindowSchedule,
    length: WindowLength,
    /// A window is recorded or received, or the process is recorded continuously.
    is_recording: bool,
    /// When continuous recording may begin again, after the boot.
    continuous_again: Duration,
    /// Failures in a row.
    failures: u32,
    /// Windows that are left out because of them.
    to_leave_out: u32,
    /// Why the last window was not recorded.
    last_failure: Option<String>,
}

impl ProcessState {
    fn new(bounds: WindowBounds) -> Self {
        Self {
            schedule: WindowSchedule::default(),
            length: WindowLength::new(bounds),
            is_recording: false,
            continuous_again: Duration::ZERO,
            failures: 0,
            to_leave_out: 0,
            last_failure: None,
        }
    }

    /// Why the window that is due now is left out.
    fn leaves_out(&mut self, budget_allows: bool) -> Option<&'static str> {
        if self.is_recording {
            return Some("the window before was still being received");
        }
        if self.to_leave_out > 0 {
            self.to_leave_out -= 1;
            return Some("windows before it failed: fewer are tried");
        }
        (!budget_allows).then_some("recorder.max_write_rate: the windows before it were too large")
    }
}

/// A process and whether it is recorded.
struct Planned<'a> {
    owner: &'a Owner,
    process: RecordedProcess,
    plan: Result<RecordingPlan, NotRecorded>,
}

impl Recorder {
    /// The recorder, with the choices that earlier agents were told. Blocks.
    ///
    /// # Errors
    /// If the database refuses.
    pub fn open(inputs: RecorderInputs) -> Result<Arc<Self>, StateError> {
        let RecorderInputs {
            settings,
            limits,
            host,
            profilers,
            continuous,
            segments,
            reader,
            steps,
            store,
            uploads,
            workloads,
            clock,
        } = inputs;
        let choices = segments.choices()?.into_iter();
        let state = RecorderState {
            choices: choices.map(|choice| ((choice.workload.clone(), choice.uid), choice)).collect(),
            foreign_uses: segments.foreign_uses()?,
            ..RecorderState::default()
        };
        let recorder = Self {
            settings: Mutex::new(ActiveSettings { recorder: settings, limits }),
            host,
            profilers,
            continuous,
            segments,
            reader,
            steps,
            store,
            uploads,
            workloads,
            clock,
            state: Mutex::new(state),
            changed: Notify::new(),
            activity: watch::Sender::new(()),
            snapshots: Arc::new(Semaphore::new(1)),
            disk: Arc::new(Semaphore::new(MAX_DISK_THREADS)),
        };
        recorder.restore_steps()?;
        Ok(Arc::new(recorder))
    }

    /// Replaces the settings. They hold for the next windows.
    pub fn set_settings(&self, recorder: RecorderSettings, limits: CaptureLimits) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = ActiveSettings { recorder, limits };
        self.changed.notify_one();
        self.activity.send_replace(());
    }

    /// Records until `stop`, then frees the profilers.
    pub async fn run(self: &Arc<Self>, stop: CancellationToken) {
        let (windows, mut host) = (TaskTracker::new(), self.workloads.clone());
        while !stop.is_cancelled() {
            let wait = self.begin_windows(&windows, &stop);
            let is_wanted = self.is_wanted();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.changed.notified() => {}
                () = sleep_or_never(wait) => {}
                changed = host.changed(), if is_wanted => if changed.is_err() { stop.cancelled().await },
            }
        }
        windows.close();
        windows.wait().await;
    }

    /// Whether any process may be recorded. If not, the recorder has nothing to look at.
    fn is_wanted(&self) -> bool {
        let is_on = self.settings().recorder.mode == settings::RecorderMode::On;
        is_on || self.state().choices.values().any(|choice| choice.is_on)
    }

    /// Begins the windows whose time has come. Returns how long there is nothing else to do; `None`: until something
    /// changes.
    fn begin_windows(self: &Arc<Self>, windows: &TaskTracker, stop: &CancellationToken) -> Option<Duration> {
        if !self.is_wanted() {
            return None;
        }
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let (now, uptime) = (self.clock.now(), self.clock.uptime());
        let mut wait = None;
        let mut gaps = Vec::new();
        let mut state = self.state();
        state.forget_gone(&host);
        for Planned { owner, process, plan } in state.planned(&host, &settings.recorder) {
            let Ok(plan) = plan else { continue };
            let grid = WindowGrid::new(settings.recorder.every.get(), &process.workload);
            let bounds = settings.bounds();
            let budget_allows = state.budget.allows(uptime);
            let known = state.processes.entry(process.clone()).or_insert_with(|| ProcessState::new(bounds));
            if plan.strategy != Strategy::Periodic {
                if !known.is_recording && known.continuous_again <= uptime {
                    known.is_recording = true;
                    let target =
                        target::target(owner, &host.chips, &self.host, Target::from(plan.at), Vec::new());
                    let (process, settings) = (process.clone(), settings.clone());
                    let job = ContinuousJob { process, target, plan, settings };
                    windows.spawn(Arc::clone(self).record_continuously(job, stop.child_token()));
                }
                wait = Some(wait.map_or(LOOK, |wait: Duration| wait.min(LOOK)));
                continue;
            }
            let due = known.schedule.next(&grid, now, uptime);
            let mut look_again = now.age(due);
            if look_again <= PREPARE {
                known.schedule.begun(due, now, uptime);
                look_again = now.age(known.schedule.next(&grid, now, uptime));
                let length = known.length.get(bounds);
                if let Some(reason) = known.leaves_out(budget_allows) {
                    gaps.push(gap(process, (due, length), reason));
                } else {
                    known.is_recording = true;
                    let at = Target::from(plan.at);
                    let target = target::target(owner, &host.chips, &self.host, at, Vec::new());
                    let (process, settings) = (process.clone(), settings.clone());
                    let job = WindowJob { process, target, plan, due, length, settings };
                    windows.spawn(Arc::clone(self).record(job, stop.child_token()));
                }
            }
            let next = look_again.saturating_sub(PREPARE).min(LOOK);
            wait = Some(wait.map_or(next, |wait: Duration| wait.min(next)));
        }
        drop(state);
        self.note_gaps(gaps);
        wait
    }

    /// Notes gaps on a thread that may block.
    fn note_gaps(&self, gaps: Vec<SegmentGap>) {
        if !gaps.is_empty() {
            let segments = Arc::clone(&self.segments);
            drop(tokio::task::spawn_blocking(move || gaps.iter().for_each(|gap| segments.note_gap(gap))));
        }
    }

    fn settings(&self) -> ActiveSettings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn state(&self) -> MutexGuard<'_, RecorderState> {
        // Every change is complete when it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecorderState {
    /// Every process with whether it is recorded.
    fn planned<'a>(&self, host: &'a HostSnapshot, settings: &RecorderSettings) -> Vec<Planned<'a>> {
        let mut recorded = 0;
        let plan = |owner: &'a Owner| {
            let workload = WorkloadId::of(&owner.job);
            let choice = self.choices.get(&(workload.clone(), owner.uid));
            let foreign_use = self.foreign_uses.get(&owner.process).map(String::as_str);
            let mut plan = eligibility::plan(owner, settings, choice, foreign_use);
            if let (Ok(RecordingPlan { strategy, .. }), Some(why)) =
                (&plan, self.given_up.get(&owner.process))
                && *strategy != Strategy::Periodic
            {
                plan = Err(NotRecorded::Strategy(*strategy, why.clone()));
            }
            if plan.is_ok() {
                recorded += 1;
                if recorded > MAX_PROCESSES {
                    plan = Err(NotRecorded::TooMany(MAX_PROCESSES));
                }
            }
            let port = plan.as_ref().map_or(0, |plan| plan.at.port());
            let process = RecordedProcess { workload, process: owner.process, port, uid: owner.uid };
            Planned { owner, process, plan }
        };
        host.workloads.owners.iter().map(plan).collect()
    }

    /// Forgets processes that are gone.
    fn forget_gone(&mut self, host: &HostSnapshot) {
        let living: BTreeSet<ProcessKey> = host.workloads.owners.iter().map(|owner| owner.process).collect();
        self.given_up.retain(|process, _| living.contains(process));
        self.memory_before.retain(|process, _| living.contains(process));
        self.processes.retain(|process, state| state.is_recording || living.contains(&process.process));
    }
}

/// The gap of one window.
fn gap(process: RecordedProcess, (due, length): (Timestamp, Duration), reason: &str) -> SegmentGap {
    SegmentGap { process, start: due, stop: due.plus(length), windows: 1, reason: reason.to_owned() }
}

async fn sleep_or_never(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
