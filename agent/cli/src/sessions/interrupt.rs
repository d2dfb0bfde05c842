//! Removes unfinished files when a command is interrupted.
//!
//! SIGINT, SIGTERM and SIGHUP end the command in the same way: unfinished files are removed, and the exit code is that of an
//! interrupted command. A signal that the caller ignores (`nohup`, a background job) stays ignored.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
    thread,
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// The unfinished files and folders. A finished file has another name, so it is never removed.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Registers a file, or a folder that is removed only while it is empty.
pub(super) fn remove_on_interrupt(path: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Handles the signals from now on.
pub(super) fn watch() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let signals = {
        let _inside = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(handled)
    };
    thread::spawn(move || {
        let [interrupt, terminate, hangup] = signals;
        runtime.block_on(async {
            tokio::select! {
                () = received(interrupt) => {}
                () = received(terminate) => {}
                () = received(hangup) => {}
            }
        });
        let paths = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths.iter().rev() {
            // The process ends even if a file cannot be removed.
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
        }
        process::exit(Exit::Interrupted as i32);
    });
}

fn handled(kind: SignalKind) -> Option<Signal> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignored(&status, kind.as_raw_value()) { None } else { signal(kind).ok() }
}

async fn received(signal: Option<Signal>) {
    match signal {
        Some(mut signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether `/proc/self/status` lists the signal as ignored.
fn ignored(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_the_caller_ignores_stays_ignored() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(ignored(status, 1) && ignored(status, 13));
        assert!(!ignored(status, 2) && !ignored(status, 15));
        assert!(!ignored("", 1));
    }
}
