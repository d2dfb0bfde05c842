//! The state of every second.

use std::{collections::BTreeMap, ops::Range};

use super::{
    error::Error,
    limits::{GAP, HOLD, MAX_CHIP_SECONDS, MAX_SECONDS, THETA},
    observations::{DutySamples, HostObservations},
};

/// The state of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// No chip is open.
    Closed,
    /// Some chips are open, some are not.
    Partial,
    /// All chips are open, and one is known to be idle.
    Idle,
    /// All chips are open, none is known to be idle, and one is unknown.
    Unknown,
    /// All chips are open and active.
    Active,
}

/// The states of all seconds from the first open to now.
#[derive(Debug, Clone)]
pub struct Slots {
    /// The first second.
    pub first: i64,
    /// States as observed.
    pub raw: Vec<SlotState>,
    /// States with short idle gaps between productive slots filled.
    pub filled: Vec<SlotState>,
    /// Whether all chips were open.
    pub all_open: Vec<bool>,
    /// Whether every chip was active at the end of each full minute.
    pub(super) minutes: Vec<bool>,
}

/// The whole second at or below `at`.
#[expect(clippy::cast_possible_truncation, reason = "saturates; lengths are checked against MAX_SECONDS")]
pub(super) fn floor(at: f64) -> i64 {
    at.floor() as i64
}

/// The whole second at or above `at`.
#[expect(clippy::cast_possible_truncation, reason = "saturates; lengths are checked against MAX_SECONDS")]
pub(super) fn ceil(at: f64) -> i64 {
    at.ceil() as i64
}

impl Slots {
    /// Computes the state of every second.
    ///
    /// # Errors
    /// If the observations are invalid or exceed a limit.
    pub fn new(observed: &HostObservations) -> Result<Self, Error> {
        observed.check()?;
        let end = floor(observed.now);
        let first_open = observed.opens.iter().map(|open| open.2).min_by(f64::total_cmp);
        let first = first_open.map_or(end, ceil).min(end);
        let length = end.saturating_sub(first);
        if length > MAX_SECONDS {
            return Err(Error::TooLong(length));
        }
        let length = usize::try_from(length).unwrap_or(0);
        let chips = required(observed);
        if length.saturating_mul(chips.len()) > MAX_CHIP_SECONDS {
            return Err(Error::TooManyChips { chips: chips.len(), seconds: length });
        }
        let (flags, minutes) = ChipObservations::all(observed, &chips, SlotWindow { first, length });
        let raw: Vec<SlotState> = flags.iter().map(|flags| state(*flags)).collect();
        let all_open = flags.iter().map(|flags| flags & SHUT == 0).collect();
        Ok(Self { first, filled: fill(&raw), raw, all_open, minutes })
    }

    /// So many slots that nobody observed.
    pub(super) fn unobserved(first: i64, length: usize) -> Self {
        let unknown = vec![SlotState::Unknown; length];
        let minutes = vec![false; length / 60];
        Self { first, raw: unknown.clone(), filled: unknown, all_open: vec![false; length], minutes }
    }

    /// Says what a slot was. One that is not there stays so.
    pub(super) fn set(&mut self, slot: usize, raw: SlotState, filled: SlotState, all_open: bool) {
        if slot < self.len() {
            (self.raw[slot], self.filled[slot], self.all_open[slot]) = (raw, filled, all_open);
        }
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The slots of the seconds in `from..to` that are in the window.
    pub(super) fn range(&self, from: f64, to: f64) -> Range<usize> {
        let index = |at: f64| {
            let at = ceil(at).saturating_sub(self.first).max(0);
            usize::try_from(at).unwrap_or(usize::MAX).min(self.len())
        };
        let start = index(from);
        start..index(to).max(start)
    }
}

fn required(observed: &HostObservations) -> Vec<i64> {
    let mut chips: Vec<i64> = match &observed.chips[..] {
        [] => observed.opens.iter().map(|open| open.0).collect(),
        chips => chips.to_vec(),
    };
    chips.sort_unstable();
    chips.dedup();
    chips
}

/// Observations of any chip in a second, one bit each.
const OPEN: u8 = 1;
const SHUT: u8 = 2;
const IDLE: u8 = 4;
const UNKNOWN: u8 = 8;

fn state(flags: u8) -> SlotState {
    match flags {
        _ if flags & OPEN == 0 => SlotState::Closed,
        _ if flags & SHUT != 0 => SlotState::Partial,
        _ if flags & IDLE != 0 => SlotState::Idle,
        _ if flags & UNKNOWN != 0 => SlotState::Unknown,
        _ => SlotState::Active,
    }
}

#[derive(Clone, Copy)]
struct SlotWindow {
    first: i64,
    length: usize,
}

impl SlotWindow {
    /// The slots of the seconds in `from..until` that are in the window.
    fn slots(self, from: i64, until: i64) -> Range<usize> {
        let clamp = |second: i64| {
            usize::try_from(second.saturating_sub(self.first).max(0)).unwrap_or(usize::MAX).min(self.length)
        };
        let from = clamp(from);
        from..clamp(until).max(from)
    }

    fn end(self) -> i64 {
        self.first.saturating_add(i64::try_from(self.length).unwrap_or(i64::MAX))
    }
}

/// The observations of one chip.
#[derive(Default)]
struct ChipObservations<'a> {
    opens: Vec<(i64, Option<i64>)>,
    duty: Vec<&'a DutySamples>,
}

impl<'a> ChipObservations<'a> {
    /// Reads the chips one by one, so that memory is one byte per second for any number of chips.
    fn all(observed: &'a HostObservations, chips: &[i64], window: SlotWindow) -> (Vec<u8>, Vec<bool>) {
        let mut seen: BTreeMap<i64, ChipObservations<'a>> =
            chips.iter().map(|chip| (*chip, ChipObservations::default())).collect();
        for open in &observed.opens {
            if let Some(chip) = seen.get_mut(&open.0) {
                chip.opens.push((ceil(open.2), open.3.map(ceil)));
            }
        }
        for duty in &observed.duty {
            if let Some(chip) = seen.get_mut(&duty.0) {
                chip.duty.push(duty);
            }
        }
        let mut flags = vec![0; window.length];
        let mut minutes = vec![true; window.length / 60];
        for mut chip in seen.into_values() {
            chip.mark_opens(window, &mut flags);
            chip.mark_duty(window, &mut flags, &mut minutes);
        }
        (flags, minutes)
    }

    /// Marks each second once, even if opens overlap in it.
    fn mark_opens(&mut self, window: SlotWindow, flags: &mut [u8]) {
        self.opens.sort_unstable();
        let mut done = 0;
        for (from, until) in &self.opens {
            let open = window.slots(*from, until.unwrap_or(i64::MAX));
            let (start, end) = (open.start.max(done), open.end.max(done));
            if start < end {
                mark(&mut flags[done..start], SHUT);
                mark(&mut flags[start..end], OPEN);
                done = end;
            }
        }
        mark(&mut flags[done..], SHUT);
    }

    /// Marks the last sample of each second for [`HOLD`] more seconds, but not beyond a close.
    fn mark_duty(&self, window: SlotWindow, flags: &mut [u8], minutes: &mut [bool]) {
        let samples = self.samples(window);
        let mut closes: Vec<i64> = self.opens.iter().filter_map(|open| open.1).collect();
        closes.sort_unstable();
        let mut closes = closes.into_iter().peekable();
        let mut means = vec![(0.0, 0_u8); minutes.len()];
        let mut done = 0;
        for (at, &(second, value)) in samples.iter().enumerate() {
            while closes.next_if(|close| *close <= second).is_some() {}
            let next = samples.get(at + 1).map_or(i64::MAX, |next| next.0);
            let held =
                second.saturating_add(HOLD + 1).min(next).min(closes.peek().copied().unwrap_or(i64::MAX));
            let known = window.slots(second, held);
            mark(&mut flags[done.min(known.start)..known.start], UNKNOWN);
            if value <= THETA {
                mark(&mut flags[known.clone()], IDLE);
            }
            done = known.end;
            for slot in known.filter(|slot| slot % 60 >= 50) {
                if let Some((sum, count)) = means.get_mut(slot / 60) {
                    *sum += value;
                    *count += 1;
                }
            }
        }
        mark(&mut flags[done..], UNKNOWN);
        for (minute, (sum, count)) in minutes.iter_mut().zip(means) {
            *minute &= count > 0 && sum / f64::from(count) > THETA;
        }
    }

    /// The known samples that are valid in the window, by second; the last one of each second.
    fn samples(&self, window: SlotWindow) -> Vec<(i64, f64)> {
        let seconds = window.first.saturating_sub(HOLD)..window.end();
        let mut samples = Vec::new();
        for DutySamples(_, start, values) in &self.duty {
            for (offset, value) in values.iter().enumerate() {
                let second = floor(*start).saturating_add(i64::try_from(offset).unwrap_or(i64::MAX));
                samples.extend(value.filter(|_| seconds.contains(&second)).map(|value| (second, value)));
            }
        }
        samples.sort_by_key(|sample| sample.0);
        // `dedup_by_key` keeps the first of equal keys.
        samples.reverse();
        samples.dedup_by_key(|sample| sample.0);
        samples.reverse();
        samples
    }
}

fn mark(flags: &mut [u8], bit: u8) {
    for flags in flags {
        *flags |= bit;
    }
}

/// Fills idle runs of at most [`GAP`] slots between two productive slots.
fn fill(raw: &[SlotState]) -> Vec<SlotState> {
    let mut filled = raw.to_vec();
    let mut at = 0;
    while at < raw.len() {
        let run = raw[at..].iter().take_while(|state| **state == SlotState::Idle).count();
        let between =
            at > 0 && raw[at - 1] == SlotState::Active && raw.get(at + run) == Some(&SlotState::Active);
        if (1..=GAP).contains(&run) && between {
            filled[at..at + run].fill(SlotState::Active);
        }
        at += run.max(1);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::DeviceOpen;

    fn observed(chips: i64, now: f64) -> HostObservations {
        HostObservations {
            chips: (0..chips).collect(),
            now,
            opens: vec![DeviceOpen(0, 1, 0.0, None)],
            ..HostObservations::default()
        }
    }

    #[test]
    fn chips_times_seconds_have_a_limit() {
        let too_much = Slots::new(&observed(256, 34_560_000.0));
        assert!(matches!(too_much, Err(Error::TooManyChips { chips: 256, seconds: 34_560_000 })));
        assert!(Slots::new(&observed(64, 1_000.0)).is_ok());
        assert!(matches!(Slots::new(&observed(1, 1e9)), Err(Error::TooLong(_))));
    }

    #[test]
    fn a_second_costs_once_however_many_opens_overlap_in_it() {
        let mut observed = observed(1, 1_000_000.0);
        // One by one these would be 10^11 seconds.
        observed.opens =
            (0..100_000).map(|pid| DeviceOpen(0, pid, 0.0, (pid > 0).then_some(900_000.0))).collect();
        let slots = Slots::new(&observed).unwrap();
        assert!(slots.all_open.iter().all(|open| *open));
        observed.opens[0].3 = Some(100.0);
        let open = Slots::new(&observed).unwrap().all_open;
        assert_eq!(open.iter().filter(|open| **open).count(), 900_000);
    }

    #[test]
    fn times_at_the_limits_of_the_number_type_give_no_slots() {
        for at in [1e300, -1e300, 9.3e18] {
            let mut observed = observed(1, at);
            observed.opens = vec![DeviceOpen(0, 1, at, None)];
            observed.duty = vec![DutySamples(0, at, vec![Some(1.0), Some(2.0)])];
            assert!(Slots::new(&observed).unwrap().is_empty());
            assert_eq!(crate::proxy::proxy(&observed).unwrap().elapsed_s, 0);
        }
    }

    #[test]
    fn what_cannot_be_true_is_refused_by_name() {
        for (text, words) in [
            (r#""chips":[0,0]"#, "twice"),
            (r#""chips":[0],"opens":[[1,1,0,null]]"#, "opens: chip 1 is not among chips"),
            (r#""chips":[0],"duty":[[1,0,[1]]]"#, "duty: chip 1 is not among chips"),
            (r#""chips":[0],"hbm":[[1,0,1]]"#, "hbm: chip 1 is not among chips"),
            (r#""duty":[[0,0,[null,100.5]]]"#, "100.5"),
            (r#""duty":[[0,0,[-1]]]"#, "-1"),
            (r#""hbm":[[0,0,1.5]]"#, "1.5"),
            (r#""opens":[[0,1,5,4]]"#, "closed before it is opened"),
        ] {
            let observed: HostObservations =
                serde_json::from_str(&format!(r#"{{"now":10,{text}}}"#)).unwrap();
            let error = Slots::new(&observed).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(serde_json::from_str::<HostObservations>(r#"{"now":10,"dutty":[]}"#).is_err());
        assert!(serde_json::from_str::<HostObservations>(r#"{"now":10,"chips":[]}"#).is_err());
    }
}
