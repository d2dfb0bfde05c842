//! Sessions in a bucket, read with the credentials of whoever runs the command.
//!
//! Memory is one answer: a listing is asked for page by page and bounded, an object is read in ranges. Must never write, and
//! never use the agent's credentials for a caller.

use std::{fmt, ops::Range, path::PathBuf, str::FromStr};

use bytes::Bytes;
use object_store::{
    GetOptions, ObjectStore, RetryConfig,
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
    list::{PaginatedListOptions, PaginatedListStore},
    path::Path,
};

use super::{
    bucket::{failure, unusable},
    credentials::{CredentialsFile, server_of},
    http_client::Transport,
    target::{FailureClass, TransferError},
};

/// The most entries of one folder.
const MAX_ENTRIES: usize = 100_000;
/// The entries of one page: the most that the service gives.
const PAGE: usize = 1000;
const SCHEME: &str = "gs://";
/// The variables that name a file with credentials, as the library looks for them.
const FILE_VARIABLES: [&str; 3] =
    ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS"];

/// A folder or an object in a bucket: `gs://bucket/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketUrl {
    /// The bucket.
    pub bucket: String,
    /// The path in it, without a slash at its ends; empty for the whole bucket.
    pub path: String,
}

/// Why a text is no [`BucketUrl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BucketUrlError {
    /// Another scheme.
    #[error("only URLs that begin with `gs://` or `file:///` are read")]
    Scheme,
    /// No bucket.
    #[error("the URL has no bucket: expected `gs://BUCKET/PATH`")]
    Bucket,
    /// A part that no object of tpuscope has.
    #[error("the URL has an empty, `.` or `..` segment, or a control character")]
    Path,
}

impl FromStr for BucketUrl {
    type Err = BucketUrlError;

    fn from_str(text: &str) -> Result<Self, BucketUrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(BucketUrlError::Scheme)?;
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(plain) {
            return Err(BucketUrlError::Bucket);
        }
        let path = path.strip_suffix('/').unwrap_or(path);
        let wrong = |segment: &str| matches!(segment, "" | "." | "..");
        if path.chars().any(char::is_control) || !path.is_empty() && path.split('/').any(wrong) {
            return Err(BucketUrlError::Path);
        }
        Ok(Self { bucket: bucket.to_owned(), path: path.to_owned() })
    }
}

impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.path.is_empty() { "" } else { "/" };
        write!(f, "{SCHEME}{}{slash}{}", self.bucket, self.path)
    }
}

impl BucketUrl {
    /// What lies at `path` below it.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        let slash = if self.path.is_empty() { "" } else { "/" };
        Self { bucket: self.bucket.clone(), path: format!("{}{slash}{path}", self.path) }
    }
}

/// An object, as its bucket lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketObject {
    /// The last segment of its path.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Its ETag: a range of another content is refused.
    pub etag: Option<String>,
}

/// What lies directly in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BucketListing {
    /// Its objects.
    pub objects: Vec<BucketObject>,
    /// The last segments of the folders in it.
    pub folders: Vec<String>,
}

/// A bucket that is read.
#[derive(Debug)]
pub struct BucketReader {
    store: GoogleCloudStorage,
    /// The URL of the server.
    server: String,
}

impl BucketReader {
    /// The bucket, with what the environment says (`GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`), the
    /// application default credentials, or the machine's metadata server. Blocks.
    ///
    /// # Errors
    /// If the credentials cannot be read.
    pub fn open(bucket: &str, transport: Transport) -> Result<Self, TransferError> {
        let mut variables = FILE_VARIABLES.into_iter().filter_map(std::env::var_os);
        let path = variables.find(|path| !path.is_empty()).map(PathBuf::from);
        let file = path.as_deref().map(CredentialsFile::read).transpose()?;
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .with_http_connector(transport)
            .build();
        let store = store.map_err(|error| unusable(file.as_ref(), &error))?;
        Ok(Self { store, server: server_of(file.as_ref()) })
    }

    fn failure(&self, error: &object_store::Error) -> TransferError {
        failure(error, false, &self.server)
    }

    /// What lies in the folder `path`; nothing if there is no such folder.
    ///
    /// # Errors
    /// If the bucket cannot be read, or the folder has more than 100,000 entries.
    pub async fn list(&self, path: &str) -> Result<BucketListing, TransferError> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut listing = BucketListing::default();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                max_keys: Some(PAGE),
                page_token,
                ..PaginatedListOptions::default()
            };
            let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
            let page = self.store.list_paginated(prefix, options).await;
            let page = page.map_err(|error| self.failure(&error))?;
            listing.take(page.result);
            if listing.objects.len() + listing.folders.len() > MAX_ENTRIES {
                let why = format!("the folder {path} has more than {MAX_ENTRIES} entries");
                return Err(TransferError::new(FailureClass::Other, why));
            }
            page_token = page.page_token;
            if page_token.is_none() {
                return Ok(listing);
            }
        }
    }

    /// The object at `path`; `None` if there is none.
    ///
    /// # Errors
    /// If the bucket cannot be read.
    pub async fn object(&self, path: &str) -> Result<Option<BucketObject>, TransferError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&parsed(path)?, options).await {
            Ok(found) => Ok(Some(of_object(&found.meta))),
            Err(error) => match self.failure(&error) {
                TransferError::Failed { class: FailureClass::NotFound, .. } => Ok(None),
                failed => Err(failed),
            },
        }
    }

    /// The bytes `range` of the object at `path`, which is still the one with this ETag.
    ///
    /// # Errors
    /// If the bucket cannot be read; [`TransferError::Exists`] if the object is another by now.
    pub async fn read(
        &self,
        path: &str,
        etag: Option<&str>,
        range: Range<u64>,
    ) -> Result<Bytes, TransferError> {
        let options = GetOptions {
            range: Some(range.into()),
            if_match: etag.map(str::to_owned),
            ..GetOptions::default()
        };
        let found = self.store.get_opts(&parsed(path)?, options).await;
        let found = found.map_err(|error| self.failure(&error))?;
        found.bytes().await.map_err(|error| self.failure(&error))
    }
}

impl BucketListing {
    fn take(&mut self, page: object_store::ListResult) {
        self.objects.extend(page.objects.iter().map(of_object));
        let names = page.common_prefixes.iter().filter_map(|folder| folder.filename().map(str::to_owned));
        self.folders.extend(names);
    }
}

fn of_object(meta: &object_store::ObjectMeta) -> BucketObject {
    BucketObject {
        name: meta.location.filename().unwrap_or_default().to_owned(),
        size: meta.size,
        etag: meta.e_tag.clone(),
    }
}

fn parsed(path: &str) -> Result<Path, TransferError> {
    Path::parse(path).map_err(|error| TransferError::new(FailureClass::Other, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_bucket_and_a_plain_path() {
        let parse = |text: &str| text.parse::<BucketUrl>();
        let url = parse("gs://b/a b/plugins/").unwrap();
        assert_eq!((url.bucket.as_str(), url.path.as_str()), ("b", "a b/plugins"));
        assert_eq!(url.join("profile/s").to_string(), "gs://b/a b/plugins/profile/s");
        assert_eq!(parse("gs://b").unwrap().join("s").to_string(), "gs://b/s");
        assert_eq!(parse("gs://b/").unwrap().to_string(), "gs://b");
        assert_eq!(parse("s3://b/c"), Err(BucketUrlError::Scheme));
        for bad in ["gs://", "gs:///x", "gs://b\n/x", "gs://b c/x"] {
            assert_eq!(parse(bad), Err(BucketUrlError::Bucket), "{bad:?}");
        }
        for bad in ["gs://b/../x", "gs://b/x//y", "gs://b/./x", "gs://b/x\ny"] {
            assert_eq!(parse(bad), Err(BucketUrlError::Path), "{bad:?}");
        }
    }
}
