//! The signals that stop a process in an orderly way, and the one that makes the agent read its settings again.

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
    /// Handles SIGTERM and SIGINT. They no longer end the process.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: None,
        })
    }

    /// Handles SIGHUP too, unless the process ignores it (`nohup`).
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn with_hangup() -> io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { hangup, ..Self::new()? })
    }

    /// Waits for a signal. Returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            Some(()) = async { self.hangup.as_mut()?.recv().await } => "SIGHUP",
        }
    }
}

/// SIGHUP as the request to read the settings again.
#[derive(Debug)]
pub struct ReloadSignals(Signal);

impl ReloadSignals {
    /// Handles SIGHUP. It no longer ends the process.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Waits for a signal. Signals that come meanwhile count as one.
    pub async fn next(&mut self) {
        // `None` would mean that the runtime has ended, and this task with it.
        let _ = self.0.recv().await;
    }
}

/// Whether the process was started with SIGHUP ignored. A handler would undo that.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
