//! Section `[log]`.

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

/// What is logged: to the journal under systemd, else to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The least important message that is still logged: "error", "warn", "info", "debug" or "trace".
    pub level: Level,
}

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something works less well than it should.
    Warn,
    /// What an operator wants to know on a good day.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}
