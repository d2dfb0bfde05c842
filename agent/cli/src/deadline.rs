//! Work that may hang, such as a read from a disk that does not answer: it has a thread of its own, and is left at its limit.
//!
//! Work that hangs cannot be ended. Its thread stays until the process ends.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfinished {
    /// It did not end in time.
    #[error("it did not end in time")]
    Late,
    /// It panicked.
    #[error("it panicked")]
    Panicked,
    /// It could not be started.
    #[error("cannot start a thread: {0}")]
    NotStarted(#[from] io::Error),
}

/// The result of `work`, if it comes within `limit`. `name` is that of the thread.
///
/// # Errors
/// If it does not come.
pub(crate) fn within<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unfinished> {
    let (tell, told) = mpsc::channel();
    let work = move || {
        // Nobody waits for a late result.
        let _ = tell.send(work());
    };
    thread::Builder::new().name(name.to_owned()).spawn(work)?;
    told.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => Unfinished::Late,
        RecvTimeoutError::Disconnected => Unfinished::Panicked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_that_hangs_or_panics_has_no_result() {
        let (end, wait) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = wait.recv();
        };
        assert!(matches!(within("hangs", Duration::from_millis(1), hangs), Err(Unfinished::Late)));
        drop(end);
        let panics = || -> u32 { panic!("a fault") };
        assert!(matches!(within("panics", LONG, panics), Err(Unfinished::Panicked)));
        assert_eq!(within("works", LONG, || 7).unwrap(), 7);
    }
}
