//! The versions of a process's libraries, as its trace says them: text stats such as `jax_version` of one plane.
//!
//! Traces that a program makes of itself have them; those of a profiler's server may not.

use std::collections::BTreeMap;

use crate::reader::{Index, OwnedValue};

/// The plane whose stats they are.
pub(crate) const PLANE: &str = "/host:metadata";
/// What the names of the stats end in.
const SUFFIX: &str = "_version";
/// How many are kept.
pub(crate) const MOST: usize = 16;
/// How much of one is kept.
const LONGEST: usize = 256;

/// The library whose version a stat of this name is.
pub(crate) fn library(name: &str) -> Option<&str> {
    let library = name.strip_suffix(SUFFIX)?;
    let plain =
        library.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    (!library.is_empty() && plain).then_some(library)
}

/// The version in the text of such a stat, on one line. A text without a digit, such as the name of a platform, is none.
pub(crate) fn version(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line: String = lines.join(", ").chars().take(LONGEST).collect();
    line.bytes().any(|byte| byte.is_ascii_digit()).then_some(line)
}

/// The versions that a trace says, by library.
pub(crate) fn of(index: &Index) -> BTreeMap<String, String> {
    let planes = index.planes.iter().filter(|plane| plane.name == PLANE);
    let found = planes.flat_map(|plane| &plane.stats).filter_map(|(name, value)| match value {
        OwnedValue::Text(text) => Some((library(name)?.to_owned(), version(text)?)),
        _ => None,
    });
    found.take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_library_and_a_digit() {
        assert_eq!(library("jaxlib_version"), Some("jaxlib"));
        for other in ["_version", "process_id", "a b_version", "Jax_version"] {
            assert_eq!(library(other), None, "{other}");
        }
        assert_eq!(version("0.10.2").as_deref(), Some("0.10.2"));
        assert_eq!(
            version("PJRT C API\n TFRT TPU v6 lite\n\n").as_deref(),
            Some("PJRT C API, TFRT TPU v6 lite")
        );
        assert_eq!(version("cpu"), None);
        assert_eq!(version(&"9".repeat(5000)).map(|version| version.len()), Some(LONGEST));
    }
}
