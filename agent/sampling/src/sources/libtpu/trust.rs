//! The owner of a library, and the user that may run it.
//!
//! A library is root's when root owns it and every folder above it and nobody else can write to any of them; the
//! agent's own user runs it. A library of some other user is run by that user only. Everything else is refused.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::child_process::RunAs;

/// Why a library may not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Its owner cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The path that cannot be read.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is no regular file.
    #[error("{0} is not a file")]
    NotAFile(PathBuf),
    /// Anybody could replace it.
    #[error("everybody may write to {}", .0.display())]
    Writable(PathBuf),
    /// Several users could replace it.
    #[error("user {other} owns {}, but user {owner} owns the library", .path.display())]
    Mixed {
        /// The path that the other user owns.
        path: PathBuf,
        /// Its owner.
        other: u32,
        /// The library's owner.
        owner: u32,
    },
    /// It belongs to a user that the agent cannot run as.
    #[error("user {owner} owns it, and this process runs as user {me}, which may not start one as {owner}")]
    NotOurs {
        /// The library's owner.
        owner: u32,
        /// Us.
        me: u32,
    },
    /// It belongs to a user, and the settings allow root's libraries only.
    #[error("user {owner} owns it, and only root's libraries are loaded (see libtpu.owner_copies)")]
    OwnersOff {
        /// The library's owner.
        owner: u32,
    },
}

/// What matters of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ownership {
    uid: u32,
    gid: u32,
    mode: u32,
    folder: bool,
}

impl Ownership {
    /// Whether someone beside the owner could put something else in its place.
    fn writable_by(&self, who: u32) -> bool {
        // In a sticky folder only the owner of an entry can replace it, and each entry's owner is checked.
        let sticky = self.folder && self.mode & 0o1000 != 0;
        self.mode & who != 0 && !sticky
    }
}

const GROUP_OR_OTHERS: u32 = 0o022;
const OTHERS: u32 = 0o002;

/// The owner of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LibraryOwner {
    Root,
    Of(RunAs),
}

/// The owner of a library. Checks every folder above it, from the root down, and then the library.
fn library_owner(chain: &[(PathBuf, Ownership)]) -> Result<LibraryOwner, TrustError> {
    let Some((library, last)) = chain.last() else { return Err(TrustError::NotAFile(PathBuf::new())) };
    if last.folder {
        return Err(TrustError::NotAFile(library.clone()));
    }
    if chain.iter().all(|(_, facts)| facts.uid == 0 && !facts.writable_by(GROUP_OR_OTHERS)) {
        return Ok(LibraryOwner::Root);
    }
    let mut owner = None;
    for (path, facts) in chain {
        if facts.writable_by(OTHERS) {
            return Err(TrustError::Writable(path.clone()));
        }
        match owner {
            _ if facts.uid == 0 => {}
            None => owner = Some(RunAs { uid: facts.uid, gid: facts.gid }),
            Some(RunAs { uid, .. }) if uid == facts.uid => {}
            Some(RunAs { uid, .. }) => {
                return Err(TrustError::Mixed { path: path.clone(), other: uid, owner: facts.uid });
            }
        }
    }
    // Root owns everything, but a group may write: no single user owns the library.
    owner.map(LibraryOwner::Of).ok_or_else(|| {
        let loose = chain.iter().find(|(_, facts)| facts.writable_by(GROUP_OR_OTHERS));
        TrustError::Writable(loose.map_or_else(|| library.clone(), |(path, _)| path.clone()))
    })
}

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadRights {
    /// Its effective user.
    pub uid: u32,
    /// Whether it can start a process as another user.
    pub becomes_others: bool,
    /// Whether libraries that are not root's may be run by their owners.
    pub owner_copies: bool,
}

impl LoadRights {
    /// Those of this process.
    pub fn of_this_process(owner_copies: bool) -> Self {
        use caps::{CapSet, Capability};
        let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        Self {
            uid: nix::unistd::geteuid().as_raw(),
            becomes_others: has(Capability::CAP_SETUID) && has(Capability::CAP_SETGID),
            owner_copies,
        }
    }
}

fn allow(owner: LibraryOwner, rights: LoadRights) -> Result<Option<RunAs>, TrustError> {
    match owner {
        LibraryOwner::Root => Ok(None),
        LibraryOwner::Of(RunAs { uid, .. }) if uid == rights.uid => Ok(None),
        LibraryOwner::Of(RunAs { uid, .. }) if !rights.owner_copies => {
            Err(TrustError::OwnersOff { owner: uid })
        }
        LibraryOwner::Of(user) if rights.becomes_others => Ok(Some(user)),
        LibraryOwner::Of(RunAs { uid, .. }) => Err(TrustError::NotOurs { owner: uid, me: rights.uid }),
    }
}

/// A library that may be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    /// Its path without links: the checked file is the loaded file.
    pub path: PathBuf,
    /// The user that must run it; `None`: the user of the agent.
    pub user: Option<RunAs>,
}

/// Whether the library at `path` may be loaded, and by which user.
///
/// # Errors
/// If it may not, or if an owner cannot be read.
pub fn trust(path: &Path, rights: LoadRights) -> Result<Trusted, TrustError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| TrustError::Unreadable { path, source }
    };
    let real = fs::canonicalize(path).map_err(unreadable(path))?;
    let mut chain = Vec::new();
    for part in real.ancestors() {
        let metadata = fs::symlink_metadata(part).map_err(unreadable(part))?;
        if part == real && !metadata.is_file() {
            return Err(TrustError::NotAFile(real));
        }
        let facts = Ownership {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode(),
            folder: metadata.is_dir(),
        };
        chain.push((part.to_owned(), facts));
    }
    chain.reverse();
    let user = allow(library_owner(&chain)?, rights)?;
    Ok(Trusted { path: real, user })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: LoadRights = LoadRights { uid: 0, becomes_others: true, owner_copies: true };

    fn folder(uid: u32, mode: u32) -> (PathBuf, Ownership) {
        (PathBuf::from("/x"), Ownership { uid, gid: uid, mode, folder: true })
    }

    fn file(uid: u32, mode: u32) -> (PathBuf, Ownership) {
        (PathBuf::from("/x/libtpu.so"), Ownership { uid, gid: uid, mode, folder: false })
    }

    #[test]
    fn root_alone_is_root() {
        assert_eq!(library_owner(&[folder(0, 0o755), file(0, 0o644)]).unwrap(), LibraryOwner::Root);
        assert_eq!(library_owner(&[folder(0, 0o1777), file(0, 0o644)]).unwrap(), LibraryOwner::Root);
    }

    #[test]
    fn what_others_could_replace_is_refused() {
        for chain in [
            [folder(0, 0o777), file(0, 0o644)],
            [folder(0, 0o755), file(0, 0o666)],
            [folder(0, 0o775), file(0, 0o644)],
            [folder(0, 0o755), file(0, 0o664)],
            [folder(0, 0o777), file(7, 0o644)],
        ] {
            assert!(matches!(library_owner(&chain), Err(TrustError::Writable(_))), "{chain:?}");
        }
        // A sticky bit on a file protects nothing.
        assert!(library_owner(&[folder(0, 0o755), file(0, 0o1666)]).is_err());
    }

    #[test]
    fn a_users_library_is_run_by_that_user() {
        let owner = library_owner(&[folder(0, 0o755), folder(7, 0o775), file(7, 0o664)]).unwrap();
        let user = RunAs { uid: 7, gid: 7 };
        assert_eq!(owner, LibraryOwner::Of(user));
        // Root's file in a user's folder is the user's: the folder decides.
        assert_eq!(library_owner(&[folder(7, 0o755), file(0, 0o644)]).unwrap(), LibraryOwner::Of(user));
        assert_eq!(allow(owner, ROOT).unwrap(), Some(user));
        assert_eq!(
            allow(owner, LoadRights { uid: 7, becomes_others: false, owner_copies: false }).unwrap(),
            None
        );
        let refused = [
            LoadRights { owner_copies: false, ..ROOT },
            LoadRights { uid: 8, becomes_others: false, owner_copies: true },
        ];
        for rights in refused {
            assert!(allow(owner, rights).is_err(), "{rights:?}");
        }
    }

    #[test]
    fn two_users_are_one_too_many() {
        assert!(matches!(
            library_owner(&[folder(0, 0o755), folder(7, 0o755), file(8, 0o644)]),
            Err(TrustError::Mixed { other: 7, owner: 8, .. })
        ));
    }

    #[test]
    fn links_are_followed_before_the_check() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("real.so"), "x").unwrap();
        std::os::unix::fs::symlink("real.so", dir.path().join("libtpu.so")).unwrap();
        let rights = LoadRights::of_this_process(false);
        let trusted = trust(&dir.path().join("libtpu.so"), rights).unwrap();
        assert_eq!(trusted.path, fs::canonicalize(dir.path()).unwrap().join("real.so"));
        assert!(matches!(trust(dir.path(), rights), Err(TrustError::NotAFile(_))));
        assert!(matches!(trust(&dir.path().join("none"), rights), Err(TrustError::Unreadable { .. })));
    }
}
