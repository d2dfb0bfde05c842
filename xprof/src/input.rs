//! Where a trace comes from: something with a name that can be opened more than once.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

/// Something that can be read anywhere.
pub trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// One trace.
pub trait Input {
    /// What it is called in reports and errors.
    fn name(&self) -> String;

    /// Opens it anew, at its start.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self) -> io::Result<Box<dyn ReadSeek>>;
}

/// A trace in a file.
#[derive(Debug, Clone)]
pub struct FileInput(PathBuf);

impl FileInput {
    /// The trace at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Input for FileInput {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn open(&self) -> io::Result<Box<dyn ReadSeek>> {
        Ok(Box::new(open_regular(&self.0)?))
    }
}

/// Opens a regular file to be read. A pipe would be waited for, a device never ends, and what the kernel
/// makes up (`/proc/self/mem`) has no length: they are [`io::ErrorKind::InvalidInput`].
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Asked before it is opened: opening alone can already set a device to work.
    if !std::fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    let mut options = OpenOptions::new();
    // The file may be another by now: opening a pipe must not block.
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let meta = file.metadata()?;
    let made_up = || meta.len() == 0 && !matches!((&file).read(&mut [0]), Ok(0));
    if !meta.is_file() || made_up() {
        return Err(irregular());
    }
    Ok(file)
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"").unwrap();
        open_regular(&file).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [folder.path(), &socket, Path::new("/dev/zero"), Path::new("/proc/self/mem")] {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
    }
}
