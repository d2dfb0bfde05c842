//! A job on several hosts: the slots that each host publishes, and their combination.
//!
//! A host publishes two bits per second, not ratios: a slot is productive for the job only if it is productive on
//! every host, which cannot be computed from ratios.

use serde::Serialize;

use super::{
    limits::{MAX_SECONDS, MIN_COVER, MIN_SECONDS},
    live::Confidence,
    ratios::share,
    slots::{SlotState, Slots},
};

/// The two bits of a slot.
const DOWN: u8 = 0;
const IDLE: u8 = 1;
const UNKNOWN: u8 = 2;
const ACTIVE: u8 = 3;

/// One host's slots as it publishes them: four to a byte, the earliest in the lowest bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSlots {
    /// The first second, in the clock of the job.
    pub first: i64,
    /// The number of slots.
    pub length: usize,
    /// Two bits each.
    pub bits: Vec<u8>,
}

impl From<&Slots> for HostSlots {
    fn from(slots: &Slots) -> Self {
        Self::new(slots.first, slots.filled.iter().copied())
    }
}

impl HostSlots {
    /// The slots of a host from a second on, with short gaps filled.
    pub fn new(first: i64, states: impl IntoIterator<Item = SlotState>) -> Self {
        let (mut bits, mut length) = (Vec::new(), 0_usize);
        for state in states {
            let code = match state {
                SlotState::Closed | SlotState::Partial => DOWN,
                SlotState::Idle => IDLE,
                SlotState::Unknown => UNKNOWN,
                SlotState::Active => ACTIVE,
            };
            if length.is_multiple_of(4) {
                bits.push(0);
            }
            if let Some(last) = bits.last_mut() {
                *last |= code << (length % 4 * 2);
            }
            length += 1;
        }
        Self { first, length, bits }
    }

    fn at(&self, second: i64) -> u8 {
        let slot = second.checked_sub(self.first).and_then(|slot| usize::try_from(slot).ok());
        match slot.filter(|slot| *slot < self.length) {
            Some(slot) => self.bits.get(slot / 4).map_or(UNKNOWN, |byte| byte >> (slot % 4 * 2) & 3),
            None => UNKNOWN,
        }
    }
}

/// The combination of several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Combined {
    /// Seconds from the first slot of any host to the last of any.
    pub elapsed_s: usize,
    /// Seconds in which every host was active.
    pub productive_s: usize,
    /// Seconds in which some host did not have all its chips open.
    pub down_s: usize,
    /// Seconds in which all chips were open and some host was idle.
    pub idle_s: usize,
    /// Seconds that are unknown on a host while no host is down or idle.
    pub unknown_s: usize,
    /// Known share of the elapsed seconds.
    pub coverage: f64,
    /// Productive share of the known seconds.
    pub proxy_runtime_goodput: Option<f64>,
    /// How far that can be believed.
    pub confidence: Confidence,
}

/// Combines hosts; `None` without any.
pub fn combine(hosts: &[HostSlots]) -> Option<Combined> {
    let first = hosts.iter().map(|host| host.first).min()?;
    let end = |host: &HostSlots| host.first.saturating_add(i64::try_from(host.length).unwrap_or(i64::MAX));
    let last = hosts.iter().map(end).max()?.min(first.saturating_add(MAX_SECONDS));
    let mut counts = [0_usize; 4];
    for second in first..last {
        counts[usize::from(together(hosts, second))] += 1;
    }
    let elapsed: usize = counts.iter().sum();
    let known = elapsed - counts[usize::from(UNKNOWN)];
    let coverage = share(known, elapsed).unwrap_or(0.0);
    let productive = counts[usize::from(ACTIVE)];
    let goodput = share(productive, known).filter(|_| elapsed >= MIN_SECONDS && coverage >= MIN_COVER);
    Some(Combined {
        elapsed_s: elapsed,
        productive_s: productive,
        down_s: counts[usize::from(DOWN)],
        idle_s: counts[usize::from(IDLE)],
        unknown_s: counts[usize::from(UNKNOWN)],
        coverage,
        proxy_runtime_goodput: goodput,
        confidence: Confidence::of(goodput, coverage, u64::try_from(known).unwrap_or(u64::MAX)),
    })
}

/// The job is down if a host is down, else idle if a host is idle, else unknown if a host is unknown.
fn together(hosts: &[HostSlots], second: i64) -> u8 {
    hosts.iter().map(|host| host.at(second)).min().unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::{DeviceOpen, DutySamples, HostObservations};

    fn host(duty: Vec<Option<f64>>) -> HostSlots {
        let now = f64::from(u32::try_from(duty.len()).unwrap());
        let observed = HostObservations {
            chips: vec![0],
            now,
            opens: vec![DeviceOpen(0, 1, 0.0, None)],
            duty: vec![DutySamples(0, 0.0, duty)],
            ..HostObservations::default()
        };
        HostSlots::from(&Slots::new(&observed).unwrap())
    }

    #[test]
    fn two_hosts_that_are_active_at_different_times_are_never_active_together() {
        let half = |first: f64, second: f64| {
            host((0..120).map(|at| Some(if at < 60 { first } else { second })).collect())
        };
        let (a, b) = (half(90.0, 0.0), half(0.0, 90.0));
        assert_eq!(combine(std::slice::from_ref(&a)).unwrap().proxy_runtime_goodput, Some(0.5));
        let both = combine(&[a, b]).unwrap();
        assert_eq!((both.productive_s, both.idle_s, both.proxy_runtime_goodput), (0, 120, Some(0.0)));
    }

    #[test]
    fn a_host_that_publishes_less_leaves_the_rest_unknown() {
        let long = host(vec![Some(90.0); 200]);
        let short = host(vec![Some(90.0); 100]);
        let both = combine(&[long, short]).unwrap();
        assert_eq!((both.productive_s, both.unknown_s, both.coverage), (100, 100, 0.5));
        assert_eq!(both.proxy_runtime_goodput, Some(1.0));
    }

    #[test]
    fn a_host_that_does_not_answer_lowers_the_coverage_and_hides_no_idle_second() {
        let half = host((0..120).map(|at| Some(if at < 60 { 90.0 } else { 0.0 })).collect());
        let silent = HostSlots::new(half.first, []);
        let both = combine(&[half, silent]).unwrap();
        assert_eq!((both.productive_s, both.idle_s, both.unknown_s, both.coverage), (0, 60, 60, 0.5));
    }

    #[test]
    fn two_bits_a_second() {
        assert_eq!(host(vec![Some(90.0); 401]).bits.len(), 101);
        assert_eq!(combine(&[]), None);
    }
}
