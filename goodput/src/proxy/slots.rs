//! The state of every second.

use std::collections::BTreeMap;

use super::{Error, GAP, HOLD, MAX_SECONDS, THETA, Trace};

/// The state of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No chip is open.
    Closed,
    /// Some chips are open, some are not.
    Partial,
    /// All are open, and one is known to be idle.
    Idle,
    /// All are open, none is known to be idle, and not all are known.
    Unknown,
    /// All are open and at work.
    Active,
}

/// The states of all seconds from the first open to now.
#[derive(Debug, Clone)]
pub struct Slots {
    /// The first second.
    pub first: i64,
    /// States as observed.
    pub raw: Vec<State>,
    /// States with short idle gaps between productive slots filled.
    pub filled: Vec<State>,
    /// Whether all chips were open.
    pub all_open: Vec<bool>,
    /// Duty per chip and second, where known.
    pub(super) duty: Vec<Vec<Option<f64>>>,
}

/// The whole second at or below `at`.
#[allow(clippy::cast_possible_truncation, reason = "saturates; lengths are checked against MAX_SECONDS")]
pub(super) fn floor(at: f64) -> i64 {
    at.floor() as i64
}

/// The whole second at or above `at`.
#[allow(clippy::cast_possible_truncation, reason = "saturates; lengths are checked against MAX_SECONDS")]
pub(super) fn ceil(at: f64) -> i64 {
    at.ceil() as i64
}

impl Slots {
    /// Works out every second of a trace.
    ///
    /// # Errors
    /// If the window is too long, or an instant is not finite.
    pub fn new(trace: &Trace) -> Result<Self, Error> {
        if !finite(trace) {
            return Err(Error::NotFinite);
        }
        let end = floor(trace.now);
        let first_open = trace.opens.iter().map(|open| open.2).min_by(f64::total_cmp);
        let first = first_open.map_or(end, ceil).min(end);
        let length = end.saturating_sub(first);
        if length > MAX_SECONDS {
            return Err(Error::TooLong(length));
        }
        let length = usize::try_from(length).unwrap_or(0);
        let chips = required(trace);
        let window = Window { first, length };
        let open: Vec<Vec<bool>> = chips.iter().map(|chip| window.open(trace, *chip)).collect();
        let duty: Vec<_> = chips.iter().map(|chip| window.duty(trace, *chip)).collect();
        let raw: Vec<State> = (0..length).map(|slot| state(&open, &duty, slot)).collect();
        let all_open = (0..length).map(|slot| open.iter().all(|chip| chip[slot])).collect();
        Ok(Self { first, filled: fill(&raw), raw, all_open, duty })
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The slots of the seconds in `from..to`, as far as the window has them.
    pub(super) fn range(&self, from: f64, to: f64) -> std::ops::Range<usize> {
        let index = |at: f64| {
            let at = ceil(at).saturating_sub(self.first).max(0);
            usize::try_from(at).unwrap_or(usize::MAX).min(self.len())
        };
        let start = index(from);
        start..index(to).max(start)
    }
}

fn finite(trace: &Trace) -> bool {
    trace.now.is_finite()
        && trace.created_at.is_none_or(f64::is_finite)
        && trace.opens.iter().all(|open| open.2.is_finite() && open.3.is_none_or(f64::is_finite))
        && trace.duty.iter().all(|duty| duty.1.is_finite())
        && trace.hbm.iter().all(|hbm| hbm.1.is_finite())
        && trace.steps.iter().flatten().all(|step| step.1.is_finite())
}

fn required(trace: &Trace) -> Vec<i64> {
    let mut chips: Vec<i64> = match &trace.chips[..] {
        [] => trace.opens.iter().map(|open| open.0).collect(),
        chips => chips.to_vec(),
    };
    chips.sort_unstable();
    chips.dedup();
    chips
}

struct Window {
    first: i64,
    length: usize,
}

impl Window {
    /// The slot of a second, if it is in the window.
    fn slot(&self, second: i64) -> Option<usize> {
        let slot = usize::try_from(second.checked_sub(self.first)?).ok()?;
        (slot < self.length).then_some(slot)
    }

    fn open(&self, trace: &Trace, chip: i64) -> Vec<bool> {
        let mut open = vec![false; self.length];
        for span in trace.opens.iter().filter(|open| open.0 == chip) {
            let clamp = |second: i64| {
                usize::try_from(second.saturating_sub(self.first).max(0))
                    .unwrap_or(usize::MAX)
                    .min(self.length)
            };
            let (from, until) = (clamp(ceil(span.2)), span.3.map_or(self.length, |close| clamp(ceil(close))));
            open[from..until.max(from)].fill(true);
        }
        open
    }

    /// The last sample in each second, held for a while, but never across a close.
    fn duty(&self, trace: &Trace, chip: i64) -> Vec<Option<f64>> {
        let mut samples: BTreeMap<i64, f64> = BTreeMap::new();
        let from = self.first.saturating_sub(HOLD);
        let until = self.first.saturating_add(i64::try_from(self.length).unwrap_or(i64::MAX));
        for Duty { start, values } in trace.duty.iter().filter(|d| d.0 == chip).map(Duty::from) {
            for (offset, value) in values.iter().enumerate() {
                let second = start.saturating_add(i64::try_from(offset).unwrap_or(i64::MAX));
                if let Some(value) = value.filter(|_| (from..until).contains(&second)) {
                    samples.insert(second, value);
                }
            }
        }
        let mut closes: Vec<i64> =
            trace.opens.iter().filter(|open| open.0 == chip).filter_map(|open| open.3.map(ceil)).collect();
        closes.sort_unstable();
        let mut duty = vec![None; self.length];
        for (second, value) in samples {
            let closed = closes.get(closes.partition_point(|close| *close <= second)).copied();
            let held = (second + HOLD + 1).min(closed.unwrap_or(i64::MAX));
            for held in (second..held).filter_map(|second| self.slot(second)) {
                duty[held] = Some(value);
            }
        }
        duty
    }
}

/// A run of samples in whole seconds.
struct Duty<'a> {
    start: i64,
    values: &'a [Option<f64>],
}

impl<'a> From<&'a super::Duty> for Duty<'a> {
    fn from(duty: &'a super::Duty) -> Self {
        Self { start: floor(duty.1), values: &duty.2 }
    }
}

fn state(open: &[Vec<bool>], duty: &[Vec<Option<f64>>], slot: usize) -> State {
    let opened = open.iter().filter(|chip| chip[slot]).count();
    if opened == 0 {
        return State::Closed;
    }
    if opened < open.len() {
        return State::Partial;
    }
    let known = || duty.iter().map(|chip| chip[slot]);
    if known().flatten().any(|percent| percent <= THETA) {
        State::Idle
    } else if known().any(|percent| percent.is_none()) {
        State::Unknown
    } else {
        State::Active
    }
}

/// Fills idle runs of at most [`GAP`] slots directly between two productive ones.
fn fill(raw: &[State]) -> Vec<State> {
    let mut filled = raw.to_vec();
    let mut at = 0;
    while at < raw.len() {
        let run = raw[at..].iter().take_while(|state| **state == State::Idle).count();
        let between = at > 0 && raw[at - 1] == State::Active && raw.get(at + run) == Some(&State::Active);
        if (1..=GAP).contains(&run) && between {
            filled[at..at + run].fill(State::Active);
        }
        at += run.max(1);
    }
    filled
}
