//! Paths in settings. A relative one would depend on the working directory of the agent, and is refused.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, de::Error};

/// The path is relative or empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an absolute path, such as `/var/lib/tpuscope`, got `{}`", .0.display())]
pub struct RelativePathError(PathBuf);

/// Checks that a path is absolute.
///
/// # Errors
/// If it is not.
pub fn check(path: &Path) -> Result<(), RelativePathError> {
    if path.is_absolute() { Ok(()) } else { Err(RelativePathError(path.to_owned())) }
}

/// An absolute path.
///
/// # Errors
/// If it is no path, or relative.
pub fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    check(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// An absolute path, or an empty text for none.
///
/// # Errors
/// If it is no path, or relative.
pub fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if !path.as_os_str().is_empty() {
        check(&path).map_err(D::Error::custom)?;
    }
    Ok(path)
}

/// A list of absolute paths.
///
/// # Errors
/// If one is no path, or relative.
pub fn each<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(deserializer)?;
    paths.iter().try_for_each(|path| check(path)).map_err(D::Error::custom)?;
    Ok(paths)
}

/// An absolute path that may be left out.
///
/// # Errors
/// If it is no path, or relative.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    required(deserializer).map(Some)
}
