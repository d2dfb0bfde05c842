//! The versions of the library whose numbers the exact ledger gives.

use std::{fmt, str::FromStr};

/// Which version of the library the numbers follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compat {
    /// ml-goodput-measurement 0.2.3.
    #[default]
    V0_2_3,
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compat::V0_2_3 => f.write_str("0.2.3"),
        }
    }
}

/// A version whose numbers are not known.
#[derive(Debug, thiserror::Error)]
#[error("version {0:?} is not known; known: 0.2.3")]
pub struct UnknownVersion(String);

impl FromStr for Compat {
    type Err = UnknownVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "0.2.3" => Ok(Compat::V0_2_3),
            other => Err(UnknownVersion(other.to_owned())),
        }
    }
}
