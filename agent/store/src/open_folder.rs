//! Folders that are opened one after the other, so that no link below the first is followed: another user may write there,
//! and the agent may write where that user may not.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, RenameFlags, openat, renameat2},
    sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

const FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_CLOEXEC);

/// Whether folders that are missing are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// They are.
    Made,
    /// They are an error.
    Refused,
}

/// A folder that is open.
#[derive(Debug)]
pub struct OpenFolder(OwnedFd);

impl OpenFolder {
    /// The folder at `path`, which may have links in it.
    ///
    /// # Errors
    /// If it cannot be opened, or is none.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(AT_FDCWD, path, FOLDER, Mode::empty())?))
    }

    /// The folder at `path` below this one.
    ///
    /// # Errors
    /// If a link is on the way, or a folder cannot be opened or made.
    pub fn below(&self, path: &Path, missing: IfMissing) -> io::Result<Self> {
        let mut folder = self.folder(Path::new("."), IfMissing::Refused)?;
        for component in path.components() {
            let Component::Normal(name) = component else { return Err(io::ErrorKind::InvalidInput.into()) };
            folder = folder.folder(Path::new(name), missing)?;
        }
        Ok(folder)
    }

    /// The folder with this name in it.
    fn folder(&self, name: &Path, missing: IfMissing) -> io::Result<Self> {
        if missing == IfMissing::Made {
            match mkdirat(&self.0, name, Mode::from_bits_truncate(0o750)) {
                Ok(()) => self.sync()?,
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match openat(&self.0, name, FOLDER | OFlag::O_NOFOLLOW, Mode::empty()) {
            Err(Errno::ENOTDIR | Errno::ELOOP) => Err(no_folder(name)),
            opened => Ok(Self(opened?)),
        }
    }

    /// The file with this name in it. A new one is for this user and its group.
    ///
    /// # Errors
    /// If it is a link, or cannot be opened.
    pub fn file(&self, name: &Path, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_bits_truncate(0o640))?.into())
    }

    /// Moves the file `from` of this folder to `to` in another one of the same file system.
    ///
    /// # Errors
    /// If there is none, or `to` is there and is not to be replaced.
    pub fn rename(&self, from: &Path, folder: &Self, to: &Path, replace: bool) -> io::Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::RENAME_NOREPLACE };
        match renameat2(&self.0, from, &folder.0, to, flags) {
            // Some network file systems cannot do both in one step. Names are claimed first, so that nobody else has this
            // one.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) if !replace => match folder.status(to) {
                Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => self.rename(from, folder, to, true),
            },
            renamed => renamed.map_err(io::Error::from),
        }
    }

    fn status(&self, name: &Path) -> nix::Result<FileStat> {
        fstatat(&self.0, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// The names in it, at most `most` of them, in no order.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut folder = Dir::openat(&self.0, ".", FOLDER, Mode::empty())?;
        let mut names = Vec::new();
        for entry in folder.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if names.len() == most {
                break;
            }
            names.push(name.to_owned());
        }
        Ok(names)
    }

    /// The bytes of the file with this name; `None` if there is none, or it is no file.
    ///
    /// # Errors
    /// If the folder does not say.
    pub fn file_size(&self, name: &Path) -> io::Result<Option<u64>> {
        match self.status(name) {
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(found) if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG => {
                Ok(None)
            }
            Ok(found) => Ok(u64::try_from(found.st_size).ok()),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// If it is not there, or may not be removed.
    pub fn remove(&self, name: &Path) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// If it is not there, not empty, or may not be removed.
    pub fn remove_folder(&self, name: &Path) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir)?)
    }

    /// Makes its names last.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::fsync(&self.0)?)
    }
}

fn no_folder(name: &Path) -> io::Error {
    let text = format!("{} is a link or no folder, and links are not followed there", name.display());
    io::Error::new(io::ErrorKind::NotADirectory, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed_below_the_first_folder() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(dir.path(), elsewhere.path().join("first")).unwrap();
        // In the path of the first one they are.
        let first = OpenFolder::at(&elsewhere.path().join("first")).unwrap();
        first.below(Path::new("a/b"), IfMissing::Made).unwrap();
        assert!(dir.path().join("a/b").is_dir());
        symlink(elsewhere.path(), dir.path().join("a/link")).unwrap();
        std::fs::write(elsewhere.path().join("file"), "theirs").unwrap();
        symlink(elsewhere.path().join("file"), dir.path().join("a/file")).unwrap();
        for missing in [IfMissing::Made, IfMissing::Refused] {
            let error = first.below(Path::new("a/link/x"), missing).unwrap_err();
            assert!(error.to_string().starts_with("link is a link"), "{error}");
            assert!(first.below(Path::new("../x"), missing).is_err());
        }
        assert!(!elsewhere.path().join("x").exists());
        let a = first.below(Path::new("a"), IfMissing::Refused).unwrap();
        assert!(a.file(Path::new("file"), OFlag::O_RDONLY).is_err());
        assert!(a.file(Path::new("file"), OFlag::O_WRONLY | OFlag::O_CREAT).is_err());
        assert!(first.below(Path::new("none"), IfMissing::Refused).is_err());
        let mut names = a.names(9).unwrap();
        names.sort();
        assert_eq!(names, ["b", "file", "link"]);
        assert_eq!(a.names(2).unwrap().len(), 2);
    }

    #[test]
    fn a_file_is_moved_to_a_name_that_is_free_or_may_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let folder = OpenFolder::at(dir.path()).unwrap();
        let to = folder.below(Path::new("to"), IfMissing::Made).unwrap();
        for name in ["one", "two"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        folder.rename(Path::new("one"), &to, Path::new("x"), false).unwrap();
        let taken = folder.rename(Path::new("two"), &to, Path::new("x"), false).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        folder.rename(Path::new("two"), &to, Path::new("x"), true).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("to/x")).unwrap(), "two");
        to.remove(Path::new("x")).unwrap();
        assert!(!dir.path().join("to/x").exists());
    }
}
