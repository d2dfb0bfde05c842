//! Settings: files and values.

use std::{io, path::Path};

use crate::{exit::Exit, failure::Failure, settings::ConfigError};

/// The file that --config or `config check` names does not exist.
pub(crate) fn no_settings_file(file: &Path) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no file {}", file.display()))
        .remedy("`tpuscope config default` prints a file with every setting; without --config the default file is read")
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
