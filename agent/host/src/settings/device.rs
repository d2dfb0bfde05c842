//! Section `[device]`: chips that this release does not know by name.

use std::path::PathBuf;

use documented::{Documented, DocumentedFields};
use serde::{Deserialize, Serialize};

/// Chip types in addition to the built-in table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Additional chip types. A type with an id of the built-in table replaces that entry.
    pub extra: Vec<ExtraChip>,
    /// Path of the file that says how many chips this host has: `CHIPS_PER_HOST_BOUNDS`, else `MACHINE_TYPE`, else
    /// `ACCELERATOR_TYPE` where that is a type of one host, each also with the prefix `TPU_`. It is read when it belongs to root or to the agent's user and no other user can write it. Without it, the most chips seen since
    /// the start are expected. The log says which. The agent must see the file: in a container, mount it and name its path here.
    pub tpu_env: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self { extra: Vec::new(), tpu_env: "/tmp/tpu-env".into() }
    }
}

/// A chip that a newer host may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraChip {
    /// Its PCI device id (the vendor is Google's), such as `0x0099`.
    pub device: u16,
    /// Its name, such as `v9`.
    pub name: String,
    /// The kind of its device nodes.
    pub node: NodeKind,
    /// JAX devices on one chip.
    #[serde(default)]
    pub cores: Option<u32>,
    /// PCI functions of one chip.
    #[serde(default = "one")]
    pub functions: u32,
    /// HBM of one chip, GiB.
    #[serde(default)]
    pub hbm_gib: Option<u32>,
}

/// How a chip appears below `/dev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// `/dev/accelN`.
    Accel,
    /// `/dev/vfio/GROUP`, GROUP being the IOMMU group of the PCI function.
    Vfio,
}

fn one() -> u32 {
    1
}
