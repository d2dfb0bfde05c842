//! Chips as the host sees them.

use std::{fmt, path::PathBuf};

use serde::Serialize;

/// Position of a chip on its host, from 0, in PCI order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ChipIndex(pub u32);

/// A TPU generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Generation {
    /// TPU v2.
    #[serde(rename = "v2")]
    V2,
    /// TPU v3.
    #[serde(rename = "v3")]
    V3,
    /// TPU v4.
    #[serde(rename = "v4")]
    V4,
    /// TPU v5e.
    #[serde(rename = "v5e")]
    V5e,
    /// TPU v5p.
    #[serde(rename = "v5p")]
    V5p,
    /// TPU v6e.
    #[serde(rename = "v6e")]
    V6e,
    /// TPU7x.
    #[serde(rename = "7x")]
    Tpu7x,
    /// Google's, a processing accelerator, and not in the table.
    #[serde(rename = "unknown")]
    Unknown,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V2 => "v2",
            Self::V3 => "v3",
            Self::V4 => "v4",
            Self::V5e => "v5e",
            Self::V5p => "v5p",
            Self::V6e => "v6e",
            Self::Tpu7x => "7x",
            Self::Unknown => "unknown",
        })
    }
}

/// One chip (a package; on 7x it shows two PCI functions).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Chip {
    /// Its position.
    pub index: ChipIndex,
    /// Its generation.
    pub generation: Generation,
    /// What to call it: `v6e`, or `unknown TPU 0x0099`.
    pub name: String,
    /// `domain:bus:device`, without the function.
    pub pci: String,
    /// The device nodes that open it: one, or one per core on 7x; below the configured root.
    pub nodes: Vec<PathBuf>,
    /// JAX devices on it; `None` when the generation is unknown.
    pub cores: Option<u32>,
    /// HBM of the whole chip, bytes; `None` when the generation is unknown.
    pub hbm_bytes: Option<u64>,
    /// NUMA node of its PCI function, where sysfs says.
    pub numa_node: Option<u32>,
    /// What is wrong with it, in words: a missing device node, say.
    pub faults: Vec<String>,
}
