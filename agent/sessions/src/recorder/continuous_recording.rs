//! A process that is recorded continuously: its session is started, drained at an interval, stopped for a capture and now and
//! then for a minute as control, and given up where it harms the workload.
//!
//! A ring is not drained at an interval: a snapshot asks for what it holds. Must never leave a session to itself: every way
//! out stops it.

use std::{sync::Arc, time::Duration};

use model::time::Timestamp;
use store::segments::{RawTrace, RecordedProcess, Segments, StoredSegment};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    ActiveSettings, ArrivingTrace, MAX_BACKOFF, Recorder, RecordingPlan, Strategy, WantedPast, gap, stretch,
    window::{ArrivedTrace, keep},
    workload_memory::{memory_of, read_memory, until_too_large},
};
use crate::{
    continuous::{
        ContinuousLevel, ContinuousRefusal, ContinuousSession, ContinuousSpec, ContinuousStrategy,
        DrainError, DrainedSegment, OverReason,
        growth::{HarmLimits, HarmWatch, MemoryLimit, PAUSE},
    },
    own_metrics,
    profiler::queue::{ProfilerUser, Refusal},
    spec::{CaptureParams, CaptureSpec, Levels, ParamsSource},
    target::CaptureTarget,
};

/// The shortest and the longest interval of drains.
pub(super) const LEAST_EVERY: Duration = Duration::from_secs(5);
pub(super) const LONGEST_EVERY: Duration = Duration::from_secs(120);
/// How long a stop may take while a capture waits for the profiler.
const STOP: Duration = Duration::from_secs(3);
/// The wait before a session is started again.
const AGAIN: Duration = Duration::from_secs(5);
/// A shorter time between two segments is what a snapshot of the profiler takes itself.
const LEAST_GAP: Duration = Duration::from_secs(1);
/// How long a drain may go on that is under way when something else is to be done.
const DRAIN_GRACE: Duration = Duration::from_secs(2);
/// After so many drains in a row that could not be kept the session is stopped: it costs the workload and gives nothing.
const MOST_UNKEPT: u32 = 3;
/// The most snapshots of a ring that wait.
pub(super) const RING_INBOX: usize = 4;

/// A process to record continuously.
pub(super) struct ContinuousJob {
    pub(super) process: RecordedProcess,
    pub(super) target: CaptureTarget,
    pub(super) plan: RecordingPlan,
    pub(super) settings: ActiveSettings,
}

/// Asks for what a ring holds, and is told when it is kept.
pub(super) type RingRequest = oneshot::Sender<()>;

/// Why a recording does not go on as it is.
pub(super) enum Turn {
    /// The agent stops, or the owner or the settings want it otherwise.
    Unwanted,
    /// A capture wants the profiler.
    Capture,
    /// It is not recorded for a minute, to see how fast its steps are then.
    Control,
    /// Less is recorded from now on.
    Lower,
    /// It harms the workload.
    GivenUp(String),
    /// Another program uses the profiler.
    Foreign(String),
    /// The session is over, or did not start.
    Failed(String),
}

/// One process while it is recorded.
pub(super) struct ContinuousRecording {
    pub(super) job: ContinuousJob,
    pub(super) strategy: ContinuousStrategy,
    pub(super) level: ContinuousLevel,
    pub(super) every: Duration,
    pub(super) watch: HarmWatch,
    pub(super) epoch: Instant,
    /// Drains in a row that were not kept.
    unkept: u32,
    /// Drains that were kept.
    kept: u64,
    /// The end of the newest segment, or the start of the session.
    recorded_until: Option<Timestamp>,
    /// How late a drain came in this session: the agent did not run.
    stalled: Option<Duration>,
    requests: tokio::sync::mpsc::Receiver<RingRequest>,
}

impl Recorder {
    /// Records a process until that is unwanted, harms it, or fails.
    pub(super) async fn record_continuously(self: Arc<Self>, job: ContinuousJob, stop: CancellationToken) {
        let (process, pid) = (job.process.clone(), job.process.process.pid);
        let (ask, requests) = tokio::sync::mpsc::channel(RING_INBOX);
        self.state().rings.insert(process.clone(), ask);
        let memory = self.memory_limit(&job).await;
        let mut recording = ContinuousRecording::new(job, requests);
        let (mut failure, mut idle) = (None, None);
        loop {
            let turn = recording.session(&self, &stop, memory).await;
            self.note_drains(&process, None);
            // What the session recorded after its last segment is not kept.
            let from = recording.recorded_until.take().unwrap_or_else(|| self.clock.now());
            let reason = match &turn {
                Turn::Unwanted => {
                    // The next agent says that this one ended.
                    idle = (!stop.is_cancelled()).then(|| (from, self.why_unwanted(&process)));
                    break;
                }
                Turn::Capture => "a capture used the profiler",
                Turn::Control => "control: how fast the steps are without the recorder",
                Turn::Lower => "it is recorded with less from now on",
                Turn::GivenUp(why) | Turn::Foreign(why) | Turn::Failed(why) => {
                    idle = Some((from, why.clone()));
                    why
                }
            };
            let wait = match turn {
                Turn::Control => PAUSE,
                _ => AGAIN,
            };
            match &turn {
                Turn::GivenUp(why) => {
                    warn!(pid, why, "a process is not recorded any more: continuous profiling harms it");
                    self.state().given_up.insert(process.process, why.clone());
                    break;
                }
                Turn::Foreign(why) => {
                    self.note_foreign_use(process.process, why).await;
                    break;
                }
                Turn::Failed(why) => {
                    failure = Some(why.clone());
                    break;
                }
                _ => {}
            }
            if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                break;
            }
            self.note_gaps(vec![stretch(process.clone(), from, self.clock.now(), reason.to_owned())]);
        }
        let mut state = self.state();
        state.rings.remove(&process);
        if let Some(known) = state.processes.get_mut(&process) {
            known.is_recording = false;
            // One that fails again and again costs the workload, and gives nothing.
            known.failures = match &failure {
                Some(_) if recording.kept == 0 => (known.failures + 1).min(MAX_BACKOFF),
                _ => 0,
            };
            known.continuous_again = self.clock.uptime() + AGAIN * (1 << known.failures);
            known.last_failure = failure;
            known.idle = idle;
        }
        drop(state);
        self.changed.notify_one();
        self.activity.send_replace(());
    }

    /// Why a process is not recorded any more in the way that it was.
    fn why_unwanted(&self, process: &RecordedProcess) -> String {
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let planned = self.state().planned(&host, &settings.recorder);
        let found = planned.into_iter().find(|planned| planned.process.process == process.process);
        match found.map(|found| found.plan) {
            Some(Err(why)) => why.to_string(),
            Some(Ok(plan)) => format!("the strategy was changed to {}", plan.strategy),
            None => "the process ended".to_owned(),
        }
    }

    /// Shows the interval of the drains and what they record, while a session is open.
    pub(super) fn note_drains(&self, process: &RecordedProcess, drains: Option<(Duration, ContinuousLevel)>) {
        if let Some(known) = self.state().processes.get_mut(process) {
            known.drains = drains;
        }
    }

    /// A segment was written: how long the write rate takes for all that was written, beyond now.
    pub(super) fn pay(&self, bytes: u64, rate: u64) -> Duration {
        let uptime = self.clock.uptime();
        let mut state = self.state();
        state.budget.wrote(bytes, rate, uptime);
        state.budget.unpaid(uptime)
    }

    /// A place for the next segment.
    async fn begin_segment(&self) -> Result<RawTrace, String> {
        let segments = Arc::clone(&self.segments);
        let begun = tokio::task::spawn_blocking(move || segments.begin()).await;
        let begun = begun.map_err(|error| error.to_string());
        let begun = begun.and_then(|raw| raw.map_err(|error| error.to_string()));
        begun.map_err(|error| format!("cannot write a segment: {error}"))
    }

    /// Shows a failure in the status while the recording goes on.
    fn note_failure(&self, process: &RecordedProcess, why: &str) {
        warn!(pid = process.process.pid, why, "a drain was not kept");
        if let Some(known) = self.state().processes.get_mut(process) {
            known.last_failure = Some(why.to_owned());
        }
    }

    /// The memory that a process may have. It is compared with what the process had before its first session, so that what one
    /// session did is not what the next one is measured from.
    async fn memory_limit(&self, job: &ContinuousJob) -> MemoryLimit {
        let (process, max_growth) = (job.process.process, job.settings.recorder.max_growth.get());
        let known = self.state().memory_before.get(&process).copied();
        let before = match known {
            Some(before) => Some(before),
            None => memory_of(process.pid).await,
        };
        if let Some(before) = before {
            self.state().memory_before.insert(process, before);
        }
        MemoryLimit::new(before, max_growth)
    }

    /// Whether the process is still to be recorded in this way.
    fn still_wants(&self, process: &RecordedProcess, strategy: Strategy) -> bool {
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let planned = self.state().planned(&host, &settings.recorder);
        planned.iter().any(|planned| {
            planned.process == *process && planned.plan.as_ref().is_ok_and(|plan| plan.strategy == strategy)
        })
    }

    /// Asks the rings of these processes for what they hold, and waits until it is kept.
    pub async fn take_rings(&self, wanted: &WantedPast) {
        let asked: Vec<_> = {
            let state = self.state();
            let rings = state.rings.iter().filter(|(process, _)| wanted.has(process));
            rings.map(|(_, ring)| ring.clone()).collect()
        };
        let mut answers = Vec::new();
        for ring in asked {
            let (reply, answer) = oneshot::channel();
            if ring.try_send(reply).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A recording that ended has kept what it had.
            let _ = tokio::time::timeout(LONGEST_EVERY, answer).await;
        }
    }
}

impl ContinuousRecording {
    fn new(job: ContinuousJob, requests: tokio::sync::mpsc::Receiver<RingRequest>) -> Self {
        let strategy = job.plan.strategy.continuous().unwrap_or(ContinuousStrategy::Drain);
        let (level, every) = (ContinuousLevel::HostAndDevices, LEAST_EVERY);
        let recorder = &job.settings.recorder;
        let limits = HarmLimits { every, max_slowdown: recorder.max_slowdown.share() };
        let watch = HarmWatch::new(limits, level, Duration::ZERO);
        Self {
            job,
            strategy,
            level,
            every,
            watch,
            epoch: Instant::now(),
            unkept: 0,
            kept: 0,
            recorded_until: None,
            stalled: None,
            requests,
        }
    }

    /// One session, from its start to its stop.
    async fn session(
        &mut self,
        recorder: &Arc<Recorder>,
        stop: &CancellationToken,
        mut memory: MemoryLimit,
    ) -> Turn {
        let pid = self.job.process.process.pid;
        if let Some(turn) = read_memory(pid, &mut memory).await.and_then(|harm| self.harmed(harm)) {
            return turn;
        }
        // A session whose segments nobody could keep costs the workload, and gives nothing.
        if let Err(error) = recorder.begin_segment().await {
            return Turn::Failed(error);
        }
        let max_bytes =
            self.job.settings.limits.max_size.get().min(self.job.settings.recorder.max_size.get());
        let spec =
            ContinuousSpec { strategy: self.strategy, level: self.level, every: self.every, max_bytes };
        let mut session = match recorder.continuous.start(&self.job.target, spec).await {
            Ok(session) => session,
            Err(ContinuousRefusal::Reserved(Refusal::Reserved(ProfilerUser::Capture(_)))) => {
                return Turn::Capture;
            }
            Err(refusal @ ContinuousRefusal::Foreign { .. }) => return Turn::Foreign(refusal.to_string()),
            Err(refusal) => return Turn::Failed(refusal.to_string()),
        };
        (self.recorded_until, self.stalled) = (Some(recorder.clock.now()), None);
        // A ring is read when somebody asks.
        let is_drained = self.strategy == ContinuousStrategy::Drain;
        recorder.note_drains(&self.job.process, is_drained.then_some((self.every, self.level)));
        // A drain that is under way is left: it takes the longer the more there is, while the memory grows.
        let ended = tokio::select! {
            turn = self.drains(recorder, &mut session, stop) => Ok(turn),
            harm = until_too_large(pid, memory) => Err(harm),
        };
        let turn = ended.unwrap_or_else(|harm| self.harmed(harm).unwrap_or(Turn::Unwanted));
        if let Err(error) = session.stop(STOP).await {
            warn!(pid, %error, "continuous profiling is stopped in the background");
        }
        turn
    }

    /// Drains until something else is to be done.
    async fn drains(
        &mut self,
        recorder: &Arc<Recorder>,
        session: &mut ContinuousSession,
        stop: &CancellationToken,
    ) -> Turn {
        let Some(wanted) = session.lease().map(|lease| lease.wanted().clone()) else { return Turn::Unwanted };
        let mut activity = recorder.activity.subscribe();
        let mut due = Instant::now() + self.every;
        loop {
            let mut reply = None;
            let turn = tokio::select! {
                () = stop.cancelled() => Some(Turn::Unwanted),
                () = wanted.cancelled() => Some(Turn::Capture),
                Some(asked) = self.requests.recv() => {
                    reply = Some(asked);
                    None
                }
                () = tokio::time::sleep_until(due) => {
                    self.stalled = Some(due.elapsed()).filter(|late| *late > self.every).or(self.stalled);
                    None
                }
                _ = activity.changed() => {
                    if recorder.still_wants(&self.job.process, self.job.plan.strategy) {
                        continue;
                    }
                    Some(Turn::Unwanted)
                }
            };
            due = Instant::now() + self.every;
            let turn = turn.or_else(|| {
                let wants = recorder.still_wants(&self.job.process, self.job.plan.strategy);
                (!wants).then_some(Turn::Unwanted)
            });
            let is_ring = self.strategy == ContinuousStrategy::Ring;
            let is_due = reply.is_some() || !is_ring;
            // What is in a ring stays there until somebody asks; what a drain would take is taken before the end too.
            let (process, strategy) = (self.job.process.clone(), self.job.plan.strategy);
            let after = tokio::select! {
                after = self.drain(recorder, session), if is_due => after,
                // The profiler collects the longer the more there is: nobody waits for that.
                left = overdue(recorder, &process, strategy, (stop, &wanted)), if is_due => return left,
                else => None,
            };
            // Whoever asked is told, whatever came of it.
            if let Some(asked) = reply {
                let _ = asked.send(());
            }
            if let Some(turn) = turn.or(after) {
                return turn;
            }
        }
    }

    async fn drain(&mut self, recorder: &Arc<Recorder>, session: &mut ContinuousSession) -> Option<Turn> {
        let begin = self.epoch.elapsed();
        let sink = match recorder.begin_segment().await {
            Ok(raw) => ArrivingTrace::new(raw),
            // Without a place for it the session would only grow.
            Err(error) => return Some(Turn::Failed(error)),
        };
        let drained = match session.drain(sink).await {
            Ok(drained) => drained,
            Err(error) => return self.not_drained(recorder, error).await,
        };
        let took = self.epoch.elapsed().saturating_sub(begin);
        if let Some(gap_before) = drained.gap.filter(|gap| gap.from.age(gap.to) >= LEAST_GAP) {
            let length = gap_before.from.age(gap_before.to);
            let reason = "the profiler was collecting what it had recorded before";
            recorder.note_gaps(vec![gap(self.job.process.clone(), (gap_before.from, length), reason)]);
        }
        let segment = match self.keep(recorder, drained).await {
            Ok(segment) => segment,
            Err(why) => {
                own_metrics::window("failed");
                self.note_lost(recorder, why.clone());
                self.unkept += 1;
                recorder.note_failure(&self.job.process, &why);
                return (self.unkept >= MOST_UNKEPT).then_some(Turn::Failed(why));
            }
        };
        self.unkept = 0;
        self.kept += 1;
        own_metrics::window("recorded");
        self.recorded_until = Some(segment.as_ref().map_or_else(|| recorder.clock.now(), |kept| kept.stop));
        let turn = self.judge(recorder, (begin, took), segment.as_ref(), session).await;
        turn.or_else(|| self.judge_writing(recorder, segment.as_ref()))
    }

    /// What was recorded since the last segment is not kept.
    fn note_lost(&mut self, recorder: &Recorder, why: String) {
        let now = recorder.clock.now();
        let from = self.recorded_until.replace(now).unwrap_or(now);
        recorder.note_gaps(vec![stretch(self.job.process.clone(), from, now, why)]);
    }

    async fn not_drained(&mut self, recorder: &Arc<Recorder>, error: DrainError) -> Option<Turn> {
        own_metrics::window("failed");
        match error {
            DrainError::Lost(_) => {
                let why = recorder.observed(self.job.process.process, error.to_string()).await;
                self.note_lost(recorder, why.to_string());
                None
            }
            DrainError::Over(OverReason::LeaseOver) => Some(Turn::Capture),
            DrainError::Over(OverReason::NotOurs) => Some(Turn::Foreign(error.to_string())),
            DrainError::Over(_) | DrainError::GivenUp(_) => Some(Turn::Failed(match self.stalled {
                Some(late) => format!(
                    "the agent did not run for {:.0} s: it was stopped (SIGSTOP), or the machine slept; {error}",
                    late.as_secs_f64()
                ),
                None => error.to_string(),
            })),
        }
    }

    /// Reads and compresses what was drained; `None` if nothing happened in it.
    async fn keep(
        &self,
        recorder: &Arc<Recorder>,
        drained: DrainedSegment<ArrivingTrace>,
    ) -> Result<Option<StoredSegment>, String> {
        let now = recorder.clock.now();
        if drained.received.summary.events == 0 {
            return Ok(None);
        }
        let due = drained.covers.map_or(now, |(begin, _)| begin);
        let device = u32::from(self.level == ContinuousLevel::HostAndDevices);
        let host = u32::from(self.strategy == ContinuousStrategy::Drain);
        let levels = Levels { host: Some(host), device: Some(device), python: Some(0) };
        let params = CaptureParams { duration: self.every, levels, ..CaptureParams::default() };
        let spec = CaptureSpec::new(params, ParamsSource::Agent, &self.job.settings.limits, now)
            .map_err(|error| error.to_string())?;
        let arrived = ArrivedTrace {
            trace: drained.received.sink,
            summary: drained.received.summary,
            spec,
            is_cut: false,
        };
        let (reader, process, target) =
            (Arc::clone(&recorder.reader), self.job.process.clone(), self.job.target.clone());
        let strategy = self.job.plan.strategy.as_str();
        let keep =
            move |segments: &Segments| keep(segments, &reader, arrived, process, &target, due, strategy);
        let kept = recorder.on_disk(keep).await.and_then(|kept| kept);
        let segment = kept.map_err(|error| error.to_string())?;
        recorder.note_steps(&segment, self.job.settings.recorder.every.get().max(self.every));
        Ok(Some(segment))
    }
}

/// Until something else is to be done than a drain that is under way, and a little longer. `ends`: the agent stops, or a capture
/// wants the profiler.
async fn overdue(
    recorder: &Recorder,
    process: &RecordedProcess,
    strategy: Strategy,
    ends: (&CancellationToken, &CancellationToken),
) -> Turn {
    let mut activity = recorder.activity.subscribe();
    let unwanted =
        async { while recorder.still_wants(process, strategy) && activity.changed().await.is_ok() {} };
    let turn = tokio::select! {
        () = ends.0.cancelled() => Turn::Unwanted,
        () = ends.1.cancelled() => Turn::Capture,
        () = unwanted => Turn::Unwanted,
    };
    tokio::time::sleep(DRAIN_GRACE).await;
    turn
}
