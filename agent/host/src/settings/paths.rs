//! Section `[paths]`: where this host's kernel interfaces are. A sidecar sees them below `/host`, a test below a folder.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

/// The roots below which the agent reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// The host's sysfs.
    pub sysfs: PathBuf,
    /// The host's procfs, of the pid namespace that the workloads live in.
    pub procfs: PathBuf,
    /// The host's device nodes.
    pub dev: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), procfs: "/proc".into(), dev: "/dev".into() }
    }
}
