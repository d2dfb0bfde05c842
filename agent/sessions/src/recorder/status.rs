//! What is known of each process: whether it is recorded, when next, what is held and what it costs.

use std::{sync::Arc, time::Duration};

use model::{
    job::{self, Job},
    time::Timestamp,
    workload::Owner,
};
use store::{
    StateError,
    segments::{RecordedProcess, SegmentGap, SegmentQuery, StoredSegment},
};

use super::{
    LengthReason, NotRecorded, Planned, Recorder, RecorderSettings, RecordingPlan, Strategy, cost,
    cost::MeasuredCost,
    schedule::{WindowGrid, WindowSchedule},
    settings::RecorderMode,
};

/// The recorder at one moment.
#[derive(Debug)]
pub struct RecorderStatus {
    /// The settings in force.
    pub settings: RecorderSettings,
    /// The processes that the caller may see.
    pub processes: Vec<ProcessRecording>,
    /// Bytes of all segments that the caller may see, those of processes that ended included.
    pub bytes: u64,
}

impl RecorderStatus {
    /// Whether processes are recorded whose owners chose nothing.
    pub fn is_on(&self) -> bool {
        self.settings.mode == RecorderMode::On
    }
}

/// One process.
#[derive(Debug)]
pub struct ProcessRecording {
    /// The process. Its port is 0 if it is not recorded.
    pub process: RecordedProcess,
    /// Its command, untrusted.
    pub command: String,
    /// Its job.
    pub job: Job,
    /// How it is recorded, or why it is not.
    pub plan: Result<RecordingPlan, NotRecorded>,
    /// A window or a session of ours is open in it: a program that traces itself fails now.
    pub is_open: bool,
    /// When its next window begins, if it is recorded.
    pub next: Option<Timestamp>,
    /// The length of that window, and why it has it.
    pub length: Option<(Duration, LengthReason)>,
    /// The interval of its drains and the levels of the tracers, while a session is open.
    pub drains: Option<(Duration, &'static str)>,
    /// Its newest segment.
    pub last: Option<StoredSegment>,
    /// Its segments.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What the windows cost its steps, if that is known.
    pub cost: Option<MeasuredCost>,
    /// Why its last window was not recorded; `None` if it was.
    pub last_failure: Option<String>,
}

/// The figures of windows say nothing of a session that is always open.
fn is_continuous(plan: &Result<RecordingPlan, NotRecorded>) -> bool {
    plan.as_ref().is_ok_and(|plan| plan.strategy != Strategy::Periodic)
}

impl Recorder {
    /// What is known of the processes and segments that the caller may see.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn status(
        &self,
        job: Option<&str>,
        may: impl Fn(&Owner) -> bool,
        may_read: impl Fn(&RecordedProcess) -> bool,
    ) -> Result<RecorderStatus, StateError> {
        let query = SegmentQuery { job: job.map(str::to_owned), ..SegmentQuery::default() };
        let mut segments = self.segments_of(query).await?;
        segments.retain(|segment| may_read(&segment.process));
        // The newest is the last that was kept, also after the clock was set back.
        segments.sort_by_key(|segment| segment.order);
        let (host, settings) = (self.workloads.borrow().clone(), self.settings());
        let state = self.state();
        let planned = state.planned(&host, &settings.recorder);
        let is_of = |Job { kind, id, .. }: &Job| job.is_none_or(|named| job::is_named(*kind, id, named));
        let wanted = planned.into_iter().filter(|planned| may(planned.owner) && is_of(&planned.owner.job));
        let processes = wanted.map(|planned| {
            let Planned { owner, process, plan } = planned;
            let own: Vec<&StoredSegment> =
                segments.iter().filter(|segment| segment.process.process == owner.process).collect();
            let known = state.processes.get(&process);
            let grid = WindowGrid::new(settings.recorder.every.get(), &process.workload);
            let (now, uptime) = (self.clock.now(), self.clock.uptime());
            let next = |schedule: WindowSchedule| schedule.next(&grid, now, uptime);
            ProcessRecording {
                is_open: known.is_some_and(|known| known.is_recording),
                next: plan
                    .as_ref()
                    .is_ok_and(|plan| plan.strategy == Strategy::Periodic)
                    .then(|| next(known.map(|known| known.schedule).unwrap_or_default())),
                length: known
                    .filter(|_| !is_continuous(&plan))
                    .map(|known| (known.length.get(settings.bounds()), known.length.reason())),
                drains: known.and_then(|known| known.drains).map(|(every, level)| (every, level.as_str())),
                last: own.last().map(|&segment| segment.clone()),
                segments: own.len() as u64,
                bytes: own.iter().map(|segment| segment.bytes).sum(),
                cost: (!is_continuous(&plan)).then(|| cost::measure(&own)).flatten(),
                last_failure: known.and_then(|known| known.last_failure.clone()),
                command: owner.command.clone(),
                job: owner.job.clone(),
                process,
                plan,
            }
        });
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        Ok(RecorderStatus { processes: processes.collect(), bytes, settings: settings.recorder.clone() })
    }

    /// The segments and gaps that the caller may read, by time.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn timeline(
        &self,
        query: SegmentQuery,
        may_read: impl Fn(&RecordedProcess) -> bool,
    ) -> Result<(Vec<StoredSegment>, Vec<SegmentGap>), StateError> {
        self.note_missed().await;
        let mut segments = self.segments_of(query.clone()).await?;
        let store = Arc::clone(&self.segments);
        let gaps = tokio::task::spawn_blocking(move || store.gaps(&query)).await;
        let mut gaps = gaps.unwrap_or_else(|_| Ok(Vec::new()))?;
        segments.retain(|segment| may_read(&segment.process));
        gaps.retain(|gap| may_read(&gap.process));
        Ok((segments, gaps))
    }

    pub(super) async fn segments_of(&self, query: SegmentQuery) -> Result<Vec<StoredSegment>, StateError> {
        let segments = Arc::clone(&self.segments);
        let listed = tokio::task::spawn_blocking(move || segments.list(&query)).await;
        // A thread that ended unexpectedly has found nothing.
        listed.unwrap_or_else(|_| Ok(Vec::new()))
    }
}
