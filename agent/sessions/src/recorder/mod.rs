//! The recorder: the trace of the minutes before. It records a window of each wanted process every so often, keeps it as
//! a segment, and makes a session of the segments when somebody asks.
//!
//! ```text
//! eligibility   which processes, and why not       window         one window of one process: lease, profile, segment
//! schedule      when windows begin                 step_notes     what its trace tells of the job's steps
//! window_length how long they are                  snapshot       segments to a session
//! write_budget  what the disk takes                status, cost   what is known of each process
//! missed_windows  which windows did not begin, and why
//! process_state what is known of each process, and what is due
//! time_line     which segments stand beside each other after the clock was set back
//! ```
//!
//! `continuous_recording` (with `drain_verdict` and `workload_memory`) records with the strategies drain and ring, whose sessions are always open.
//!
//! It is a client of the profilers' tasks like any capture, and a capture goes first. A new way to record plugs in at
//! [`Strategy`]: what is planned, and what is done when a window is due.
//! Must never touch a session of another program, record a process that was found in use by one again unless its owner
//! asks, or delay anything else: all that blocks runs on threads for that.

mod arriving_trace;
mod choose;
mod continuous_recording;
mod cost;
mod drain_verdict;
mod eligibility;
mod missed_windows;
mod process_state;
mod schedule;
pub mod settings;
mod snapshot;
mod snapshot_part;
mod status;
mod step_notes;
mod strategy;
mod time_line;
mod window;
mod window_length;
mod workload_memory;
mod write_budget;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use model::{snapshot::HostSnapshot, step_times::StepTimes, time::Clock};
use store::{
    AsyncStore, StateError,
    segments::{SegmentGap, Segments},
    uploads::Uploads,
};
use tokio::sync::{Notify, Semaphore, watch};
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
use continuous_recording::ContinuousJob;
use missed_windows::LookedAt;
use process_state::{DueRecording, Planned, RecorderState, gap, stretch};
use window::WindowJob;
use window_length::WindowBounds;

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
            before: segments.ends()?,
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
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let is_wanted = self.is_wanted();
        let looked = LookedAt { now: self.clock.now(), uptime: self.clock.uptime() };
        let mut state = self.state();
        let mut gaps = state.missed(&host, &settings.recorder, looked);
        let mut wait = None;
        if is_wanted {
            state.forget_gone(&host);
            for planned in state.planned(&host, &settings.recorder) {
                let Some((due, look_again)) = state.due(planned, &settings, looked, &mut gaps) else {
                    continue;
                };
                wait = Some(wait.map_or(look_again, |wait: Duration| wait.min(look_again)));
                let Some(DueRecording { owner, process, plan, window }) = due else { continue };
                let target =
                    target::target(owner, &host.chips, &self.host, Target::from(plan.at), Vec::new());
                let (settings, stop) = (settings.clone(), stop.child_token());
                match window {
                    Some((due, length)) => {
                        let job = WindowJob { process, target, plan, due, length, settings };
                        windows.spawn(Arc::clone(self).record(job, stop));
                    }
                    None => {
                        let job = ContinuousJob { process, target, plan, settings };
                        windows.spawn(Arc::clone(self).record_continuously(job, stop));
                    }
                }
            }
        }
        drop(state);
        self.note_gaps(gaps);
        wait
    }

    /// Notes what is missed until now, so that what is read next has it.
    async fn note_missed(&self) {
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let looked = LookedAt { now: self.clock.now(), uptime: self.clock.uptime() };
        let gaps = {
            let mut state = self.state();
            let mut gaps = state.missed(&host, &settings.recorder, looked);
            for (process, known) in &mut state.processes {
                let idle = known.idle.as_mut().filter(|_| !known.is_recording);
                gaps.extend(idle.map(|(since, reason)| {
                    let from = std::mem::replace(since, looked.now);
                    stretch(process.clone(), from, looked.now, reason.clone())
                }));
            }
            gaps
        };
        let segments = Arc::clone(&self.segments);
        let noted = tokio::task::spawn_blocking(move || gaps.iter().for_each(|gap| segments.note_gap(gap)));
        // What was not noted is said in the log.
        let _ = noted.await;
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

async fn sleep_or_never(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
