//! Section `[libtpu]`: the libtpu SDK, which is called in a process of its own.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::{
    absolute_path,
    unit::{Bytes, Duration},
};
use serde::{Deserialize, Serialize};

/// The libtpu SDK as a source of metrics that no metric service has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// When to use the SDK: `auto` (if the host has a TPU), `on` or `off`.
    pub enabled: Enabled,
    /// Path of the library. Not set: the first of TPU_LIBRARY_PATH, LIBTPU_PATH, the library of the workload, and the
    /// usual folders.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absolute_path::optional")]
    pub path: Option<PathBuf>,
    /// Also load a library that root does not own, in a process that runs as the owner of the library. The agent needs
    /// CAP_SETUID and CAP_SETGID for this.
    pub owner_copies: bool,
    /// Maximum memory of the process that loads the library. It is restarted at this size, because the SDK leaks.
    /// At least 64MiB.
    pub max_memory: Bytes,
    /// Maximum age of the process that loads the library. It is restarted at this age. At least
    /// 1m.
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
