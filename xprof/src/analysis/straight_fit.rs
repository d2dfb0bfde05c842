//! The straight line that two clocks agree on most of the time, and the stretches in which they run alike.
//!
//! Must not be misled by jumps: the line goes through the most frequent offsets, never through their mean.

/// The line agrees with a straight line if it is never farther away.
pub(super) const TOLERANCE_PS: i64 = 1_000_000;
/// How far two clocks may drift apart, in parts of the time.
const MAX_DRIFT: f64 = 500e-6;
/// How many stretches the fit looks at.
const MAX_POINTS: usize = 2048;
/// How many of them it draws lines through.
const CANDIDATES: usize = 64;

/// A stretch of events in which the line's time is a straight function of the device's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    /// The first event's start by the line's clock.
    pub(super) line: i64,
    /// The same by the device's clock.
    pub(super) device: i64,
    /// The last event's start by the device's clock.
    pub(super) last: i64,
    /// How many events it has.
    pub(super) events: u64,
    /// The least and the greatest drift that all its events allow.
    pub(super) drift: (f64, f64),
}

impl Stretch {
    pub(super) fn new(line: i64, device: i64) -> Self {
        Self { line, device, last: device, events: 1, drift: (-MAX_DRIFT, MAX_DRIFT) }
    }

    pub(super) fn offset(&self) -> i64 {
        self.line.saturating_sub(self.device)
    }

    pub(super) fn slope(&self) -> f64 {
        f64::midpoint(self.drift.0, self.drift.1)
    }

    /// The line's offset from the device's clock at a time of the device's.
    pub(super) fn offset_at(&self, device: i64) -> i64 {
        self.offset().saturating_add(drifted(self.slope(), device, self.device))
    }

    /// The drift that is left if the clocks also read `line` and `device` at one instant; none if they cannot.
    pub(super) fn with(&self, line: i64, device: i64) -> Option<(f64, f64)> {
        let apart = line.saturating_sub(device).saturating_sub(self.offset()) as f64;
        let time = device.saturating_sub(self.device) as f64;
        let tolerance = TOLERANCE_PS as f64;
        if time == 0.0 {
            return (apart.abs() <= tolerance).then_some(self.drift);
        }
        let (one, other) = ((apart - tolerance) / time, (apart + tolerance) / time);
        let drift = (self.drift.0.max(one.min(other)), self.drift.1.min(one.max(other)));
        (drift.0 <= drift.1).then_some(drift)
    }
}

pub(super) fn drifted(drift: f64, time: i64, from: i64) -> i64 {
    (drift * time.saturating_sub(from) as f64).round() as i64
}

/// The straight line through the most frequent offsets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    /// A time of the device's clock.
    pub(super) at: i64,
    /// The line's offset from the device's clock at that time.
    pub(super) offset: i64,
    /// How much the offset grows, in parts of the time.
    pub(super) drift: f64,
}

impl Fit {
    pub(super) fn of(stretches: &[Stretch]) -> Option<Self> {
        let step = stretches.len().div_ceil(MAX_POINTS).max(1);
        let points: Vec<&Stretch> = stretches.iter().step_by(step).collect();
        let picked = picks(&points);
        let mut best: Option<(u64, Self)> = None;
        let mut try_one = |fit: Self| {
            let score = fit.score(&points);
            let better = best.is_none_or(|(most, known)| {
                score > most || score == most && fit.drift.abs() < known.drift.abs()
            });
            if better {
                best = Some((score, fit));
            }
        };
        for (at, stretch) in picked.iter().enumerate() {
            let through = |drift| Self { at: stretch.device, offset: stretch.offset(), drift };
            try_one(through(stretch.slope()));
            for other in &picked[at + 1..] {
                let time = other.device.saturating_sub(stretch.device) as f64;
                let drift = other.offset().saturating_sub(stretch.offset()) as f64 / time;
                if drift.abs() <= MAX_DRIFT {
                    try_one(through(drift));
                }
            }
        }
        best.map(|(_, fit)| fit)
    }

    pub(super) fn offset_at(&self, device: i64) -> i64 {
        self.offset.saturating_add(drifted(self.drift, device, self.at))
    }

    /// How many events lie near the line: full marks within a microsecond, none beyond a millisecond.
    fn score(&self, points: &[&Stretch]) -> u64 {
        let near = |device: i64, offset: i64| {
            let apart = offset.saturating_sub(self.offset_at(device)).unsigned_abs() >> 20;
            10u64.saturating_sub(u64::from(u64::BITS - apart.leading_zeros()))
        };
        let of_both = |at: &&Stretch| near(at.device, at.offset()) + near(at.last, at.offset_at(at.last));
        points.iter().map(|at| at.events.saturating_mul(of_both(at))).fold(0, u64::saturating_add)
    }
}

/// Stretches to draw lines through, spread evenly over the events.
fn picks<'a>(points: &[&'a Stretch]) -> Vec<&'a Stretch> {
    let all: u64 = points.iter().map(|at| at.events).fold(0, u64::saturating_add);
    let every = (all / CANDIDATES as u64).max(1);
    let (mut seen, mut next) = (0u64, 0u64);
    let mut picked = Vec::new();
    for point in points {
        seen = seen.saturating_add(point.events);
        if seen > next {
            picked.push(*point);
            next = (seen / every).saturating_add(1).saturating_mul(every).saturating_sub(1);
        }
    }
    picked.truncate(2 * CANDIDATES);
    picked
}
