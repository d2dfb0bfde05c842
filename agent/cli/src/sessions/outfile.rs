//! The output file of a command. It appears when it is complete, or not at all.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
};

use super::interrupt;
use crate::{
    failure::Failure,
    remedies::{OutputConflict, not_a_folder, output_conflict, standard_output, unwritten},
};

/// Checks that `path` is a folder, or can become one, before anything is done for it: neither it nor what it lies in is
/// a file.
pub(crate) fn is_a_folder_or_new(path: &Path) -> Result<(), Failure> {
    // Without a slash at its end, behind which nothing is found of a file.
    let path: PathBuf = path.components().collect();
    let there = path.ancestors().find(|there| fs::metadata(there).is_ok());
    match there {
        Some(there) if !there.is_dir() => Err(not_a_folder(there)),
        _ => Ok(()),
    }
}

/// Traces can contain data of the job, so only the owner and the group can read them.
const MODE: u32 = 0o640;

/// The output under a temporary name in the same folder while it is written. Dropping the value removes it.
#[derive(Debug)]
pub(super) struct OutFile {
    path: PathBuf,
    partial: PathBuf,
}

impl OutFile {
    /// Creates the temporary file for `path`, which may replace a regular file, but none of `inputs`. A link is followed:
    /// its target is replaced.
    pub(super) fn create(path: &Path, inputs: &[&Path]) -> Result<(Self, File), Failure> {
        if path.as_os_str() == "-" {
            return Err(standard_output());
        }
        let path = checked(path, inputs)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.partial", process::id()));
        // A killed process with this pid may have left it. It may be a link, so it is never written through.
        let _ = fs::remove_file(&partial);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        interrupt::remove_on_interrupt(&partial);
        let file = options.open(&partial).map_err(|error| unwritten(&path, &error))?;
        Ok((Self { path, partial }, file))
    }

    /// Makes `file` durable and gives it its name.
    pub(super) fn finish(self, file: &File) -> Result<(), Failure> {
        file.sync_all()
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .map_err(|error| unwritten(&self.path, &error))
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = fs::remove_file(&self.partial);
    }
}

/// The path of the file with links resolved. Only a regular file is replaced: a rename would turn a device, a pipe or a
/// socket into a file.
fn checked(path: &Path, inputs: &[&Path]) -> Result<PathBuf, Failure> {
    let conflict = |conflict| output_conflict(path, conflict);
    if fs::symlink_metadata(path).is_err() {
        return Ok(path.to_owned());
    }
    let metadata = fs::metadata(path).map_err(|_| conflict(OutputConflict::DanglingLink))?;
    let same = |input: &Path| {
        fs::metadata(input).is_ok_and(|input| (input.dev(), input.ino()) == (metadata.dev(), metadata.ino()))
    };
    if metadata.is_dir() {
        return Err(conflict(OutputConflict::Folder));
    }
    if !metadata.is_file() {
        return Err(conflict(OutputConflict::NotRegular));
    }
    if inputs.iter().any(|input| same(input)) {
        return Err(conflict(OutputConflict::Input));
    }
    path.canonicalize().map_err(|_| conflict(OutputConflict::DanglingLink))
}
