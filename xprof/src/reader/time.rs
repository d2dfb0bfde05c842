//! The two time bases: a line's timestamp counts from the start of its host's session, or from the epoch.

use super::index::{LineIndex, PlaneIndex};

/// A timestamp beyond this is no time within a session (it would be 107 days long): it counts from the epoch.
pub(crate) const EPOCH_NS: i64 = 9_200_000_000_000_000;
/// The plane that tells when the session ran.
pub(crate) const ENVIRONMENT: &str = "Task Environment";

/// When the session of one host ran, by that host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionTimes {
    /// Its start in nanoseconds since the epoch, if the file says.
    pub start_ns: Option<i64>,
    /// Its end in nanoseconds since the epoch, if the file says.
    pub stop_ns: Option<i64>,
    /// What absolute timestamps are taken from: the start, else the earliest of them.
    base_ns: i64,
}

impl SessionTimes {
    pub(super) fn of(planes: &[PlaneIndex]) -> Self {
        let environment = |name| {
            planes
                .iter()
                .filter(|plane| plane.name == ENVIRONMENT)
                .find_map(|plane| plane.stat(name)?.int())
                .filter(|&ns| ns > 0)
        };
        let start_ns = environment("profile_start_time");
        let earliest = planes
            .iter()
            .flat_map(|plane| &plane.lines)
            .filter(|line| line.timestamp_ns > EPOCH_NS && line.events > 0)
            .map(|line| line.timestamp_ns)
            .min();
        let base_ns = start_ns.filter(|&ns| ns > EPOCH_NS).or(earliest).unwrap_or(0);
        Self { start_ns, stop_ns: environment("profile_stop_time"), base_ns }
    }

    /// How long the session was, if the file says.
    pub fn window_ps(&self) -> Option<i64> {
        let ns = self.stop_ns?.checked_sub(self.start_ns?)?;
        ns.checked_mul(1000).filter(|&ps| ps >= 0)
    }

    /// Where `line`'s events count from, in picoseconds on the session's time line.
    pub fn line_start_ps(&self, line: &LineIndex) -> i64 {
        let ns = line.timestamp_ns;
        let relative = if ns > EPOCH_NS { ns.saturating_sub(self.base_ns) } else { ns };
        relative.saturating_mul(1000)
    }
}
