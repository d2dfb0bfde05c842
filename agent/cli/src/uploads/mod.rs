//! `tpuscope uploads …`: sessions on their way to destinations. One file per subcommand.

mod change;
mod list;
pub(super) mod row;
pub(super) mod wait;

use clap::Subcommand;

use super::CommandResult;

/// The subcommands of `uploads`.
#[derive(Debug, Subcommand)]
pub enum UploadsCommand {
    /// List the sessions that are uploaded, on their way, or failed
    List(list::Args),
    /// Let uploads that wait after a failure, or have failed, try again now
    Retry(change::Args),
    /// Forget uploads that are not done; the sessions stay in the agent's store
    Drop(change::Args),
}

pub(super) fn run(command: &UploadsCommand) -> CommandResult {
    match command {
        UploadsCommand::List(args) => list::run(args),
        UploadsCommand::Retry(args) => change::retry(args),
        UploadsCommand::Drop(args) => change::drop(args),
    }
}
