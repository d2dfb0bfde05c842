//! What an interrupted command leaves behind: nothing.
//!
//! Ctrl-C, a polite kill and a closed terminal end the command in the same way: what it was still making is
//! removed and the exit code says that it was interrupted. A signal that the caller had ignored (`nohup`, a job
//! in the background) stays ignored.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
    thread,
};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// What is not finished. What was put in its place since has another name, so nothing whole is removed.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Names a file, or a folder for as long as it is empty, that must not stay when the command is interrupted.
pub(super) fn leaves(place: &Path) {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner).push(place.to_owned());
}

/// From now on an interrupted command cleans up.
pub(super) fn watch() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let asked = {
        let _inside = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(heeded)
    };
    thread::spawn(move || {
        let [interrupt, terminate, hangup] = asked;
        runtime.block_on(async {
            tokio::select! {
                () = received(interrupt) => {}
                () = received(terminate) => {}
                () = received(hangup) => {}
            }
        });
        let places = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places.iter().rev() {
            // The process ends here, whatever becomes of them.
            let _ = fs::remove_file(place).or_else(|_| fs::remove_dir(place));
        }
        process::exit(Exit::Interrupted as i32);
    });
}

fn heeded(kind: SignalKind) -> Option<Signal> {
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

/// Whether `/proc/self/status` has the signal among the ignored ones.
fn ignored(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (number - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_caller_ignores_stays_ignored() {
        let status = "SigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(ignored(status, 1) && ignored(status, 13));
        assert!(!ignored(status, 2) && !ignored(status, 15));
        assert!(!ignored("", 1));
    }
}
