//! How often an address may fail to prove who it is: ten times at once, and once more each six seconds. One host can have
//! all IPv6 addresses of a network (/64), so they count as one.
//!
//! Must never refuse an address because of the failures of another one, as long as there is room to count them.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use tokio::time::Instant;

/// The maximum number of addresses whose failures are counted.
const MAX_ADDRESSES: usize = 1024;
/// The failures that an address may have at once.
pub(crate) const FAILURES: u32 = 10;
/// The time after which an address may have one more failure.
pub(crate) const REFILL: Duration = Duration::from_secs(6);

/// The counted failures.
#[derive(Debug, Default)]
pub(crate) struct FailureLimits(HashMap<IpAddr, Failures>);

/// Failures that an address has left.
#[derive(Debug, Clone, Copy)]
struct Failures {
    left: u32,
    refilled: Instant,
}

impl Failures {
    fn full(now: Instant) -> Self {
        Self { left: FAILURES, refilled: now }
    }

    /// The failures left now.
    fn at(self, now: Instant) -> Self {
        let periods = now.saturating_duration_since(self.refilled).as_nanos() / REFILL.as_nanos();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        let left = self.left.saturating_add(periods).min(FAILURES);
        Self { left, refilled: if left == FAILURES { now } else { self.refilled + REFILL * periods } }
    }
}

impl FailureLimits {
    /// Whether the address may fail once more.
    pub(crate) fn allows(&mut self, address: IpAddr, now: Instant) -> bool {
        self.entry(address, now).is_some_and(|entry| entry.left > 0)
    }

    /// Takes one failure of the address. Where this is done before a check, concurrent checks cannot exceed the limit.
    /// Returns whether there was one.
    pub(crate) fn take(&mut self, address: IpAddr, now: Instant) -> bool {
        let Some(entry) = self.entry(address, now) else { return false };
        let may = entry.left > 0;
        entry.left = entry.left.saturating_sub(1);
        may
    }

    /// Gives back one that was taken before a check that succeeded.
    pub(crate) fn give_back(&mut self, address: IpAddr) {
        if let Some(entry) = self.0.get_mut(&network(address)) {
            entry.left = (entry.left + 1).min(FAILURES);
        }
    }

    /// What the address has left; `None`: too many addresses have failed.
    fn entry(&mut self, address: IpAddr, now: Instant) -> Option<&mut Failures> {
        let address = network(address);
        if !self.0.contains_key(&address) && self.0.len() >= MAX_ADDRESSES {
            self.0.retain(|_, failures| failures.at(now).left < FAILURES);
            if self.0.len() >= MAX_ADDRESSES {
                return None;
            }
        }
        let entry = self.0.entry(address).or_insert_with(|| Failures::full(now));
        *entry = entry.at(now);
        Some(entry)
    }
}

/// The address that failures are counted for.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::from([a, b, c, d, 0, 0, 0, 0]).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let (mut limits, now) = (FailureLimits::default(), Instant::now());
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let taken = (0..FAILURES + 5).filter(|n| limits.take(at(&format!("fd00::{n}")), now)).count();
        assert_eq!(taken, FAILURES as usize);
        assert!(!limits.allows(at("fd00::ffff:1"), now) && limits.allows(at("fd00:0:0:1::1"), now));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_a_number_of_failures_and_more_with_time() {
        let (mut limits, now) = (FailureLimits::default(), Instant::now());
        let (here, there) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        assert_eq!((0..FAILURES + 5).filter(|_| limits.take(here, now)).count(), FAILURES as usize);
        assert!(!limits.allows(here, now) && limits.allows(there, now));
        let later = now + REFILL;
        assert!(limits.allows(here, later) && limits.take(here, later) && !limits.take(here, later));
        limits.give_back(here);
        assert!(limits.allows(here, later));
    }

    #[test]
    fn memory_is_bounded() {
        let (mut limits, now) = (FailureLimits::default(), Instant::now());
        let refused = (0..5000_u32).filter(|n| !limits.take(IpAddr::V4((*n).into()), now)).count();
        assert_eq!((limits.0.len(), refused), (MAX_ADDRESSES, 5000 - MAX_ADDRESSES));
        // Those that have not failed for long make room.
        assert!(limits.take([10, 0, 0, 1].into(), now + REFILL * FAILURES));
    }
}
