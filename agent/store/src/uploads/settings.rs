//! Section `[upload]`.

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// Uploads of sessions to the destinations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Most bytes a second of all uploads together. "0B": no limit.
    pub max_rate: Bytes,
    /// Number of sessions that are uploaded at the same time.
    pub parallel: u16,
    /// A request in which nothing is sent or received for this time is given up and tried again. There is no limit of the
    /// total time.
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_rate: Bytes::new(0), parallel: 2, idle_timeout: Duration::from_secs(30) }
    }
}
