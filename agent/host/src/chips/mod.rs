//! The chips of this host, from the PCI functions in sysfs and the nodes below `/dev`.
//!
//! Must never open a device node, load libtpu, or fail because a file is missing: what cannot be read is unknown and
//! becomes a note.

mod pci;
mod table;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use model::device::{Chip, ChipIndex, Generation};
use pci::Function;
use table::{ChipKind, Match};

use crate::settings::{
    device::{NodeKind, Settings},
    paths::Paths,
};

/// Google's PCI vendor id: TPUs, but also network and disk of a cloud machine.
const VENDOR: u16 = 0x1ae0;
/// PCI base class "processing accelerator".
const ACCELERATOR: u8 = 0x12;
/// Maximum number of PCI functions that are read: more than any host has.
const MAX_FUNCTIONS: usize = 4096;

/// The chips that one scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChipScan {
    /// The chips in PCI order.
    pub chips: Vec<Chip>,
    /// What could not be read, and what would change that.
    pub notes: Vec<String>,
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
            return ChipScan { chips: Vec::new(), notes: vec![note] };
        }
    };
    let unreadable = functions.iter().filter(|function| function.vendor.is_none()).count();
    let mut notes = Vec::new();
    if unreadable > 0 {
        notes.push(format!(
            "the vendor of {unreadable} PCI functions cannot be read: a TPU may be among them"
        ));
    }
    let tpus: Vec<(Function, ChipKind)> =
        functions.into_iter().filter_map(|function| recognise(function, settings)).collect();
    let mut chips: Vec<Chip> = Vec::new();
    for group in tpus.chunk_by(same_chip) {
        let index = ChipIndex(u32::try_from(chips.len()).unwrap_or(u32::MAX));
        chips.push(chip(index, group, &Nodes { paths, all: &tpus }));
    }
    ChipScan { chips, notes }
}

/// The function and its kind, when it is a TPU.
fn recognise(function: Function, settings: &Settings) -> Option<(Function, ChipKind)> {
    if function.vendor != Some(VENDOR) {
        return None;
    }
    let found = function.device.map_or(Match::No, |id| table::find(id, function.subsystem, &settings.extra));
    let row = match found {
        Match::Kind(row) | Match::Ambiguous(row) => row,
        Match::No if function.class.map(|class| class >> 16) == Some(u32::from(ACCELERATOR)) => {
            ChipKind::unnamed()
        }
        Match::No => return None,
    };
    Some((function, row))
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
    if functions.len() < row.functions as usize {
        chip.faults.push(format!("shows {} of its {} PCI functions", functions.len(), row.functions));
    }
    for (function, row) in functions {
        // An absent node stays listed: owners outside this container may hold it.
        match nodes.of(function, row) {
            Ok(node) => {
                chip.faults.extend(absence(&node));
                chip.nodes.push(node);
            }
            Err(fault) => chip.faults.push(fault),
        }
    }
    chip
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
    /// The node below the configured root, or why it is unknown.
    fn of(&self, function: &Function, row: &ChipKind) -> Result<PathBuf, String> {
        match row.node {
            Some(NodeKind::Accel) => Ok(self.accel(function)),
            Some(NodeKind::Vfio) => self.vfio(function),
            None => match self.vfio(function) {
                Ok(node) if node.exists() => Ok(node),
                _ => Ok(self.accel(function)),
            },
        }
    }

    /// `accelN`: N as sysfs says, else the rank among the functions with such nodes.
    fn accel(&self, function: &Function) -> PathBuf {
        let number = pci::accel_number(&self.paths.sysfs, function).unwrap_or_else(|| {
            let before = self.all.iter().take_while(|(other, _)| other.slot < function.slot);
            let count = before.filter(|(_, row)| row.node != Some(NodeKind::Vfio)).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        });
        self.paths.dev.join(format!("accel{number}"))
    }

    /// `vfio/GROUP`.
    fn vfio(&self, function: &Function) -> Result<PathBuf, String> {
        let group = pci::iommu_group(&self.paths.sysfs, function).ok_or_else(|| {
            format!("PCI function {} has no IOMMU group in sysfs: its vfio node is unknown", function.slot)
        })?;
        Ok(self.paths.dev.join("vfio").join(group.to_string()))
    }
}

/// What is wrong when the node is absent or cannot be read.
fn absence(node: &Path) -> Option<String> {
    let at = node.display();
    match fs::symlink_metadata(node) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
            "device node {at} is absent: the driver is not bound, or the node is not passed into this container"
        )),
        Err(error) => Some(format!("device node {at} cannot be read ({error}): its state is unknown")),
    }
}

#[cfg(test)]
mod tests;
