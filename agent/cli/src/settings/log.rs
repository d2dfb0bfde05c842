//! Settings section `[log]`.

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

/// The log. It goes to the journal under systemd, otherwise to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Minimum level of logged messages: "error", "warn", "info", "debug" or "trace".
    pub level: Level,
}

/// The level of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A function does not work.
    Error,
    /// A function works with restrictions.
    Warn,
    /// Normal events.
    #[default]
    Info,
    /// Details for developers.
    Debug,
    /// All details.
    Trace,
}
