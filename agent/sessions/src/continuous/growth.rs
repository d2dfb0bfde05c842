//! Whether continuous profiling harms a workload: drains that fall behind, memory that grows, steps that become slower. Pure.
//!
//! Memory is compared with what the process had before its first start, at any time: one value above the limit is enough, since
//! a busy workload grows by a hundred megabytes in a second. Steps are compared by their numbers: the mean length of a
//! step is the time between two steps divided by the difference of their numbers, while it records and in pauses in which
//! it does not. Without numbers, or before the first pause, there is no verdict about steps.
//!
//! What harms is first recorded with less; if that does not help, or there is no less, or the memory has grown by more than
//! twice the limit, the process is not recorded any more.
//! Must never take the recorder's harm for the job's: where in doubt, recording ends.

use std::{fmt, time::Duration};

use model::unit::Bytes;

use super::continuous_request::ContinuousLevel;

/// So many drains in a row have to be late.
const IN_A_ROW: u32 = 3;
/// The first pause comes after this time of recording, the others an hour apart.
const FIRST_PAUSE: Duration = Duration::from_secs(600);
const PAUSE_EVERY: Duration = Duration::from_secs(3600);
/// How long a pause is.
pub const PAUSE: Duration = Duration::from_secs(60);
/// Fewer steps give no mean.
const LEAST_STEPS: i64 = 10;

/// What is allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HarmLimits {
    /// The interval of the drains.
    pub every: Duration,
    /// By how much a step may become slower, as a share of its length.
    pub max_slowdown: f64,
}

/// What was seen at one drain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrainSeen {
    /// When it began.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
    /// The first and the last numbered step in it.
    pub steps: Option<(StepSeen, StepSeen)>,
}

/// A step: its number, and when it began, nanoseconds since any fixed instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSeen {
    /// Its number.
    pub number: i64,
    /// Its begin.
    pub begin_ns: i64,
}

/// What harms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Harm {
    /// Drains come or end too late.
    FallsBehind,
    /// The memory of the process grew.
    Memory {
        /// By so many bytes.
        grown: u64,
        /// The limit.
        limit: u64,
    },
    /// More is written to the disk than the write rate allows, and ever more.
    Writes,
    /// Steps became slower.
    Slower {
        /// By this share.
        by: f64,
        /// The limit.
        limit: f64,
    },
}

impl Harm {
    /// Whether recording less may be enough.
    fn is_moderate(&self) -> bool {
        match self {
            Self::Memory { grown, limit } => *grown <= limit.saturating_mul(2),
            Self::FallsBehind | Self::Writes | Self::Slower { .. } => true,
        }
    }
}

/// How much memory a process may have while it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    before: Option<u64>,
    max_growth: u64,
}

impl MemoryLimit {
    /// `before` is the memory of the process before its first start, in bytes; if that is not known, the first value that is
    /// seen counts. It may grow by `max_growth` bytes.
    pub fn new(before: Option<u64>, max_growth: u64) -> Self {
        Self { before, max_growth }
    }

    /// The memory of the process was read: whether that is too much.
    pub fn seen(&mut self, memory: u64) -> Option<Harm> {
        let grown = memory.saturating_sub(*self.before.get_or_insert(memory));
        (grown > self.max_growth).then_some(Harm::Memory { grown, limit: self.max_growth })
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HarmVerdict {
    /// Nothing.
    Fine,
    /// Recording begins again with less.
    Lower(ContinuousLevel, Harm),
    /// The process is not recorded any more.
    Stop(Harm),
}

/// The watch over one process that is recorded continuously.
#[derive(Debug, Clone, PartialEq)]
pub struct HarmWatch {
    limits: HarmLimits,
    level: ContinuousLevel,
    late: u32,
    last_drain: Option<Duration>,
    /// See [`HarmWatch::wrote`].
    unpaid: Duration,
    /// The last step before a drain or a pause.
    last_step: Option<StepSeen>,
    recording: MeanStep,
    paused: MeanStep,
    in_pause: bool,
    next_pause: Duration,
}

/// Steps that were counted, and the time that they took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct MeanStep {
    steps: i64,
    ns: i64,
}

impl MeanStep {
    fn add(&mut self, from: StepSeen, to: StepSeen) {
        let (steps, ns) = (to.number.saturating_sub(from.number), to.begin_ns.saturating_sub(from.begin_ns));
        // Numbers that go back count something else, such as the steps of an evaluation.
        if steps > 0 && ns > 0 {
            self.steps = self.steps.saturating_add(steps);
            self.ns = self.ns.saturating_add(ns);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean: exact for 2^53 nanoseconds")]
    fn mean_ns(self) -> Option<f64> {
        (self.steps >= LEAST_STEPS).then(|| self.ns as f64 / self.steps as f64)
    }
}

impl HarmWatch {
    /// Recording begins at `now`, with this level.
    pub fn new(limits: HarmLimits, level: ContinuousLevel, now: Duration) -> Self {
        Self {
            limits,
            level,
            late: 0,
            last_drain: None,
            unpaid: Duration::ZERO,
            last_step: None,
            recording: MeanStep::default(),
            paused: MeanStep::default(),
            in_pause: false,
            next_pause: now + FIRST_PAUSE,
        }
    }

    /// Changes the interval of the drains.
    pub fn set_every(&mut self, every: Duration) {
        self.limits.every = every;
        (self.late, self.last_drain) = (0, None);
    }

    /// Whether a pause is due at `now`, in which the process is not recorded for [`PAUSE`].
    pub fn is_pause_due(&self, now: Duration) -> bool {
        now >= self.next_pause
    }

    /// A pause begins at `now`: the session is stopped.
    pub fn pause(&mut self, now: Duration) {
        self.in_pause = true;
        self.next_pause = now + PAUSE_EVERY;
        self.last_drain = None;
        self.paused = MeanStep::default();
    }

    /// By how much steps are slower while it records, as a share; `None` without step numbers or before the first pause.
    pub fn slowdown(&self) -> Option<f64> {
        let (recording, paused) = (self.recording.mean_ns()?, self.paused.mean_ns()?);
        Some(recording / paused - 1.0)
    }

    /// A drain was done.
    pub fn drained(&mut self, seen: DrainSeen) -> HarmVerdict {
        let harm = self.falls_behind(seen).or(self.slows(seen));
        harm.map_or(HarmVerdict::Fine, |harm| self.harmed(harm, seen.at))
    }

    /// A drain was written. For all that was written, the write rate takes until `unpaid` after `now`.
    pub fn wrote(&mut self, unpaid: Duration, now: Duration) -> HarmVerdict {
        let before = std::mem::replace(&mut self.unpaid, unpaid);
        let grows = unpaid > self.limits.every * IN_A_ROW && unpaid > before;
        if grows { self.harmed(Harm::Writes, now) } else { HarmVerdict::Fine }
    }

    /// It harms, as was seen at `now`.
    pub fn harmed(&mut self, harm: Harm, now: Duration) -> HarmVerdict {
        match self.level.lower().filter(|_| harm.is_moderate()) {
            None => HarmVerdict::Stop(harm),
            Some(lower) => {
                // From here on only what the lower level does counts.
                let next_pause = self.next_pause;
                let (paused, unpaid) = (self.paused, self.unpaid);
                *self = Self { next_pause, paused, unpaid, ..Self::new(self.limits, lower, now) };
                HarmVerdict::Lower(lower, harm)
            }
        }
    }

    fn falls_behind(&mut self, seen: DrainSeen) -> Option<Harm> {
        let since = self.last_drain.map(|last| seen.at.saturating_sub(last));
        self.last_drain = Some(seen.at);
        let late = seen.took > self.limits.every || since.is_some_and(|since| since > self.limits.every * 2);
        self.late = if late { self.late + 1 } else { 0 };
        (self.late >= IN_A_ROW).then_some(Harm::FallsBehind)
    }

    fn slows(&mut self, seen: DrainSeen) -> Option<Harm> {
        let (first, last) = seen.steps?;
        if let Some(before) = self.last_step.replace(last) {
            if std::mem::take(&mut self.in_pause) {
                self.paused.add(before, first);
                self.recording.add(first, last);
            } else {
                self.recording.add(before, last);
            }
        } else {
            self.recording.add(first, last);
        }
        let by = self.slowdown()?;
        (by > self.limits.max_slowdown).then_some(Harm::Slower { by, limit: self.limits.max_slowdown })
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FallsBehind => f.write_str("what it records is not read fast enough"),
            Self::Writes => f.write_str("what it records is more than recorder.max_write_rate allows"),
            Self::Memory { grown, limit } => write!(
                f,
                "its memory has grown by {}, and recorder.max_growth is {}",
                Bytes::new(*grown).rounded(),
                Bytes::new(*limit).rounded()
            ),
            Self::Slower { by, limit } => write!(
                f,
                "its steps are {:.1} % slower while it is recorded, and recorder.max_slowdown is {:.0} %",
                by * 100.0,
                limit * 100.0
            ),
        }
    }
}

#[cfg(test)]
#[path = "growth_tests.rs"]
mod tests;
