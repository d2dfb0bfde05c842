//! Captures of one fixed window: how much longer a command takes than the window, ours and xprof's own client.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use fakes::harness::{peer, workspace};

/// The window of each capture; on a command line `1s`.
pub const WINDOW: Duration = Duration::from_secs(1);
/// How often a capture is measured.
pub const ROUNDS: usize = 5;
/// What is promised, in seconds.
pub const MOST_BEYOND: f64 = 0.15;

/// Seconds beyond the window of a capture.
///
/// # Panics
/// If the command fails.
pub fn beyond(capture: &mut Command) -> f64 {
    let begin = Instant::now();
    let output = capture.output().unwrap();
    let took = begin.elapsed();
    assert!(output.status.success(), "{output:?}");
    (took - WINDOW).as_secs_f64()
}

/// Seconds beyond the window of a capture of these profilers by xprof's client, as it measures them itself: the start of the
/// interpreter is apart.
///
/// # Panics
/// If it fails.
pub fn xprof_beyond(targets: &[String]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let script = workspace().join("benches/scripts/xprof_trace.py");
    let mut command = Command::new(peer("xprof/bin/python"));
    command.arg(script).arg(targets.join(",")).arg(folder.path()).arg(WINDOW.as_millis().to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Its client talks on standard output too.
    let took: f64 = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().parse().unwrap();
    took - WINDOW.as_secs_f64()
}

/// The middle one of some measurements.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
