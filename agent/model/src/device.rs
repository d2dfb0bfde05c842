//! Chips as the host sees them.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

/// Number of a chip on its host, from 0. A chip keeps it by its PCI address: on a host that has lost a chip there is a
/// gap, and a chip that was added has the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ChipIndex(pub u32);

/// A TPU generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// A function of Google's that is not in the table.
    #[default]
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

/// What one duty cycle of the runtime metric service is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DutyCyclePer {
    /// A chip: v2 and v3.
    Chip,
    /// A device: v4 and later.
    Device,
}

/// The most that a chip can do, from public pages: for display and utilisation, never to alert on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// bf16 TFLOP/s.
    pub bf16_tflops: u32,
    /// HBM bandwidth, 10⁹ bytes per second.
    pub hbm_gb_per_second: u32,
}

/// Whether a chip can be opened on this host, as far as sysfs and `/dev` tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChipState {
    /// Its functions and nodes are there.
    #[default]
    Ok,
    /// A device node is absent.
    Absent,
    /// A driver is not bound, or a function is missing.
    Fault,
    /// Its nodes are not known, or cannot be read.
    Unknown,
}

impl ChipState {
    /// As it stands in `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Fault => "fault",
            Self::Unknown => "unknown",
        }
    }
}

/// One chip (a package; on 7x it shows two PCI functions).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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
    /// Its peak numbers; `None` when the generation is unknown.
    pub peak: Option<Peak>,
    /// What a duty cycle from the runtime service is about; `None` when the generation is unknown.
    pub duty_cycle_per: Option<DutyCyclePer>,
    /// NUMA node of its PCI function, where sysfs says.
    pub numa_node: Option<u32>,
    /// Whether it can be opened.
    pub state: ChipState,
    /// All that is wrong is that the agent's `/dev` lacks a node, and the node may exist outside the agent's container. This
    /// says nothing about the chip.
    pub absent_here_only: bool,
    /// Why `state` is not `ok`, in words; empty when it is.
    pub faults: Vec<String>,
}

impl Chip {
    /// Whether processes of this host can open the chip. `None` when it is not known.
    pub fn is_up(&self) -> Option<bool> {
        match self.state {
            ChipState::Ok => Some(true),
            ChipState::Absent | ChipState::Fault if !self.absent_here_only => Some(false),
            ChipState::Absent | ChipState::Fault | ChipState::Unknown => None,
        }
    }
}
