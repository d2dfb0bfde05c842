//! One scan of all processes: which of them hold a chip, and which process has which socket open.
//!
//! Listing descriptors is what costs. So the descriptors of a process are listed when it is new, when their number has
//! changed, when it held a chip, and in every [`ROUNDS`]th scan anyway: it may have closed one and opened another. The
//! kernel gives the number since Linux 6.2; on older kernels every scan lists them all.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use model::device::{Chip, ChipIndex};

use super::procfs::{DescriptorSummary, ProcVisibility, Procfs};

/// Maximum number of sockets that are kept; beyond it the processes of some listeners stay unknown.
const MAX_SOCKETS: usize = 1 << 18;

/// Number of scans within which the descriptors of every process are listed at least once, an equal share in each.
const ROUNDS: u32 = 12;

/// The device nodes of chips, by the names to which descriptors link.
#[derive(Debug, Default)]
pub(super) struct DeviceNodes {
    /// The configured device root, and `/dev`: a link shows the path as seen from the root of its own process.
    roots: Vec<Vec<u8>>,
    chips: HashMap<Vec<u8>, ChipIndex>,
    /// Groups of devices that are no TPU.
    other_groups: BTreeSet<u32>,
}

/// The accelerator behind a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeldDevice {
    /// A chip.
    Chip(ChipIndex),
    /// An accelerator node that belongs to no chip in sysfs.
    Unlisted(String),
}

impl DeviceNodes {
    /// The nodes of these chips, below `dev`; `other_groups` are IOMMU groups of devices that are no TPU.
    pub(super) fn of(chips: &[Chip], other_groups: &BTreeSet<u32>, dev: &Path) -> Self {
        let mut roots = vec![dev.as_os_str().as_bytes().to_vec(), b"/dev".to_vec()];
        roots.dedup();
        let nodes = chips.iter().flat_map(|chip| chip.nodes.iter().map(move |node| (node, chip.index)));
        let name = |node: &Path| node.strip_prefix(dev).unwrap_or(node).as_os_str().as_bytes().to_vec();
        Self {
            roots,
            chips: nodes.map(|(node, index)| (name(node), index)).collect(),
            other_groups: other_groups.clone(),
        }
    }

    /// The accelerator that a link target names, if it names one.
    pub(super) fn held(&self, target: &[u8]) -> Option<HeldDevice> {
        let target = target.strip_suffix(b" (deleted)").unwrap_or(target);
        if !(target.first() == Some(&b'/') && target.last()?.is_ascii_digit()) {
            return None;
        }
        let name = self.roots.iter().find_map(|root| target.strip_prefix(&root[..])?.strip_prefix(b"/"))?;
        if let Some(index) = self.chips.get(name) {
            return Some(HeldDevice::Chip(*index));
        }
        let name = std::str::from_utf8(name).ok()?;
        let is_unlisted = match (name.strip_prefix("accel"), name.strip_prefix("vfio/")) {
            (Some(number), _) => number.bytes().all(|digit| digit.is_ascii_digit()),
            // A group of another device may be held by a virtual machine.
            (None, Some(group)) => group.parse().is_ok_and(|group| !self.other_groups.contains(&group)),
            (None, None) => false,
        };
        is_unlisted.then(|| HeldDevice::Unlisted(name.to_owned()))
    }
}

/// The result of a scan.
#[derive(Debug, Default)]
pub(super) struct ProcessScan {
    /// All processes in ascending order.
    pub(super) pids: Vec<u32>,
    /// Processes with an accelerator, and their descriptors of it.
    pub(super) owners: HashMap<u32, Vec<(u32, HeldDevice)>>,
    /// Inode and process of every open socket.
    pub(super) sockets: Vec<(u64, u32)>,
    /// The first process whose descriptors could not be listed.
    pub(super) denied: Option<u32>,
}

/// A process that held no chip when its descriptors were listed.
#[derive(Debug)]
struct ChiplessProcess {
    summary: DescriptorSummary,
    /// Inodes of its sockets.
    sockets: Box<[u64]>,
}

/// Keeps what one scan learns for the next.
#[derive(Debug, Default)]
pub(super) struct ProcessScanner {
    chipless: HashMap<u32, ChiplessProcess>,
    round: u32,
}

impl ProcessScanner {
    /// Makes the next scan list the descriptors of all processes: the chips have changed.
    pub(super) fn clear(&mut self) {
        self.chipless.clear();
    }

    /// Scans all processes once. `sockets` is a buffer to reuse.
    pub(super) fn scan(
        &mut self,
        proc: &mut Procfs,
        nodes: &DeviceNodes,
        mut sockets: Vec<(u64, u32)>,
    ) -> io::Result<ProcessScan> {
        sockets.clear();
        let mut scan = ProcessScan { pids: proc.pids()?, sockets, ..ProcessScan::default() };
        self.chipless.retain(|pid, _| scan.pids.binary_search(pid).is_ok());
        self.round = (self.round + 1) % ROUNDS;
        for pid in scan.pids.clone() {
            // Read before the descriptors: one that is opened in between shows as a change in the next scan.
            let summary = proc.descriptor_summary(pid);
            let known = self.chipless.get(&pid).filter(|known| Some(known.summary) == summary);
            if let Some(known) = known.filter(|_| pid % ROUNDS != self.round) {
                scan.add(pid, &known.sockets);
                continue;
            }
            let before = scan.sockets.len();
            let chipless = scan.list_descriptors(proc, nodes, pid);
            match summary.filter(|_| chipless) {
                Some(summary) => {
                    let sockets = scan.sockets[before..].iter().map(|(inode, _)| *inode).collect();
                    self.chipless.insert(pid, ChiplessProcess { summary, sockets });
                }
                None => {
                    self.chipless.remove(&pid);
                }
            }
        }
        Ok(scan)
    }
}

impl ProcessScan {
    /// Lists the descriptors of one process; true when all could be read and none is an accelerator.
    fn list_descriptors(&mut self, proc: &mut Procfs, nodes: &DeviceNodes, pid: u32) -> bool {
        let mut held = Vec::new();
        let visibility = proc.descriptors(pid, |descriptor, target| match socket(target) {
            Some(inode) => self.add(pid, &[inode]),
            None => held.extend(nodes.held(target).map(|held| (descriptor, held))),
        });
        if visibility == ProcVisibility::Denied {
            self.denied.get_or_insert(pid);
        }
        let chipless = held.is_empty();
        if !chipless {
            self.owners.insert(pid, held);
        }
        chipless && visibility == ProcVisibility::Full
    }

    fn add(&mut self, pid: u32, sockets: &[u64]) {
        let room = MAX_SOCKETS - self.sockets.len();
        self.sockets.extend(sockets.iter().take(room).map(|inode| (*inode, pid)));
    }
}

/// The inode in `socket:[1472]`.
fn socket(target: &[u8]) -> Option<u64> {
    let digits = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    digits.iter().try_fold(0_u64, |sum, digit| {
        digit.is_ascii_digit().then_some(())?;
        sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_known_with_and_without_the_root() {
        let chip =
            |index, node: &str| Chip { index: ChipIndex(index), nodes: vec![node.into()], ..Chip::default() };
        let nodes = DeviceNodes::of(
            &[chip(0, "/host/dev/vfio/17"), chip(1, "/host/dev/accel1")],
            &BTreeSet::from([18]),
            "/host/dev".as_ref(),
        );
        let held = |target: &str| nodes.held(target.as_bytes());
        assert_eq!(held("/dev/vfio/17"), Some(HeldDevice::Chip(ChipIndex(0))));
        assert_eq!(held("/host/dev/vfio/17"), Some(HeldDevice::Chip(ChipIndex(0))));
        assert_eq!(held("/dev/accel1 (deleted)"), Some(HeldDevice::Chip(ChipIndex(1))));
        assert_eq!(held("/dev/accel7"), Some(HeldDevice::Unlisted("accel7".into())));
        assert_eq!(held("/dev/vfio/19"), Some(HeldDevice::Unlisted("vfio/19".into())));
        for other in [
            "/dev/vfio/vfio",
            "/dev/vfio/devices/vfio0",
            "/dev/vfio/18",
            "/dev/null",
            "/home/dev/accel1",
            "/dev/accel1x",
            "",
            "pipe:[3]",
        ] {
            assert_eq!(held(other), None, "{other}");
        }
    }

    #[test]
    fn sockets_are_known_by_inode() {
        assert_eq!(socket(b"socket:[1472]"), Some(1472));
        assert_eq!(socket(b"socket:[x]"), None);
        assert_eq!(socket(b"pipe:[1472]"), None);
    }
}
