//! `tpuscope slurm …`: the hooks of Slurm, and what concerns them. One file per subcommand.

mod check;
pub(crate) mod hook;
mod report;
pub(crate) mod report_file;
pub(crate) mod variables;

use clap::Subcommand;

use super::CommandResult;

/// The subcommands of `slurm`.
#[derive(Debug, Subcommand)]
pub enum SlurmCommand {
    /// Tell the agent that a job starts: called by the script `prolog` of packaging/slurm
    Prolog(hook::Args),
    /// Tell the agent that a job ended and what it left: called by the script `epilog`
    Epilog(hook::Args),
    /// Tell the agent the name of a job: called by the script `task-prolog`, as the user of the job
    TaskProlog(hook::Args),
    /// Write a report where the user of the job asked for one: called by the script `task-epilog`
    TaskEpilog(hook::Args),
    /// Show what is wrong with the set-up of the hooks on this host
    Check(check::Args),
    /// Show what the agent of this host knows of a Slurm job
    Report(report::Args),
}

pub(super) fn run(command: &SlurmCommand) -> CommandResult {
    match command {
        SlurmCommand::Prolog(args) => hook::run(hook::Hook::Prolog, args),
        SlurmCommand::Epilog(args) => hook::run(hook::Hook::Epilog, args),
        SlurmCommand::TaskProlog(args) => hook::run(hook::Hook::TaskProlog, args),
        SlurmCommand::TaskEpilog(args) => hook::run(hook::Hook::TaskEpilog, args),
        SlurmCommand::Check(args) => check::run(args),
        SlurmCommand::Report(args) => report::run(args),
    }
}
