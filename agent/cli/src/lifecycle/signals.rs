//! The signals that end a process in good order.

use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a command to stop.
#[derive(Debug)]
pub struct StopSignals {
    term: Signal,
    int: Signal,
    hangup: Option<Signal>,
}

impl StopSignals {
    /// From now on these signals no longer end the process by themselves.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: None,
        })
    }

    /// The end of the terminal too, unless it is to be ignored (`nohup`).
    pub fn with_hangup() -> io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { hangup, ..Self::new()? })
    }

    /// The next one, by name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            Some(()) = async { self.hangup.as_mut()?.recv().await } => "SIGHUP",
        }
    }
}

/// Whether this process was started with SIGHUP ignored: a handler would undo that.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
