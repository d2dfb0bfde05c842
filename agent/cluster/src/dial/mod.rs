//! Dialling: a connection to the agent of a host that speaks gRPC. Either over mutual TLS, or through a command whose far end
//! writes a magic line.
//!
//! Must never wait beyond the limit of the caller, dial more hosts at a time than a bastion bears, or leave a command
//! behind.

mod far_command;
mod fault;
mod guard;
mod preamble;
pub mod tcp;
mod tls;

use std::{sync::Arc, time::Duration};

use model::untrusted::{MESSAGE, clean};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tonic::{Status, transport::Channel};

use crate::{
    channel::{self, ConnectionLoss},
    going_away::{StopMark, WatchedStream},
    hosts::HostAddress,
    reach::{Reach, ReachCommand},
};
use far_command::{FarCommand, FarStatus};
use preamble::{EchoMark, Preamble};

pub use fault::{DialError, DialFault};
pub use guard::{GroupGuard, run_guard};
pub use tls::{DEFAULT_PORT, ExpectedPeer, TlsDialer};

/// More at a time and one sshd (`MaxStartups 10:30:100`) drops some of them.
const COMMANDS_AT_A_TIME: usize = 8;
/// Handshakes: each costs this side some time, and all share the limit.
const HANDSHAKES_AT_A_TIME: usize = 64;
/// The time without data after which the far end is pinged, and the time that it has to answer. Nothing else notices a cut
/// cable or a stopped agent.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// What is known of an end that answers no ping.
const STOPPED: &str = "the other end stopped answering";
/// How often a dial is tried that an overloaded bastion dropped.
const ATTEMPTS: u32 = 4;

/// Dials hosts in one way.
#[derive(Debug)]
pub struct Dialer {
    way: Way,
    permits: Semaphore,
}

#[derive(Debug)]
enum Way {
    Command { reach: Reach, guard: Arc<GroupGuard> },
    Tls(TlsDialer),
}

/// A host that was reached. Its command, if it has one, is killed when this is dropped; [`close`](Self::close) lets it end.
#[derive(Debug)]
pub struct DialedHost {
    channel: Channel,
    deadline: Instant,
    stopped: StopMark,
    command: Option<DialCommand>,
}

#[derive(Debug)]
struct DialCommand {
    far: FarCommand,
    reach: String,
    echo: EchoMark,
}

impl Dialer {
    /// A dialler whose commands `guard` kills should this process die.
    pub fn new(reach: Reach, guard: GroupGuard) -> Self {
        let way = Way::Command { reach, guard: Arc::new(guard) };
        Self { way, permits: Semaphore::new(COMMANDS_AT_A_TIME) }
    }

    /// A dialler over mutual TLS.
    pub fn over_tls(dialer: TlsDialer) -> Self {
        Self { way: Way::Tls(dialer), permits: Semaphore::new(HANDSHAKES_AT_A_TIME) }
    }

    /// Dials a host. The time begins when it is its turn.
    ///
    /// # Errors
    /// Why it cannot be reached within `limit`.
    pub async fn dial(&self, host: &HostAddress, limit: Duration) -> Result<DialedHost, DialError> {
        // It is never closed.
        let _permit = self.permits.acquire().await;
        let deadline = Instant::now() + limit;
        match &self.way {
            Way::Tls(dialer) => {
                let (channel, stopped) = dialer.dial(host, limit, deadline).await?;
                Ok(DialedHost { channel, deadline, stopped, command: None })
            }
            Way::Command { reach, guard } => {
                let command = reach
                    .command(host)
                    .map_err(|error| DialError { fault: DialFault::Port, reason: error.to_string() })?;
                let attempt = CommandDial { command: &command, reach: reach.to_string(), guard };
                attempt.dial(limit, deadline).await
            }
        }
    }
}

/// A dial through a command.
struct CommandDial<'a> {
    command: &'a ReachCommand,
    reach: String,
    guard: &'a Arc<GroupGuard>,
}

impl CommandDial<'_> {
    async fn dial(&self, limit: Duration, deadline: Instant) -> Result<DialedHost, DialError> {
        let mut attempt = 1;
        loop {
            match self.attempt(limit, deadline).await {
                Err(error) if error.fault == DialFault::Overloaded && attempt < ATTEMPTS => {
                    let pause = Duration::from_millis(fastrand::u64(200..800) << attempt);
                    if Instant::now() + pause >= deadline {
                        return Err(error);
                    }
                    sleep(pause).await;
                    attempt += 1;
                }
                dialed => return dialed,
            }
        }
    }

    async fn attempt(&self, limit: Duration, deadline: Instant) -> Result<DialedHost, DialError> {
        let reach = self.reach.clone();
        let (mut far, mut stream) = FarCommand::start(self.command, self.guard)
            .map_err(|error| DialError::not_started(&reach, &error))?;
        let mut preamble = Preamble::default();
        match timeout_at(deadline, preamble.read(&mut stream)).await {
            Ok(Ok(early)) => {
                let stream = preamble::AfterPreamble::new(early, stream);
                let echo = stream.echo();
                let stream = WatchedStream::new(stream);
                let stopped = stream.mark();
                match timeout_at(deadline, channel::over(stream, KEEPALIVE)).await {
                    Ok(Ok(channel)) => {
                        let command = Some(DialCommand { far, reach, echo });
                        Ok(DialedHost { channel, deadline, stopped, command })
                    }
                    _ => Err(DialCommand { far, reach, echo }.lost().await),
                }
            }
            Ok(Err(preamble::NoMagic::OtherVersion)) => {
                far.stop().await;
                Err(DialError::other_version(&reach, &preamble.version_there()))
            }
            Ok(Err(preamble::NoMagic::Terminal)) => {
                far.stop().await;
                Err(DialError::terminal(&reach))
            }
            Ok(Err(preamble::NoMagic::TooLong)) => {
                far.stop().await;
                Err(DialError::no_magic(&reach, &preamble.text()))
            }
            Ok(Err(preamble::NoMagic::Ended)) => {
                drop(stream);
                let ended = far.end().await;
                Err(DialError::of_command(&reach, ended.status, &ended.said, &preamble.text()))
            }
            Err(_) => {
                drop(stream);
                let said = far.stop().await.said;
                Err(DialError::late(&reach, limit, &said))
            }
        }
    }
}

impl DialedHost {
    /// The agent of the host.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// What the limit of the dial leaves for a first answer: a host is reached when its agent has said something.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Why the connection ended, once a call has failed because of it with this error.
    pub async fn lost(self, status: &Status) -> DialError {
        let Self { channel, command, stopped, .. } = self;
        drop(channel);
        if stopped.is_set() {
            if let Some(DialCommand { mut far, .. }) = command {
                far.end().await;
            }
            return DialError {
                fault: DialFault::Stopped,
                reason: "its agent was stopped, and closed the connection".to_owned(),
            };
        }
        match command {
            Some(command) => command.lost().await,
            None => {
                let seen = match channel::loss(status) {
                    ConnectionLoss::Silent => STOPPED.to_owned(),
                    ConnectionLoss::Closed => "the agent closed it".to_owned(),
                    ConnectionLoss::Failed(why) => clean(&why, MESSAGE),
                };
                DialError { fault: DialFault::Lost, reason: format!("the connection was lost: {seen}") }
            }
        }
    }

    /// Hangs up and lets the command end; it is killed where it does not.
    pub async fn close(self) {
        let Self { channel, command, .. } = self;
        drop(channel);
        if let Some(DialCommand { mut far, .. }) = command {
            far.end().await;
        }
    }
}

impl DialCommand {
    /// An end of the connection is an error, whatever the exit code: srun ends with 0 when a node hangs.
    async fn lost(self) -> DialError {
        let Self { mut far, reach, echo } = self;
        let ended = far.end().await;
        if echo.is_set() {
            return DialError::echo(&reach);
        }
        if matches!(ended.status, FarStatus::Code(0) | FarStatus::Killed) && ended.said.trim().is_empty() {
            // It ended because we hung up, or did not even then: what is known is that no answer came.
            return DialError {
                fault: DialFault::Lost,
                reason: format!("the connection was lost: {STOPPED}"),
            };
        }
        match DialError::of_command(&reach, ended.status, &ended.said, "") {
            error if error.fault == DialFault::Other => DialError {
                fault: DialFault::Lost,
                reason: clean(&format!("the connection was lost: {}", error.reason), MESSAGE),
            },
            error => error,
        }
    }
}
