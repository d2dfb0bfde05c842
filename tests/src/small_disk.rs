//! A disk that is soon full.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A file system of 1 MiB, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// An empty one.
    ///
    /// # Panics
    /// If it cannot be mounted: only root can.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some("size=1m"))
            .expect("mounting a small tmpfs needs root");
        Self(folder)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Default for SmallDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).expect("it is mounted");
    }
}
