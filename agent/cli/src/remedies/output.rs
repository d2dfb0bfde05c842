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
    Failure::new(exit, format_args!("cannot write {what} to {}: {error}", folder.display()))
        .remedy("name a folder that you can write to")
}
