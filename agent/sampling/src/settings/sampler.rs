//! Section `[sampler]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// What is measured, how often, and how much of it is kept in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How often the workloads, the host's own service and the host are asked. Each question also costs the workload;
    /// at least 250ms.
    pub interval: ReadInterval,
    /// How often the host is asked while it has neither chips nor workloads nor endpoints, if that is less often; at
    /// least 250ms.
    pub idle_interval: ReadInterval,
    /// How often the page of Orbax and Grain is read: it costs the workload's interpreter more than the other
    /// questions; at least 250ms.
    pub orbax_grain_interval: ReadInterval,
    /// How often the libtpu SDK is asked. It leaks a little at each call; at least 250ms.
    pub libtpu_interval: ReadInterval,
    /// A value that was not renewed for this many intervals is no longer shown.
    pub stale_after: u32,
    /// Memory of the history: about an hour of all values at 1s with 8 chips, and a day at `history_step`.
    pub history: Bytes,
    /// Older history keeps the mean, minimum and maximum of such a span.
    pub history_step: Duration,
    /// Ask the runtime metric services of the workloads.
    pub runtime: bool,
    /// Ask the host's VBARControl service for its metrics.
    pub host_service: bool,
    /// Ask the Prometheus endpoint that Orbax and Grain open in a workload.
    pub orbax_grain: bool,
    /// Read the host's CPU, memory, network, disks, pressure and control groups.
    pub host: bool,
    /// Invent this many chips and their values, for demonstrations; 0: none.
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
    /// The shortest.
    pub const MIN: Duration = Duration::from_millis(250);
    /// The longest: what is rarer is no monitoring.
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
