//! One pass over every process: who holds a chip, and which sockets are whose.
//!
//! Listing descriptors is what costs, so a process is looked into when it is new, when the number of its descriptors
//! has changed, when it held a chip, and in every [`ROUNDS`]th pass anyway: it may have closed one and opened another.
//! The kernel tells the number since Linux 6.2; before, every process is looked into in every pass.

use std::{collections::HashMap, io, os::unix::ffi::OsStrExt, path::Path};

use model::device::{Chip, ChipIndex};

use super::procfs::{Folder, ProcVisibility, Procfs};

/// More sockets are not remembered: then some listeners' processes stay unknown.
const MOST_SOCKETS: usize = 1 << 18;

/// In so many passes every process is looked into at least once, an equal share in each.
const ROUNDS: u32 = 12;

/// Knows chips by the names that descriptors link to.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// The configured device root, and `/dev`: a link shows the path as its own process's root has it.
    roots: Vec<Vec<u8>>,
    chips: HashMap<Vec<u8>, ChipIndex>,
}

/// What a descriptor holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// A chip.
    Chip(ChipIndex),
    /// A node of the accelerator kind that no chip in sysfs accounts for.
    Stray(String),
}

impl Nodes {
    /// The nodes of these chips, below `dev`.
    pub(super) fn of(chips: &[Chip], dev: &Path) -> Self {
        let mut roots = vec![dev.as_os_str().as_bytes().to_vec(), b"/dev".to_vec()];
        roots.dedup();
        let nodes = chips.iter().flat_map(|chip| chip.nodes.iter().map(move |node| (node, chip.index)));
        let name = |node: &Path| node.strip_prefix(dev).unwrap_or(node).as_os_str().as_bytes().to_vec();
        Self { roots, chips: nodes.map(|(node, index)| (name(node), index)).collect() }
    }

    /// What a link target means; `None` for everything but accelerators.
    pub(super) fn held(&self, target: &[u8]) -> Option<Held> {
        let target = target.strip_suffix(b" (deleted)").unwrap_or(target);
        if !(target.first() == Some(&b'/') && target.last()?.is_ascii_digit()) {
            return None;
        }
        let name = self.roots.iter().find_map(|root| target.strip_prefix(&root[..])?.strip_prefix(b"/"))?;
        if let Some(index) = self.chips.get(name) {
            return Some(Held::Chip(*index));
        }
        // A vfio group may be any device that is passed to a virtual machine; accelN without a chip is odd.
        let number = name.strip_prefix(b"accel")?;
        let stray = number.iter().all(u8::is_ascii_digit);
        stray.then(|| Held::Stray(String::from_utf8_lossy(name).into_owned()))
    }
}

/// What the pass saw.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Every process, rising.
    pub(super) pids: Vec<u32>,
    /// Processes with an accelerator, and the descriptors that hold it.
    pub(super) holders: HashMap<u32, Vec<(u32, Held)>>,
    /// Inode and process of every open socket.
    pub(super) sockets: Vec<(u64, u32)>,
    /// The first process that could not be looked into.
    pub(super) denied: Option<u32>,
}

/// A process that held no chip when it was looked into.
#[derive(Debug)]
struct Bystander {
    folder: Folder,
    /// Inodes of its sockets.
    sockets: Box<[u64]>,
}

/// What is remembered from pass to pass.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    bystanders: HashMap<u32, Bystander>,
    round: u32,
}

impl Sweeper {
    /// The next pass looks into every process: other chips are looked for.
    pub(super) fn forget(&mut self) {
        self.bystanders.clear();
    }

    /// Looks at every process once. `sockets` is space to use again.
    pub(super) fn sweep(
        &mut self,
        proc: &mut Procfs,
        nodes: &Nodes,
        mut sockets: Vec<(u64, u32)>,
    ) -> io::Result<Sweep> {
        sockets.clear();
        let mut sweep = Sweep { pids: proc.pids()?, sockets, ..Sweep::default() };
        self.bystanders.retain(|pid, _| sweep.pids.binary_search(pid).is_ok());
        self.round = (self.round + 1) % ROUNDS;
        for pid in sweep.pids.clone() {
            // Asked before its descriptors are: one that comes in between is seen as a change next time.
            let folder = proc.descriptor_folder(pid);
            let known = self.bystanders.get(&pid).filter(|known| Some(known.folder) == folder);
            if let Some(known) = known.filter(|_| pid % ROUNDS != self.round) {
                sweep.add(pid, &known.sockets);
                continue;
            }
            let before = sweep.sockets.len();
            let looked = sweep.look_into(proc, nodes, pid);
            match folder.filter(|_| looked) {
                Some(folder) => {
                    let sockets = sweep.sockets[before..].iter().map(|(inode, _)| *inode).collect();
                    self.bystanders.insert(pid, Bystander { folder, sockets });
                }
                None => {
                    self.bystanders.remove(&pid);
                }
            }
        }
        Ok(sweep)
    }
}

impl Sweep {
    /// Looks at the descriptors of one process; true when all were seen and none is a chip.
    fn look_into(&mut self, proc: &mut Procfs, nodes: &Nodes, pid: u32) -> bool {
        let mut held = Vec::new();
        let sight = proc.descriptors(pid, |descriptor, target| match socket(target) {
            Some(inode) => self.add(pid, &[inode]),
            None => held.extend(nodes.held(target).map(|held| (descriptor, held))),
        });
        if sight == ProcVisibility::Denied {
            self.denied.get_or_insert(pid);
        }
        let bystander = held.is_empty();
        if !bystander {
            self.holders.insert(pid, held);
        }
        bystander && sight == ProcVisibility::Full
    }

    fn add(&mut self, pid: u32, sockets: &[u64]) {
        let room = MOST_SOCKETS - self.sockets.len();
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
        let nodes =
            Nodes::of(&[chip(0, "/host/dev/vfio/17"), chip(1, "/host/dev/accel1")], "/host/dev".as_ref());
        let held = |target: &str| nodes.held(target.as_bytes());
        assert_eq!(held("/dev/vfio/17"), Some(Held::Chip(ChipIndex(0))));
        assert_eq!(held("/host/dev/vfio/17"), Some(Held::Chip(ChipIndex(0))));
        assert_eq!(held("/dev/accel1 (deleted)"), Some(Held::Chip(ChipIndex(1))));
        assert_eq!(held("/dev/accel7"), Some(Held::Stray("accel7".into())));
        for other in [
            "/dev/vfio/vfio",
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
