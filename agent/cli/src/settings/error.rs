//! Errors of settings, with the source of the wrong setting.

use std::{fmt, io, path::PathBuf};

use super::Config;

/// The source of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// A file and a line, counted from 1.
    Line(PathBuf, usize),
    /// An environment variable.
    Variable(String),
    /// The argument of `--set`.
    Flag(String),
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{} line {line}", file.display()),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Flag(text) => write!(f, "--set {text}"),
        }
    }
}

/// Why settings are refused. Each message is one line with the source, the fault and what is expected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {error}", .file.display())]
    Unreadable {
        /// The settings file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is too large for a settings file.
    #[error("{} is not a settings file: it has more than {limit} bytes", .file.display())]
    TooLong {
        /// Path of the file.
        file: PathBuf,
        /// The largest size in bytes.
        limit: u64,
    },
    /// The settings are valid one by one but cannot work together.
    #[error("{}{message}", .origin.as_ref().map_or_else(String::new, |source| format!("{source}: ")))]
    BrokenRule {
        /// The source of one of the settings, if one is not a default.
        origin: Option<SettingSource>,
        /// The settings and the reason.
        message: &'static str,
    },
    /// The text is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// The line.
        origin: SettingSource,
        /// The message of the TOML parser.
        message: String,
    },
    /// There is no such section.
    #[error("{origin}: there is no section `{name}`{}", hint(.nearest))]
    UnknownSection {
        /// The source of the name.
        origin: SettingSource,
        /// The unknown name.
        name: String,
        /// The most similar section.
        nearest: Option<String>,
    },
    /// There is no such setting.
    #[error("{origin}: there is no setting `{section}.{key}`{}", hint(.nearest))]
    UnknownKey {
        /// The source of the name.
        origin: SettingSource,
        /// The section.
        section: String,
        /// The unknown key.
        key: String,
        /// The most similar setting.
        nearest: Option<String>,
    },
    /// The name of a section has a value that is not a table.
    #[error("{origin}: `{name}` is a section: write [{name}] and its settings below")]
    NotATable {
        /// The source of the value.
        origin: SettingSource,
        /// The section.
        name: String,
    },
    /// The name of a repeated section has a value that is no list of tables.
    #[error("{origin}: `{name}` is a list: write [[{name}]] for each one and its settings below")]
    NotAList {
        /// The source of the value.
        origin: SettingSource,
        /// The section.
        name: String,
    },
    /// The setting cannot have this value.
    #[error("{origin}: {setting}: {message}")]
    BadValue {
        /// The source of the value.
        origin: SettingSource,
        /// `section.key`, or the name of a section that is a list.
        setting: String,
        /// What is wrong with the value.
        message: String,
    },
    /// The argument of `--set` has no `=` or no `.`.
    #[error("{0}: expected SECTION.KEY=VALUE, such as `--set sampler.interval=2s`")]
    NotASetting(SettingSource),
}

impl ConfigError {
    /// The setting whose value is refused, if it is one.
    pub(super) fn setting(&self) -> Option<&str> {
        match self {
            Self::BadValue { setting, .. } => Some(setting),
            _ => None,
        }
    }
}

/// All faults of the settings: one or more, in the order of their layers. Its text is that of the first one.
#[derive(Debug, thiserror::Error)]
#[error("{}", .faults.first().map_or_else(String::new, ToString::to_string))]
pub struct ConfigErrors {
    faults: Vec<ConfigError>,
    rest: Box<Config>,
}

impl ConfigErrors {
    /// These faults, and the settings without them.
    pub(super) fn new(faults: Vec<ConfigError>, rest: Config) -> Self {
        Self { faults, rest: Box::new(rest) }
    }

    /// The settings that have no fault, with the defaults for those that have. `None` if a whole file cannot be parsed.
    pub fn rest(&self) -> Option<&Config> {
        let unread = self.faults.iter().any(|fault| matches!(fault, ConfigError::Syntax { .. }));
        (!unread).then_some(&*self.rest)
    }

    /// Whether the value of this setting is refused.
    pub fn refuse(&self, setting: &str) -> bool {
        self.faults.iter().any(|fault| fault.setting() == Some(setting))
    }

    /// The faults.
    pub fn into_all(self) -> impl Iterator<Item = ConfigError> {
        self.faults.into_iter()
    }

    /// The text of each fault.
    #[cfg(test)]
    pub(super) fn into_strings(self) -> Vec<String> {
        self.into_all().map(|fault| fault.to_string()).collect()
    }
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!(" (did you mean `{nearest}`?)"))
}
