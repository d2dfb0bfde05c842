//! Keeps two writers of one logdir from taking the same session name: the first has it until it is done.
//!
//! A reservation is a folder in the staging folder, with a file that its writer locks. Must never outlive its
//! writer: dropping it removes it, and that of a dead writer is replaced.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::fcntl::Flock;

use super::{
    SessionError, SessionName, failed,
    staging::{self, FOLDER_MODE, create_file, lock, remove_dead, remove_staged},
};

/// Tells apart the attempts of one process.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A session name that is ours.
#[derive(Debug)]
pub(super) struct Reservation {
    _folder: Folder,
    /// Locked while the writer lives; none where the file system has no locks.
    _alive: Option<Flock<File>>,
}

/// The folder, gone when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Reservation {
    /// Takes `name` in `logdir`.
    ///
    /// # Errors
    /// When another writer has it, or on an I/O error.
    pub(super) fn take(logdir: &Path, name: &SessionName) -> Result<Self, SessionError> {
        let staging = staging::make(logdir)?;
        let place = staging.join(format!("{name}.session"));
        let count = TAKEN.fetch_add(1, Ordering::Relaxed);
        // Locked before others can see it, so that no other process mistakes it for that of a dead writer.
        let mut folder = Folder(staging.join(format!("{name}.session.{}.{count}", process::id())));
        DirBuilder::new().mode(FOLDER_MODE).create(&folder.0).map_err(failed("create", &folder.0))?;
        let file = create_file(&folder.0.join("alive"))?;
        let alive = lock(&file);
        while let Err(error) = fs::rename(&folder.0, &place) {
            let taken =
                matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists);
            if !taken {
                return Err(failed("create", &place)(error));
            }
            match remove_dead(&place) {
                Ok(true) => {}
                // Its writer has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(false) | Err(_) => return Err(SessionError::Running(name.clone())),
            }
        }
        folder.0 = place;
        Ok(Self { _folder: folder, _alive: alive })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: what stays is taken over, and `remove_abandoned` comes later.
        let _ = remove_staged(&self.0);
    }
}
