//! What can be wrong with settings, and where.

use std::{fmt, io, path::PathBuf};

/// Where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file, on a line counted from 1.
    Line(PathBuf, usize),
    /// In a variable of the environment.
    Variable(String),
    /// In `--set`.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{} line {line}", file.display()),
            Self::Variable(name) => write!(f, "the variable {name}"),
            Self::Flag(text) => write!(f, "--set {text}"),
        }
    }
}

/// Why settings are refused. One line each: it names the place, the fault, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings in {}: {error}", .file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is longer than any settings are.
    #[error("{} is no file of settings: it is longer than {limit} bytes", .file.display())]
    TooLong {
        /// Which file.
        file: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// Well formed, and cannot work.
    #[error("{}{why}", .place.as_ref().map_or_else(String::new, |place| format!("{place}: ")))]
    Senseless {
        /// Where one of the settings that it comes of is written.
        place: Option<Place>,
        /// Which settings, and why.
        why: &'static str,
    },
    /// Not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the TOML reader says.
        message: String,
    },
    /// No such section.
    #[error("{place}: there is no section `{name}`{}", hint(.nearest))]
    UnknownSection {
        /// Where.
        place: Place,
        /// What was written.
        name: String,
        /// The nearest section there is.
        nearest: Option<String>,
    },
    /// No such setting.
    #[error("{place}: there is no setting `{section}.{key}`{}", hint(.nearest))]
    UnknownKey {
        /// Where.
        place: Place,
        /// The section.
        section: String,
        /// What was written.
        key: String,
        /// The nearest setting there is.
        nearest: Option<String>,
    },
    /// A section that is no table.
    #[error("{place}: `{name}` is a section: write [{name}] and its settings below")]
    NotATable {
        /// Where.
        place: Place,
        /// The section.
        name: String,
    },
    /// A value that the setting cannot have.
    #[error("{place}: {setting}: {message}")]
    BadValue {
        /// Where.
        place: Place,
        /// `section.key`.
        setting: String,
        /// What is wrong with it.
        message: String,
    },
    /// `--set` without `=`.
    #[error("{0}: write SECTION.KEY=VALUE, as in `--set sampler.interval=2s`")]
    NotASetting(Place),
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!(" (did you mean `{nearest}`?)"))
}

/// The candidate most like `name`, if any is alike enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}
