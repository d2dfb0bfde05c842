//! Section `[export.tensorboard]`.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::{
    absolute_path,
    unit::{Bytes, Duration},
};
use serde::{Deserialize, Serialize};

/// Event files for TensorBoard: the goodput of the jobs of this host, while they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct TensorBoardSettings {
    /// Path of a folder in which each job gets a folder of its own. It must exist, and the agent's user must be able to write
    /// to it. Whoever can read it learns where the time of all jobs went. Empty: no event files.
    #[serde(deserialize_with = "absolute_path::or_empty")]
    pub directory: PathBuf,
    /// Time between two points.
    pub interval: Duration,
    /// Maximum size of all event files in the folder. The oldest files are removed when a new one begins, so it may be exceeded
    /// by 4 MiB for each job that runs.
    pub max_size: Bytes,
}

impl Default for TensorBoardSettings {
    fn default() -> Self {
        Self { directory: PathBuf::new(), interval: Duration::from_secs(30), max_size: Bytes::mib(512) }
    }
}
