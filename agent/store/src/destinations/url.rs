//! The URLs of destinations: a template in the settings, and what it becomes for one session.
//!
//! Values in a template come from workloads, so that each becomes one plain path segment's text before it is used. Must
//! never give a path that leads out of the template's own folder.

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr};

use jiff::Timestamp;
use xprof::session::{HostName, Manifest, PartEntry};

/// The longest template. An object's name has at most 1024 bytes, of which a session and its file need about 420.
const MAX_TEMPLATE: usize = 400;
/// The longest folder that a template may become.
const MAX_RESOLVED: usize = 600;
/// The value of `{job}` and `{user}` for a session without one.
const NONE: &str = "_none";
/// The value of `{job}` and `{user}` for a session with several.
const MIXED: &str = "_mixed";

/// Why a text is no URL of a destination, or a session has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("expected a URL that begins with `gs://` or `file:///`, such as `gs://bucket/traces/{{job}}`")]
    Scheme,
    /// Too long.
    #[error("the URL has {0} bytes: expected at most {1}")]
    TooLong(usize, usize),
    /// No bucket's name.
    #[error("`{0}` is no name of a bucket: expected 3 to 222 of a-z, 0-9, `-`, `_` and `.`")]
    Bucket(String),
    /// A character that is not allowed.
    #[error("the URL contains {0:?}: expected letters, digits and `-_.=+@/`")]
    Character(char),
    /// A segment that leads elsewhere.
    #[error("the URL contains `..`, `/./` or `//`: expected plain folder names")]
    Segment,
    /// Not a placeholder.
    #[error("`{{{0}}}` is unknown: expected {{job}}, {{date}}, {{host}} or {{user}}")]
    Placeholder(String),
    /// Braces that do not match.
    #[error("the URL has a brace without its pair: expected {{job}}, {{date}}, {{host}} or {{user}}")]
    Brace,
    /// `{host}` for several hosts.
    #[error("the URL contains {{host}}, and the session has parts of several hosts")]
    SeveralHosts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placeholder {
    Job,
    Date,
    Host,
    User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Placeholder),
}

/// The URL of a destination as the settings have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    text: String,
    pieces: Vec<Piece>,
}

impl FromStr for UrlTemplate {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_TEMPLATE {
            return Err(UrlError::TooLong(text.len(), MAX_TEMPLATE));
        }
        let pieces = pieces(text)?;
        let template = Self { text: text.to_owned(), pieces };
        // Every value is a plain text, so that one example stands for all.
        let example = |_: Placeholder| "x".to_owned();
        template.fill(example).parse::<UploadUrl>()?;
        let fixed = template.pieces.iter().find_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Value(_) => None,
        });
        // A bucket is never chosen by a workload: its name ends before the first placeholder.
        match fixed.and_then(|text| text.strip_prefix(GS)) {
            Some(rest) if !rest.contains('/') && template.pieces.len() > 1 => {
                Err(UrlError::Bucket(quoted(&text[GS.len()..])))
            }
            _ => Ok(template),
        }
    }
}

impl fmt::Display for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl UrlTemplate {
    /// The URL for one session.
    ///
    /// # Errors
    /// If the template needs one host and the session has several, or the URL gets too long.
    pub fn resolve(&self, manifest: &Manifest) -> Result<UploadUrl, UrlError> {
        self.with(&Values::of(manifest))
    }

    fn with(&self, values: &Values) -> Result<UploadUrl, UrlError> {
        if self.names_host() && values.several_hosts {
            return Err(UrlError::SeveralHosts);
        }
        self.fill(|placeholder| match placeholder {
            Placeholder::Job => values.job.clone(),
            Placeholder::Date => values.date.clone(),
            Placeholder::Host => values.host.clone(),
            Placeholder::User => values.user.clone(),
        })
        .parse()
    }

    /// The URL for the parts of one host of a session over several hosts that begins at `begin`, before they are there:
    /// from the id of the job and the user of each.
    ///
    /// # Errors
    /// If the template needs one host, or the URL gets too long.
    pub fn resolve_parts(
        &self,
        begin: Timestamp,
        parts: &[(Option<String>, Option<String>)],
    ) -> Result<UploadUrl, UrlError> {
        let jobs = parts.iter().map(|(job, _)| job.clone());
        let users = parts.iter().map(|(_, user)| user.clone());
        self.with(&Values {
            job: only(jobs),
            date: date(begin),
            host: String::new(),
            several_hosts: true,
            user: only(users),
        })
    }

    /// Whether each host has a URL of its own.
    pub fn names_host(&self) -> bool {
        self.pieces.contains(&Piece::Value(Placeholder::Host))
    }

    /// A URL with an example for each value, for a check of the destination.
    ///
    /// # Errors
    /// None for a template that was read from a text.
    pub fn example(&self) -> Result<UploadUrl, UrlError> {
        self.fill(|_| "_check".to_owned()).parse()
    }

    /// Whether it is a folder of this host rather than a bucket.
    pub fn is_folder(&self) -> bool {
        self.text.starts_with(FILE)
    }

    /// The folder of this host that has to be there: what is above the first placeholder. `None` for a bucket.
    pub(crate) fn base_folder(&self) -> Option<PathBuf> {
        let Some(Piece::Text(fixed)) = self.pieces.first() else { return None };
        let path = fixed.strip_prefix(FILE)?;
        let above =
            if self.pieces.len() > 1 { path.rsplit_once('/').map_or("", |(above, _)| above) } else { path };
        Some(if above.is_empty() { PathBuf::from("/") } else { PathBuf::from(above) })
    }

    fn fill(&self, value: impl Fn(Placeholder) -> String) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Value(placeholder) => value(*placeholder),
        };
        self.pieces.iter().map(piece).collect()
    }
}

fn pieces(text: &str) -> Result<Vec<Piece>, UrlError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        let (name, after) =
            from.strip_prefix('{').and_then(|from| from.split_once('}')).ok_or(UrlError::Brace)?;
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(Piece::Value(match name {
            "job" => Placeholder::Job,
            "date" => Placeholder::Date,
            "host" => Placeholder::Host,
            "user" => Placeholder::User,
            other => return Err(UrlError::Placeholder(quoted(other))),
        }));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

/// The start of a text, for an error.
fn quoted(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

/// What the placeholders stand for in one session.
struct Values {
    job: String,
    date: String,
    host: String,
    several_hosts: bool,
    user: String,
}

impl Values {
    fn of(manifest: &Manifest) -> Self {
        let parts = || manifest.hosts.iter().flat_map(|host| &host.parts);
        let user = |part: &PartEntry| part.user.clone().or_else(|| part.uid.map(|uid| uid.to_string()));
        let begun = manifest.window.map(|window| window.start).or(manifest.created).unwrap_or_default();
        let hosts: BTreeSet<&str> = manifest.hosts.iter().map(|host| host.host.as_str()).collect();
        Self {
            job: only(parts().map(|part| part.job.as_ref().map(|job| job.id.clone()))),
            date: date(begun),
            several_hosts: hosts.len() > 1,
            host: only(hosts.into_iter().map(|host| Some(host.to_owned()))),
            user: only(parts().map(user)),
        }
    }
}

/// The UTC date.
fn date(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

/// The one value of all, as a plain name. A part without a value is one more value.
fn only(values: impl Iterator<Item = Option<String>>) -> String {
    let different: BTreeSet<Option<String>> = values.collect();
    let mut different = different.into_iter();
    match (different.next(), different.next()) {
        (Some(Some(value)), None) => HostName::sanitised(&value).to_string(),
        (None | Some(None), None) => NONE.to_owned(),
        _ => MIXED.to_owned(),
    }
}

const GS: &str = "gs://";
const FILE: &str = "file://";

/// Where the objects of one session go: without placeholders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UploadUrl {
    /// `gs://bucket/prefix`; the prefix may be empty and has no slash at its ends.
    Bucket {
        /// The bucket.
        bucket: String,
        /// The folder in it.
        prefix: String,
    },
    /// `file:///folder`.
    Folder(PathBuf),
}

impl FromStr for UploadUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_RESOLVED {
            return Err(UrlError::TooLong(text.len(), MAX_RESOLVED));
        }
        let (bucket, path) = if let Some(rest) = text.strip_prefix(GS) {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            (Some(checked_bucket(bucket)?), prefix)
        } else {
            (None, text.strip_prefix(FILE).and_then(|path| path.strip_prefix('/')).ok_or(UrlError::Scheme)?)
        };
        let path = path.strip_suffix('/').unwrap_or(path);
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=+@/".contains(c);
        if let Some(bad) = path.chars().find(|c| !allowed(*c)) {
            return Err(UrlError::Character(bad));
        }
        let wrong = |segment: &str| segment.is_empty() || segment == "." || segment.contains("..");
        if !path.is_empty() && path.split('/').any(wrong) {
            return Err(UrlError::Segment);
        }
        Ok(match bucket {
            Some(bucket) => Self::Bucket { bucket, prefix: path.to_owned() },
            None => Self::Folder(PathBuf::from(format!("/{path}"))),
        })
    }
}

fn checked_bucket(name: &str) -> Result<String, UrlError> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    let plain = (3..=222).contains(&name.len()) && name.chars().all(allowed) && !name.contains("..");
    let edges = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if plain && edges { Ok(name.to_owned()) } else { Err(UrlError::Bucket(quoted(name))) }
}

impl fmt::Display for UploadUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket { bucket, prefix } if prefix.is_empty() => write!(f, "{GS}{bucket}"),
            Self::Bucket { bucket, prefix } => write!(f, "{GS}{bucket}/{prefix}"),
            Self::Folder(path) => write!(f, "{FILE}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xprof::session::{HostEntry, MANIFEST_VERSION, PartJob, Tool, Window};

    use super::*;

    fn part(job: Option<&str>, user: Option<&str>) -> PartEntry {
        let job = job.map(|id| {
            let id = id.to_owned();
            Box::new(PartJob { kind: "slurm".into(), id, attempt: None, name: None, user: None, rank: None })
        });
        let entry = serde_json::json!({
            "file": "a.xplane.pb", "size": 1, "sha256": "", "planes": 1, "lines": 1, "events": 1,
        });
        let entry: PartEntry = serde_json::from_value(entry).unwrap();
        PartEntry { job, user: user.map(str::to_owned), ..entry }
    }

    fn session(hosts: &[(&str, Vec<PartEntry>)]) -> Manifest {
        let entry = |(host, parts): &(&str, Vec<PartEntry>)| HostEntry {
            host: (*host).to_owned(),
            clock: None,
            parts: parts.clone(),
            warnings: Vec::new(),
        };
        let start: jiff::Timestamp = "2027-01-31T23:30:00Z".parse().unwrap();
        let manifest = serde_json::json!({
            "version": MANIFEST_VERSION, "session": "s", "tool": Tool::this(), "hosts": [],
        });
        let manifest: Manifest = serde_json::from_value(manifest).unwrap();
        Manifest {
            window: Some(Window { start, stop: start }),
            hosts: hosts.iter().map(entry).collect(),
            ..manifest
        }
    }

    fn resolved(template: &str, manifest: &Manifest) -> Result<String, UrlError> {
        Ok(template.parse::<UrlTemplate>()?.resolve(manifest)?.to_string())
    }

    #[test]
    fn placeholders_take_the_values_of_the_session() {
        let one = session(&[("h1", vec![part(Some("42"), Some("ann")), part(Some("42"), Some("ann"))])]);
        assert_eq!(
            resolved("gs://bucket/a/{job}/{date}-{host}/{user}/", &one).unwrap(),
            "gs://bucket/a/42/2027-01-31-h1/ann"
        );
        assert_eq!(resolved("file:///mnt/{user}", &one).unwrap(), "file:///mnt/ann");
        let mixed = session(&[("h1", vec![part(Some("42"), Some("ann")), part(None, Some("bob"))])]);
        assert_eq!(resolved("gs://bucket/{job}/{user}", &mixed).unwrap(), "gs://bucket/_mixed/_mixed");
        let none = session(&[("h1", vec![part(None, None)])]);
        assert_eq!(resolved("gs://bucket/{job}/{user}", &none).unwrap(), "gs://bucket/_none/_none");
        let hosts = session(&[("h1", vec![part(None, None)]), ("h2", vec![part(None, None)])]);
        assert_eq!(resolved("gs://bucket/{host}", &hosts), Err(UrlError::SeveralHosts));
        assert_eq!(resolved("gs://bucket/x", &hosts).unwrap(), "gs://bucket/x");
    }

    #[test]
    fn before_the_window_the_parts_have_the_url_of_their_session() {
        let begin: Timestamp = "2027-01-31T23:30:00Z".parse().unwrap();
        let known = |text: &str| Some(text.to_owned());
        for parts in [
            vec![(known("42"), known("ann")), (known("42"), known("ann"))],
            vec![(known("42"), None), (None, known("ann"))],
            vec![(None, None)],
        ] {
            let template: UrlTemplate = "gs://bucket/{job}/{date}/{user}".parse().unwrap();
            let entries = parts.iter().map(|(job, user)| part(job.as_deref(), user.as_deref())).collect();
            let whole = template.resolve(&session(&[("h1", entries)]));
            assert_eq!(template.resolve_parts(begin, &parts), whole, "{parts:?}");
        }
        let of_a_host: UrlTemplate = "gs://bucket/{host}".parse().unwrap();
        assert_eq!(of_a_host.resolve_parts(begin, &[]), Err(UrlError::SeveralHosts));
        assert!(of_a_host.names_host() && !"gs://bucket/{job}".parse::<UrlTemplate>().unwrap().names_host());
    }

    #[test]
    fn what_is_above_the_first_placeholder_has_to_be_there() {
        let base = |text: &str| text.parse::<UrlTemplate>().unwrap().base_folder();
        for (text, folder) in [
            ("file:///shared/runs", "/shared/runs"),
            ("file:///shared/runs/{job}/x", "/shared/runs"),
            ("file:///shared/run-{job}/{user}", "/shared"),
            ("file:///{user}", "/"),
        ] {
            assert_eq!(base(text), Some(folder.into()), "{text}");
        }
        assert_eq!(base("gs://bucket/{job}"), None);
    }

    #[test]
    fn a_template_that_leads_elsewhere_is_refused() {
        let fault = |text: &str| text.parse::<UrlTemplate>().unwrap_err();
        for scheme in ["", "bucket/x", "s3://bucket/x", "file://host/x", "file:/x", "https://x/y", "{job}"] {
            assert_eq!(fault(scheme), UrlError::Scheme, "{scheme}");
        }
        for segment in
            ["gs://bucket/../x", "gs://bucket/a//b", "file:///a/./b", "file:///a/..", "gs://bucket/a..b"]
        {
            assert_eq!(fault(segment), UrlError::Segment, "{segment}");
        }
        for character in
            ["gs://bucket/a\u{1b}b", "gs://bucket/a\nb", "file:///a b", "gs://bucket/ä", "gs://bucket/%2e"]
        {
            assert!(matches!(fault(character), UrlError::Character(_)), "{character}");
        }
        for bucket in [
            "gs://",
            "gs:///x",
            "gs://ab",
            "gs://Bucket/x",
            "gs://-ab/x",
            "gs://b{job}/x",
            "gs://{user}/x",
            "gs://bucket{job}",
        ] {
            assert!(matches!(fault(bucket), UrlError::Bucket(_)), "{bucket}: {}", fault(bucket));
        }
        assert_eq!(fault("gs://bucket/{jobs}"), UrlError::Placeholder("jobs".to_owned()));
        assert_eq!(fault("gs://bucket/{job"), UrlError::Brace);
        assert_eq!(fault("gs://bucket/job}"), UrlError::Brace);
        assert_eq!(
            fault(&format!("gs://bucket/{}", "x".repeat(1988))),
            UrlError::TooLong(2000, MAX_TEMPLATE)
        );
    }

    proptest! {
        #[test]
        fn no_value_of_a_workload_leads_out_of_the_folder(job in ".{0,300}", user in ".{0,300}", host in ".{0,40}") {
            let session = session(&[(&host, vec![part(Some(&job), Some(&user))])]);
            let url = resolved("file:///base/{job}/{host}/{user}/end", &session).unwrap();
            prop_assert!(url.starts_with("file:///base/") && url.ends_with("/end"), "{url}");
            prop_assert_eq!(url.matches('/').count(), 7);
            prop_assert!(!url.contains("..") && !url.chars().any(char::is_control));
        }

        #[test]
        fn a_url_is_read_back_as_it_is_printed(text in "(gs://[a-z0-9.-]{0,8}|file://)(/[a-z0-9._=-]{0,6}){0,4}") {
            if let Ok(url) = text.parse::<UploadUrl>() {
                prop_assert_eq!(url.to_string().parse(), Ok(url));
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,80}") {
            let _ = text.parse::<UrlTemplate>();
        }
    }
}
