//! A file that a command makes: there as a whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
};

use super::interrupt;
use crate::exit::{Exit, Failure};

/// Traces may hold what a job computes on: nobody outside the group reads them.
const MODE: u32 = 0o640;

/// The output while it is being written, under another name beside its place. Gone when dropped.
#[derive(Debug)]
pub(super) struct OutFile {
    place: PathBuf,
    partial: PathBuf,
}

impl OutFile {
    /// Begins the file at `place`, which may replace another regular file, but none of `inputs`. A link is
    /// followed: what it points to is replaced, not the link.
    pub(super) fn create(place: &Path, inputs: &[&Path]) -> Result<(Self, File), Failure> {
        let place = checked(place, inputs)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let partial = place.with_file_name(format!(".{name}.{}.partial", process::id()));
        // Left by a process of this number that was killed; never written through, it may be a link.
        let _ = fs::remove_file(&partial);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        interrupt::leaves(&partial);
        let file = options.open(&partial).map_err(|error| unwritten(&place, &error))?;
        Ok((Self { place, partial }, file))
    }

    /// Makes `file` durable and puts it in its place.
    pub(super) fn finish(self, file: &File) -> Result<(), Failure> {
        file.sync_all()
            .and_then(|()| fs::rename(&self.partial, &self.place))
            .map_err(|error| unwritten(&self.place, &error))
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        // Renamed away in the good case.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Where the file goes, links followed. A rename would turn a device, a pipe or a socket into a file, so only
/// a regular file is replaced.
fn checked(place: &Path, inputs: &[&Path]) -> Result<PathBuf, Failure> {
    let conflict = |what: &str| Failure::new(Exit::Conflict, format_args!("{} {what}", place.display()));
    if fs::symlink_metadata(place).is_err() {
        return Ok(place.to_owned());
    }
    let dangling = |_| conflict("is a link that leads nowhere").remedy("name a regular file after -o");
    let there = fs::metadata(place).map_err(dangling)?;
    if there.is_dir() {
        return Err(conflict("is a folder").remedy("name a file after -o"));
    }
    if !there.is_file() {
        return Err(
            conflict("is not a regular file: it is left alone").remedy("name a regular file after -o")
        );
    }
    let same = |input: &Path| {
        fs::metadata(input).is_ok_and(|input| (input.dev(), input.ino()) == (there.dev(), there.ino()))
    };
    if inputs.iter().any(|input| same(input)) {
        return Err(
            conflict("is one of the inputs: it is not overwritten").remedy("name another file after -o")
        );
    }
    place.canonicalize().map_err(dangling)
}

/// What could not be written, as a failure of the command.
pub(super) fn unwritten(place: &Path, error: &io::Error) -> Failure {
    let failure = |exit| Failure::new(exit, format_args!("cannot write {}: {error}", place.display()));
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure(Exit::NoSpace).remedy("free some space, or write to another disk")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            failure(Exit::Permission).remedy("write to a folder that is yours")
        }
        io::ErrorKind::NotFound => failure(Exit::NotFound).remedy("create the folder first"),
        _ => failure(Exit::Internal),
    }
}
