//! The history: recent points of every series as they were, older ones as mean, least and most of a step, in memory
//! whose size is fixed.
//!
//! All points live in one arena of [`page`]s. When it is full, the oldest page goes: of the fine points or of the
//! coarse ones, whichever has more than its half. Must never take more bytes than it was given, and never show a
//! point at a time at which it was not measured.

mod page;
mod query;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    hash::{Hash, Hasher},
};

use model::{
    sample::{Sample, Value},
    time::Timestamp,
};
use page::{Cursor, PAGE, Page};
pub use query::{Point, Query, Series};

/// Which number of a sample a series keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Metric name.
    pub metric: std::borrow::Cow<'static, str>,
    /// Which number of it.
    pub part: Part,
    /// What it is about.
    pub labels: model::sample::Labels,
    /// Who measured it.
    pub origin: model::sample::Origin,
    /// Whose process gave it.
    pub job: Option<std::sync::Arc<model::job::Job>>,
}

impl Key {
    fn is_of(&self, sample: &Sample, part: Part) -> bool {
        self.part == part
            && self.origin == sample.origin
            && self.metric == sample.metric
            && self.labels == sample.labels
            && self.job == sample.job
    }
}

impl Hash for Key {
    /// A job can name hundreds of hosts; its id is enough to find it.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let job = self.job.as_ref().map(|job| (job.kind, job.id.as_str()));
        (&self.metric, self.part, &self.labels, self.origin, job).hash(state);
    }
}

/// What a series costs beside its pages: its key with the longest labels, its place in two tables.
const SERIES: usize = 640;
/// What a page costs beside its bytes: its places in the orders of age.
const PLACE: usize = 24;
/// Samples closer to the last one than this, but before it, are jitter of the peer's clock and not a clock step.
const JITTER: i64 = 1000;

/// The points of one series at one resolution.
struct Tier<const COLUMNS: usize> {
    pages: VecDeque<u32>,
    open: Option<Cursor<COLUMNS>>,
}

impl<const COLUMNS: usize> Default for Tier<COLUMNS> {
    fn default() -> Self {
        Self { pages: VecDeque::new(), open: None }
    }
}

/// A step under way.
#[derive(Clone, Copy)]
struct Span {
    start: i64,
    sum: f64,
    least: f32,
    most: f32,
    points: u32,
}

struct Entry {
    key: Key,
    /// The series that came after this one last time: almost always it does so again.
    next: u32,
    last: i64,
    /// A counter's last total and its time, from which the next rise is told.
    total: Option<(i64, f64)>,
    fine: Tier<1>,
    coarse: Tier<3>,
    span: Option<Span>,
}

/// A page in its order of age; stale when the lease is no longer the page's.
#[derive(Clone, Copy)]
struct Aged {
    page: u32,
    lease: u32,
}

/// The pages, those that are free, and the order in which the others were begun.
struct Arena {
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Of the fine pages and of the coarse ones.
    orders: [VecDeque<Aged>; 2],
    /// How many of each are in use.
    used: [usize; 2],
}

/// The history.
pub struct History {
    budget: usize,
    step: i64,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    ids: HashMap<Key, u32>,
    /// The series that was asked for last.
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
                pages: Vec::new(),
                free: Vec::new(),
                orders: [VecDeque::new(), VecDeque::new()],
                used: [0; 2],
            },
        }
    }

    /// The bytes that it takes; never more than its budget.
    pub fn bytes(&self) -> usize {
        self.ids.len() * SERIES + self.arena.in_use() * (PAGE + PLACE)
    }

    /// How many series it holds.
    pub fn series(&self) -> usize {
        self.ids.len()
    }

    /// Keeps a sample.
    pub fn push(&mut self, sample: &Sample) {
        let at = sample.at.0.div_euclid(1_000_000);
        match &sample.value {
            Value::Gauge(value) => self.part(sample, Part::Value, at, *value),
            Value::Counter(total) => self.counter(sample, at, *total),
            Value::Window(window) if window.samples() > 0 => {
                self.part(sample, Part::Mean, at, window.mean);
                for (part, q) in [(Part::Median, 0.5), (Part::P99, 0.99)] {
                    if let Some(value) = window.quantile(q) {
                        self.part(sample, part, at, value);
                    }
                }
            }
            Value::Window(_) => {}
        }
    }

    fn part(&mut self, sample: &Sample, part: Part, at: i64, value: f64) {
        if let Some(id) = self.id(sample, part) {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to draw")]
            self.point(id, at, value as f32);
        }
    }

    /// A counter is kept as its rise per second; totals would lose their last digits.
    fn counter(&mut self, sample: &Sample, at: i64, total: f64) {
        let Some(id) = self.id(sample, Part::Value) else { return };
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let Some((last, before)) = entry.total.replace((at, total)) else { return };
        let seconds = (at - last) as f64 / 1000.0;
        if seconds > 0.0 && total >= before {
            #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to draw")]
            self.point(id, at, ((total - before) / seconds) as f32);
        }
    }

    /// The series of a sample, made if there is room for it.
    fn id(&mut self, sample: &Sample, part: Part) -> Option<u32> {
        let entry = |id: u32| self.entries.get(id as usize)?.as_ref();
        let guess = entry(self.previous).map(|entry| entry.next);
        if let Some(guess) = guess
            && entry(guess).is_some_and(|entry| entry.key.is_of(sample, part))
        {
            self.previous = guess;
            return Some(guess);
        }
        let id = self.look_up(sample, part)?;
        if let Some(Some(entry)) = self.entries.get_mut(self.previous as usize) {
            entry.next = id;
        }
        self.previous = id;
        Some(id)
    }

    fn look_up(&mut self, sample: &Sample, part: Part) -> Option<u32> {
        let key = Key {
            metric: sample.metric.clone(),
            part,
            labels: sample.labels.clone(),
            origin: sample.origin,
            job: sample.job.clone(),
        };
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        let most = self.budget / (SERIES + 2 * (PAGE + PLACE));
        if most == 0 {
            return None;
        }
        if self.ids.len() >= most {
            self.forget_quietest();
        }
        // The new series' own bytes are taken from the pages.
        while self.bytes() + SERIES > self.budget {
            self.evict()?;
        }
        let entry = Entry {
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
        let quiet = |(id, entry): (usize, &Option<Entry>)| entry.as_ref().map(|entry| (entry.last, id));
        let Some((_, id)) = self.entries.iter().enumerate().filter_map(quiet).min() else { return };
        if let Some(entry) = self.entries[id].take() {
            self.ids.remove(&entry.key);
            entry.fine.pages.iter().for_each(|page| self.arena.release(*page, FINE));
            entry.coarse.pages.iter().for_each(|page| self.arena.release(*page, COARSE));
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
            let mean = (mean as f32).clamp(span.least, span.most);
            self.store(id, COARSE, span.start, |entry| &mut entry.coarse, [mean, span.least, span.most]);
        }
        self.store(id, FINE, at, |entry| &mut entry.fine, [value]);
        if let Some(entry) = &mut self.entries[id as usize] {
            entry.last = at;
        }
    }

    /// Counts a value into its step; gives the step before when a new one begins.
    fn tally(&mut self, id: u32, at: i64, value: f32) -> Option<Span> {
        let start = at.div_euclid(self.step).saturating_mul(self.step);
        let entry = self.entries[id as usize].as_mut()?;
        match &mut entry.span {
            Some(span) if span.start == start => {
                span.sum += f64::from(value);
                span.least = span.least.min(value);
                span.most = span.most.max(value);
                span.points = span.points.saturating_add(1);
                None
            }
            span => span.replace(Span { start, sum: value.into(), least: value, most: value, points: 1 }),
        }
    }

    /// Puts a point into the open page of a tier, or into a new one.
    fn store<const COLUMNS: usize>(
        &mut self,
        id: u32,
        kind: usize,
        at: i64,
        tier: fn(&mut Entry) -> &mut Tier<COLUMNS>,
        values: [f32; COLUMNS],
    ) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let open = tier(entry);
        if let (Some(cursor), Some(page)) = (&mut open.open, open.pages.back())
            && self.arena.pages[*page as usize].push(cursor, at, values)
        {
            return;
        }
        while self.bytes() + PAGE + PLACE > self.budget {
            if self.evict().is_none() {
                return;
            }
        }
        let Some(entry) = &mut self.entries[id as usize] else { return };
        let open = tier(entry);
        let page = self.arena.lease(kind);
        open.open = Some(self.arena.pages[page as usize].start(id, at, values));
        open.pages.push_back(page);
    }

    /// Frees the oldest page of the kind that has more than its half; `None` when no page is left.
    fn evict(&mut self) -> Option<()> {
        let [fine, coarse] = self.arena.used;
        let kind = if coarse > fine { COARSE } else { FINE };
        let page = self.arena.oldest(kind)?;
        let owner = self.arena.pages[page as usize].owner;
        if let Some(entry) = &mut self.entries[owner as usize] {
            if kind == FINE { entry.fine.lose(page) } else { entry.coarse.lose(page) }
        }
        self.arena.release(page, kind);
        Some(())
    }

    /// The clock was set back to `at`: what lies after it never was.
    fn rewind(&mut self, id: u32, at: i64) {
        let Some(entry) = &mut self.entries[id as usize] else { return };
        for page in entry.fine.cut(&self.arena, at) {
            self.arena.release(page, FINE);
        }
        for page in entry.coarse.cut(&self.arena, at) {
            self.arena.release(page, COARSE);
        }
        entry.span = None;
        entry.last = at - 1;
    }
}

impl<const COLUMNS: usize> Tier<COLUMNS> {
    /// Forgets a page that is given to another.
    fn lose(&mut self, page: u32) {
        if self.pages.back() == Some(&page) {
            self.open = None;
        }
        self.pages.retain(|known| *known != page);
    }

    /// Takes out the pages that begin at `at` or later, and closes the one that reaches into it: readers stop where
    /// the next page begins.
    fn cut(&mut self, arena: &Arena, at: i64) -> Vec<u32> {
        self.open = None;
        let begins = |page: &u32| arena.pages[*page as usize].first;
        let keep = self.pages.iter().position(|page| begins(page) >= at).unwrap_or(self.pages.len());
        self.pages.split_off(keep).into()
    }
}

impl Arena {
    fn in_use(&self) -> usize {
        self.used.iter().sum()
    }

    /// A page for `kind`, the youngest of its order.
    fn lease(&mut self, kind: usize) -> u32 {
        let page = self.free.pop().unwrap_or_else(|| {
            self.pages.push(Page::empty());
            u32::try_from(self.pages.len() - 1).expect("there are fewer pages than bytes")
        });
        self.used[kind] += 1;
        let lease = self.pages[page as usize].lease;
        let order = &mut self.orders[kind];
        if order.len() > 2 * self.used[kind] + 64 {
            let pages = &self.pages;
            order.retain(|aged| pages[aged.page as usize].lease == aged.lease);
        }
        order.push_back(Aged { page, lease });
        page
    }

    fn release(&mut self, page: u32, kind: usize) {
        let lease = &mut self.pages[page as usize].lease;
        *lease = lease.wrapping_add(1);
        self.used[kind] -= 1;
        self.free.push(page);
    }

    /// The page of `kind` that was begun first.
    fn oldest(&mut self, kind: usize) -> Option<u32> {
        loop {
            let aged = self.orders[kind].pop_front()?;
            if self.pages[aged.page as usize].lease == aged.lease {
                return Some(aged.page);
            }
        }
    }
}

/// Milliseconds as they are kept.
fn time(milliseconds: i64) -> Timestamp {
    Timestamp(milliseconds.saturating_mul(1_000_000))
}
