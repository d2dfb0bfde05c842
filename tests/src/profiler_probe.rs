//! Whether a workload's profiler is free, and captures that are in their window: seen from outside, by a short capture
//! as of another program. It must never take a capture for one in its window that a probe has made fail.

use crate::{
    command::{RunningCommand, run},
    wait::{LIMIT, until},
};
use nix::sys::signal::Signal;
use std::time::Instant;

/// Whether a plain profile succeeds, as of another program; otherwise the profiler must be in use.
///
/// # Panics
/// If the probe ends in another way.
pub fn is_free(target: &str) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let probe = run(folder.path(), &["capture", "--target", target, "--duration", "20ms"]);
    // 14: a short window in which nothing was recorded.
    assert!(matches!(probe.code, Some(0 | 13 | 14)), "{probe:?}");
    probe.code != Some(13)
}

/// Waits until the profiler is free.
///
/// # Panics
/// If it is not in time.
pub fn becomes_free(target: &str) {
    until("the profiler to be free", || is_free(target));
}

/// A capture as `start` starts it, with all of `targets` in use by it. A probe that comes first makes a capture fail
/// as busy, or go on without a target: then another one is started.
///
/// # Panics
/// If none comes to its window.
pub fn capture_in_window(targets: &[String], mut start: impl FnMut() -> RunningCommand) -> RunningCommand {
    let first = Instant::now();
    let mut ends = Vec::new();
    while first.elapsed() < LIMIT {
        let (mut capture, begin) = (start(), Instant::now());
        while capture.alive() && begin.elapsed() < LIMIT / 4 {
            if !targets.iter().any(|target| is_free(target)) && capture.alive() {
                return capture;
            }
        }
        ends.push(if capture.alive() { capture.signal_and_end(Signal::SIGINT) } else { capture.end() });
    }
    panic!("no capture came to its window: {ends:?}");
}
