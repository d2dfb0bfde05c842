//! The parser of the arguments that name a local file or folder to write to.
//!
//! Must never accept a URL: it would become a folder that is called like the URL's scheme.

use std::{ffi::OsString, path::PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};

/// The text is a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a URL, and this command writes to a local path only; `tpuscope capture --to NAME` uploads to a destination of the \
     agent's settings"
)]
pub(crate) struct UrlAsOutput;

/// Whether the text begins with the scheme of a URL: `SCHEME://`.
pub(crate) fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.is_some_and(|scheme| {
        scheme.starts_with(|first: char| first.is_ascii_alphanumeric()) && scheme.bytes().all(allowed)
    })
}

/// Takes paths, and refuses URLs.
pub(crate) fn parser() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(local)
}

fn local(text: OsString) -> Result<PathBuf, UrlAsOutput> {
    if text.to_str().is_some_and(is_url) { Err(UrlAsOutput) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    #[test]
    fn a_url_is_no_path() {
        for url in ["gs://b", "gs://b/x", "s3://b", "file:///tmp/x", "https://h/x", "git+ssh://h/x"] {
            assert_eq!(local(url.into()), Err(UrlAsOutput), "{url}");
        }
        for path in ["out", "./gs://b", "/a://b", "gs:", "gs:/b", "://x", "-"] {
            assert_eq!(local(path.into()), Ok(path.into()), "{path}");
        }
    }

    #[test]
    fn no_command_writes_to_a_url() {
        use clap::Parser;
        for command in [
            &["capture", "-o"][..],
            &["capture", "--target", "h:1", "-o"],
            &["sessions", "fetch", "s", "-o"],
            &["sessions", "export", "s", "--format", "csv", "-o"],
            &["sessions", "merge", "s", "-o"],
            &["goodput", "--job", "j", "--tensorboard"],
            &["man"],
        ] {
            let words = |output| ["tpuscope"].iter().chain(command).copied().chain([output]);
            let refused = Cli::try_parse_from(words("gs://bucket/x"))
                .map(|_| ())
                .map_err(|error| std::error::Error::source(&error).map(ToString::to_string));
            assert_eq!(refused, Err(Some(UrlAsOutput.to_string())), "{command:?}");
            assert!(Cli::try_parse_from(words("out")).is_ok(), "{command:?}");
        }
    }
}
