//! Section `[libtpu]`: the libtpu SDK, which is called in a process of its own.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration};
use serde::{Deserialize, Serialize};

/// The libtpu SDK as a source of metrics: it fills in what no metric service gives directly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `auto`: where the host has a TPU. `on`: always. `off`: never.
    pub enabled: Enabled,
    /// The library to load; not set: `TPU_LIBRARY_PATH` and `LIBTPU_PATH`, then what the workload has loaded, then
    /// the usual folders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Also load a library that is not root's, in a process that runs as the library's owner. The agent needs
    /// CAP_SETUID and CAP_SETGID for it.
    pub owner_copies: bool,
    /// The process is replaced when it holds this much memory: the SDK leaks at each call.
    pub max_memory: Bytes,
    /// The process is replaced when it is this old.
    pub max_age: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            path: None,
            owner_copies: false,
            max_memory: Bytes::mib(384),
            max_age: Duration::from_secs(6 * 3600),
        }
    }
}

/// When the SDK is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enabled {
    /// Where the host has a TPU.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}
