//! Tells when a process opens a node of a chip, so that the next tick can look who it is.
//!
//! The kernel reports the opening of a file by anybody (inotify); nothing of the file is opened here. Must never watch
//! all of `/dev`: every use of `/dev/null` would be an event. A container with device nodes of its own gives no events
//! here; [`YoungProcesses`](super::young_processes::YoungProcesses) finds its processes.

use std::{collections::BTreeSet, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use model::device::Chip;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

/// Bytes of events that are read at a time.
const BUFFER: usize = 4096;
/// Maximum number of events that are read in one tick; the rest stays for the next.
const MAX_EVENTS: usize = 1024;

/// A watch on the nodes of the chips.
#[derive(Debug, Default)]
pub(super) struct NodeWatch {
    /// `None` where the kernel gives no watch.
    inotify: Option<OwnedFd>,
}

impl NodeWatch {
    /// Watches the nodes of these chips below `dev`, as far as this user may.
    pub(super) fn of(chips: &[Chip], dev: &Path) -> Self {
        let folder = dev.join("vfio");
        // A folder is watched once for all its nodes, also where a node may not be read.
        let nodes = chips.iter().flat_map(|chip| &chip.nodes);
        let paths: BTreeSet<&Path> =
            nodes.map(|node| if node.starts_with(&folder) { &folder } else { node.as_path() }).collect();
        if paths.is_empty() {
            return Self::default();
        }
        let Ok(inotify) = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC) else { return Self::default() };
        for path in paths {
            // What cannot be watched is found by the scans.
            let _ = add_watch(&inotify, path, WatchFlags::OPEN | WatchFlags::CLOSE);
        }
        Self { inotify: Some(inotify) }
    }

    /// Whether a node was opened or closed since the last call. Does not block.
    pub(super) fn was_used(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut used = false;
        for _ in 0..MAX_EVENTS {
            // An error says that there is no event.
            let Ok(event) = reader.next() else { break };
            let is_container = event.file_name().is_some_and(|name| name == c"vfio");
            used |= !event.events().contains(ReadFlags::ISDIR) && !is_container;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use model::device::ChipIndex;

    use super::*;

    #[test]
    fn opening_a_node_is_seen_and_other_files_are_not() {
        let dev = tempfile::tempdir().unwrap();
        fs::create_dir(dev.path().join("vfio")).unwrap();
        for name in ["vfio/7", "vfio/vfio", "accel0", "null"] {
            fs::write(dev.path().join(name), "").unwrap();
        }
        let chip = |name| Chip { index: ChipIndex(0), nodes: vec![dev.path().join(name)], ..Chip::default() };
        let mut watch = NodeWatch::of(&[chip("vfio/7"), chip("accel0"), chip("vfio/absent")], dev.path());
        assert!(!watch.was_used());
        for name in ["vfio/7", "accel0"] {
            let held = File::open(dev.path().join(name)).unwrap();
            assert!(watch.was_used(), "{name} was opened");
            assert!(!watch.was_used());
            drop(held);
            assert!(watch.was_used(), "{name} was closed");
        }
        for name in ["vfio/vfio", "null"] {
            File::open(dev.path().join(name)).unwrap();
        }
        fs::read_dir(dev.path().join("vfio")).unwrap().for_each(drop);
        assert!(!watch.was_used());
        assert!(!NodeWatch::of(&[], dev.path()).was_used());
    }
}
