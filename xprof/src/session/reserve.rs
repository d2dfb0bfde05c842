//! Keeps two writers of one logdir from taking the same session name: the first has it until it is done.
//!
//! A reservation is a folder among what is staged, with a file that its holder locks. Must never outlive its
//! holder: dropped it is gone, and a dead holder's is taken over.

use std::{
    fs::{DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use nix::fcntl::Flock;

use super::{
    SessionError, SessionName, failed,
    staging::{self, FOLDER_MODE, lock, remove_staged, writer_is_dead},
    write::create_file,
};

/// A session name that is ours.
#[derive(Debug)]
pub(super) struct Reservation {
    _folder: Folder,
    /// Says that its holder lives; none where the file system has no locks.
    _alive: Option<Flock<File>>,
}

/// The folder, gone when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Reservation {
    /// Takes `name` in `logdir`.
    ///
    /// # Errors
    /// When another writer has it, or the disk says no.
    pub(super) fn take(logdir: &Path, name: &SessionName) -> Result<Self, SessionError> {
        let folder = staging::make(logdir)?.join(format!("{name}.session"));
        if let Err(error) = make(&folder) {
            let taken = error.kind() == io::ErrorKind::AlreadyExists;
            if taken && !writer_is_dead(&folder) {
                return Err(SessionError::Running(name.clone()));
            }
            if taken {
                remove_staged(&folder).map_err(failed("remove", &folder))?;
            }
            make(&folder).map_err(failed("create", &folder))?;
        }
        // From here on it goes with us, whatever fails.
        let folder = Folder(folder);
        let file = create_file(&folder.0.join("alive"))?;
        Ok(Self { _alive: lock(&file), _folder: folder })
    }
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(folder)
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: what stays is taken over, and `remove_abandoned` comes later.
        let _ = remove_staged(&self.0);
    }
}
