//! The steps between two disruptions, and their running sums.
//!
//! A *pair* is two steps logged one after the other. While the segment is open, every pair of consecutive
//! numbers is productive and all other pairs are ignored. When step R is logged again the segment closes at
//! R: pairs that end beyond R become wasted progress. A closed segment still takes custom events that are
//! logged late.

use std::collections::BTreeMap;

use super::customs::{CustomEvent, Customs};

/// A step as logged, and the custom events inside the pair that it ends.
#[derive(Debug, Clone, Copy)]
struct StepMark {
    step: i64,
    start: f64,
    custom: f64,
}

/// The custom seconds of one type in a segment, and where the first was counted: (pair, number of event).
#[derive(Debug, Clone, Copy)]
pub(super) struct KindSum {
    pub(super) kind: u32,
    pub(super) seconds: f64,
    pub(super) first: (usize, u32),
    count: u32,
}

/// The contribution of a segment to the totals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SegmentOutcome {
    pub(super) productive: f64,
    pub(super) startup: f64,
    pub(super) max_step: i64,
    pub(super) shape: Shape,
}

/// Which buckets a segment creates, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// None: it was closed at, or ends with, step 0.
    Nothing,
    /// Only wasted progress: there is no productive pair.
    WastedOnly,
    /// Wasted progress, custom events, start-up: the only productive pair is the first step's.
    StartupLast,
    /// Start-up, wasted progress, custom events.
    StartupFirst,
}

/// Steps in the order they were logged.
#[derive(Debug)]
pub(super) struct StepSegment {
    marks: Vec<StepMark>,
    /// Position by step; built once steps stop coming in ascending order.
    index: Option<BTreeMap<i64, usize>>,
    /// Whether no step starts before the one logged before it.
    forward: bool,
    /// The step at which the segment was closed.
    limit: Option<i64>,
    smallest: i64,
    largest: (i64, f64),
    total: f64,
    pairs: u64,
    /// Seconds of the pair that starts at the smallest step.
    first: Option<f64>,
    max_step: i64,
    kinds: BTreeMap<u32, KindSum>,
}

fn seconds(from: StepMark, to: StepMark) -> f64 {
    (to.start - from.start - to.custom).max(0.0)
}

impl StepSegment {
    /// A segment that starts with a step.
    pub(super) fn new(step: i64, start: f64) -> Self {
        Self {
            marks: vec![StepMark { step, start, custom: 0.0 }],
            index: None,
            forward: true,
            limit: None,
            smallest: step,
            largest: (step, start),
            total: 0.0,
            pairs: 0,
            first: None,
            max_step: 0,
            kinds: BTreeMap::new(),
        }
    }

    /// The step with the largest number, and its start.
    pub(super) fn largest(&self) -> (i64, f64) {
        self.largest
    }

    /// The start of the step logged last.
    pub(super) fn last_start(&self) -> f64 {
        self.last().start
    }

    /// The earliest and the latest step start.
    pub(super) fn reach(&self) -> (f64, f64) {
        let starts = self.marks.iter().map(|mark| mark.start);
        starts.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), at| (a.min(at), b.max(at)))
    }

    fn last(&self) -> StepMark {
        self.marks[self.marks.len() - 1]
    }

    /// Whether the step was logged in this segment.
    pub(super) fn contains(&self, step: i64) -> bool {
        match &self.index {
            Some(index) => index.contains_key(&step),
            None if step > self.last().step => false,
            None => self.marks.binary_search_by_key(&step, |mark| mark.step).is_ok(),
        }
    }

    /// Logs a step that is not in the segment yet.
    pub(super) fn push(&mut self, step: i64, start: f64, customs: &Customs, work: &mut u64) {
        *work += 1;
        let last = self.last();
        if self.index.is_none() && step < last.step {
            *work += self.marks.len() as u64;
            self.index = Some(self.marks.iter().enumerate().map(|(at, mark)| (mark.step, at)).collect());
        }
        if let Some(index) = &mut self.index {
            index.insert(step, self.marks.len());
        }
        self.forward &= start >= last.start;
        if step > self.largest.0 {
            self.largest = (step, start);
        }
        if step < self.smallest {
            // The pair that was the first becomes one of the rest.
            (self.smallest, self.first) = (step, None);
        }
        self.marks.push(StepMark { step, start, custom: 0.0 });
        if last.step.checked_add(1) == Some(step) {
            self.count_pair(self.marks.len() - 1, customs, work);
        }
    }

    /// Adds the productive pair that ends at `at` to the sums.
    fn count_pair(&mut self, at: usize, customs: &Customs, work: &mut u64) {
        let from = self.marks[at - 1];
        for custom in customs.inside(from.start, self.marks[at].start, work) {
            self.marks[at].custom += custom.seconds();
            add_kind(&mut self.kinds, at, custom);
        }
        let seconds = seconds(from, self.marks[at]);
        self.total += seconds;
        self.pairs += 1;
        if from.step == self.smallest {
            self.first = Some(seconds);
        }
        self.max_step = from.step;
    }

    /// Adds a custom event that ended after the pairs around it were logged; returns whether it is inside a pair.
    pub(super) fn late_custom(&mut self, custom: &CustomEvent, work: &mut u64) -> bool {
        if self.forward {
            *work += 1;
            let at = self.marks.partition_point(|mark| mark.start <= custom.start);
            return self.late_custom_in(at, custom);
        }
        *work += self.marks.len() as u64;
        let mut found = false;
        for at in 1..self.marks.len() {
            found |= self.late_custom_in(at, custom);
        }
        found
    }

    fn late_custom_in(&mut self, at: usize, custom: &CustomEvent) -> bool {
        if at == 0 || at >= self.marks.len() {
            return false;
        }
        let (from, to) = (self.marks[at - 1], self.marks[at]);
        let productive = from.step.checked_add(1) == Some(to.step) && self.limit.is_none_or(|r| to.step <= r);
        if !productive || custom.start < from.start || custom.end > to.start {
            return false;
        }
        self.marks[at].custom += custom.seconds();
        add_kind(&mut self.kinds, at, custom);
        let now = seconds(from, self.marks[at]);
        self.total += now - seconds(from, to);
        if from.step == self.smallest {
            self.first = Some(now);
        }
        true
    }

    /// Closes the segment at step `limit`, which is in it; returns the wasted seconds.
    pub(super) fn close(&mut self, limit: i64, customs: &Customs, work: &mut u64) -> f64 {
        self.limit = Some(limit);
        if self.index.is_none() {
            self.close_ascending(limit, customs, work)
        } else {
            self.close_anyhow(limit, customs, work)
        }
    }

    /// Subtracts the pairs beyond `limit`, which are the last ones, from the sums.
    fn close_ascending(&mut self, limit: i64, customs: &Customs, work: &mut u64) -> f64 {
        let kept = self.marks.partition_point(|mark| mark.step <= limit);
        let mut wasted = 0.0;
        for at in (kept..self.marks.len()).rev() {
            *work += 1;
            let (from, to) = (self.marks[at - 1], self.marks[at]);
            wasted += to.start - from.start;
            if from.step.checked_add(1) != Some(to.step) {
                continue;
            }
            for custom in customs.inside(from.start, to.start, work) {
                remove_kind(&mut self.kinds, custom);
            }
            self.total -= seconds(from, to);
            self.pairs -= 1;
            if from.step == self.smallest {
                self.first = None;
            }
        }
        self.marks.truncate(kept);
        self.marks.shrink_to_fit();
        wasted
    }

    /// The steps are not in ascending order: count all pairs again. Each step is counted again at most once, since
    /// the segment ends here.
    fn close_anyhow(&mut self, limit: i64, customs: &Customs, work: &mut u64) -> f64 {
        (self.total, self.pairs, self.first, self.max_step) = (0.0, 0, None, 0);
        self.kinds.clear();
        let mut wasted = 0.0;
        for at in 1..self.marks.len() {
            *work += 1;
            self.marks[at].custom = 0.0;
            let (from, to) = (self.marks[at - 1], self.marks[at]);
            if to.step > limit {
                wasted += to.start - from.start;
            } else if from.step.checked_add(1) == Some(to.step) {
                self.count_pair(at, customs, work);
            }
        }
        self.index = None;
        wasted
    }

    /// The contribution of the segment in its current state.
    #[expect(clippy::cast_precision_loss, reason = "a count of steps")]
    pub(super) fn outcome(&self) -> SegmentOutcome {
        let nothing = SegmentOutcome { productive: 0.0, startup: 0.0, max_step: 0, shape: Shape::Nothing };
        if self.limit.unwrap_or(self.largest.0) == 0 {
            return nothing;
        }
        let rest = self.pairs - u64::from(self.first.is_some());
        match (self.first, rest) {
            (None, 0) => SegmentOutcome { shape: Shape::WastedOnly, ..nothing },
            (Some(first), 0) => SegmentOutcome {
                productive: first,
                max_step: self.max_step,
                shape: Shape::StartupLast,
                ..nothing
            },
            (first, rest) => {
                let first = first.unwrap_or(0.0);
                let startup = (first - (self.total - first) / rest as f64).max(0.0);
                SegmentOutcome {
                    productive: self.total - startup,
                    startup,
                    max_step: self.max_step,
                    shape: Shape::StartupFirst,
                }
            }
        }
    }

    /// The custom events counted, by type, in the order they were first counted.
    pub(super) fn kinds(&self) -> Vec<KindSum> {
        let mut kinds: Vec<KindSum> = self.kinds.values().copied().collect();
        kinds.sort_by_key(|kind| kind.first);
        kinds
    }
}

fn add_kind(kinds: &mut BTreeMap<u32, KindSum>, at: usize, custom: &CustomEvent) {
    let (kind, first) = (custom.kind, (at, custom.number));
    let sum = kinds.entry(kind).or_insert(KindSum { kind, seconds: 0.0, first, count: 0 });
    sum.seconds += custom.seconds();
    sum.first = sum.first.min(first);
    sum.count += 1;
}

/// Pairs are removed from the end, so that the first pair of a type stays the first.
fn remove_kind(kinds: &mut BTreeMap<u32, KindSum>, custom: &CustomEvent) {
    let Some(sum) = kinds.get_mut(&custom.kind) else { return };
    sum.seconds -= custom.seconds();
    sum.count -= 1;
    if sum.count == 0 {
        kinds.remove(&custom.kind);
    }
}
