//! Jobs that are not found, and commands that cannot be executed.

use std::{ffi::OsStr, io};

use crate::{exit::Exit, failure::Failure};

/// A job that the agent does not show.
pub(crate) fn job(failure: Failure) -> Failure {
    match failure.exit {
        Exit::NotFound => failure.remedy("`tpuscope jobs list` lists the jobs of this host"),
        Exit::Permission => failure.remedy("ask as its user, as root, or as a member of api.admin_group"),
        Exit::Usage => {
            failure.remedy("name one as KIND:ID, and its user with --uid; `tpuscope jobs list` lists them")
        }
        _ => failure,
    }
}

/// The command of `tpuscope run` cannot be executed.
pub(crate) fn not_executed(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::CommandNotFound, format!("there is no command {program}"))
                .remedy("name a file, or a command in one of the folders of PATH")
        }
        _ => Failure::new(Exit::NotExecutable, format!("cannot execute {program}: {error}")),
    }
}
