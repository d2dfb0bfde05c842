//! Sections `[[destination]]`.

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr};

use documented::{Documented, DocumentedFields};
use model::absolute_path;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::url::UrlTemplate;

/// The longest name of a destination.
const MAX_NAME: usize = 40;
/// What a caller says who wants no upload.
pub const NO_DESTINATION: &str = "none";

/// The name of a destination: 1 to 40 of `a-z`, `0-9`, `-` and `_`, but not `none`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationName(String);

/// The text is no name of a destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a destination: expected 1 to {MAX_NAME} of a-z, 0-9, `-` and `_`, and not `none`"
)]
pub struct DestinationNameError(String);

impl DestinationName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DestinationName {
    type Err = DestinationNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        let plain = (1..=MAX_NAME).contains(&text.len()) && text.chars().all(allowed);
        if plain && text != NO_DESTINATION {
            return Ok(Self(text.to_owned()));
        }
        Err(DestinationNameError(text.chars().take(MAX_NAME).flat_map(char::escape_debug).collect()))
    }
}

impl fmt::Display for DestinationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Serde for types that are read from and printed as text.
macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

as_text!(DestinationName);
as_text!(UrlTemplate);

/// When a session goes to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UploadWhen {
    /// When a caller names it.
    #[default]
    Asked,
    /// Every session.
    Always,
}

/// Who may name a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allow {
    /// Everyone, for their own sessions.
    #[default]
    Owner,
    /// Administrators.
    Admin,
}

/// A bucket or folder for sessions. The agent writes there with its own credentials, so that callers can only choose among
/// these. Repeat the section for each one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Documented, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Destination {
    /// Its name, for `tpuscope capture --to NAME`. Required.
    pub name: DestinationName,
    /// gs://BUCKET/FOLDER or file:///FOLDER. Required. {job}, {date}, {host} and {user} stand for the session's job id, the UTC
    /// date of its start, its host and its user; _mixed for several, _none for no job or user.
    pub url: UrlTemplate,
    /// "asked": sessions whose capture names it. "always": every session too.
    #[serde(default)]
    pub upload: UploadWhen,
    /// Who may name it: "owner", everyone for their own sessions, or "admin".
    #[serde(default)]
    pub allow: Allow,
    /// Path of a service account's key file. Without it: GOOGLE_APPLICATION_CREDENTIALS, else the application default
    /// credentials of the agent's user, else the machine's service account.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "absolute_path::optional")]
    pub credentials: Option<PathBuf>,
}

/// What a destination has that does not say otherwise.
#[derive(Debug, Default, Serialize)]
struct DestinationDefaults {
    upload: UploadWhen,
    allow: Allow,
}

impl Destination {
    /// The settings that have a default, with it.
    pub fn defaults() -> impl Serialize {
        DestinationDefaults::default()
    }

    /// Whether every session goes there.
    pub fn always(&self) -> bool {
        self.upload == UploadWhen::Always
    }
}

/// All destinations of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Destinations(pub Vec<Destination>);

impl Destinations {
    /// The destination of this name.
    pub fn find(&self, name: &str) -> Option<&Destination> {
        self.0.iter().find(|destination| destination.name.as_str() == name)
    }

    /// Whether two destinations have one name.
    pub fn name_twice(&self) -> bool {
        let names: BTreeSet<_> = self.0.iter().map(|destination| &destination.name).collect();
        names.len() < self.0.len()
    }

    /// Whether a destination has credentials that it cannot use.
    pub fn credentials_of_a_folder(&self) -> bool {
        self.0.iter().any(|destination| destination.credentials.is_some() && destination.url.is_folder())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_word() {
        for good in ["a", "bucket", "my-bucket_2", &"x".repeat(MAX_NAME)] {
            assert_eq!(good.parse::<DestinationName>().unwrap().as_str(), good);
        }
        for bad in ["", "none", "A", "a b", "a/b", "../a", "ä", &"x".repeat(MAX_NAME + 1)] {
            let error = bad.parse::<DestinationName>().unwrap_err().to_string();
            assert!(error.contains("is no name of a destination"), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_is_the_careful_choice() {
        let read: Destination = serde_json::from_str(r#"{"name": "a", "url": "gs://bucket/x"}"#).unwrap();
        assert_eq!((read.upload, read.allow, read.credentials), (UploadWhen::Asked, Allow::Owner, None));
    }
}
