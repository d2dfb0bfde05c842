//! A running command that reaches a host: its two ends, what it says, and its certain end.
//!
//! It has a process group of its own, so that a Ctrl-C at the terminal does not reach it, and so that all that it starts can
//! be killed.

use std::{
    collections::VecDeque,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::UnixStream,
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use super::guard::{GroupGuard, GuardedGroup};
use crate::reach::ReachCommand;

/// The most bytes of standard error that are kept, from its end.
const KEPT: usize = 8 << 10;
/// The time to end after a hang-up, and after SIGTERM. A killed srun would leave its step behind.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time for what the command still has to say: something that it started may have its standard error open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The command.
#[derive(Debug)]
pub(super) struct FarCommand {
    child: Child,
    group: Pid,
    said: Arc<Mutex<VecDeque<u8>>>,
    listener: Option<JoinHandle<()>>,
    _guarded: GuardedGroup,
}

/// How it ended.
#[derive(Debug)]
pub(super) struct FarEnd {
    /// Its exit status.
    pub(super) status: FarStatus,
    /// The end of its standard error.
    pub(super) said: String,
}

/// The status of a command that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FarStatus {
    /// By itself, with this exit code.
    Code(i32),
    /// By a signal of others.
    Signal,
    /// It did not end, and was killed.
    Killed,
}

impl FarCommand {
    /// Starts it. The stream is its standard input and output.
    pub(super) fn start(command: &ReachCommand, guard: &Arc<GroupGuard>) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut started = Command::new(&command.program);
        started.args(&command.words);
        for variable in command.unset {
            started.env_remove(variable);
        }
        let mut child = started
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            // A pipe of its own: ssh makes what it inherits non-blocking.
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        // Its copies of the other end are closed with it: the end of the command is the end of the stream.
        drop(started);
        let group = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let group = group.ok_or_else(|| io::Error::other("the command has no process id"))?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let listener = child.stderr.take().map(|stderr| tokio::spawn(listen(stderr, Arc::clone(&said))));
        let guarded = guard.watch(group);
        Ok((Self { child, group, said, listener, _guarded: guarded }, UnixStream::from_std(ours)?))
    }

    /// Ends it now: the time for it is over. Returns what it had said before.
    pub(super) async fn stop(&mut self) -> FarEnd {
        let said = self.said();
        self.signal(Signal::SIGTERM);
        FarEnd { said, ..self.end().await }
    }

    /// Lets it end, now that its stream is closed; then asks it to, then kills it.
    pub(super) async fn end(&mut self) -> FarEnd {
        let mut status = FarStatus::Killed;
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if let Ok(ended) = timeout(PATIENCE, self.child.wait()).await {
                status = ended.ok().and_then(|ended| ended.code()).map_or(FarStatus::Signal, FarStatus::Code);
                break;
            }
            self.signal(signal);
        }
        // What it started is not to outlive it.
        self.signal(Signal::SIGKILL);
        let _ = timeout(PATIENCE, self.child.wait()).await;
        if let Some(listener) = &mut self.listener {
            let _ = timeout(LAST_WORDS, listener).await;
        }
        FarEnd { status, said: self.said() }
    }

    /// The end of what it said so far.
    fn said(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = said.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal to all processes of the group that are left.
    fn signal(&self, signal: Signal) {
        match killpg(self.group, signal) {
            // None is left, or none that is ours to signal (a set-user-id program).
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(error) => debug_assert!(false, "a valid signal and group: {error}"),
        }
    }
}

impl Drop for FarCommand {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
        // After `end` nothing is left of it.
        if self.child.id().is_some() {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// Keeps the end of what comes, and reads on in any case, so that the command never waits to write.
async fn listen(mut stderr: impl AsyncRead + Unpin, said: Arc<Mutex<VecDeque<u8>>>) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(&buffer[..read]);
        let excess = said.len().saturating_sub(KEPT);
        said.drain(..excess);
    }
}
