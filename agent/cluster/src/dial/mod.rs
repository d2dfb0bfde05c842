//! Dialling: starts the command that reaches a host, waits for the magic line of its far end, and speaks gRPC over it.
//!
//! Must never wait beyond the limit of the caller, dial more hosts at a time than a bastion bears, or leave a command
//! behind.

mod far_command;
mod fault;
mod guard;
mod preamble;

use std::{sync::Arc, time::Duration};

use model::untrusted::{MESSAGE, clean};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tonic::transport::Channel;

use crate::{
    channel,
    hosts::HostAddress,
    reach::{Reach, ReachCommand},
};
use far_command::{FarCommand, FarStatus};
use preamble::Preamble;

pub use fault::{DialError, DialFault};
pub use guard::{GroupGuard, run_guard};

/// More at a time and one sshd (`MaxStartups 10:30:100`) drops some of them.
const DIALS_AT_A_TIME: usize = 8;
/// The time without data after which the far end is pinged, and the time that it has to answer. Nothing else notices a cut
/// cable or a stopped agent.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How often a dial is tried that an overloaded bastion dropped.
const ATTEMPTS: u32 = 4;

/// Dials hosts in one way.
#[derive(Debug)]
pub struct Dialer {
    reach: Reach,
    guard: Arc<GroupGuard>,
    permits: Semaphore,
}

/// A host that was reached. The command is killed when this is dropped; [`close`](Self::close) lets it end.
#[derive(Debug)]
pub struct DialedHost {
    channel: Channel,
    command: FarCommand,
    reach: String,
}

impl Dialer {
    /// A dialler whose commands `guard` kills should this process die.
    pub fn new(reach: Reach, guard: GroupGuard) -> Self {
        Self { reach, guard: Arc::new(guard), permits: Semaphore::new(DIALS_AT_A_TIME) }
    }

    /// Dials a host. The time begins when it is its turn.
    ///
    /// # Errors
    /// Why it cannot be reached within `limit`.
    pub async fn dial(&self, host: &HostAddress, limit: Duration) -> Result<DialedHost, DialError> {
        let command = self
            .reach
            .command(host)
            .map_err(|error| DialError { fault: DialFault::Port, reason: error.to_string() })?;
        // It is never closed.
        let _permit = self.permits.acquire().await;
        let deadline = Instant::now() + limit;
        let mut attempt = 1;
        loop {
            match self.attempt(&command, limit, deadline).await {
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

    async fn attempt(
        &self,
        command: &ReachCommand,
        limit: Duration,
        deadline: Instant,
    ) -> Result<DialedHost, DialError> {
        let reach = self.reach.to_string();
        let (mut far, mut stream) = FarCommand::start(command, &self.guard)
            .map_err(|error| DialError::not_started(&reach, &error))?;
        let mut preamble = Preamble::default();
        match timeout_at(deadline, preamble.read(&mut stream)).await {
            Ok(Ok(early)) => {
                let stream = preamble::AfterPreamble::new(early, stream);
                match timeout_at(deadline, channel::over(stream, KEEPALIVE)).await {
                    Ok(Ok(channel)) => Ok(DialedHost { channel, command: far, reach }),
                    _ => Err(lost(far, &reach).await),
                }
            }
            Ok(Err(preamble::NoMagic::TooLong)) => {
                far.end().await;
                Err(DialError::no_magic(&reach, &preamble.text()))
            }
            Ok(Err(preamble::NoMagic::Ended)) => {
                drop(stream);
                let ended = far.end().await;
                Err(DialError::of_command(&reach, ended.status, &ended.said, &preamble.text()))
            }
            Err(_) => {
                drop(stream);
                let said = far.end().await.said;
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

    /// Why the connection ended, once a call has failed because of it.
    pub async fn lost(self) -> DialError {
        let Self { channel, command, reach } = self;
        drop(channel);
        lost(command, &reach).await
    }

    /// Hangs up and lets the command end; it is killed where it does not.
    pub async fn close(self) {
        let Self { channel, mut command, .. } = self;
        drop(channel);
        command.end().await;
    }
}

/// An end of the connection is an error, whatever the exit code: srun ends with 0 when a node hangs.
async fn lost(mut command: FarCommand, reach: &str) -> DialError {
    let ended = command.end().await;
    if ended.status == FarStatus::Code(0) && ended.said.trim().is_empty() {
        // It ended because we hung up.
        return DialError {
            fault: DialFault::Lost,
            reason: "the connection was lost: the other end stopped answering".to_owned(),
        };
    }
    match DialError::of_command(reach, ended.status, &ended.said, "") {
        error if error.fault == DialFault::Other => DialError {
            fault: DialFault::Lost,
            reason: clean(&format!("the connection was lost: {}", error.reason), MESSAGE),
        },
        error => error,
    }
}
