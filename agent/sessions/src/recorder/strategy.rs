//! How a process is recorded.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::continuous::ContinuousStrategy;

/// How a process is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// A plain window every so often. It ends by itself in the workload whatever happens to the agent.
    #[default]
    Periodic,
    /// Continuous profiling of the host that is read at an interval.
    Drain,
    /// Continuous profiling of the devices into a ring in the workload, which is read when somebody asks.
    Ring,
}

/// A text that is no [`Strategy`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` is no strategy: expected periodic, drain or ring", .0.escape_debug())]
pub struct BadStrategy(String);

impl Strategy {
    const ALL: [Self; 3] = [Self::Periodic, Self::Drain, Self::Ring];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Periodic => "periodic",
            Self::Drain => "drain",
            Self::Ring => "ring",
        }
    }

    /// How continuous profiling is used for it; `None` for windows that end by themselves.
    pub fn continuous(self) -> Option<ContinuousStrategy> {
        match self {
            Self::Periodic => None,
            Self::Drain => Some(ContinuousStrategy::Drain),
            Self::Ring => Some(ContinuousStrategy::Ring),
        }
    }
}

impl FromStr for Strategy {
    type Err = BadStrategy;

    fn from_str(text: &str) -> Result<Self, BadStrategy> {
        let found = Self::ALL.into_iter().find(|strategy| strategy.as_str() == text);
        found.ok_or_else(|| BadStrategy(text.chars().take(40).collect()))
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.as_str());
        }
        assert!("Periodic".parse::<Strategy>().is_err());
    }
}
