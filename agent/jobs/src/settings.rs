//! Section `[jobs]`.

use documented::{Documented, DocumentedFields};
use model::unit::Duration;
use serde::{Deserialize, Serialize};

/// The jobs of this host over time: `tpuscope jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct JobSettings {
    /// How long an attempt of a job is remembered after its end. "0s": no limit. Nothing is forgotten for its age while the
    /// clock is not synchronised, and for a day after it stepped by more than an hour.
    pub max_age: Duration,
    /// Maximum number of attempts of all jobs. The oldest are forgotten first; those that run are not.
    pub max_attempts: u32,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self { max_age: Duration::from_secs(90 * 24 * 3600), max_attempts: 10_000 }
    }
}
