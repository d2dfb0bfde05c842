//! Settings section `[agent]`.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::{absolute_path, unit::Duration};
use serde::{Deserialize, Serialize};

/// The daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directory for sessions and other state. Only one agent can use it.
    #[serde(deserialize_with = "absolute_path::required")]
    pub state_dir: PathBuf,
    /// Name of this host in file names and manifests. Empty: the host name of the system.
    pub host: String,
    /// Time limit for a stop. Unfinished work is aborted after it. "0s": at once.
    pub stop_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/tpuscope"),
            host: String::new(),
            stop_timeout: Duration::from_secs(10),
        }
    }
}
