//! Keeps two writers of one logdir from taking the same session name: the first has it until it is done.
//!
//! A reservation is a folder in the staging folder, with a file that its writer locks. Must never outlive its
//! writer: dropping it removes it, and that of a dead writer is replaced.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::fcntl::Flock;

use super::{
    SessionError, SessionName, failed,
    staging::{self, create_file, lock, remove_dead},
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
        let place = staging::path(logdir).join(format!("{name}.session"));
        // Locked before others can see it, so that no other process mistakes it for that of a dead writer.
        let mut folder = Folder(loop {
            // Another host that shares the file system may have our process id: then the next count is free.
            let count = TAKEN.fetch_add(1, Ordering::Relaxed);
            let made = staging::make_folder(logdir, &format!("{name}.session.{}.{count}", process::id()))?;
            if let Some(made) = made {
                break made;
            }
        });
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
        let _ = staging::clear(&self.0);
    }
}
