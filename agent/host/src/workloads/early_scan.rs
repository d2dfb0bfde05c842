//! What makes a scan of all processes due before its time. Pure: signs and times in, decisions out.
//!
//! Must never let a program that opens and closes a node again and again cause more than one scan in an interval.

use std::time::Duration;

use model::time::Timestamp;

/// Minimum time between two scans that list the descriptors of every process because of the use of a node.
const CLOSER_LOOK_GAP: Duration = Duration::from_secs(60);

/// What has changed with the known owners since the last scan.
#[derive(Debug, Default)]
pub(super) struct OwnerCheck {
    /// Those that ended, called exec or closed a chip.
    pub(super) gone: Vec<u32>,
    /// Whether one of the others was stopped or goes on.
    pub(super) other_state: bool,
}

/// Signs that a chip has another owner since the last scan.
#[derive(Debug, Default)]
pub(super) struct EarlyScan {
    /// A node of a chip was opened or closed.
    pub(super) node_used: bool,
    /// A young process holds a chip.
    pub(super) young_holds: bool,
    /// Until then the use of a node is no reason: the last scan for it found no new owner.
    quiet_until: Option<Timestamp>,
    closer_look: Option<Timestamp>,
}

impl EarlyScan {
    /// Whether a scan is wanted now.
    pub(super) fn wanted(&self, now: Timestamp) -> bool {
        self.young_holds || (self.node_used && self.quiet_until.is_none_or(|until| now >= until))
    }

    /// Whether the use of a node is the only sign: an owner that has `gone` explains it too.
    pub(super) fn is_for_use(&self, gone: &[u32]) -> bool {
        self.node_used && !self.young_holds && gone.is_empty()
    }

    /// Whether a scan that found nobody may be repeated with the descriptors of every process.
    pub(super) fn look_closer(&mut self, now: Timestamp) -> bool {
        // The clock may have been set back.
        let may = self.closer_look.is_none_or(|at| now < at || at.age(now) >= CLOSER_LOOK_GAP);
        if may {
            self.closer_look = Some(now);
        }
        may
    }

    /// Takes a scan; `in_vain`: it was made for the use of a node and found no new owner.
    pub(super) fn scanned(&mut self, now: Timestamp, in_vain: bool, interval: Duration) {
        let quiet_until = in_vain.then(|| now.plus(interval));
        *self = Self { quiet_until, closer_look: self.closer_look, ..Self::default() };
    }
}
