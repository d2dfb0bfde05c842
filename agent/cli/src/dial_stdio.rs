//! `tpuscope dial-stdio`: the far end of a command that reaches this host, and the guard of such commands.

use std::{
    io::{stdin, stdout},
    os::fd::AsFd,
    time::Duration,
};

use cluster::{
    dial,
    relay::{self, RelayEnd},
};

use super::{CommandResult, client, exit::Exit, failure::Failure, remedies};

/// The hidden subcommand that guards commands.
pub(crate) const GUARD: &str = "dial-guard";
/// The time that commands have to end by themselves once their caller is dead.
const GRACE: Duration = Duration::from_secs(1);

/// Arguments of `dial-stdio`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    agent: client::SocketArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let stream = client::block_on(async {
        let stream = args.agent.stream().await?;
        stream.into_std().map_err(|error| Failure::internal(format_args!("cannot use the socket: {error}")))
    })?;
    let (stdin, stdout) = (stdin(), stdout());
    match relay::relay(&stream, stdin.as_fd(), stdout.as_fd(), relay::LINGER) {
        Ok(RelayEnd::Caller) => Ok(Exit::Ok),
        Ok(RelayEnd::Agent) => Err(remedies::connection_closed()),
        Err(error) => Err(Failure::internal(format_args!("cannot carry bytes: {error}"))),
    }
}

pub(super) fn guard() -> CommandResult {
    dial::run_guard(&mut stdin().lock(), GRACE);
    Ok(Exit::Ok)
}
