//! What the recorder knows of the processes: which are recorded, what of each is due, and what was missed. No I/O and no clock
//! of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::{
    snapshot::HostSnapshot,
    time::Timestamp,
    workload::{Owner, ProcessKey, WorkloadId},
};
use store::segments::{RecordedProcess, RecorderChoice, SegmentGap};
use tokio::sync::mpsc;

use super::{
    ActiveSettings, LOOK, MAX_PROCESSES, NotRecorded, PREPARE, RecorderSettings, RecordingPlan, Strategy,
    continuous_recording::RingRequest,
    eligibility,
    missed_windows::{LookedAt, MissedWindows, WindowAccount},
    schedule::{WindowGrid, WindowSchedule},
    window_length::{WindowBounds, WindowLength},
    write_budget::WriteBudget,
};
use crate::continuous::ContinuousLevel;

/// What the recorder knows of the processes.
#[derive(Debug, Default)]
pub(super) struct RecorderState {
    pub(super) choices: BTreeMap<(WorkloadId, u32), RecorderChoice>,
    pub(super) foreign_uses: BTreeMap<ProcessKey, String>,
    pub(super) processes: BTreeMap<RecordedProcess, ProcessState>,
    pub(super) budget: WriteBudget,
    /// Processes that continuous profiling harmed, and how.
    pub(super) given_up: BTreeMap<ProcessKey, String>,
    /// The memory of processes before their first session of continuous profiling, in bytes.
    pub(super) memory_before: BTreeMap<ProcessKey, u64>,
    /// Until when an earlier agent knew something of a process.
    pub(super) before: BTreeMap<ProcessKey, Timestamp>,
    /// Where to ask for what the rings hold.
    pub(super) rings: BTreeMap<RecordedProcess, mpsc::Sender<RingRequest>>,
}

/// What is known of one process that is recorded.
#[derive(Debug)]
pub(super) struct ProcessState {
    pub(super) schedule: WindowSchedule,
    pub(super) length: WindowLength,
    /// A window is recorded or received, or the process is recorded continuously.
    pub(super) is_recording: bool,
    /// The windows so far; `None` if it is not recorded in windows.
    pub(super) account: Option<WindowAccount>,
    /// When continuous recording may begin again, after the boot.
    pub(super) continuous_again: Duration,
    /// Since when it is not recorded continuously, and why.
    pub(super) idle: Option<(Timestamp, String)>,
    /// The interval of the drains and what is recorded, while a session is open.
    pub(super) drains: Option<(Duration, ContinuousLevel)>,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Windows that are left out because of them.
    pub(super) to_leave_out: u32,
    /// Why the last window was not recorded.
    pub(super) last_failure: Option<String>,
}

impl ProcessState {
    pub(super) fn new(bounds: WindowBounds) -> Self {
        Self {
            schedule: WindowSchedule::default(),
            length: WindowLength::new(bounds),
            is_recording: false,
            account: None,
            continuous_again: Duration::ZERO,
            idle: None,
            drains: None,
            failures: 0,
            to_leave_out: 0,
            last_failure: None,
        }
    }

    /// Whether continuous recording begins now. `before`: until when an earlier agent knew something.
    pub(super) fn continuous_begins(
        &mut self,
        process: &RecordedProcess,
        before: Option<Timestamp>,
        looked: LookedAt,
        gaps: &mut Vec<SegmentGap>,
    ) -> bool {
        self.account = None;
        if let Some(before) = before {
            self.idle = Some((before, "the agent was not running".to_owned()));
        }
        let begins = !self.is_recording && self.continuous_again <= looked.uptime;
        if begins {
            self.is_recording = true;
            gaps.extend(self.end_of_idleness(process, looked.now));
        }
        begins
    }

    /// Looks at a process that is recorded in windows of this length: what it missed since the last look.
    pub(super) fn look(
        &mut self,
        process: &RecordedProcess,
        grid: WindowGrid,
        before: Option<Timestamp>,
        (looked, window): (LookedAt, Duration),
        gaps: &mut Vec<SegmentGap>,
    ) {
        gaps.extend(self.end_of_idleness(process, looked.now));
        let account = self.account.get_or_insert_with(|| match before {
            Some(before) => WindowAccount::of_earlier_agent(grid, before, looked),
            None => WindowAccount::new(grid, looked),
        });
        gaps.extend(account.look(grid, looked, None).map(|missed| missed.gap(process, window)));
    }

    /// The stretch in which it was not recorded continuously, which ends now.
    pub(super) fn end_of_idleness(
        &mut self,
        process: &RecordedProcess,
        now: Timestamp,
    ) -> Option<SegmentGap> {
        let (since, reason) = self.idle.take()?;
        Some(stretch(process.clone(), since, now, reason))
    }

    /// Why the window that is due now is left out.
    pub(super) fn leaves_out(&mut self, budget_allows: bool) -> Option<String> {
        if self.is_recording {
            return Some("the window before was still being received".to_owned());
        }
        if self.to_leave_out > 0 {
            self.to_leave_out -= 1;
            let why = self.last_failure.as_deref().unwrap_or_default();
            return Some(format!("fewer windows are tried after failures: {why}"));
        }
        (!budget_allows).then(|| "recorder.max_write_rate: the windows before it were too large".to_owned())
    }
}

/// A recording whose time has come.
pub(super) struct DueRecording<'a> {
    pub(super) owner: &'a Owner,
    pub(super) process: RecordedProcess,
    pub(super) plan: RecordingPlan,
    /// Begin and length of the window; `None`: continuous recording.
    pub(super) window: Option<(Timestamp, Duration)>,
}

/// A process and whether it is recorded.
pub(super) struct Planned<'a> {
    pub(super) owner: &'a Owner,
    pub(super) process: RecordedProcess,
    pub(super) plan: Result<RecordingPlan, NotRecorded>,
}

impl RecorderState {
    /// Every process with whether it is recorded.
    pub(super) fn planned<'a>(
        &self,
        host: &'a HostSnapshot,
        settings: &RecorderSettings,
    ) -> Vec<Planned<'a>> {
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

    /// What of a process is to be recorded now, if anything, and when to look again. `None`: it is not recorded.
    pub(super) fn due<'a>(
        &mut self,
        planned: Planned<'a>,
        settings: &ActiveSettings,
        looked: LookedAt,
        gaps: &mut Vec<SegmentGap>,
    ) -> Option<(Option<DueRecording<'a>>, Duration)> {
        let Planned { owner, process, plan } = planned;
        let plan = plan.ok()?;
        let before = self.before.remove(&process.process);
        let budget_allows = self.budget.allows(looked.uptime);
        let bounds = settings.bounds();
        let known = self.processes.entry(process.clone()).or_insert_with(|| ProcessState::new(bounds));
        if plan.strategy != Strategy::Periodic {
            let begins = known.continuous_begins(&process, before, looked, gaps);
            return Some((begins.then_some(DueRecording { owner, process, plan, window: None }), LOOK));
        }
        let grid = WindowGrid::new(settings.recorder.every.get(), &process.workload);
        known.look(&process, grid, before, (looked, settings.recorder.window.get()), gaps);
        let LookedAt { now, uptime } = looked;
        let due = known.schedule.next(&grid, now, uptime);
        let (mut look_again, mut window) = (now.age(due), None);
        if look_again <= PREPARE {
            known.schedule.begun(due, now, uptime);
            known.account.iter_mut().for_each(|account| account.accounted(due));
            look_again = now.age(known.schedule.next(&grid, now, uptime));
            let length = known.length.get(bounds);
            match known.leaves_out(budget_allows) {
                Some(reason) => gaps.push(gap(process.clone(), (due, length), &reason)),
                None => window = Some((due, length)),
            }
        }
        known.is_recording |= window.is_some();
        let begins = window.map(|window| DueRecording { owner, process, plan, window: Some(window) });
        Some((begins, look_again.saturating_sub(PREPARE).min(LOOK)))
    }

    /// The windows that were due since the last look and did not begin, of processes that are not to be recorded now. Those
    /// that are recorded are looked at when their next window is planned.
    pub(super) fn missed(
        &mut self,
        host: &HostSnapshot,
        settings: &RecorderSettings,
        looked: LookedAt,
    ) -> Vec<SegmentGap> {
        let mut gaps = Vec::new();
        for Planned { process, plan, .. } in self.planned(host, settings) {
            let Err(why) = plan else { continue };
            // Without a plan its port is not known.
            let known = self.processes.iter_mut().find(|(known, _)| known.process == process.process);
            let Some((process, known)) = known else { continue };
            let grid = WindowGrid::new(settings.every.get(), &process.workload);
            let missed =
                known.account.as_mut().and_then(|account| account.look(grid, looked, Some(&why.to_string())));
            gaps.extend(missed.map(|missed| missed.gap(process, settings.window.get())));
        }
        gaps
    }

    /// Forgets processes that are gone.
    pub(super) fn forget_gone(&mut self, host: &HostSnapshot) {
        let living: BTreeSet<ProcessKey> = host.workloads.owners.iter().map(|owner| owner.process).collect();
        self.given_up.retain(|process, _| living.contains(process));
        self.memory_before.retain(|process, _| living.contains(process));
        self.processes.retain(|process, state| state.is_recording || living.contains(&process.process));
    }
}

/// The gap of one window.
pub(super) fn gap(
    process: RecordedProcess,
    (due, length): (Timestamp, Duration),
    reason: &str,
) -> SegmentGap {
    SegmentGap { process, start: due, stop: due.plus(length), windows: 1, reason: reason.to_owned() }
}

/// A stretch in which it was not recorded continuously.
pub(super) fn stretch(
    process: RecordedProcess,
    start: Timestamp,
    stop: Timestamp,
    reason: String,
) -> SegmentGap {
    // It began after its end if the clock was set back meanwhile: how long it took is not known.
    SegmentGap { process, start: start.min(stop), stop, windows: 0, reason }
}

impl MissedWindows {
    /// As it is noted of a process, for windows of this length.
    pub(super) fn gap(self, process: &RecordedProcess, window: Duration) -> SegmentGap {
        let Self { first, last, count, reason } = self;
        SegmentGap { process: process.clone(), start: first, stop: last.plus(window), windows: count, reason }
    }
}
