//! The guard: a process of its own that stops the sessions of an agent that died or hangs.
//!
//! It waits in `poll` for the agent's lines on standard input and answers on standard output (see [`super::guarded`]). At the
//! end of input it stops what is left and ends. It holds no file, no socket and no right of the agent, and no session of it
//! depends on it: one that dies is started again by the agent. Until it has something to stop it has no runtime and no
//! thread, so that it needs as little memory as a process can.
//!
//! Must never end before the sessions are over or its time for them is, whatever signal a service manager or a terminal
//! sends: the end of input is the only sign that counts.

use std::{
    ffi::CStr,
    fs,
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::Duration,
};

use host::own_rights::{self, RightsError};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
    time::{ClockId, clock_gettime},
    unistd,
};

use super::{
    guarded::{GuardSays, GuardedSessions, MAX_LINE},
    ownership::{OwnedSession, PidScope, ProcessStanding},
    recorded_sessions::stop_recorded,
};

/// The hidden subcommand of the program that calls [`run`].
pub const SUBCOMMAND: &str = "profiler-guard";

/// The name of the process, as in a list of processes.
const NAME: &CStr = c"tpuscope";
/// How long the guard tries to stop the sessions of an agent that is gone: a workload that is stopped may go on by then.
const AFTER_THE_END: Duration = Duration::from_secs(300);
/// How long it tries while the agent may still live.
pub(super) const WHILE_SILENT: Duration = Duration::from_secs(20);

/// Why the guard ended early.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Rights could not be given up.
    #[error(transparent)]
    Rights(#[from] RightsError),
    /// Standard input or output failed.
    #[error("the conversation with the agent broke: {0}")]
    Conversation(#[from] io::Error),
}

/// Runs the guard until standard input ends and the sessions are over. `records` is the folder with the records, from which
/// the guard removes those of sessions that it stopped.
///
/// # Errors
/// If it cannot become a guard: the agent then starts no session.
pub fn run(records: &Path) -> Result<(), GuardError> {
    // A session of its own: no signal of a terminal, and no end with the agent's process group. It fails in a process that
    // leads its group, which has one already.
    let _ = unistd::setsid();
    // As a program that is started by way of `/proc/self/exe` it would be shown as `exe`.
    let _ = prctl::set_name(NAME);
    ignore_signals()?;
    let scope = PidScope::own()?;
    own_rights::give_up()?;
    let mut guard = GuardLoop {
        sessions: GuardedSessions::default(),
        scope,
        records: records.to_owned(),
        unread: Vec::new(),
    };
    while guard.listen()? {
        let silent = guard.sessions.take_silent(now());
        guard.stop(silent, WHILE_SILENT, true);
    }
    let left = guard.sessions.take_all();
    guard.stop(left, AFTER_THE_END, false);
    Ok(())
}

/// Signals that others send to all processes of a group or a service.
fn ignore_signals() -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP] {
        signals.add(signal);
    }
    Ok(sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?)
}

/// The time since an instant that never changes while the host runs; the time in which it sleeps does not count.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

struct GuardLoop {
    sessions: GuardedSessions,
    scope: PidScope,
    records: PathBuf,
    unread: Vec<u8>,
}

impl GuardLoop {
    /// Reads what the agent has written, or waits until a silence is too long. Returns whether the agent is still there.
    fn listen(&mut self) -> io::Result<bool> {
        let mut wait = self.sessions.next_silence().map(|until| until.saturating_sub(now()));
        loop {
            if !is_readable(wait)? {
                return Ok(true);
            }
            let mut bytes = [0; 4096];
            // Not buffered: `poll` does not see what waits in a buffer.
            let count = match unistd::read(io::stdin().as_fd(), &mut bytes) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.unread.extend_from_slice(&bytes[..count]);
            self.take_lines();
            // All that waits is read before any silence is judged.
            wait = Some(Duration::ZERO);
        }
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            let can_tell = |session: &OwnedSession| self.scope.process_of(session) == ProcessStanding::Runs;
            if let Some(says) = self.sessions.take(&line, now(), can_tell) {
                say(&says);
            }
        }
        if self.unread.len() > MAX_LINE {
            self.unread.clear();
        }
    }

    /// Stops these sessions and removes the records of those that are over.
    fn stop(&self, sessions: Vec<OwnedSession>, within: Duration, agent_may_live: bool) {
        if sessions.is_empty() {
            return;
        }
        if agent_may_live {
            sessions.iter().for_each(|session| say(&GuardSays::Stopping(session.name())));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Without a runtime the records stay, and the next agent stops the sessions.
        let Ok(runtime) = runtime else { return };
        for (session, end) in runtime.block_on(stop_recorded(sessions, self.scope.clone(), within)) {
            let over = end.is_over();
            if over {
                // The record of a session that is over only makes the next agent ask once more.
                let _ = fs::remove_file(self.records.join(session.name()));
            }
            if agent_may_live {
                let says = if over { GuardSays::Stopped } else { GuardSays::NotStopped };
                say(&says(session.name()));
            }
        }
    }
}

/// Tells the agent; one that is gone needs no answer, and one that hangs is not waited for.
fn say(says: &GuardSays) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(says.line().as_bytes()).and_then(|()| output.flush());
}

/// Waits until standard input has something, or its end.
fn is_readable(wait: Option<Duration>) -> io::Result<bool> {
    let input = io::stdin();
    let timeout = match wait {
        None => PollTimeout::NONE,
        // Rounded up: to wake before the time would be to wake twice.
        Some(wait) => PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
