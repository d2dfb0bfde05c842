//! `tpuscope sessions …`: recorded sessions, read, reworked, listed. One file per subcommand.

mod annotations;
mod export;
pub(super) mod fetch;
mod foreign;
mod interrupt;
mod list;
mod load;
mod merge;
mod outfile;
mod progress;
mod rm;
mod show;
mod show_text;

use clap::Subcommand;
use xprof::{
    reader::NoTrace,
    session::{SessionError, SessionName},
    wire,
};

use super::{
    Outcome,
    exit::{Exit, Failure},
};

/// The subcommands of `sessions`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the sessions that the agent keeps, oldest first
    List(list::Args),
    /// Copy a session that the agent keeps into a folder of yours
    Fetch(fetch::Args),
    /// Remove sessions that the agent keeps
    Rm(rm::Args),
    /// Show where the time of a session went: steps, operations, idle time, stragglers
    Show(show::Args),
    /// Merge the segments of one process into one trace
    Merge(merge::Args),
    /// Export a session to formats that other tools open
    Export(export::Args),
}

pub(super) fn run(command: &Command) -> Outcome {
    if matches!(command, Command::Show(_) | Command::Merge(_) | Command::Export(_)) {
        interrupt::watch();
    }
    match command {
        Command::List(args) => list::run(args),
        Command::Fetch(args) => fetch::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Show(args) => show::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Export(args) => export::run(args),
    }
}

/// A trace that could not be read, as a failure of the command.
pub(super) fn unreadable(path: &std::path::Path, error: &wire::Error) -> Failure {
    if let Some(failure) = foreign::foreign(path) {
        return failure;
    }
    let exit = match error {
        wire::Error::Io { .. } => Exit::Internal,
        wire::Error::Damaged { .. } | wire::Error::TooLarge { .. } => Exit::BadInput,
    };
    Failure::new(exit, format_args!("{}: {error}", path.display()))
        .remedy("copy or capture the file again; it must be an .xplane.pb as the profiler wrote it")
}

/// A file without a trace in it, as a failure of the command.
pub(super) fn no_trace(file: impl std::fmt::Display, why: NoTrace) -> Failure {
    let known = || foreign::foreign(std::path::Path::new(&file.to_string()));
    if let Some(failure) = (why == NoTrace::Foreign).then(known).flatten() {
        return failure;
    }
    let (exit, remedy) = match why {
        NoTrace::Empty => (Exit::BadInput, "copy or capture the file again"),
        NoTrace::Foreign => (Exit::BadInput, "name an .xplane.pb as the profiler wrote it"),
        NoTrace::NoPlane => (Exit::EmptyTrace, "capture again while the workload runs"),
    };
    Failure::new(exit, format_args!("{file} {why}")).remedy(remedy)
}

/// A file that could not be opened, as a failure of the command.
pub(super) fn unopened(path: &std::path::Path, error: &std::io::Error) -> Failure {
    let exit = unopened_exit(error);
    Failure::new(exit, format_args!("{}: {error}", path.display())).remedy(unopened_remedy(exit))
}

/// The exit code for a file that could not be opened.
fn unopened_exit(error: &std::io::Error) -> Exit {
    match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        std::io::ErrorKind::PermissionDenied => Exit::Permission,
        // Not a regular file, as the reader of traces has it.
        std::io::ErrorKind::InvalidInput => Exit::BadInput,
        _ => Exit::Internal,
    }
}

/// What to do about a file that could not be opened.
fn unopened_remedy(exit: Exit) -> &'static str {
    match exit {
        Exit::NotFound => "check the path",
        Exit::Permission => "run as a user who may read it",
        Exit::BadInput => "save the trace to a file and name that",
        _ => "",
    }
}

/// A path that leads to no session, as a failure of the command.
pub(super) fn unresolved(error: &SessionError) -> Failure {
    let failure = |exit| Failure::new(exit, error);
    if let SessionError::NotFound(path) = error
        && let Some(failure) = foreign::remote(path)
    {
        return failure;
    }
    match error {
        SessionError::NotFound(path) => failure(Exit::NotFound).remedy(match path.to_str() {
            // A name rather than a path.
            Some(name) if name.parse::<SessionName>().is_ok() => {
                format!("check the path; `tpuscope sessions fetch {name}` copies what the agent keeps")
            }
            _ => "check the path".to_owned(),
        }),
        SessionError::NotAFile(_) => failure(Exit::BadInput).remedy("save the trace to a file and name that"),
        SessionError::NoSessions(_) => failure(Exit::NotFound)
            .remedy("name a session folder, a logdir with plugins/profile in it, or one .xplane.pb file"),
        SessionError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failure(Exit::Permission).remedy("run as a user who may read it")
        }
        SessionError::Exists(_)
        | SessionError::Link(_)
        | SessionError::Elsewhere(_)
        | SessionError::Running(_)
        | SessionError::NoParts(_)
        | SessionError::Io { .. } => failure(Exit::Internal),
    }
}
