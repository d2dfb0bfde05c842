//! The folder of what is still being written, `plugins/.tpuscope`, and how it is cleared away.
//!
//! It goes with the last thing in it, and `plugins` too where nothing else is left, so that a capture that failed leaves no trace.
//! A logdir may lie in a folder that others write to as well. Must never write or remove anything through a link in its place,
//! remove what belongs to another user, or descend below the files that a writer stages.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, Flock, FlockArg, OFlag, openat},
    sys::stat::{FileStat, Mode, fstat, fstatat},
    unistd::{AccessFlags, Uid, UnlinkatFlags, eaccess, unlinkat},
};

use super::{SessionError, failed, sessions_folder};

pub(super) const FOLDER_MODE: u32 = 0o750;
/// Traces may contain data of the job: readable by owner and group only.
const FILE_MODE: u32 = 0o640;

/// How often the staging folder is made for a folder in it.
const MAKE_ATTEMPTS: usize = 100;
/// A writer has locked its file within this time.
const GRACE: Duration = Duration::from_secs(10);

/// What a writer stages is opened so: no link is followed, and a pipe is not waited for.
const SAFE: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

/// Where unfinished parts lie, on the same file system as the sessions.
pub(crate) fn path(logdir: &Path) -> PathBuf {
    logdir.join("plugins").join(".tpuscope")
}

/// [`path`], made where it is missing.
///
/// # Errors
/// When it is a link, or on an I/O error.
pub(super) fn make(logdir: &Path) -> Result<PathBuf, SessionError> {
    let staging = path(logdir);
    create_folders(&staging)?;
    match fs::symlink_metadata(&staging) {
        Ok(meta) if meta.is_symlink() => Err(SessionError::Link(staging)),
        Ok(meta) => can_publish(logdir, &meta).map(|()| staging),
        Err(error) => Err(failed("look at", &staging)(error)),
    }
}

/// A new folder in the staging folder; none if there is one of this name.
///
/// # Errors
/// Those of [`make`].
pub(super) fn make_folder(logdir: &Path, name: &str) -> Result<Option<PathBuf>, SessionError> {
    let mut attempts = 0;
    loop {
        let made = make(logdir).and_then(|staging| {
            let folder = staging.join(name);
            match DirBuilder::new().mode(FOLDER_MODE).create(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
                made => made.map(|()| Some(folder.clone())).map_err(failed("create", &folder)),
            }
        });
        attempts += 1;
        match made {
            // Another writer has just removed what it left empty.
            Err(SessionError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && attempts < MAKE_ATTEMPTS => {}
            made => return made,
        }
    }
}

/// Removes a folder that a writer staged, with the files in it, and the folders above where they are empty then.
pub(super) fn clear(folder: &Path) -> io::Result<()> {
    remove_staged(folder)?;
    remove_if_empty(folder.parent());
    Ok(())
}

/// Removes the staging folder and the one above it, as far as they are empty.
pub(super) fn remove_if_empty(staging: Option<&Path>) {
    for folder in staging.into_iter().flat_map(Path::ancestors).take(2) {
        // Another writer uses it, or there are sessions.
        if fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Whether what is staged can be moved to the sessions: found out before a trace is recorded in vain.
fn can_publish(logdir: &Path, staging: &Metadata) -> Result<(), SessionError> {
    let sessions = sessions_folder(logdir);
    // Where it is missing it will be made beside the staging folder.
    let Ok(there) = fs::metadata(&sessions) else { return Ok(()) };
    if there.dev() != staging.dev() {
        return Err(SessionError::Elsewhere(sessions));
    }
    eaccess(&sessions, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|error| failed("write to", &sessions)(error.into()))
}

pub(super) fn create_folders(path: &Path) -> Result<(), SessionError> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(failed("create", path))
}

/// Removes what dead writers left staged below `logdir`: what no writer holds locked, and what was not changed since
/// `older_than` before `now`, or for a moment where its writer is known to be dead. Only this user's own folder is
/// looked into.
/// Returns how many were removed.
///
/// # Errors
/// When the staging folder cannot be listed.
pub fn remove_abandoned(logdir: &Path, now: SystemTime, older_than: Duration) -> Result<usize, SessionError> {
    let path = path(logdir);
    let mut staging = match open(&path) {
        Ok(staging) => staging,
        // Missing, a link, or another user's.
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::EACCES) => return Ok(0),
        Err(error) => return Err(failed("list", &path)(error.into())),
    };
    if !fstat(&staging).is_ok_and(|stat| is_ours_alone(&stat)) {
        return Ok(0);
    }
    let names = names(&mut staging).map_err(|error| failed("list", &path)(error.into()))?;
    let removed = names.iter().filter(|name| {
        let Ok(mut staged) = Dir::openat(&staging, name.as_c_str(), OFlag::O_DIRECTORY | SAFE, Mode::empty())
        else {
            return false;
        };
        let idle = last_touched(&mut staged).and_then(|at| now.duration_since(at).ok());
        let old = |idle| match writer(&mut staged) {
            Writer::Living => false,
            Writer::Dead => idle >= older_than.min(GRACE),
            Writer::Unknown => idle >= older_than,
        };
        idle.is_some_and(old) && remove(&mut staged).is_ok() && remove_folder(&staging, name).is_ok()
    });
    let removed = removed.count();
    if removed > 0 {
        remove_if_empty(Some(&path));
    }
    Ok(removed)
}

fn remove_staged(folder: &Path) -> io::Result<()> {
    remove(&mut open(folder)?)?;
    fs::remove_dir(folder)
}

/// Removes a folder whose writer has died; false where that is not certain.
///
/// Its file is locked meanwhile: of several who find it dead one removes it, and the others learn from the file's
/// place that it is not there any more, so that none of them removes what replaced it.
pub(super) fn remove_dead(folder: &Path) -> io::Result<bool> {
    let mut staged = open(folder)?;
    let Some((name, Some(held))) = first_file(&mut staged).map(|(name, file)| (name, lock(&file))) else {
        return Ok(false);
    };
    let there = fs::symlink_metadata(folder.join(OsStr::from_bytes(name.to_bytes())))?;
    let same = held.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (there.dev(), there.ino()));
    if same {
        remove(&mut staged)?;
        fs::remove_dir(folder)?;
    }
    Ok(same)
}

/// The lock that a writer holds on its file; `None` where the file system has none, and age alone tells.
pub(super) fn lock(file: &File) -> Option<Flock<File>> {
    Flock::lock(file.try_clone().ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// A new file of a writer; it must not be there already.
pub(super) fn create_file(path: &Path) -> Result<File, SessionError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(FILE_MODE);
    options.open(path).map_err(failed("create", path))
}

fn open(folder: &Path) -> nix::Result<Dir> {
    Dir::open(folder, OFlag::O_DIRECTORY | SAFE, Mode::empty())
}

/// Only this user can have written there.
fn is_ours_alone(stat: &FileStat) -> bool {
    stat.st_uid == Uid::effective().as_raw() && stat.st_mode & 0o022 == 0
}

fn names(folder: &mut Dir) -> nix::Result<Vec<CString>> {
    let names = folder.iter().map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    names.filter(|name| !name.as_deref().is_ok_and(|name| name == c"." || name == c"..")).collect()
}

/// Removes the files of a folder; what is no file stays, and the folder with it.
fn remove(folder: &mut Dir) -> nix::Result<()> {
    names(folder)?.iter().try_for_each(|name| unlinkat(&*folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir))
}

fn remove_folder(parent: &Dir, name: &CStr) -> nix::Result<()> {
    unlinkat(parent, name, UnlinkatFlags::RemoveDir)
}

/// What is known of the writer of a staged folder.
enum Writer {
    Living,
    Dead,
    /// There is no file yet, or no lock on this file system.
    Unknown,
}

fn writer(folder: &mut Dir) -> Writer {
    let Some((_, file)) = first_file(folder) else { return Writer::Unknown };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => Writer::Dead,
        Err((_, Errno::EWOULDBLOCK)) => Writer::Living,
        Err(_) => Writer::Unknown,
    }
}

/// The file that a writer locks.
fn first_file(folder: &mut Dir) -> Option<(CString, File)> {
    let name = names(folder).ok()?.into_iter().next()?;
    let file =
        openat(&*folder, name.as_c_str(), OFlag::O_WRONLY | SAFE, Mode::empty()).map(File::from).ok()?;
    file.metadata().is_ok_and(|meta| meta.is_file()).then_some((name, file))
}

/// When the staged folder or a file in it last changed.
fn last_touched(folder: &mut Dir) -> Option<SystemTime> {
    let names = names(folder).ok()?;
    let files =
        names.iter().filter_map(|name| fstatat(&*folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok());
    files.chain(fstat(&*folder).ok()).filter_map(|stat| changed(&stat)).max()
}

fn changed(stat: &FileStat) -> Option<SystemTime> {
    let since = Duration::new(stat.st_mtime.try_into().ok()?, stat.st_mtime_nsec.try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}
