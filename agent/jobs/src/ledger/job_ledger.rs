//! The ledger of one job: the seconds that are still collected, and those that are settled.
//!
//! ```text
//! ticks: which chips are open ──┐
//! batches: duty and memory ─────┴──▶ pending seconds ──after a few seconds──▶ the ledger
//! Orbax and Grain ──────────────────▶ causes ───────────once settled─────────▶     │
//! ```
//!
//! Pure. Must never let a late or early sample change a second that is settled, or one that has not come.

use std::{collections::VecDeque, sync::Arc};

use goodput::proxy::live::{ChipSecond, LedgerBlock, LiveLedger};
use model::{
    job::JobKey,
    sample::Origin,
    workload::{ProcessKey, Workload},
};
use serde::{Deserialize, Serialize};

use super::{
    causes::{CauseReader, CausedSeconds, StallValues},
    observed::{ChipReading, ObservedJob, rank},
};

/// The most seconds that wait to be settled. More are never collected.
const MOST_PENDING: i64 = 16;
/// Causes that wait for their seconds.
const MOST_CAUSES: usize = 64;
/// The longest outage that is part of a job, in seconds.
const LONGEST_OUTAGE: u64 = 30 * 24 * 3600;

/// A second that is not settled.
#[derive(Debug, Default)]
struct PendingSecond {
    /// Whether the host was looked at; without it nobody knows what was open.
    is_seen: bool,
    has_other_processes: bool,
    /// In the order of the chips.
    chips: Vec<ChipSecond>,
    /// How much the source of the duty of each of them is believed.
    ranks: Vec<u8>,
}

impl PendingSecond {
    /// Where a chip is; at first nothing is known of it.
    fn at(&mut self, chip: u32) -> usize {
        match self.chips.binary_search_by_key(&chip, |seen| seen.chip) {
            Ok(at) => at,
            Err(at) => {
                self.chips.insert(at, ChipSecond { chip, ..ChipSecond::default() });
                self.ranks.insert(at, 0);
                at
            }
        }
    }

    /// Of this chip, at first nothing.
    fn chip(&mut self, chip: u32) -> &mut ChipSecond {
        let at = self.at(chip);
        &mut self.chips[at]
    }

    /// One without anything, with the memory of this one.
    fn cleared(mut self) -> Self {
        self.chips.clear();
        self.ranks.clear();
        Self { is_seen: false, has_other_processes: false, ..self }
    }
}

/// One job.
#[derive(Debug)]
pub(super) struct JobLedger {
    pub(super) key: JobKey,
    pub(super) name: String,
    pub(super) workload: Arc<Workload>,
    pub(super) pid_namespace: Option<u64>,
    pub(super) is_running: bool,
    /// Whether something of it is not kept.
    pub(super) has_changed: bool,
    /// Whether that is more than further seconds.
    pub(super) is_urgent: bool,
    /// The first second, since the epoch.
    first: i64,
    ledger: LiveLedger,
    /// From the second after the last of the ledger on.
    pending: VecDeque<PendingSecond>,
    /// The memory of the last second that was settled, for the next one.
    spare: PendingSecond,
    /// What was open at the last look.
    open: Vec<(u32, ProcessKey)>,
    /// Whether the processes that are seen next are others than those that were kept.
    has_restarted: bool,
    causes: CauseReader,
    caused: VecDeque<CausedSeconds>,
}

/// What is kept of a ledger beside its hours and its times.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptState {
    pub(super) ledger: LiveLedger,
    /// Pid and start of the processes that had chips open last.
    processes: Vec<(u32, u64)>,
}

impl JobLedger {
    /// The ledger of a job that is seen for the first time, in this second.
    pub(super) fn new(job: &ObservedJob, second: i64) -> Self {
        Self::with(job, second, LiveLedger::new(&[]))
    }

    /// The ledger of a job that an agent has kept. Its seconds end before `second`, whatever the clock says.
    pub(super) fn kept(
        job: &ObservedJob,
        second: i64,
        first: i64,
        state: KeptState,
        hours: Vec<LedgerBlock>,
    ) -> Self {
        let ledger = state.ledger.with_blocks(hours);
        let length = i64::try_from(ledger.len()).unwrap_or(i64::MAX);
        let mut kept = Self::with(job, first.min(second.saturating_sub(length)), ledger);
        let process = |(pid, start_ticks): &(u32, u64)| ProcessKey { pid: *pid, start_ticks: *start_ticks };
        let is_there = |held: ProcessKey| job.chips.iter().any(|(_, now)| *now == held);
        kept.has_restarted = !state.processes.iter().map(process).any(is_there);
        kept
    }

    fn with(job: &ObservedJob, first: i64, ledger: LiveLedger) -> Self {
        Self {
            key: job.key.clone(),
            name: job.name.clone(),
            workload: Arc::clone(&job.workload),
            pid_namespace: job.pid_namespace,
            is_running: false,
            has_changed: true,
            is_urgent: true,
            first,
            ledger,
            pending: VecDeque::new(),
            spare: PendingSecond::default(),
            open: Vec::new(),
            has_restarted: false,
            causes: CauseReader::default(),
            caused: VecDeque::new(),
        }
    }

    /// The settled seconds.
    pub(super) fn ledger(&self) -> &LiveLedger {
        &self.ledger
    }

    /// The first second, since the epoch.
    pub(super) fn first(&self) -> i64 {
        self.first
    }

    /// The second after the last settled one.
    pub(super) fn end(&self) -> i64 {
        self.first.saturating_add(i64::try_from(self.ledger.len()).unwrap_or(i64::MAX))
    }

    /// What is to be kept beside the hours.
    pub(super) fn state(&self) -> KeptState {
        let mut processes: Vec<_> =
            self.open.iter().map(|(_, process)| (process.pid, process.start_ticks)).collect();
        processes.sort_unstable();
        processes.dedup();
        KeptState { ledger: self.ledger.clone(), processes }
    }

    /// The hours that changed since the last call, which are kept from now on.
    pub(super) fn take_changed(&mut self) -> Vec<LedgerBlock> {
        let changed = self.ledger.changed_blocks().cloned().collect();
        self.ledger.kept();
        (self.has_changed, self.is_urgent) = (false, false);
        changed
    }

    /// What was taken last was not kept.
    pub(super) fn not_kept(&mut self) {
        self.ledger.not_kept();
        self.change_course();
    }

    /// The job has chips open in the seconds from `from` to `second`, both included; the host was looked at in the last
    /// one. `observed_since` is the second since which jobs are looked at without a pause.
    pub(super) fn look(&mut self, job: &ObservedJob, from: i64, second: i64, observed_since: i64) {
        if !self.is_running {
            self.resume(second, observed_since);
        }
        let (closed, others) = self.changes(&job.chips);
        let (mut closed, mut others) = (Some(closed), Some(others));
        for second in from.max(self.end())..=second {
            let Some(pending) = self.pending(second) else { continue };
            pending.is_seen = true;
            for chip in &mut pending.chips {
                (chip.open, chip.closed) = (false, false);
            }
            job.chips.iter().for_each(|(chip, _)| pending.chip(*chip).open = true);
            closed.take().unwrap_or_default().iter().for_each(|chip| pending.chip(*chip).closed = true);
            pending.has_other_processes = others.take().unwrap_or(false);
        }
        if self.open != job.chips {
            self.open.clone_from(&job.chips);
        }
        if !Arc::ptr_eq(&self.workload, &job.workload) {
            self.workload = Arc::clone(&job.workload);
        }
    }

    /// The job has no chip open any more: what is pending is settled at once.
    pub(super) fn leave(&mut self) {
        self.is_running = false;
        while self.pending.back().is_some_and(|second| !second.is_seen) {
            self.pending.pop_back();
        }
        self.settle(i64::MAX);
        self.open.clear();
        self.change_course();
    }

    /// What has changed is to be kept soon.
    fn change_course(&mut self) {
        (self.has_changed, self.is_urgent) = (true, true);
    }

    /// The job is seen again after a pause: what was observed of it is an outage, the rest is not known.
    fn resume(&mut self, second: i64, observed_since: i64) {
        let end = self.end();
        let known_from = observed_since.clamp(end, second.max(end));
        self.ledger.push_unobserved(known_from.abs_diff(end));
        let has_restarted = std::mem::take(&mut self.has_restarted);
        if second > known_from && !self.ledger.is_empty() {
            self.ledger.push_closed(known_from.abs_diff(second).min(LONGEST_OUTAGE));
        } else if has_restarted {
            self.ledger.restart();
        }
        self.is_running = true;
        self.change_course();
    }

    /// Which chips are no longer held by the processes that had them, and whether no process is left.
    fn changes(&self, now: &[(u32, ProcessKey)]) -> (Vec<u32>, bool) {
        if self.open == now {
            return (Vec::new(), false);
        }
        let closed = self.open.iter().filter(|held| !now.contains(held)).map(|held| held.0).collect();
        let has_left = |held: &(u32, ProcessKey)| !now.iter().any(|it| it.1 == held.1);
        (closed, !self.open.is_empty() && self.open.iter().all(has_left))
    }

    /// Takes what a source measured in a second.
    pub(super) fn measure(&mut self, second: i64, origin: Origin, reading: &ChipReading<'_>) {
        let rank = rank(origin);
        let Some(pending) = self.pending(second) else { return };
        let at = pending.at(reading.chip);
        let (seen, known) = (&mut pending.chips[at], &mut pending.ranks[at]);
        if reading.duty.is_some() && (seen.duty.is_none() || rank >= *known) {
            (seen.duty, *known) = (reading.duty, rank);
        }
        seen.hbm = reading.hbm.or(seen.hbm);
    }

    /// Takes what Orbax and Grain said in a second.
    pub(super) fn stall(&mut self, second: i64, values: StallValues) {
        self.caused.extend(self.causes.read(second, values));
        let excess = self.caused.len().saturating_sub(MOST_CAUSES);
        self.caused.drain(..excess);
    }

    fn pending(&mut self, second: i64) -> Option<&mut PendingSecond> {
        let at = second.checked_sub(self.end()).filter(|at| (0..MOST_PENDING).contains(at))?;
        let at = usize::try_from(at).ok()?;
        while self.pending.len() <= at {
            self.pending.push_back(std::mem::take(&mut self.spare));
        }
        self.pending.get_mut(at)
    }

    /// Settles the seconds before `until`. Of a job that runs nobody knows what is not collected by then.
    pub(super) fn settle(&mut self, until: i64) {
        while self.end() < until {
            let Some(second) = self.pending.pop_front() else { break };
            self.push(second);
        }
        if self.is_running {
            self.ledger.push_unobserved(u64::try_from(until.saturating_sub(self.end())).unwrap_or(0));
        }
        let (first, end) = (self.first, self.end());
        let slot = |second: i64| u64::try_from(second.saturating_sub(first)).unwrap_or(0);
        let ledger = &mut self.ledger;
        self.caused.retain(|CausedSeconds { cause, from, until }| {
            let is_settled = *until <= end;
            if is_settled {
                ledger.name(*cause, slot(*from), slot(*until));
            }
            !is_settled
        });
    }

    fn push(&mut self, mut second: PendingSecond) {
        self.has_changed = true;
        if second.is_seen {
            if second.has_other_processes {
                self.ledger.restart();
            }
            // A chip that the job did not have is not its own, whatever was measured.
            second.chips.retain(|seen| seen.open || seen.closed);
            self.ledger.push(&second.chips);
        } else {
            self.ledger.push_unobserved(1);
        }
        self.spare = second.cleared();
    }

    /// The clock was stepped by so many seconds: how long ago everything was stays the same.
    pub(super) fn step(&mut self, by: i64) {
        self.first = self.first.saturating_add(by);
        self.causes.step(by);
        for caused in &mut self.caused {
            caused.from = caused.from.saturating_add(by);
            caused.until = caused.until.saturating_add(by);
        }
        self.has_changed = true;
    }
}
