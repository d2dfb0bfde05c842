//! Lines whose events all lie far from their session, as after a flipped bit or with a clock in another year.
//!
//! Must never take what is only late: the bounds are as wide as those of single events (see [`super::time`]).

use std::fmt;

use super::{Index, LineIndex, PlaneIndex, time::EPOCH_NS};
use crate::wording::counted;

/// The most picoseconds from a session's start that can be told apart from a time that has no place on its time line.
const MOST_PS: i64 = EPOCH_NS * 1000;

/// What was left out of a plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarLines {
    /// The plane.
    pub plane: String,
    /// The names of its lines that lie far away.
    pub lines: Vec<String>,
    /// Their events.
    pub events: u64,
    /// Where the first of them begins, in nanoseconds since the epoch; none where that is not known.
    pub start_ns: Option<i64>,
}

impl fmt::Display for FarLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plane, lines, events, start_ns } = self;
        let at = start_ns.and_then(|ns| jiff::Timestamp::from_nanosecond(i128::from(ns)).ok());
        let at = at.map(|at| format!(" (the first at {})", at.round(jiff::Unit::Second).unwrap_or(at)));
        write!(
            f,
            "{plane}: {} of {} far outside the session{}: left out; the file may be damaged, or a clock is wrong",
            counted(*events, "event"),
            counted(lines.len(), "line"),
            at.unwrap_or_default()
        )
    }
}

impl Index {
    /// Takes out the lines whose events all lie far from the session, and the planes that have no others with events. Where no line
    /// lies within the session its own times may be wrong: then only lines without a place on its time line go.
    pub fn take_far_lines(&mut self) -> Vec<FarLines> {
        let widest = (-MOST_PS, MOST_PS);
        let bounds = self.session.bounds_ps().unwrap_or(widest);
        let lines = || self.planes.iter().flat_map(|plane| &plane.lines).filter(|line| line.events > 0);
        let bounds = if lines().any(|line| !self.is_far(line, bounds)) { bounds } else { widest };
        if lines().all(|line| !self.is_far(line, bounds)) {
            return Vec::new();
        }
        let mut planes = std::mem::take(&mut self.planes);
        let found: Vec<_> = planes.iter_mut().filter_map(|plane| self.take_of(plane, bounds)).collect();
        let is_left = |plane: &PlaneIndex| {
            plane.lines.iter().any(|line| line.events > 0) || found.iter().all(|far| far.plane != plane.name)
        };
        planes.retain(is_left);
        self.planes = planes;
        found
    }

    fn take_of(&self, plane: &mut PlaneIndex, bounds: (i64, i64)) -> Option<FarLines> {
        let lines = std::mem::take(&mut plane.lines);
        let (far, left): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| self.is_far(line, bounds));
        plane.lines = left;
        let first = far.first()?;
        Some(FarLines {
            plane: plane.name.clone(),
            lines: far.iter().map(|line| line.name.clone()).collect(),
            events: far.iter().fold(0, |sum, line| sum.saturating_add(line.events)),
            start_ns: self.start_ns(first),
        })
    }

    fn is_far(&self, line: &LineIndex, (low, high): (i64, i64)) -> bool {
        let start = self.session.line_start_ps(line);
        line.events > 0
            && (start.saturating_add(line.first_ps) > high || start.saturating_add(line.last_end_ps) < low)
    }

    fn start_ns(&self, line: &LineIndex) -> Option<i64> {
        let base = if line.timestamp_ns > EPOCH_NS { 0 } else { self.session.start_ns? };
        base.checked_add(line.timestamp_ns)?.checked_add(line.first_ps / 1000)
    }
}
