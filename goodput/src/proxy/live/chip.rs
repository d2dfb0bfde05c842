//! What a live ledger remembers of one chip.

use serde::{Deserialize, Serialize};

use super::block::ChipBits;
use crate::proxy::limits::{HBM0, HOLD, THETA};

/// What one second showed of one chip. `duty` is in percent, `hbm` is the share of the memory in use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ChipSecond {
    /// The chip.
    pub chip: u32,
    /// Whether the job had it open when the second began.
    pub open: bool,
    /// Whether the job had closed it since the second before, even if it opened it again.
    pub closed: bool,
    /// The last sample of its duty cycle in this second.
    pub duty: Option<f64>,
    /// The last sample of its memory in use in this second.
    pub hbm: Option<f64>,
}

/// A duty sample, and the second that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct HeldDuty {
    slot: u64,
    percent: f64,
}

/// One chip that the job needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ChipMemory {
    pub(super) chip: u32,
    held: Option<HeldDuty>,
    pub(super) is_loaded: bool,
    /// Duty of the last ten seconds of this minute: sum and count.
    minute: (f64, u8),
}

/// What the duty cycle of a chip says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChipIs {
    Idle,
    Unknown,
    Active,
}

impl ChipMemory {
    pub(super) fn new(chip: u32) -> Self {
        Self { chip, held: None, is_loaded: false, minute: (0.0, 0) }
    }

    /// Its bit; chips from 64 on have none.
    pub(super) fn bit(&self) -> ChipBits {
        1_u64.checked_shl(self.chip).unwrap_or(0)
    }

    /// Takes what second `slot` showed: whether the chip is open, and what it does.
    pub(super) fn observe(&mut self, slot: u64, seen: Option<&ChipSecond>) -> (bool, ChipIs) {
        if seen.is_some_and(|seen| seen.closed) {
            self.forget();
        }
        if let Some(percent) = seen.and_then(|seen| seen.duty) {
            self.held = Some(HeldDuty { slot, percent });
        }
        if let Some(share) = seen.and_then(|seen| seen.hbm) {
            self.is_loaded = share >= HBM0;
        }
        let lasts = |held: &HeldDuty| slot.saturating_sub(held.slot) <= HOLD.unsigned_abs();
        let known = self.held.filter(lasts).map(|held| held.percent);
        if let Some(percent) = known.filter(|_| slot % 60 >= 50) {
            self.minute.0 += percent;
            self.minute.1 += 1;
        }
        let is_open = seen.is_some_and(|seen| seen.open);
        let is = match known {
            Some(percent) if percent <= THETA => ChipIs::Idle,
            Some(_) => ChipIs::Active,
            None => ChipIs::Unknown,
        };
        (is_open, is)
    }

    /// Nothing that was measured holds beyond a close.
    pub(super) fn forget(&mut self) {
        self.held = None;
        self.is_loaded = false;
    }

    /// Whether it was active at the end of the minute that ends now.
    pub(super) fn end_minute(&mut self) -> bool {
        let (sum, count) = std::mem::take(&mut self.minute);
        count > 0 && sum / f64::from(count) > THETA
    }
}
