//! Standard output, the manual pages and event files: what cannot be written.

use std::{io, path::Path};

use crate::{exit::Exit, failure::Failure};

/// Standard output cannot be written.
pub(crate) fn unprinted(error: &io::Error) -> Failure {
    let what = format_args!("cannot write to standard output: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Failure::new(Exit::NoSpace, what).remedy("free disk space at its destination")
        }
        _ => Failure::new(Exit::Internal, what),
    }
}

/// The manual pages cannot be written to `folder`.
pub(crate) fn manual_pages(folder: &Path, error: &io::Error) -> Failure {
    unwritten_to("the manual pages", folder, error)
}

/// An event file for TensorBoard cannot be written below `folder`.
pub(crate) fn event_file(folder: &Path, error: &io::Error) -> Failure {
    unwritten_to("an event file", folder, error)
}

fn unwritten_to(what: &str, folder: &Path, error: &io::Error) -> Failure {
    let exit = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Exit::Permission,
        // The path is a file, or the file system has no folders.
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
            Exit::Permission
        }
        _ => Exit::Internal,
    };
    let remedy = match error.kind() {
        _ if folder.as_os_str().is_empty() => "name a folder: `.` is the one where you are",
        _ if exit == Exit::NoSpace => "free disk space there, or name a folder on another disk",
        // Before the folders are made, nothing is wrong with a link: this one leads nowhere.
        io::ErrorKind::AlreadyExists => {
            "remove what has the name of the folder, perhaps a link that leads nowhere, or name another one"
        }
        io::ErrorKind::NotADirectory => {
            "remove the link or the file that is in the way, or name another folder"
        }
        _ => "name a folder that you can write to",
    };
    Failure::new(exit, format_args!("cannot write {what} to {}: {error}", folder.display())).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_fits_what_is_wrong() {
        let remedy = |folder: &str, kind: io::ErrorKind| {
            let failure = event_file(Path::new(folder), &kind.into());
            (failure.exit, failure.remedy)
        };
        let (exit, said) = remedy("d", io::ErrorKind::StorageFull);
        assert!(exit == Exit::NoSpace && said.starts_with("free disk space"), "{said}");
        for (folder, kind, says) in [
            ("", io::ErrorKind::NotFound, "name a folder: "),
            ("d", io::ErrorKind::NotADirectory, "remove the link or the file"),
            ("d", io::ErrorKind::AlreadyExists, "a link that leads nowhere"),
            ("d", io::ErrorKind::PermissionDenied, "name a folder that you can write to"),
        ] {
            let (exit, said) = remedy(folder, kind);
            assert!(exit == Exit::Permission && said.contains(says), "{kind}: {said}");
        }
    }
}
