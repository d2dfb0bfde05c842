//! `tpuscope recorder …`: the recorder of this host. One file per subcommand.

mod status;
mod switch;
mod timeline;

use clap::Subcommand;

use super::CommandResult;

/// The subcommands of `recorder`.
#[derive(Debug, Subcommand)]
pub enum RecorderCommand {
    /// Record your jobs on this host, also those that another program was found to profile
    On(switch::OnArgs),
    /// Do not record your jobs on this host; what is kept stays until it is too old
    Off(switch::OffArgs),
    /// Show which processes are recorded, why others are not, and what it costs
    Status(status::Args),
    /// Show what is kept of which process from when to when, and what is missing
    Timeline(timeline::Args),
}

pub(super) fn run(command: &RecorderCommand) -> CommandResult {
    match command {
        RecorderCommand::On(args) => switch::on(args),
        RecorderCommand::Off(args) => switch::off(args),
        RecorderCommand::Status(args) => status::run(args),
        RecorderCommand::Timeline(args) => timeline::run(args),
    }
}
