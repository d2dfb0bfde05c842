//! The state of one second of a live ledger, in four bits.

use crate::proxy::slots::SlotState;

/// What a second was. Zero is the absence of knowledge: memory that nobody wrote is never productive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SecondState {
    /// Nobody looked: the agent did not run, or could not see.
    Unobserved = 0,
    /// No chip was open.
    Closed = 1,
    /// Some chips were open, some were not.
    Partial = 2,
    /// Idle before the first active second of an attempt, without memory in use.
    Init = 3,
    /// Idle before the first active second of an attempt, with memory in use.
    Prep = 4,
    /// Idle while a checkpoint was read.
    Restore = 5,
    /// Idle after the first active second of an attempt, for a reason that is not known.
    Stall = 6,
    /// Idle while a checkpoint was written.
    Save = 7,
    /// Idle while the job waited for its input.
    Input = 8,
    /// All chips were open, none was known to be idle, and one was unknown.
    Unknown = 9,
    /// All chips were active.
    Active = 10,
    /// Idle, in a short gap between two active seconds: part of a step.
    Filled = 11,
}

impl SecondState {
    /// All states, by code.
    pub const ALL: [Self; 12] = [
        Self::Unobserved,
        Self::Closed,
        Self::Partial,
        Self::Init,
        Self::Prep,
        Self::Restore,
        Self::Stall,
        Self::Save,
        Self::Input,
        Self::Unknown,
        Self::Active,
        Self::Filled,
    ];

    /// The state with this code. A code that no version wrote is unobserved.
    pub fn of_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Unobserved)
    }

    /// Its four bits.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Its name in answers and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unobserved => "unobserved",
            Self::Closed => "recovery",
            Self::Partial => "partial",
            Self::Init => "init",
            Self::Prep => "prep",
            Self::Restore => "restore",
            Self::Stall => "stall",
            Self::Save => "checkpoint",
            Self::Input => "input",
            Self::Unknown => "unknown",
            Self::Active | Self::Filled => "productive",
        }
    }

    /// Whether it counts as progress.
    pub fn is_productive(self) -> bool {
        matches!(self, Self::Active | Self::Filled)
    }

    /// Whether it is known at all.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::Unobserved | Self::Unknown)
    }

    /// Whether all chips were open.
    pub fn is_open(self) -> bool {
        !matches!(self, Self::Unobserved | Self::Closed | Self::Partial)
    }

    /// The state of the slot, with short gaps filled.
    pub fn slot(self) -> SlotState {
        match self {
            Self::Closed => SlotState::Closed,
            Self::Partial => SlotState::Partial,
            Self::Init | Self::Prep | Self::Restore | Self::Stall | Self::Save | Self::Input => {
                SlotState::Idle
            }
            Self::Unobserved | Self::Unknown => SlotState::Unknown,
            Self::Active | Self::Filled => SlotState::Active,
        }
    }

    /// The state of a second before the job had opened all of its chips.
    #[must_use]
    pub(super) fn before_complete(self) -> Self {
        match self {
            Self::Unobserved | Self::Closed => self,
            _ => Self::Partial,
        }
    }
}

/// Why a job waited, from a source other than the duty cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallCause {
    /// A checkpoint was written.
    Save,
    /// A checkpoint was read.
    Restore,
    /// The next element of the input was not ready.
    Input,
}

impl StallCause {
    /// What `state` becomes by this cause; `None` where it says nothing about such a second.
    pub(super) fn name(self, state: SecondState) -> Option<SecondState> {
        use SecondState::{Init, Input, Prep, Restore, Save, Stall};
        match (self, state) {
            // A save blocks the program itself; the input only says that nothing was ready.
            (Self::Save, Stall | Input) => Some(Save),
            (Self::Restore, Init | Prep | Stall | Input) => Some(Restore),
            (Self::Input, Stall) => Some(Input),
            _ => None,
        }
    }
}
