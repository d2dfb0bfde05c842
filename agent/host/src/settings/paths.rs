//! Section `[paths]`: where this host's kernel interfaces are. A sidecar sees them below `/host`, a test below a folder.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use model::absolute_path;
use serde::{Deserialize, Serialize};

/// The paths of the kernel's interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Path of the host's sysfs.
    #[serde(deserialize_with = "absolute_path::required")]
    pub sysfs: PathBuf,
    /// Path of the host's procfs. It must be of the pid namespace of the workloads.
    #[serde(deserialize_with = "absolute_path::required")]
    pub procfs: PathBuf,
    /// Path of the host's device nodes.
    #[serde(deserialize_with = "absolute_path::required")]
    pub dev: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), procfs: "/proc".into(), dev: "/dev".into() }
    }
}
