//! Seconds by state, and the figures that follow from them.

use serde::{Deserialize, Serialize};

use super::second::SecondState;
use crate::proxy::{limits::MIN_COVER, limits::MIN_SECONDS, ratios::SlotBuckets};

/// How far a figure of the proxy can be believed. It is never more than medium: duty cycles show neither lost work nor
/// what the chips worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// There is no figure: too little is known.
    None,
    /// Less than 90 % of the time is known, or less than ten minutes.
    Low,
    /// Enough is known for the figure to be that of the rules.
    Medium,
}

impl Confidence {
    const COVERAGE: f64 = 0.9;
    const SECONDS: u64 = 600;

    /// Of a figure, by the known share of the time and the known seconds.
    pub fn of(figure: Option<f64>, coverage: f64, known: u64) -> Self {
        match figure {
            None => Self::None,
            Some(_) if coverage < Self::COVERAGE || known < Self::SECONDS => Self::Low,
            Some(_) => Self::Medium,
        }
    }

    /// Its name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
        }
    }
}

/// Seconds by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondCounts([u64; SecondState::ALL.len()]);

impl SecondCounts {
    /// The seconds in a state.
    pub fn of(&self, state: SecondState) -> u64 {
        self.0[usize::from(state.code())]
    }

    /// Counts further seconds.
    pub fn add(&mut self, state: SecondState, seconds: u64) {
        let count = &mut self.0[usize::from(state.code())];
        *count = count.saturating_add(seconds);
    }

    /// A second is no longer what it was.
    pub(super) fn change(&mut self, from: SecondState, to: SecondState) {
        let before = &mut self.0[usize::from(from.code())];
        *before = before.saturating_sub(1);
        self.add(to, 1);
    }

    /// All seconds become what they are before the job has all of its chips.
    pub(super) fn make_incomplete(&mut self) {
        let mut after = Self::default();
        for state in SecondState::ALL {
            after.add(state.before_complete(), self.of(state));
        }
        *self = after;
    }

    /// All seconds.
    pub fn elapsed(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Seconds of progress.
    pub fn productive(&self) -> u64 {
        self.sum(SecondState::is_productive)
    }

    /// Seconds whose state is known.
    pub fn known(&self) -> u64 {
        self.sum(SecondState::is_known)
    }

    /// Seconds in which all chips were open.
    pub fn open(&self) -> u64 {
        self.sum(SecondState::is_open)
    }

    fn sum(&self, what: impl Fn(SecondState) -> bool) -> u64 {
        SecondState::ALL.into_iter().filter(|state| what(*state)).map(|state| self.of(state)).sum()
    }

    /// The known share; 0 without any second.
    pub fn coverage(&self) -> f64 {
        share(self.known(), self.elapsed()).unwrap_or(0.0)
    }

    /// The productive share of the known seconds; `None` where too few are known.
    pub fn goodput(&self) -> Option<f64> {
        share(self.productive(), self.known())
            .filter(|_| self.is_long_enough() && self.coverage() >= MIN_COVER)
    }

    /// The share of the observed seconds in which all chips were open; `None` of a job that is too short.
    pub fn scheduling_goodput(&self) -> Option<f64> {
        let observed = self.elapsed() - self.of(SecondState::Unobserved);
        share(self.open(), observed).filter(|_| self.is_long_enough())
    }

    /// How far the figure can be believed.
    pub fn confidence(&self) -> Confidence {
        Confidence::of(self.goodput(), self.coverage(), self.known())
    }

    fn is_long_enough(&self) -> bool {
        usize::try_from(self.elapsed()).unwrap_or(usize::MAX) >= MIN_SECONDS
    }

    /// The buckets of the proxy, which do not tell the causes of a stall.
    pub(super) fn buckets(&self) -> SlotBuckets {
        use SecondState as S;
        let seconds = |states: &[S]| {
            usize::try_from(states.iter().map(|state| self.of(*state)).sum::<u64>()).unwrap_or(usize::MAX)
        };
        SlotBuckets {
            productive: seconds(&[S::Active, S::Filled]),
            init: seconds(&[S::Init]),
            prep: seconds(&[S::Prep, S::Restore]),
            stall: seconds(&[S::Stall, S::Save, S::Input]),
            partial: seconds(&[S::Partial]),
            recovery: seconds(&[S::Closed]),
            unknown: seconds(&[S::Unknown, S::Unobserved]),
        }
    }
}

/// `part / whole`; `None` if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 seconds")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
