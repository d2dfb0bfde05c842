//! The history: recent points of every series as they were, older ones as mean, minimum and maximum of a step, in
//! memory whose size is fixed.
//!
//! All points live in one arena of [`block`]s. When it is full, the oldest block is removed: of the fine points or of
//! the coarse ones, whichever uses more than half. Must never take more bytes than it was given, and never show a
//! point at a time at which it was not measured.

#![expect(clippy::cast_precision_loss, reason = "differences of times, in milliseconds")]

mod block;
mod range_query;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    hash::{Hash, Hasher},
    sync::Arc,
};

use block::{BLOCK, Block, Encoder};
use model::{
    label::Labels,
    metric::MetricRef,
    sample::{Origin, Sample, SampleValue},
    time::Timestamp,
    workload::Workload,
    workload_label::WorkloadLabel,
};
pub use range_query::{HistoryPoint, HistorySeries, RangeQuery};

/// Which number of a sample a series keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Statistic {
    /// A gauge's value, or how much a counter rose per second.
    Value,
    /// The mean of a window.
    Mean,
    /// The median of a window.
    Median,
    /// The 99th percentile of a window.
    P99,
}

/// What a series is: everything of its samples that does not change.
#[derive(Debug, Clone)]
pub struct SeriesKey {
    /// The metric.
    pub metric: MetricRef,
    /// Which number of it.
    pub statistic: Statistic,
    /// What it is about.
    pub labels: Labels,
    /// Who measured it.
    pub origin: Origin,
    /// The workload whose process gave it, as it was when the series began; its labels tell series apart.
    pub workload: Option<Arc<Workload>>,
}

impl SeriesKey {
    fn of(sample: &Sample, statistic: Statistic) -> Self {
        Self {
            metric: sample.metric.clone(),
            statistic,
            labels: sample.labels.clone(),
            origin: sample.origin,
            workload: sample.workload.clone(),
        }
    }

    fn is_of(&self, sample: &Sample, statistic: Statistic) -> bool {
        self.statistic == statistic
            && self.origin == sample.origin
            && self.metric == sample.metric
            && self.labels == sample.labels
            && self.workload_label() == sample.workload_label()
    }

    /// The labels of its workload.
    pub fn workload_label(&self) -> Option<WorkloadLabel<'_>> {
        self.workload.as_deref().map(Workload::labels)
    }
}

impl PartialEq for SeriesKey {
    fn eq(&self, other: &Self) -> bool {
        self.statistic == other.statistic
            && self.origin == other.origin
            && self.metric == other.metric
            && self.labels == other.labels
            && self.workload_label() == other.workload_label()
    }
}

impl Eq for SeriesKey {}

impl Hash for SeriesKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.metric, self.statistic, &self.labels, self.origin, self.workload_label()).hash(state);
    }
}

/// What a series costs beside its blocks: its key with the longest labels, and its entries in two tables.
const SERIES: usize = 960;
/// What a block costs beside its bytes: its entries in the orders of age.
const SLOT: usize = 24;
/// Samples closer to the last one than this, but before it, are jitter of the peer's clock and not a clock step.
const JITTER: i64 = 1000;

/// The points of one series at one resolution.
struct Tier<const COLUMNS: usize> {
    blocks: VecDeque<u32>,
    open: Option<Encoder<COLUMNS>>,
}

impl<const COLUMNS: usize> Default for Tier<COLUMNS> {
    fn default() -> Self {
        Self { blocks: VecDeque::new(), open: None }
    }
}

/// A step under way.
#[derive(Clone, Copy)]
struct CoarseStep {
    start: i64,
    /// The time that is kept: the start, or the first point of the series.
    at: i64,
    sum: f64,
    min: f32,
    max: f32,
    points: u32,
}

struct SeriesEntry {
    key: Arc<SeriesKey>,
    /// The series that came after this one last time: almost always it does so again.
    next: u32,
    last: i64,
    /// The last total of a counter and its time, to compute the next rise.
    total: Option<(i64, f64)>,
    fine: Tier<1>,
    coarse: Tier<3>,
    span: Option<CoarseStep>,
}

/// A block in its order of age; stale when the generation is no longer the block's.
#[derive(Clone, Copy)]
struct AgedBlock {
    block: u32,
    generation: u32,
}

/// The blocks, those that are free, and the order in which the others were first used.
struct Arena {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Of the fine blocks and of the coarse ones.
    orders: [VecDeque<AgedBlock>; 2],
    /// How many of each are in use.
    used: [usize; 2],
}

/// The history.
pub struct History {
    budget: usize,
    step: i64,
    entries: Vec<Option<SeriesEntry>>,
    vacant: Vec<u32>,
    ids: HashMap<Arc<SeriesKey>, u32>,
    /// The series that was used last.
    previous: u32,
    arena: Arena,
}

const FINE: usize = 0;
const COARSE: usize = 1;

impl History {
    /// A history of at most `budget` bytes whose older points cover `step` each.
    pub fn new(budget: usize, step: std::time::Duration) -> Self {
        Self {
            budget,
            step: i64::try_from(step.as_millis()).unwrap_or(i64::MAX).max(1),
            entries: Vec::new(),
            vacant: Vec::new(),
            ids: HashMap::new(),
            previous: 0,
            arena: Arena {
                blocks: Vec::new(),
                free: Vec::new(),
                orders: [VecDeque::new(), VecDeque::new()],
                used: [0; 2],
            },
        }
    }

    /// The bytes that it takes; never more than its budget.
    pub fn bytes(&self) -> usize {
        self.ids.len() * SERIES + self.arena.in_use() * (BLOCK + SLOT)
    }

    /// The number of series.
    pub fn series(&self) -> usize {
        self.ids.len()
    }

    /// The wall clock was stepped by so many milliseconds: all points move with it.
    pub(crate) fn step(&mut self, by: i64) {
        for block in &mut self.arena.blocks {
            block.first = block.first.saturating_add(by);
        }
        for entry in self.entries.iter_mut().flatten() {
            if entry.last != i64::MIN {
                entry.last = entry.last.saturating_add(by);
            }
            if let Some((at, _)) = &mut entry.total {
                *at = at.saturating_add(by);
            }
            if let Some(span) = &mut entry.span {
                (span.start, span.at) = (span.start.saturating_add(by), span.at.saturating_add(by));
            }
            if let Some(open) = &mut entry.fine.open {
                open.step(by);
            }
            if let Some(open) = &mut entry.coarse.open {
                open.step(by);
            }
        }
    }

    /// Keeps a sample.
    pub fn push(&mut self, sample: &Sample) {
        let at = sample.at.0.div_euclid(1_000_000);
        match &sample.value {
            SampleValue::Gauge(value) => self.statistic(sample, Statistic::Value, at, *value),
            SampleValue::Counter(total) => self.counter(sample, at, *total),
            SampleValue::Distribution(distribution) => {
                let Some(window) = distribution.window.as_ref().filter(|window| window.count() > 0) else {
                    return;
                };
                self.statistic(sample, Statistic::Mean, at, window.mean);
                for (statistic, q) in [(Statistic::Median, 0.5), (Statistic::P99, 0.99)] {
                    if let Some(value) = window.quantile(q) {
                        self.statistic(sample, statistic, at, value);
                    }
                }
            }
        }
    }

    fn statistic(&mut self, sample: &Sample, statistic: Statistic, at: i64, value: f64) {
        if let Some(id) = self.id(sample, statistic) {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to draw")]
            self.point(id, at, value as f32);
        }
    }

    /// A counter is kept as its rise per second; totals would lose their last digits.
    fn counter(&mut self, sample: &Sample, at: i64, total: f64) {
        let Some(id) = self.id(sample, Statistic::Value) else { return };
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let Some((last, before)) = entry.total.replace((at, total)) else { return };
        let seconds = (at - last) as f64 / 1000.0;
        if seconds > 0.0 && total >= before {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to draw")]
            self.point(id, at, ((total - before) / seconds) as f32);
        }
    }

    /// The series of a sample, made if there is room for it.
    fn id(&mut self, sample: &Sample, statistic: Statistic) -> Option<u32> {
        let entry = |id: u32| self.entries.get(id as usize)?.as_ref();
        let guess = entry(self.previous).map(|entry| entry.next);
        if let Some(guess) = guess
            && entry(guess).is_some_and(|entry| entry.key.is_of(sample, statistic))
        {
            self.previous = guess;
            return Some(guess);
        }
        let id = self.look_up(sample, statistic)?;
        if let Some(Some(entry)) = self.entries.get_mut(self.previous as usize) {
            entry.next = id;
        }
        self.previous = id;
        Some(id)
    }

    fn look_up(&mut self, sample: &Sample, statistic: Statistic) -> Option<u32> {
        let key = SeriesKey::of(sample, statistic);
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        let most = self.budget / (SERIES + 2 * (BLOCK + SLOT));
        if most == 0 {
            return None;
        }
        if self.ids.len() >= most {
            self.forget_quietest();
        }
        // The new series' own bytes are taken from the blocks.
        while self.bytes() + SERIES > self.budget {
            self.evict()?;
        }
        let key = Arc::new(key);
        let entry = SeriesEntry {
            key: key.clone(),
            next: 0,
            last: i64::MIN,
            total: None,
            fine: Tier::default(),
            coarse: Tier::default(),
            span: None,
        };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).expect("there are fewer series than bytes")
        });
        self.entries[id as usize] = Some(entry);
        self.ids.insert(key, id);
        Some(id)
    }

    /// Gives up the series that was silent for longest: the newest ones are those that matter.
    fn forget_quietest(&mut self) {
        let quiet = |(id, entry): (usize, &Option<SeriesEntry>)| entry.as_ref().map(|entry| (entry.last, id));
        let Some((_, id)) = self.entries.iter().enumerate().filter_map(quiet).min() else { return };
        if let Some(entry) = self.entries[id].take() {
            self.ids.remove(&entry.key);
            entry.fine.blocks.iter().for_each(|block| self.arena.release(*block, FINE));
            entry.coarse.blocks.iter().for_each(|block| self.arena.release(*block, COARSE));
            self.vacant.push(u32::try_from(id).expect("there are fewer series than bytes"));
        }
    }

    /// Adds a point to both resolutions.
    fn point(&mut self, id: u32, at: i64, value: f32) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        if entry.last != i64::MIN && at <= entry.last {
            if entry.last - at < JITTER {
                return;
            }
            self.rewind(id, at);
        }
        if let Some(span) = self.tally(id, at, value) {
            let mean = span.sum / f64::from(span.points);
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to draw")]
            let mean = (mean as f32).clamp(span.min, span.max);
            self.store(id, COARSE, span.at, |entry| &mut entry.coarse, [mean, span.min, span.max]);
        }
        self.store(id, FINE, at, |entry| &mut entry.fine, [value]);
        if let Some(entry) = &mut self.entries[id as usize] {
            entry.last = at;
        }
    }

    /// Counts a value into its step; gives the step before when a new one begins.
    fn tally(&mut self, id: u32, at: i64, value: f32) -> Option<CoarseStep> {
        let start = at.div_euclid(self.step).saturating_mul(self.step);
        let entry = self.entries[id as usize].as_mut()?;
        match &mut entry.span {
            Some(span) if span.start == start => {
                span.sum += f64::from(value);
                span.min = span.min.min(value);
                span.max = span.max.max(value);
                span.points = span.points.saturating_add(1);
                None
            }
            span => {
                // A series has no points before its first one.
                let at = if span.is_some() { start } else { at };
                span.replace(CoarseStep { start, at, sum: value.into(), min: value, max: value, points: 1 })
            }
        }
    }

    /// Puts a point into the open block of a tier, or into a new one.
    fn store<const COLUMNS: usize>(
        &mut self,
        id: u32,
        kind: usize,
        at: i64,
        tier: fn(&mut SeriesEntry) -> &mut Tier<COLUMNS>,
        values: [f32; COLUMNS],
    ) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let open = tier(entry);
        if let (Some(encoder), Some(block)) = (&mut open.open, open.blocks.back())
            && self.arena.blocks[*block as usize].push(encoder, at, values)
        {
            return;
        }
        while self.bytes() + BLOCK + SLOT > self.budget {
            if self.evict().is_none() {
                return;
            }
        }
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let open = tier(entry);
        let block = self.arena.allocate(kind);
        open.open = Some(self.arena.blocks[block as usize].start(id, at, values));
        open.blocks.push_back(block);
    }

    /// Frees the oldest block of the kind that has more than its half; `None` when no block is left.
    fn evict(&mut self) -> Option<()> {
        let [fine, coarse] = self.arena.used;
        let kind = if coarse > fine { COARSE } else { FINE };
        let block = self.arena.oldest(kind)?;
        let owner = self.arena.blocks[block as usize].owner;
        if let Some(entry) = &mut self.entries[owner as usize] {
            if kind == FINE { entry.fine.lose(block) } else { entry.coarse.lose(block) }
        }
        self.arena.release(block, kind);
        Some(())
    }

    /// The clock was set back to `at`: what lies after it never was.
    fn rewind(&mut self, id: u32, at: i64) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        for block in entry.fine.cut(&self.arena, at) {
            self.arena.release(block, FINE);
        }
        for block in entry.coarse.cut(&self.arena, at) {
            self.arena.release(block, COARSE);
        }
        entry.span = None;
        entry.last = at - 1;
    }
}

impl<const COLUMNS: usize> Tier<COLUMNS> {
    /// Removes a block that another series will use.
    fn lose(&mut self, block: u32) {
        if self.blocks.back() == Some(&block) {
            self.open = None;
        }
        self.blocks.retain(|known| *known != block);
    }

    /// Takes out the blocks that begin at `at` or later, and closes the one that reaches into it: readers stop where
    /// the next block begins.
    fn cut(&mut self, arena: &Arena, at: i64) -> Vec<u32> {
        self.open = None;
        let begins = |block: &u32| arena.blocks[*block as usize].first;
        let keep = self.blocks.iter().position(|block| begins(block) >= at).unwrap_or(self.blocks.len());
        self.blocks.split_off(keep).into()
    }
}

impl Arena {
    fn in_use(&self) -> usize {
        self.used.iter().sum()
    }

    /// A block for `kind`, the youngest of its order.
    fn allocate(&mut self, kind: usize) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::empty());
            u32::try_from(self.blocks.len() - 1).expect("there are fewer blocks than bytes")
        });
        self.used[kind] += 1;
        let generation = self.blocks[block as usize].generation;
        let order = &mut self.orders[kind];
        if order.len() > 2 * self.used[kind] + 64 {
            let blocks = &self.blocks;
            order.retain(|aged| blocks[aged.block as usize].generation == aged.generation);
        }
        order.push_back(AgedBlock { block, generation });
        block
    }

    fn release(&mut self, block: u32, kind: usize) {
        let generation = &mut self.blocks[block as usize].generation;
        *generation = generation.wrapping_add(1);
        self.used[kind] -= 1;
        self.free.push(block);
    }

    /// The block of `kind` that has been in use for longest.
    fn oldest(&mut self, kind: usize) -> Option<u32> {
        loop {
            let aged = self.orders[kind].pop_front()?;
            if self.blocks[aged.block as usize].generation == aged.generation {
                return Some(aged.block);
            }
        }
    }
}

/// Milliseconds as they are kept.
fn time(milliseconds: i64) -> Timestamp {
    Timestamp(milliseconds.saturating_mul(1_000_000))
}
