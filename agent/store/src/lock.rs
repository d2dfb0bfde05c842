//! One agent at a time: an exclusive lock on a file, held for as long as the [`Lock`] lives.
//!
//! The kernel drops the lock with the process, however it dies, so that no lock is ever stale.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
};

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The directory is not there and cannot be made.
    #[error("cannot make the directory {}: {error}", .dir.display())]
    Directory {
        /// Path of the directory.
        dir: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file cannot be opened.
    #[error("cannot open {}: {error}", .file.display())]
    Open {
        /// Path of the lock file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process has it.
    #[error("{} is locked by another agent{}", .file.display(), holder(.pid))]
    Held {
        /// Path of the lock file.
        file: PathBuf,
        /// The process that has the lock, if the file states it.
        pid: Option<u32>,
    },
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", pid {pid}"))
}

/// A held lock.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Makes `dir` (0750) where it is missing, and locks the file `name` in it.
    pub fn in_dir(dir: &Path, name: &str) -> Result<Self, LockError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(dir)
            .map_err(|error| LockError::Directory { dir: dir.to_owned(), error })?;
        Self::file(&dir.join(name))
    }

    /// Locks `path` and writes the pid of this process into it, for the error of the next process.
    pub fn file(path: &Path) -> Result<Self, LockError> {
        let open = |error| LockError::Open { file: path.to_owned(), error };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(path)
            .map_err(open)?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((mut file, Errno::EWOULDBLOCK)) => {
                return Err(LockError::Held { file: path.to_owned(), pid: written_pid(&mut file) });
            }
            Err((_, error)) => return Err(open(error.into())),
        };
        // The pid is a courtesy: on a full disk the lock holds without it.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        let first = Lock::in_dir(&state, "agent.lock").unwrap();
        let second = Lock::in_dir(&state, "agent.lock").unwrap_err();
        assert!(
            matches!(second, LockError::Held { pid: Some(pid), .. } if pid == std::process::id()),
            "{second}"
        );
        drop(first);
        assert!(Lock::in_dir(&state, "agent.lock").is_ok());
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join("agent.lock")).unwrap();
        assert!(matches!(Lock::in_dir(dir.path(), "agent.lock"), Err(LockError::Open { .. })));
        assert_eq!(std::fs::read_to_string(target).unwrap(), "precious");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = Lock::in_dir(&dir.path().join("file/state"), "agent.lock").unwrap_err();
        assert!(matches!(error, LockError::Directory { .. }), "{error}");
    }
}
