//! The proxy ledger of a job that runs, second by second.
//!
//! ```text
//! what a second showed ──▶ state of each chip ──▶ state of the second ──▶ block of an hour
//!                                                      ▲        │
//!                            short gaps, causes ───────┘        └──▶ counts since the start
//! ```
//!
//! A second costs O(chips), however long the job runs; only the last two blocks are in memory. Given the same
//! observations, the answer is that of [`Slots`]: a property test compares them. Pure: no clock and no I/O. Must never
//! count a second that nobody observed as anything but unobserved.

mod block;
mod chip;
mod counts;
mod losses;
mod minutes;
mod second;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{
    limits::GAP,
    ratios::{Proxy, ProxyCounts},
    slots::{SlotState, Slots},
};

pub use block::{BLOCK_SECONDS, ChipBits, LedgerBlock};
pub use chip::ChipSecond;
pub use counts::{Confidence, SecondCounts};
pub use losses::{LossPiece, LossRun, TimeLoss, losses};
pub use minutes::MinuteBlock;
pub use second::{SecondState, StallCause};

use chip::{ChipIs, ChipMemory};

/// Blocks that stay in memory: a gap can be filled, and a cause can be learned, in the present and the one before.
const KEPT_BLOCKS: usize = 2;
/// The most chips of a job on one host.
const MOST_CHIPS: usize = 256;

/// The ledger of one job on one host. Seconds are counted from its first one.
///
/// It is kept as two things: itself, without its blocks, and its blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveLedger {
    /// The chips that the job needs, rising.
    chips: Vec<ChipMemory>,
    /// Whether that is all of them; otherwise each chip that it opens is needed from the start.
    knows_chips: bool,
    length: u64,
    /// Before this second the job had not yet opened all of its chips.
    complete_from: u64,
    /// Whether this attempt had an active second.
    has_worked: bool,
    /// The idle seconds since the last active one, if there was nothing else between.
    idle_run: Option<u8>,
    /// Whether no chip was open in the last second.
    is_closed: bool,
    disruptions: u64,
    /// Full minutes at whose end every chip was active.
    active_minutes: u64,
    counts: SecondCounts,
    #[serde(skip)]
    blocks: VecDeque<LedgerBlock>,
    /// The block since which something may not be kept yet.
    #[serde(skip)]
    changed_from: u64,
}

impl LiveLedger {
    /// A ledger without seconds, of a job that needs `chips`; with an empty list, of one that needs each chip that it opens.
    pub fn new(chips: &[u32]) -> Self {
        let mut needed = chips.to_vec();
        needed.sort_unstable();
        needed.dedup();
        needed.truncate(MOST_CHIPS);
        Self {
            knows_chips: !needed.is_empty(),
            chips: needed.into_iter().map(ChipMemory::new).collect(),
            length: 0,
            complete_from: 0,
            has_worked: false,
            idle_run: None,
            is_closed: false,
            disruptions: 0,
            active_minutes: 0,
            counts: SecondCounts::default(),
            blocks: VecDeque::new(),
            changed_from: 0,
        }
    }

    /// The ledger with its last blocks, as they were kept. Blocks that do not belong to it are left out.
    #[must_use]
    pub fn with_blocks(mut self, blocks: impl IntoIterator<Item = LedgerBlock>) -> Self {
        let mut blocks: Vec<_> = blocks.into_iter().filter(|block| block.first() < self.length).collect();
        blocks.sort_by_key(LedgerBlock::number);
        blocks.dedup_by_key(|block| block.number());
        self.blocks = blocks.into();
        self.release();
        self.changed_from = self.length / BLOCK_SECONDS;
        self
    }

    /// The seconds so far.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no second.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The seconds by state since the start.
    pub fn counts(&self) -> &SecondCounts {
        &self.counts
    }

    /// How often the job opened its chips again after it had closed all of them.
    pub fn disruptions(&self) -> u64 {
        self.disruptions
    }

    /// The numbers of the chips that it needs.
    pub fn chips(&self) -> impl Iterator<Item = u32> + '_ {
        self.chips.iter().map(|chip| chip.chip)
    }

    /// Adds a second; `seen` is in the order of the chips, each at most once.
    pub fn push(&mut self, seen: &[ChipSecond]) {
        if !self.knows_chips {
            self.need_opened(seen);
        }
        let (state, reasons) = self.state(seen);
        let state = self.second(state);
        if self.is_closed && state != SecondState::Closed {
            self.disruptions += 1;
        }
        self.is_closed = state == SecondState::Closed;
        self.append(state, reasons);
    }

    /// Adds seconds that nobody observed.
    pub fn push_unobserved(&mut self, seconds: u64) {
        if seconds == 0 {
            return;
        }
        self.idle_run = None;
        let end = self.length.saturating_add(seconds);
        // The present block ends with them; blocks of nothing else are not kept.
        let block_end = (self.length / BLOCK_SECONDS + 1) * BLOCK_SECONDS;
        while self.length < end.min(block_end) {
            self.append(SecondState::Unobserved, 0);
        }
        let last_block = end / BLOCK_SECONDS * BLOCK_SECONDS;
        if self.length < last_block {
            self.counts.add(SecondState::Unobserved, last_block - self.length);
            self.length = last_block;
        }
        while self.length < end {
            self.append(SecondState::Unobserved, 0);
        }
    }

    /// Adds seconds in which the job had no chip open.
    pub fn push_closed(&mut self, seconds: u64) {
        self.chips.iter_mut().for_each(ChipMemory::forget);
        for _ in 0..seconds {
            self.push(&[]);
        }
    }

    /// The processes of the job are others than before, and no second without an open chip was seen between them.
    pub fn restart(&mut self) {
        if !self.is_closed && self.length > 0 {
            self.disruptions += 1;
        }
        self.is_closed = false;
        self.has_worked = false;
        self.idle_run = None;
        self.chips.iter_mut().for_each(ChipMemory::forget);
    }

    /// Says why the job was idle in the seconds `from..until`. Others than idle ones stay what they are, and so do those
    /// that are no longer in memory.
    pub fn name(&mut self, cause: StallCause, from: u64, until: u64) {
        let first = self.blocks.front().map_or(self.length, LedgerBlock::first);
        for slot in from.max(first).max(self.complete_from)..until.min(self.length) {
            if let Some(named) = self.in_memory(slot).and_then(|state| cause.name(state)) {
                self.change(slot, named);
            }
        }
    }

    /// The state of a second that is still in memory.
    fn in_memory(&self, slot: u64) -> Option<SecondState> {
        let number = slot / BLOCK_SECONDS;
        let block = self.blocks.iter().rev().find(|block| block.number() == number)?;
        Some(block.state(slot % BLOCK_SECONDS))
    }

    fn change(&mut self, slot: u64, to: SecondState) {
        let number = slot / BLOCK_SECONDS;
        let Some(block) = self.blocks.iter_mut().rev().find(|block| block.number() == number) else { return };
        self.counts.change(block.state(slot % BLOCK_SECONDS), to);
        block.set(slot % BLOCK_SECONDS, to);
        self.changed_from = self.changed_from.min(number);
    }

    /// A chip that is opened for the first time was needed from the start.
    fn need_opened(&mut self, seen: &[ChipSecond]) {
        for opened in seen.iter().filter(|seen| seen.open) {
            let at = match self.chips.binary_search_by_key(&opened.chip, |chip| chip.chip) {
                Err(at) if self.chips.len() < MOST_CHIPS => at,
                _ => continue,
            };
            self.chips.insert(at, ChipMemory::new(opened.chip));
            if self.length > 0 {
                self.complete_from = self.length;
                self.counts.make_incomplete();
                self.has_worked = false;
                self.idle_run = None;
                self.active_minutes = 0;
            }
        }
    }

    /// The state of the second by what its chips show, and the chips that are the reason.
    fn state(&mut self, seen: &[ChipSecond]) -> (SlotState, ChipBits) {
        let slot = self.length;
        let mut seen = seen.iter().peekable();
        let (mut open, mut shut, mut idle, mut unknown) = (false, 0, 0, 0);
        let (mut any_shut, mut any_idle, mut any_unknown) = (false, false, false);
        for chip in &mut self.chips {
            while seen.next_if(|seen| seen.chip < chip.chip).is_some() {}
            let (is_open, is) = chip.observe(slot, seen.next_if(|seen| seen.chip == chip.chip));
            if is_open {
                open = true;
            } else {
                any_shut = true;
                shut |= chip.bit();
            }
            match is {
                ChipIs::Idle => (any_idle, idle) = (true, idle | chip.bit()),
                ChipIs::Unknown => (any_unknown, unknown) = (true, unknown | chip.bit()),
                ChipIs::Active => {}
            }
        }
        match () {
            () if !open => (SlotState::Closed, 0),
            () if any_shut => (SlotState::Partial, shut),
            () if any_idle => (SlotState::Idle, idle),
            () if any_unknown => (SlotState::Unknown, unknown),
            () => (SlotState::Active, 0),
        }
    }

    /// What the second is in the course of the attempt. An active one fills a short gap before it.
    fn second(&mut self, state: SlotState) -> SecondState {
        let run = self.idle_run.take();
        match state {
            SlotState::Active => {
                for back in 1..=u64::from(run.unwrap_or(0)) {
                    self.change(self.length - back, SecondState::Filled);
                }
                self.idle_run = Some(0);
                self.has_worked = true;
                SecondState::Active
            }
            SlotState::Idle => {
                self.idle_run = run.map(|run| run + 1).filter(|run| usize::from(*run) <= GAP);
                match () {
                    () if self.has_worked => SecondState::Stall,
                    () if self.chips.iter().any(|chip| chip.is_loaded) => SecondState::Prep,
                    () => SecondState::Init,
                }
            }
            SlotState::Closed => {
                self.has_worked = false;
                SecondState::Closed
            }
            SlotState::Partial => SecondState::Partial,
            SlotState::Unknown => SecondState::Unknown,
        }
    }

    fn append(&mut self, state: SecondState, reasons: ChipBits) {
        let number = self.length / BLOCK_SECONDS;
        if self.blocks.back().is_none_or(|block| block.number() < number) {
            self.blocks.push_back(LedgerBlock::new(number));
        }
        if let Some(block) = self.blocks.back_mut() {
            block.push(state, reasons);
        }
        self.counts.add(state, 1);
        if self.length % 60 == 59 {
            let some = !self.chips.is_empty();
            let active = self.chips.iter_mut().fold(some, |all, chip| chip.end_minute() & all);
            self.active_minutes += u64::from(active);
        }
        self.length += 1;
    }

    /// The blocks in memory, the oldest first.
    pub fn blocks(&self) -> impl Iterator<Item = &LedgerBlock> {
        self.blocks.iter()
    }

    /// The blocks that changed since [`LiveLedger::kept`].
    pub fn changed_blocks(&self) -> impl Iterator<Item = &LedgerBlock> {
        self.blocks.iter().filter(|block| block.number() >= self.changed_from)
    }

    /// Everything until now is kept: blocks that cannot change any more leave the memory.
    pub fn kept(&mut self) {
        self.changed_from = self.length / BLOCK_SECONDS;
        self.release();
    }

    /// What was last said to be kept is not: all that is in memory counts as changed.
    pub fn not_kept(&mut self) {
        self.changed_from = 0;
    }

    /// Leaves only the last blocks in memory.
    fn release(&mut self) {
        while self.blocks.len() > KEPT_BLOCKS {
            self.blocks.pop_front();
        }
    }

    /// The state of a second as it counts now: before the job had opened all of its chips, it had some of them.
    pub fn as_counted(&self, slot: u64, state: SecondState) -> SecondState {
        if slot < self.complete_from { state.before_complete() } else { state }
    }

    /// The answer for the whole life of the job. `created_before` is how many seconds before its first one it was
    /// created, and `wasted` are the productive seconds of repeated steps, where these are known.
    pub fn proxy(&self, created_before: Option<u64>, wasted: Option<usize>) -> Proxy {
        let size = |seconds: u64| usize::try_from(seconds).unwrap_or(usize::MAX);
        let minutes = self.length / 60;
        Proxy::of(
            &ProxyCounts {
                buckets: self.counts.buckets(),
                raw: size(self.counts.of(SecondState::Active)),
                open: size(self.counts.open()),
                since: size(
                    (self.length - self.counts.of(SecondState::Unobserved))
                        .saturating_add(created_before.unwrap_or(0)),
                ),
                is_created_known: created_before.is_some(),
                minutes: (size(self.active_minutes), size(minutes)),
            },
            wasted,
            None,
        )
    }

    /// The slots of a ledger whose seconds are all in memory, for the rules that need step starts. `first` is the time of
    /// its first second.
    pub fn slots(&self, first: i64) -> Slots {
        let mut slots = Slots::unobserved(first, usize::try_from(self.length).unwrap_or(0));
        for (slot, state, _) in self.blocks.iter().flat_map(LedgerBlock::seconds) {
            let state = self.as_counted(slot, state);
            let raw = if state == SecondState::Filled { SlotState::Idle } else { state.slot() };
            slots.set(usize::try_from(slot).unwrap_or(usize::MAX), raw, state.slot(), state.is_open());
        }
        slots
    }
}

#[cfg(test)]
mod tests;
