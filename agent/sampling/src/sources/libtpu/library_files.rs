//! The library's file on disk: which one may be loaded, and whether it was replaced. All of it blocks, on any disk that
//! an owner or the settings name: call it on a blocking thread only.

use std::{fmt::Debug, fs, os::unix::fs::MetadataExt, path::Path};

use model::workload::Workloads;

use super::{
    StartError,
    locate::{self, LibrarySearch},
    trust::{LoadRights, Trusted, trust},
};
use crate::settings::libtpu::Settings;

/// Device, inode and modification time of a file: differs when another file is put in its place.
pub(super) type FileIdentity = (u64, u64, i64);

/// Access to library files; a test replaces it by a disk that hangs.
pub(super) trait LibraryFiles: Debug + Send + Sync {
    /// The first library that may be loaded. Without one, why the first that was found may not.
    fn find(
        &self,
        settings: &Settings,
        search: &LibrarySearch,
        workloads: &Workloads,
    ) -> Result<Trusted, StartError>;

    /// The identity of the file at `path`; `None` when there is none.
    fn identity(&self, path: &Path) -> Option<FileIdentity>;
}

/// The disks of this host.
#[derive(Debug)]
pub(super) struct HostFiles;

impl LibraryFiles for HostFiles {
    fn find(
        &self,
        settings: &Settings,
        search: &LibrarySearch,
        workloads: &Workloads,
    ) -> Result<Trusted, StartError> {
        let rights = LoadRights::of_this_process(settings.owner_copies);
        let mut refused = None;
        for path in locate::candidates(settings.path.as_deref(), search, workloads) {
            match trust(&path, rights) {
                Ok(library) => return Ok(library),
                Err(why) => refused = refused.or(Some(StartError::Untrusted { path, why })),
            }
        }
        Err(refused.unwrap_or(StartError::NotFound))
    }

    fn identity(&self, path: &Path) -> Option<FileIdentity> {
        fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino(), metadata.mtime()))
    }
}
