//! A part while it is received. Its files are opened, written and removed on threads that may block.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use tokio::runtime::Handle;
use tokio_util::task::task_tracker::TaskTrackerToken;
use xprof::session::PartWriter;

/// The writer of a part. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct StagedPart {
    writer: Option<PartWriter>,
    /// Dropped once the files are closed.
    open: TaskTrackerToken,
}

impl StagedPart {
    /// A part that was just created. `open` is dropped once its files are closed.
    pub(crate) fn new(part: PartWriter, open: TaskTrackerToken) -> Self {
        Self { writer: Some(part), open }
    }

    /// The writer, to commit the part.
    pub(super) fn into_writer(mut self) -> PartWriter {
        self.writer.take().expect("the writer is taken once, here")
    }

    /// Where its bytes lie until it is committed.
    pub(super) fn path(&self) -> PathBuf {
        self.writer.as_ref().map(|part| part.staged().to_owned()).unwrap_or_default()
    }

    fn writer(&mut self) -> &mut PartWriter {
        self.writer.as_mut().expect("the writer is taken only with the part")
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
        let Some(part) = self.writer.take() else { return };
        match Handle::try_current() {
            // Removing files may block, and this may be the thread that must not.
            Ok(runtime) => {
                let open = self.open.clone();
                drop(runtime.spawn_blocking(move || {
                    drop(part);
                    drop(open);
                }));
            }
            Err(_) => drop(part),
        }
    }
}
