//! Settings: files and values.

use std::{io, path::Path, time::Duration};

use crate::{exit::Exit, failure::Failure, settings::ConfigError};

/// The file that --config or `config check` names does not exist.
pub(crate) fn no_settings_file(file: &Path) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no file {}", file.display()))
        .remedy("`tpuscope config default` prints a file with every setting; without --config the default file is read")
}

/// The file, or one that it names, is on a disk that does not answer.
pub(crate) fn settings_do_not_answer(file: &Path, limit: Duration) -> Failure {
    let what = format_args!(
        "{} could not be read within {} s: a disk does not answer",
        file.display(),
        limit.as_secs()
    );
    Failure::new(Exit::Config, what)
        .remedy("check the file system of the file, and of the files that it names (`stat -f FILE`)")
}

/// --set without --target: the agent captures, with its own settings.
pub(crate) fn settings_of_the_agent() -> Failure {
    Failure::new(Exit::Usage, "--set takes effect only with --target: the agent has settings of its own")
        .remedy("change them in the agent's settings file, then `systemctl reload tpuscope`")
}

/// The first of these failures. Its remedy says how to see the others.
pub(crate) fn first_of_all(failures: Vec<Failure>) -> Failure {
    let count = failures.len();
    let first = failures.into_iter().next();
    let Some(first) = first else { return Failure::internal("the settings have no fault") };
    if count == 1 {
        return first;
    }
    first.remedy(format_args!(
        "this is the first of {count} faults: `tpuscope config check` prints all of them"
    ))
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match &error {
            ConfigError::Unreadable { error: cause, .. }
                if cause.kind() == io::ErrorKind::PermissionDenied =>
            {
                Self::new(Exit::Permission, error).remedy("run as a user who can read the file")
            }
            _ => Self::new(Exit::Config, error).remedy("`tpuscope config default` prints every setting"),
        }
    }
}
