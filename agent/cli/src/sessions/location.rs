//! What an argument of a `sessions` command names. One rule for all of them: `SCHEME://…` is a URL; another text with `/`,
//! `.`, `..` and what ends in `.xplane.pb` are paths; all else is the name of a session of the agent.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use clap::builder::{OsStringValueParser, TypedValueParser};
use store::destinations::{BucketUrl, BucketUrlError};
use xprof::session::{NameError, PART_SUFFIX, SessionName};

use crate::output_path::is_url;

/// A session, or something that holds one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Location {
    /// A file or a folder.
    Path(PathBuf),
    /// A session of the agent.
    Name(SessionName),
    /// A folder or a file in a bucket.
    Url(BucketUrl),
}

/// Neither a URL, nor a path, nor a name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadLocation {
    #[error("{0}; a path contains `/`, as in `./NAME`")]
    Name(#[from] NameError),
    #[error("a name of a session is UTF-8; a path contains `/`, as in `./NAME`")]
    NotUtf8,
    #[error(transparent)]
    Url(#[from] BucketUrlError),
}

impl Location {
    /// The parser of arguments.
    pub(super) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(Self::parse)
    }

    /// The path, if it is one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Name(_) | Self::Url(_) => None,
        }
    }

    fn parse(text: OsString) -> Result<Self, BadLocation> {
        if let Some(text) = text.to_str().filter(|text| is_url(text)) {
            return match text.strip_prefix(FILE) {
                Some(path) if path.starts_with('/') => Ok(Self::Path(path.into())),
                _ => Ok(Self::Url(text.parse()?)),
            };
        }
        let bytes = text.as_encoded_bytes();
        let is_path =
            bytes.contains(&b'/') || matches!(bytes, b"." | b"..") || bytes.ends_with(PART_SUFFIX.as_bytes());
        if is_path {
            return Ok(Self::Path(text.into()));
        }
        let name = text.into_string().map_err(|_| BadLocation::NotUtf8)?;
        Ok(Self::Name(name.parse()?))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Name(name) => name.fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// The scheme of a folder of this machine.
const FILE: &str = "file://";

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn paths_and_names_are_told_apart_by_their_form() {
        let parse = |text: &str| Location::parse(text.into());
        for path in [".", "..", "./run", "/a", "a/", "h.xplane.pb", "./a://b"] {
            assert_eq!(parse(path), Ok(Location::Path(path.into())));
        }
        for name in ["2026_11_29_15_08_54", "run", "trace.pb"] {
            assert_eq!(parse(name), Ok(Location::Name(name.parse().unwrap())));
        }
        for (bad, why) in [("", "empty"), ("a b", "contains ' '"), (".hidden", "begins with a dot")] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("./NAME"), "{error}");
        }
        assert_eq!(Location::parse(OsString::from_vec(vec![0xff])), Err(BadLocation::NotUtf8));
        for url in ["gs://b", "gs://b/c/h.xplane.pb"] {
            assert_eq!(parse(url), Ok(Location::Url(url.parse().unwrap())));
        }
        assert_eq!(parse("file:///a/b"), Ok(Location::Path("/a/b".into())));
        for (bad, why) in [
            ("s3://b/c", BucketUrlError::Scheme),
            ("file://host/a", BucketUrlError::Scheme),
            ("gs://", BucketUrlError::Bucket),
            ("gs://b//c", BucketUrlError::Path),
        ] {
            assert_eq!(parse(bad), Err(BadLocation::Url(why)), "{bad}");
        }
    }
}
