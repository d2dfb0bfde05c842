//! How fast one user may send marks. Who sends faster is read more slowly: nothing is thrown away here.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// A mark counts for so many bytes; a longer one for more than one.
const BYTES_OF_A_MARK: u32 = 256;
/// What a user may send at once, in seconds of the rate.
const BURST_SECONDS: f64 = 2.0;

/// The quotas of all users.
#[derive(Debug)]
pub struct Quotas(Mutex<UserDebts>);

#[derive(Debug)]
struct UserDebts {
    /// Marks per second and user.
    rate: f64,
    /// Marks that were read and are not paid off by time yet.
    debts: BTreeMap<u32, Debt>,
}

#[derive(Debug, Clone, Copy)]
struct Debt {
    marks: f64,
    at: Instant,
}

impl Quotas {
    /// Quotas of so many marks per second, at least 1.
    pub fn new(rate: u32) -> Self {
        Self(Mutex::new(UserDebts { rate: f64::from(rate.max(1)), debts: BTreeMap::new() }))
    }

    /// Replaces the rate.
    pub fn set_rate(&self, rate: u32) {
        self.debts().rate = f64::from(rate.max(1));
    }

    /// Notes what was read of a user. Returns how long to wait before more is read.
    pub fn charge(&self, uid: u32, marks: usize, bytes: usize, now: Instant) -> Duration {
        let mut debts = self.debts();
        let rate = debts.rate;
        let paid = move |debt: Debt| debt.marks - now.saturating_duration_since(debt.at).as_secs_f64() * rate;
        // Only who sends now has an entry.
        debts.debts.retain(|_, debt| paid(*debt) > 0.0);
        let before = debts.debts.get(&uid).copied().map_or(0.0, paid);
        // A packet is far smaller than what the conversion cuts off.
        let weight = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
        let marks = before + weight(marks).max(weight(bytes) / f64::from(BYTES_OF_A_MARK));
        debts.debts.insert(uid, Debt { marks, at: now });
        Duration::try_from_secs_f64(marks / rate - BURST_SECONDS).unwrap_or_default()
    }

    fn debts(&self) -> MutexGuard<'_, UserDebts> {
        // Every change leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_sends_too_fast_waits_and_others_do_not() {
        let quotas = Quotas::new(100);
        let now = Instant::now();
        assert_eq!(quotas.charge(7, 200, 0, now), Duration::ZERO);
        assert_eq!(quotas.charge(7, 50, 0, now), Duration::from_millis(500));
        assert_eq!(quotas.charge(8, 1, 0, now), Duration::ZERO);
        let later = now + Duration::from_millis(500);
        assert_eq!(quotas.charge(7, 0, 0, later), Duration::ZERO);
        assert_eq!(quotas.charge(7, 50, 0, later), Duration::from_millis(500));
        assert_eq!(quotas.charge(9, 1, 256 * 300, later), Duration::from_secs(1), "long marks count more");
        let paid_off = later + Duration::from_secs(9);
        assert_eq!(quotas.charge(7, 1, 0, paid_off), Duration::ZERO);
        assert_eq!(quotas.debts().debts.len(), 1, "who is paid off is forgotten");
        quotas.set_rate(0);
        assert_eq!(quotas.charge(7, 9, 0, paid_off), Duration::from_secs(8));
    }
}
