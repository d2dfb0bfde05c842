//! A file that names an account, or another server than Google's.
//!
//! Must never put more of its content into a message than the account's address and the server.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::target::{FailureClass, TransferError};

/// The longest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// Where buckets are, unless the file names another server.
const CLOUD_STORAGE: &str = "https://storage.googleapis.com";

/// A file with credentials that was read.
#[derive(Debug)]
pub(super) struct CredentialsFile {
    path: PathBuf,
    key: KeyFile,
}

/// The fields that say who it is, and what it is for.
#[derive(Debug, Deserialize, Default)]
struct KeyFile {
    #[serde(default)]
    client_email: String,
    private_key: Option<serde::de::IgnoredAny>,
    gcs_base_url: Option<String>,
}

impl CredentialsFile {
    /// Reads the file. Blocks.
    ///
    /// # Errors
    /// If it cannot be read, or is no JSON.
    pub(super) fn read(path: &Path) -> Result<Self, TransferError> {
        let shown = path.display();
        let fault = |what: String| TransferError::new(FailureClass::CredentialsFile, what);
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
        read.map_err(|error| {
            fault(match error.kind() {
                io::ErrorKind::NotFound => format!("the credentials file {shown} does not exist"),
                io::ErrorKind::IsADirectory => format!("the credentials file {shown} is a directory"),
                io::ErrorKind::PermissionDenied => {
                    let user = nix::unistd::geteuid();
                    format!("the credentials file {shown} is not readable for user id {user}")
                }
                _ => format!("cannot read the credentials file {shown}: {error}"),
            })
        })?;
        let key = serde_json::from_slice(&text).map_err(|error| {
            // Its own text quotes the file.
            let what = if error.is_data() { "has fields of another kind" } else { "is no JSON" };
            let (line, column) = (error.line(), error.column());
            fault(format!("the credentials file {shown} {what} (line {line}, column {column})"))
        })?;
        Ok(Self { path: path.to_owned(), key })
    }

    /// Whether it names a server and no account: the credentials of the machine are used there.
    pub(super) fn is_server_alone(&self) -> bool {
        self.key.gcs_base_url.is_some() && self.key.private_key.is_none()
    }

    /// The server that it names.
    pub(super) fn server(&self) -> Option<&str> {
        self.key.gcs_base_url.as_deref()
    }

    /// The account that it names.
    pub(super) fn identity(&self) -> String {
        match self.key.client_email.as_str() {
            "" => format!("the credentials in {}", self.path.display()),
            email => email.to_owned(),
        }
    }

    /// The account cannot be used. `why`: as the library says.
    pub(super) fn unusable(&self, why: &str) -> TransferError {
        let what = format_args!("cannot use the credentials in {}: {why}", self.path.display());
        TransferError::new(FailureClass::CredentialsFile, what)
    }
}

/// The server of buckets with these credentials.
pub(super) fn server_of(file: Option<&CredentialsFile>) -> String {
    file.and_then(CredentialsFile::server).unwrap_or(CLOUD_STORAGE).to_owned()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_reason_and_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let closed = file("closed", "{}");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let mut cases = vec![
            (dir.path().join("none"), "does not exist"),
            (dir.path().to_owned(), "is a directory"),
            (file("text", "secret"), "is no JSON (line 1"),
            (file("cut", "{\"private_key\": \"secret"), "is no JSON (line 1"),
            (file("kind", "{\"client_email\": {\"a\": \"secret\"}}"), "has fields of another kind"),
        ];
        // Root may read all files.
        if !nix::unistd::geteuid().is_root() {
            cases.push((closed, "is not readable for user id"));
        }
        for (path, why) in cases {
            let error = CredentialsFile::read(&path).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.class(), FailureClass::CredentialsFile);
            assert!(text.contains(why) && text.contains(&path.display().to_string()), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_file_names_an_account_or_a_server_or_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            let file = CredentialsFile::read(&path).unwrap();
            (file.is_server_alone(), file.identity(), server_of(Some(&file)))
        };
        let in_file = format!("the credentials in {}", path.display());
        assert_eq!(read(r#"{"gcs_base_url": "http://h"}"#), (true, in_file.clone(), "http://h".to_owned()));
        assert_eq!(
            read(r#"{"gcs_base_url": "http://h", "private_key": "k", "client_email": "a@b"}"#),
            (false, "a@b".to_owned(), "http://h".to_owned())
        );
        assert_eq!(read(r#"{"type": "authorized_user"}"#), (false, in_file, CLOUD_STORAGE.to_owned()));
    }
}
