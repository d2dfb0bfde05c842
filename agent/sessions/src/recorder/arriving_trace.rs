//! A trace of the recorder while it is received. Its file is removed on a thread that may block.

use std::io::{self, Write};

use store::segments::RawTrace;
use tokio::runtime::Handle;

/// The file of a trace that arrives. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct ArrivingTrace(Option<RawTrace>);

impl ArrivingTrace {
    pub(super) fn new(raw: RawTrace) -> Self {
        Self(Some(raw))
    }

    /// The file, complete.
    pub(super) fn into_raw(mut self) -> RawTrace {
        self.0.take().expect("the file is taken once, here")
    }

    fn raw(&mut self) -> &mut RawTrace {
        self.0.as_mut().expect("the file is taken only with the trace")
    }
}

impl Write for ArrivingTrace {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.raw().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.raw().flush()
    }
}

impl Drop for ArrivingTrace {
    fn drop(&mut self) {
        let Some(raw) = self.0.take() else { return };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(raw))),
            Err(_) => drop(raw),
        }
    }
}
