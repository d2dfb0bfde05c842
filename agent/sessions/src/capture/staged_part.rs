//! A part while it is received. Its files are opened, written and removed on threads that may block.

use std::io::{self, Write};

use tokio::runtime::Handle;
use xprof::session::PartWriter;

/// The writer of a part. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct StagedPart(Option<PartWriter>);

impl StagedPart {
    /// A part that was just begun.
    pub(crate) fn new(part: PartWriter) -> Self {
        Self(Some(part))
    }

    /// The writer, to commit the part.
    pub(super) fn into_writer(mut self) -> PartWriter {
        self.0.take().expect("the writer is taken once, here")
    }

    fn writer(&mut self) -> &mut PartWriter {
        self.0.as_mut().expect("the writer is taken only with the part")
    }
}

impl Write for StagedPart {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

impl Drop for StagedPart {
    fn drop(&mut self) {
        let Some(part) = self.0.take() else { return };
        match Handle::try_current() {
            // Removing files may block, and this may be the thread that must not.
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(part))),
            Err(_) => drop(part),
        }
    }
}
