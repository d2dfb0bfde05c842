//! Section `[store]`.

use std::{fmt, str::FromStr};

use documented::{Documented, DocumentedFields};
use model::unit::{Bytes, Duration, UnitError};
use serde::{Deserialize, Serialize};

/// Retention of the sessions in the state directory. Pinned sessions stay. Uploaded sessions are removed first, the oldest
/// of them first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum size of all sessions. "auto": 10 % of the file system, at most 20GiB. "0B": no limit.
    pub max_size: MaxSize,
    /// Maximum age of a session. "0s": no limit. A session that waits for its upload is not removed for its age. Nothing
    /// is removed for its age while the clock is not synchronised, and for a day after it stepped by more than an hour.
    pub max_age: Duration,
    /// Free disk space, as a share ("5%") or a size, below which no session is begun. Only uploaded sessions
    /// are removed for it. "0B": no limit.
    pub min_free: MinFree,
}

/// The largest share of the file system that the sessions take without a setting.
const AUTO_SHARE: u64 = 10;
/// The most that the sessions take without a setting.
const AUTO_MAX: u64 = 20 << 30;

/// Maximum size of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum MaxSize {
    /// A share of the file system, at most a fixed size.
    #[default]
    Auto,
    /// This size; 0: no limit.
    Size(Bytes),
}

impl MaxSize {
    /// The limit in bytes on a file system of this size; `None`: no limit.
    pub(crate) fn limit(self, file_system: u64) -> Option<u64> {
        match self {
            Self::Auto => Some((file_system / 100).saturating_mul(AUTO_SHARE).min(AUTO_MAX)),
            Self::Size(size) => Some(size.get()).filter(|&size| size > 0),
        }
    }
}

impl TryFrom<String> for MaxSize {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Size) }
    }
}

impl From<MaxSize> for String {
    fn from(size: MaxSize) -> Self {
        match size {
            MaxSize::Auto => "auto".to_owned(),
            MaxSize::Size(size) => size.to_string(),
        }
    }
}

/// Free disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum MinFree {
    /// Percent of the file system.
    Share(u8),
    /// This size.
    Size(Bytes),
}

impl Default for MinFree {
    fn default() -> Self {
        Self::Share(5)
    }
}

impl MinFree {
    /// The limit in bytes on a file system of this size.
    pub(crate) fn limit(self, file_system: u64) -> u64 {
        match self {
            Self::Share(percent) => (file_system / 100).saturating_mul(percent.into()),
            Self::Size(size) => size.get(),
        }
    }
}

/// A text that is no [`MinFree`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMinFree {
    /// A share that is not a whole number from 0 to 99.
    #[error("expected a share from 0% to 99%, got `{}`", .0.escape_debug())]
    Share(String),
    /// Not a size either.
    #[error("{0}, or a share such as `5%`")]
    Size(#[from] UnitError),
}

impl TryFrom<String> for MinFree {
    type Error = BadMinFree;

    fn try_from(text: String) -> Result<Self, BadMinFree> {
        let Some(percent) = text.strip_suffix('%') else { return Ok(Self::Size(Bytes::from_str(&text)?)) };
        let share = percent.trim_end().parse().ok().filter(|&share| share < 100);
        share.map(Self::Share).ok_or_else(|| BadMinFree::Share(text.chars().take(40).collect()))
    }
}

impl From<MinFree> for String {
    fn from(free: MinFree) -> Self {
        free.to_string()
    }
}

impl fmt::Display for MinFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(percent) => write!(f, "{percent}%"),
            Self::Size(size) => size.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_or_follow_the_file_system() {
        let size = |text: &str| MaxSize::try_from(text.to_owned()).unwrap();
        assert_eq!(size("auto").limit(50 << 30), Some((50 << 30) / 100 * 10));
        assert_eq!(size("auto").limit(1 << 40), Some(20 << 30));
        assert_eq!((size("0B").limit(100), size("7MiB").limit(100)), (None, Some(7 << 20)));
        let free = |text: &str| MinFree::try_from(text.to_owned());
        assert_eq!(MinFree::default().to_string(), "5%");
        assert_eq!(free("5%").unwrap().limit(1000), 50);
        assert_eq!(free("2GiB").unwrap().limit(1000), 2 << 30);
        for bad in ["100%", "-1%", "5.5%", "%", "5 percent", "5", ""] {
            assert!(free(bad).is_err(), "{bad}");
        }
        for text in ["auto", "0B", "7MiB"] {
            assert_eq!(String::from(size(text)), text);
        }
    }
}
