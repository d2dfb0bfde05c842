//! Section `[recorder]`.

use std::{fmt, str::FromStr};

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

use super::strategy::Strategy;

/// The recorder: the trace of the minutes before, kept on this host until `tpuscope snapshot` makes a session of it. The
/// owner of a job switches it for their own job with `tpuscope recorder on` or `off`, whatever `mode` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct RecorderSettings {
    /// Whether workloads are recorded whose owners chose nothing: "off" or "on". Warning for programs that trace
    /// themselves: while a window is open, the program's own `jax.profiler.start_trace` seems to work, its `stop_trace`
    /// raises an error, and each later `start_trace` in that process fails. An error that is not caught ends a training
    /// loop. A job with TPUSCOPE_RECORD=0 in its environment is never recorded.
    pub mode: RecorderMode,
    /// How it is recorded. "periodic": a window of `window` each `every`. "drain" and "ring" keep a profiling session open
    /// all the time: a program that traces itself always fails then. They are used only for jobs whose owners asked with
    /// `tpuscope recorder on`, or named them there with `--strategy`; all others are recorded with "periodic".
    pub strategy: Strategy,
    /// Length of a window of "periodic", in whole milliseconds. At least 100ms, and at most half of `every`.
    pub window: Duration,
    /// Time between the starts of two windows. At least 5s. All hosts of a job must have the same value: then they record
    /// the same windows.
    pub every: Duration,
    /// A window with no whole step is lengthened up to this time, but to no more than half of `every`. Not lengthened: the
    /// same value as `window`.
    pub max_window: Duration,
    /// Maximum number of bytes per second that are written to the disk, on average. Windows are left out to stay below;
    /// "drain" records less, and then ends. "0B": no limit.
    pub max_write_rate: Bytes,
    /// For "drain" and "ring": recording stops for a process whose memory grows by more. At least 1MiB.
    pub max_growth: Bytes,
    /// For "drain" and "ring": recording stops for a process whose steps become slower by more. At least 1%.
    pub max_slowdown: Percent,
    /// Maximum age of the windows of "periodic" that are kept.
    pub keep: Duration,
    /// Maximum age of what "drain" and "ring" recorded: they write more.
    pub keep_continuous: Duration,
    /// Maximum size of what is kept on this host. A trace of one window that is larger is refused.
    pub max_size: Bytes,
}

impl Default for RecorderSettings {
    fn default() -> Self {
        Self {
            mode: RecorderMode::Off,
            strategy: Strategy::Periodic,
            window: Duration::from_secs(2),
            every: Duration::from_secs(60),
            max_window: Duration::from_secs(20),
            max_write_rate: Bytes::mib(8),
            max_growth: Bytes::mib(256),
            max_slowdown: Percent(5),
            keep: Duration::from_secs(3600),
            keep_continuous: Duration::from_secs(300),
            max_size: Bytes::mib(512),
        }
    }
}

/// Whether workloads are recorded whose owners chose nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecorderMode {
    /// They are not.
    #[default]
    Off,
    /// They are.
    On,
}

/// A share in whole percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Percent(u8);

/// A text that is no [`Percent`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a share from 0% to 100%, such as `5%`, got `{}`", .0.escape_debug())]
pub struct BadPercent(String);

impl Percent {
    /// The share, from 0 to 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl FromStr for Percent {
    type Err = BadPercent;

    fn from_str(text: &str) -> Result<Self, BadPercent> {
        let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
        let share = number.filter(|&number| number <= 100);
        share.map(Self).ok_or_else(|| BadPercent(text.chars().take(40).collect()))
    }
}

impl TryFrom<String> for Percent {
    type Error = BadPercent;

    fn try_from(text: String) -> Result<Self, BadPercent> {
        text.parse()
    }
}

impl From<Percent> for String {
    fn from(percent: Percent) -> Self {
        percent.to_string()
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_whole_number_of_percent() {
        assert_eq!("5%".parse::<Percent>().map(String::from), Ok("5%".to_owned()));
        for bad in ["", "%", "5", "101%", "-1%", "2.5%"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad}");
        }
    }
}
