//! Where a trace comes from: something with a name that can be opened more than once.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::{Path, PathBuf},
};

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
        Ok(Box::new(File::open(&self.0)?))
    }
}
