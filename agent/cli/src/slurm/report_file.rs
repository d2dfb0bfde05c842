//! The file of a report, which the user of a job asked for with a variable.
//!
//! Must never write as root, outside of the folder of the job, or through a symbolic link: what another program puts at the
//! name is replaced if it is a regular file, and left alone otherwise.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use model::untrusted::{MESSAGE, clean};
use nix::unistd::geteuid;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, renameat, statat, unlinkat,
};

/// The variable of the user.
pub(super) const VARIABLE: &str = "TPUSCOPE_REPORT";

/// The longest name, bytes: as Linux limits the name of a file.
const LONGEST: usize = 255;

/// Why a report is not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportFileError {
    /// The variable has no usable name.
    #[error("{VARIABLE} is `{value}`: {wrong}")]
    Name {
        /// What it has.
        value: String,
        /// What is wrong with it.
        wrong: &'static str,
    },
    /// The user is root.
    #[error("no report is written as root")]
    Root,
    /// The folder cannot be opened.
    #[error("cannot open the folder {folder}: {error}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
    /// Something that is no regular file has the name.
    #[error("{0} exists and is no regular file")]
    Taken(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {file}: {error}")]
    Write {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        error: io::Error,
    },
}

/// The name of a report below the folder of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReportName {
    path: PathBuf,
    of_one_host: bool,
}

impl ReportName {
    /// The name of the pattern: `%j` is the job, `%N` the node, `%%` a percent sign, as in the names of Slurm's own files.
    ///
    /// # Errors
    /// If it is no name of a file in or below the folder of the job.
    pub(super) fn of(pattern: &str, job: u32, node: &str) -> Result<Self, ReportFileError> {
        let fault = |wrong| ReportFileError::Name { value: clean(pattern, MESSAGE), wrong };
        let (mut name, mut of_one_host, mut rest) = (String::new(), false, pattern.chars());
        while let Some(c) = rest.next() {
            match (c, (c == '%').then(|| rest.next())) {
                (_, None) => name.push(c),
                (_, Some(Some('%'))) => name.push('%'),
                (_, Some(Some('j'))) => name.push_str(&job.to_string()),
                (_, Some(Some('N'))) => {
                    of_one_host = true;
                    name.push_str(node);
                }
                (_, Some(_)) => return Err(fault("after % only j, N and % are known")),
            }
        }
        let path = PathBuf::from(&name);
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || path.file_name().is_none() || name.ends_with('/') {
            return Err(fault("expected the name of a file below the job's folder, without `..`"));
        }
        if name.len() > LONGEST || name.chars().any(char::is_control) {
            return Err(fault("expected a name of at most 255 bytes, without control characters"));
        }
        Ok(Self { path, of_one_host })
    }

    /// Whether each host has a report of its own.
    pub(super) fn is_of_one_host(&self) -> bool {
        self.of_one_host
    }
}

/// Writes the report below `folder`. It is there whole, or not at all.
///
/// # Errors
/// If it cannot be written, or must not be.
pub(super) fn write(folder: &Path, name: &ReportName, text: &str) -> Result<(), ReportFileError> {
    if geteuid().is_root() { Err(ReportFileError::Root) } else { write_as_user(folder, name, text) }
}

fn write_as_user(folder: &Path, name: &ReportName, text: &str) -> Result<(), ReportFileError> {
    let file = folder.join(&name.path);
    let into = open_parent(folder, &name.path)
        .map_err(|error| ReportFileError::Folder { folder: parent_of(&file), error })?;
    let last = name.path.file_name().unwrap_or_default();
    match statat(&into, last, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) if FileType::from_raw_mode(there.st_mode) != FileType::RegularFile => {
            return Err(ReportFileError::Taken(file));
        }
        _ => {}
    }
    // A rename replaces what has the name; it does not follow a link that came meanwhile.
    let temporary = format!(".tpuscope-report-{}-{:08x}", std::process::id(), fastrand::u32(..));
    let written = write_new(into.as_fd(), &temporary, text)
        .and_then(|()| Ok(renameat(&into, &temporary, &into, last)?));
    written.map_err(|error| {
        // It may not be there.
        let _ = unlinkat(&into, &temporary, AtFlags::empty());
        ReportFileError::Write { file, error }
    })
}

fn parent_of(file: &Path) -> PathBuf {
    file.parent().map(Path::to_owned).unwrap_or_default()
}

/// The folder of the file, reached from `folder` without a link.
fn open_parent(folder: &Path, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags, Mode::empty())?;
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(folder);
    };
    let below = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&folder, parent, flags, Mode::empty(), below)?)
}

fn write_new(folder: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(folder, name, flags, Mode::from_raw_mode(0o644))?);
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn name(pattern: &str) -> ReportName {
        ReportName::of(pattern, 12, "n1").unwrap()
    }

    #[test]
    fn a_name_has_the_job_and_the_node() {
        let named = name("out/%j-%N-100%%.txt");
        assert_eq!((named.path.to_str(), named.of_one_host), (Some("out/12-n1-100%.txt"), true));
        assert!(!name("report.txt").is_of_one_host());
        for (wrong, node) in [
            ("/etc/passwd", "n1"),
            ("../x", "n1"),
            ("a/../../x", "n1"),
            ("", "n1"),
            (".", "n1"),
            ("a/", "n1"),
            ("%x", "n1"),
            ("a%", "n1"),
            ("a\nb", "n1"),
            ("%N", "../x"),
        ] {
            assert!(ReportName::of(wrong, 12, node).is_err(), "{wrong} {node}");
        }
        assert!(ReportName::of(&"x".repeat(256), 12, "n1").is_err());
        let error = ReportName::of("%t", 12, "n1").unwrap_err();
        assert_eq!(error.to_string(), "TPUSCOPE_REPORT is `%t`: after % only j, N and % are known");
    }

    #[test]
    fn only_a_regular_file_is_replaced_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (work, elsewhere) = (dir.path().join("work"), dir.path().join("elsewhere"));
        fs::create_dir_all(work.join("sub")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), "mine").unwrap();
        for text in ["one", "two"] {
            write_as_user(&work, &name("sub/r"), text).unwrap();
            assert_eq!(fs::read_to_string(work.join("sub/r")).unwrap(), text);
        }
        symlink(elsewhere.join("file"), work.join("link")).unwrap();
        symlink(&elsewhere, work.join("folder")).unwrap();
        for taken in ["link", "folder", "sub"] {
            let error = write_as_user(&work, &name(taken), "x").unwrap_err();
            assert!(matches!(error, ReportFileError::Taken(_)), "{taken}: {error}");
        }
        for closed in ["folder/file", "none/file"] {
            let error = write_as_user(&work, &name(closed), "x").unwrap_err();
            assert!(matches!(error, ReportFileError::Folder { .. }), "{closed}: {error}");
        }
        assert_eq!(fs::read_to_string(elsewhere.join("file")).unwrap(), "mine");
        // Nothing of a refused report stays.
        assert_eq!(fs::read_dir(work.join("sub")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&work).unwrap().count(), 3);
    }
}
