//! The chips of this host, from the PCI functions in sysfs and the nodes below `/dev`.
//!
//! Must never open a device node, load libtpu, or fail because a file is missing: what cannot be read is unknown and
//! becomes a note.

mod pci;
mod table;

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use model::device::{Chip, ChipIndex, ChipState, Generation};
use pci::{Driver, Function};
use table::{ChipKind, Match};

use crate::settings::{
    device::{NodeKind, Settings},
    paths::Paths,
};

/// Google's PCI vendor id: TPUs, but also network and disk of a cloud machine.
const VENDOR: u16 = 0x1ae0;
/// Maximum number of PCI functions that are read: more than any host has.
const MAX_FUNCTIONS: usize = 4096;

/// The chips that one scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChipScan {
    /// The chips in PCI order.
    pub chips: Vec<Chip>,
    /// What could not be read, and what would change that.
    pub notes: Vec<String>,
    /// IOMMU groups of functions that are no TPU: a virtual machine may hold them.
    pub other_groups: BTreeSet<u32>,
}

/// Reads every PCI function once. Blocks, on sysfs and device names only.
pub fn scan(paths: &Paths, settings: &Settings) -> ChipScan {
    let functions = match pci::functions(&paths.sysfs, MAX_FUNCTIONS) {
        Ok(functions) => functions,
        Err(error) => {
            let at = paths.sysfs.join(pci::DEVICES);
            let note = format!(
                "cannot list PCI functions in {} ({error}): chips are unknown; mount the host's sysfs, or set paths.sysfs",
                at.display()
            );
            return ChipScan { notes: vec![note], ..ChipScan::default() };
        }
    };
    let unreadable = functions.iter().filter(|function| function.vendor.is_none()).count();
    let mut notes = Vec::new();
    if unreadable > 0 {
        notes.push(format!(
            "the vendor of {unreadable} PCI functions cannot be read: a TPU may be among them"
        ));
    }
    let mut tpus: Vec<(Function, ChipKind)> = Vec::new();
    let mut other_groups = BTreeSet::new();
    for function in functions {
        match kind(&function, settings) {
            Some(kind) => tpus.push((function, kind)),
            // A function of an unknown vendor may be a TPU.
            None if function.vendor.is_some() => {
                other_groups.extend(pci::iommu_group(&paths.sysfs, &function));
            }
            None => {}
        }
    }
    let mut chips: Vec<Chip> = Vec::new();
    for group in tpus.chunk_by(same_chip) {
        let index = ChipIndex(u32::try_from(chips.len()).unwrap_or(u32::MAX));
        chips.push(chip(index, group, &Nodes { paths, all: &tpus }));
    }
    ChipScan { chips, notes, other_groups }
}

/// The name of the chip that a PCI function belongs to, from its address and the texts of its files `vendor`, `device`,
/// `subsystem_device` and `numa_node`. `None` if it is no TPU.
pub fn decode_texts(address: &str, text: impl Fn(&str) -> Option<String>) -> Option<String> {
    let function = pci::function(address, text)?;
    let row = kind(&function, &Settings::default())?;
    Some(name(&function, &row))
}

/// The kind of a function, when it is a TPU or may be one: any function of Google's that is no known other device,
/// whatever its class.
fn kind(function: &Function, settings: &Settings) -> Option<ChipKind> {
    if function.vendor != Some(VENDOR) {
        return None;
    }
    let Some(id) = function.device else { return Some(ChipKind::unnamed()) };
    match table::find(id, function.subsystem, &settings.extra) {
        Match::Kind(row) | Match::Ambiguous(row) => Some(row),
        Match::Unlisted => Some(ChipKind::unnamed()),
        Match::Other => None,
    }
}

/// Whether two neighbours in PCI order are one chip: functions of one device, where the generation has several.
fn same_chip(a: &(Function, ChipKind), b: &(Function, ChipKind)) -> bool {
    a.1.functions > 1 && a.1 == b.1 && a.0.slot.same_device(b.0.slot)
}

fn chip(index: ChipIndex, functions: &[(Function, ChipKind)], nodes: &Nodes<'_>) -> Chip {
    let (first, row) = &functions[0];
    let mut chip = Chip {
        index,
        generation: row.generation,
        name: name(first, row),
        pci: first.slot.device_name(row.functions == 1),
        cores: row.cores,
        hbm_bytes: row.hbm_bytes(),
        peak: row.peak,
        duty_cycle_per: row.duty_cycle_per,
        numa_node: first.numa_node,
        ..Chip::default()
    };
    let mut faults = Vec::new();
    if functions.len() < row.functions as usize {
        let fault = format!("shows {} of its {} PCI functions", functions.len(), row.functions);
        faults.push((ChipFaultKind::Chip, fault));
    }
    for (function, row) in functions {
        let driver = pci::driver(&nodes.paths.sysfs, function);
        // An absent node stays listed: owners outside this container may hold it.
        let node = nodes.of(function, row);
        faults.extend(fault(function, &driver, node.as_deref()));
        chip.nodes.extend(node);
    }
    // What is seen to be wrong with the chip counts more than what may be only the agent's view, and that more than what
    // is not known.
    let kinds = [
        ChipFaultKind::NodeAbsent,
        ChipFaultKind::Chip,
        ChipFaultKind::NodeAbsentHere,
        ChipFaultKind::Unknown,
    ];
    let Some(worst) = kinds.into_iter().find(|kind| faults.iter().any(|(of, _)| of == kind)) else {
        return chip;
    };
    faults.retain(|(of, _)| of.is_of_chip() == worst.is_of_chip());
    if worst == ChipFaultKind::NodeAbsentHere {
        faults.retain(|(of, _)| *of == worst);
    }
    chip.state = worst.state();
    chip.absent_here_only = worst == ChipFaultKind::NodeAbsentHere;
    chip.faults = faults.into_iter().map(|(_, fault)| fault).collect();
    chip
}

/// What a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChipFaultKind {
    /// The node does not exist, because no driver is bound.
    NodeAbsent,
    /// The driver or a function is missing.
    Chip,
    /// The agent's `/dev` lacks the node. It may exist outside the agent's container.
    NodeAbsentHere,
    /// The node is not known, or cannot be read.
    Unknown,
}

impl ChipFaultKind {
    /// Whether the chip is at fault, rather than what the agent can see of it.
    fn is_of_chip(self) -> bool {
        matches!(self, Self::NodeAbsent | Self::Chip)
    }

    fn state(self) -> ChipState {
        match self {
            Self::NodeAbsent | Self::NodeAbsentHere => ChipState::Absent,
            Self::Chip => ChipState::Fault,
            Self::Unknown => ChipState::Unknown,
        }
    }
}

/// What is wrong with a function, from its driver and its node.
fn fault(function: &Function, driver: &Driver, node: Option<&Path>) -> Option<(ChipFaultKind, String)> {
    let slot = function.slot;
    let unbound = format!("no driver is bound to PCI function {slot}");
    let Some(node) = node else {
        let unknown = format!("PCI function {slot} has no IOMMU group in sysfs: its vfio node is unknown");
        return Some(match driver {
            Driver::Unbound => (ChipFaultKind::Chip, format!("{unbound}, and {unknown}")),
            Driver::Bound(_) | Driver::Unknown => (ChipFaultKind::Unknown, unknown),
        });
    };
    let at = node.display();
    match fs::symlink_metadata(node) {
        Ok(_) if *driver == Driver::Unbound => Some((ChipFaultKind::Chip, unbound)),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (kind, why) = match driver {
                Driver::Bound(driver) => (
                    ChipFaultKind::NodeAbsentHere,
                    format!("driver {driver} is bound, so the node is not passed into this container"),
                ),
                Driver::Unbound => (ChipFaultKind::NodeAbsent, unbound),
                Driver::Unknown => (
                    ChipFaultKind::NodeAbsentHere,
                    "the driver is not bound, or the node is not passed into this container".to_owned(),
                ),
            };
            Some((kind, format!("device node {at} is absent: {why}")))
        }
        Err(error) => Some((
            ChipFaultKind::Unknown,
            format!("device node {at} cannot be read ({error}): its state is unknown"),
        )),
    }
}

fn name(function: &Function, row: &ChipKind) -> String {
    let id = function.device.map_or("0x????".to_owned(), |id| format!("{id:#06x}"));
    match (&row.name, row.generation) {
        (Some(name), _) => name.clone(),
        (None, Generation::Unknown) => format!("unknown TPU {id}"),
        (None, generation) => generation.to_string(),
    }
}

/// Finds the device node of a PCI function.
struct Nodes<'a> {
    paths: &'a Paths,
    all: &'a [(Function, ChipKind)],
}

impl Nodes<'_> {
    /// The node below the configured root; `None` when it is not known. The node of an unknown kind is the one that is
    /// there, else the one that the IOMMU group names.
    fn of(&self, function: &Function, row: &ChipKind) -> Option<PathBuf> {
        match row.node {
            Some(NodeKind::Accel) => Some(self.accel(function, row)),
            Some(NodeKind::Vfio) => self.vfio(function),
            None => {
                let accel = Some(self.accel(function, row)).filter(|node| node.exists());
                self.vfio(function).filter(|vfio| vfio.exists() || accel.is_none()).or(accel)
            }
        }
    }

    /// `accelN`: N as sysfs says, else the rank among the functions with such nodes. A function of an unknown kind
    /// does not change the rank of a known one.
    fn accel(&self, function: &Function, row: &ChipKind) -> PathBuf {
        let number = pci::accel_number(&self.paths.sysfs, function).unwrap_or_else(|| {
            let before = self.all.iter().take_while(|(other, _)| other.slot < function.slot);
            let count = before
                .filter(|(_, other)| other.node == Some(NodeKind::Accel) || other.node == row.node)
                .count();
            u32::try_from(count).unwrap_or(u32::MAX)
        });
        self.paths.dev.join(format!("accel{number}"))
    }

    /// `vfio/GROUP`.
    fn vfio(&self, function: &Function) -> Option<PathBuf> {
        let group = pci::iommu_group(&self.paths.sysfs, function)?;
        Some(self.paths.dev.join("vfio").join(group.to_string()))
    }
}

#[cfg(test)]
mod tests;
