//! The two time bases: a line's timestamp counts from the start of its host's session, or from the epoch.

/// A timestamp beyond this is no time within a session (it would be 107 days long): it counts from the epoch.
pub(crate) const EPOCH_NS: i64 = 9_200_000_000_000_000;
/// The plane that tells when the session ran.
pub(crate) const ENVIRONMENT: &str = "Task Environment";

/// An event may lie so far outside the session, or as far as the session is long.
const LEAST_MARGIN_PS: i64 = 60_000_000_000_000;

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
    /// The times of a file. `start_ns` and `stop_ns` are those of its environment plane; `earliest_ns` is the
    /// least of its lines' timestamps that count from the epoch.
    pub(super) fn new(start_ns: Option<i64>, stop_ns: Option<i64>, earliest_ns: Option<i64>) -> Self {
        let base_ns = start_ns.filter(|&ns| ns > EPOCH_NS).or(earliest_ns).unwrap_or(0);
        Self { start_ns, stop_ns, base_ns }
    }

    /// How long the session was, if the file says.
    pub fn window_ps(&self) -> Option<i64> {
        let ns = self.stop_ns?.checked_sub(self.start_ns?)?;
        ns.checked_mul(1000).filter(|&ps| ps >= 0)
    }

    /// Before and after these times on the session's time line no event can be of it, with a wide margin; none where
    /// the file does not say how long the session was.
    pub(crate) fn bounds_ps(&self) -> Option<(i64, i64)> {
        let window = self.window_ps()?;
        let margin = window.max(LEAST_MARGIN_PS);
        Some((margin.saturating_neg(), window.saturating_add(margin)))
    }

    /// A line's timestamp in picoseconds on the session's time line.
    pub(super) fn relative_ps(&self, timestamp_ns: i64) -> i64 {
        let ns =
            if timestamp_ns > EPOCH_NS { timestamp_ns.saturating_sub(self.base_ns) } else { timestamp_ns };
        ns.saturating_mul(1000)
    }
}
