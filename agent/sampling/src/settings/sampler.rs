//! Section `[sampler]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// The sources of metrics, their intervals, and the history in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Interval between reads of the workloads, the host service and the host; at least 250ms. Each read also costs CPU
    /// time of the workload.
    pub interval: ReadInterval,
    /// Interval while the host has no chips, workloads or endpoints; at least 250ms. It applies if it is longer than
    /// `interval`.
    pub idle_interval: ReadInterval,
    /// Interval between reads of the Orbax and Grain metrics; at least 250ms. These reads cost more time of the workload
    /// than the others.
    pub orbax_grain_interval: ReadInterval,
    /// Interval between reads of the libtpu SDK; at least 250ms. The SDK leaks memory with each read.
    pub libtpu_interval: ReadInterval,
    /// Number of intervals without a new value after which a series is no longer served; 1 or more.
    pub stale_after: u32,
    /// Maximum memory of the history. "0B": no history. The default holds about one hour of all values of 8 chips at 1s, and one day at
    /// `history_step`.
    pub history: Bytes,
    /// Time span of the points of the older history. Each has the mean, the minimum and the maximum of its
    /// span. 1s to 1d.
    pub history_step: Duration,
    /// Read the runtime metric services of the workloads.
    pub runtime: bool,
    /// Read the host's VBARControl service.
    pub host_service: bool,
    /// Read the Prometheus endpoints of Orbax and Grain in the workloads.
    pub orbax_grain: bool,
    /// Read the host's CPU, memory, network, disks, pressure and control groups.
    pub host: bool,
    /// Number of simulated chips, for demonstrations. Their indices follow those of the host's chips.
    pub sim_chips: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: ReadInterval(Duration::from_secs(1)),
            idle_interval: ReadInterval(Duration::from_secs(5)),
            orbax_grain_interval: ReadInterval(Duration::from_secs(10)),
            libtpu_interval: ReadInterval(Duration::from_secs(10)),
            stale_after: 3,
            history: Bytes::mib(8),
            history_step: Duration::from_secs(60),
            runtime: true,
            host_service: true,
            orbax_grain: true,
            host: true,
            sim_chips: 0,
        }
    }
}

/// A time between two reads: never so short that asking slows the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Duration", into = "Duration")]
pub struct ReadInterval(Duration);

impl ReadInterval {
    /// Minimum.
    pub const MIN: Duration = Duration::from_millis(250);
    /// Maximum.
    pub const MAX: Duration = Duration::from_secs(3600);

    /// As std has it.
    pub fn get(self) -> std::time::Duration {
        self.0.get()
    }
}

/// An interval out of its range.
#[derive(Debug, thiserror::Error)]
#[error("an interval lies between {} and {}", ReadInterval::MIN, ReadInterval::MAX)]
pub struct ReadIntervalError;

impl TryFrom<Duration> for ReadInterval {
    type Error = ReadIntervalError;

    fn try_from(duration: Duration) -> Result<Self, ReadIntervalError> {
        let in_range = (Self::MIN.get()..=Self::MAX.get()).contains(&duration.get());
        in_range.then_some(Self(duration)).ok_or(ReadIntervalError)
    }
}

impl From<ReadInterval> for Duration {
    fn from(interval: ReadInterval) -> Self {
        interval.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_keeps_its_distance() {
        let read = |text: &str| toml::from_str::<Settings>(&format!("interval = \"{text}\""));
        assert_eq!(read("250ms").unwrap().interval.get().as_millis(), 250);
        for bad in ["249ms", "0s", "2h"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("between 250ms and 1h"), "{error}");
        }
    }
}
