//! A disk that does not answer.

use std::{
    fs::{File, OpenOptions},
    os::fd::AsRawFd,
    path::Path,
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A FUSE file system that nobody serves: each access to it waits until the value is dropped, or the process is killed.
#[derive(Debug)]
pub struct HungDisk {
    folder: TempDir,
    /// Its requests, which are never read.
    _requests: File,
}

impl HungDisk {
    /// A disk that hangs from the start.
    ///
    /// # Panics
    /// If it cannot be mounted: only root can, on a kernel with FUSE.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let requests = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", requests.as_raw_fd());
        mount(Some("hung"), folder.path(), Some("fuse"), MsFlags::empty(), Some(options.as_str()))
            .expect("mounting needs root");
        Self { folder, _requests: requests }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Default for HungDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        umount2(self.folder.path(), MntFlags::MNT_DETACH).expect("it is mounted");
    }
}
