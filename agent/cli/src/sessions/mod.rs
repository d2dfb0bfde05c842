//! `tpuscope sessions …`. One file per subcommand.

mod agent_files;
mod agent_names;
mod agents_parts;
mod annotations;
mod bucket_files;
mod context;
mod diff;
mod diff_text;
mod export;
pub(super) mod fetch;
mod fetch_hosts;
mod import;
mod interrupt;
mod joined;
pub(crate) mod list;
mod list_hosts;
mod load;
mod location;
mod merge;
pub(super) mod outfile;
mod pin;
pub(super) mod progress;
mod prune;
mod remote_files;
mod rm;
mod show;
mod show_tables;
pub(super) mod show_text;
mod windows;

use super::{CommandResult, output};
use clap::Subcommand;

/// The subcommands of `sessions`.
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List the sessions in the agent's store, in a folder or in a bucket, oldest first
    List(Box<list::Args>),
    /// Copy a session from the agent's store or a bucket to a folder
    Fetch(Box<fetch::Args>),
    /// Take a session folder into the agent's store
    Import(import::Args),
    /// Remove sessions from the agent's store
    Rm(rm::Args),
    /// Keep sessions in the agent's store whatever its limits are
    Pin(pin::Args),
    /// Let the limits of the agent's store apply to pinned sessions again
    Unpin(pin::Args),
    /// Remove what the limits of the agent's store have no room for
    Prune(prune::Args),
    /// Show the times of a session: steps, operations, idle time, stragglers
    Show(Box<show::Args>),
    /// Compare two sessions: step times, operations, stragglers, and from which step on they differ
    Diff(diff::Args),
    /// Merge trace segments of one process into one trace
    Merge(merge::Args),
    /// Export a session to Perfetto or CSV
    Export(export::Args),
}

pub(super) fn run(command: &SessionsCommand) -> CommandResult {
    use SessionsCommand::{Diff, Export, Merge, Show};
    if matches!(command, Show(_) | Diff(_) | Merge(_) | Export(_)) {
        interrupt::watch();
    }
    let result = match command {
        SessionsCommand::List(args) => list::run(args),
        SessionsCommand::Fetch(args) => fetch::run(args),
        SessionsCommand::Import(args) => import::run(args),
        SessionsCommand::Rm(args) => rm::run(args),
        SessionsCommand::Pin(args) => pin::run(args, true),
        SessionsCommand::Unpin(args) => pin::run(args, false),
        SessionsCommand::Prune(args) => prune::run(args),
        SessionsCommand::Show(args) => show::run(args),
        SessionsCommand::Diff(args) => diff::run(args),
        SessionsCommand::Merge(args) => merge::run(args),
        SessionsCommand::Export(args) => export::run(args),
    };
    if let Err(failure) = &result
        && command.reports_in_json()
    {
        // The failure is more important than a failure to print it.
        let _ = output::json(&failure.as_json());
    }
    result
}

impl SessionsCommand {
    /// Whether it is to print JSON also where it fails: it has printed nothing by then.
    fn reports_in_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Fetch(args) => args.json,
            Self::Show(args) => args.json,
            Self::Diff(args) => args.json,
            _ => false,
        }
    }
}
