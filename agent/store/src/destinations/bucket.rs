//! A Cloud Storage bucket as a destination.
//!
//! Must never retry by itself: the queue of uploads decides when.

use std::{
    env, fs,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
    multipart::{MultipartStore, PartId},
    path::Path,
};
use serde::Deserialize;

use super::{
    http_client::{ObjectCrc, Transport, TransportError},
    target::{FailureClass, ObjectFacts, PartData, TransferError, UploadTarget},
};

/// The variable that names the file of the application default credentials.
const CREDENTIALS_VARIABLE: &str = "GOOGLE_APPLICATION_CREDENTIALS";
/// The longest object that [`UploadTarget::get`] reads.
const MAX_SMALL: u64 = 64 << 10;

/// A bucket, with the folder in it that all paths are below.
#[derive(Debug)]
pub(crate) struct Bucket {
    store: GoogleCloudStorage,
    prefix: String,
    identity: String,
}

/// The fields of a credentials file that say who it is, and what it is for.
#[derive(Deserialize, Default)]
struct KeyFile {
    #[serde(default)]
    client_email: String,
    private_key: Option<String>,
    gcs_base_url: Option<String>,
}

impl KeyFile {
    fn read(path: &FilePath) -> Self {
        let text = fs::read(path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// The endpoint, if the file has nothing else: such as a private one that the machine's own account is used at.
    fn endpoint_alone(self) -> Option<String> {
        self.gcs_base_url.filter(|_| self.private_key.is_none())
    }
}

impl Bucket {
    /// The bucket `name`, below `prefix`, with the key file `credentials`, else with what the machine has. Blocks.
    ///
    /// # Errors
    /// If the credentials cannot be read.
    pub(crate) fn open(
        name: &str,
        prefix: &str,
        credentials: Option<&FilePath>,
        transport: Transport,
    ) -> Result<Self, TransferError> {
        let retry = RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() };
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(name)
            .with_retry(retry)
            .with_http_connector(transport);
        let endpoint = credentials.and_then(|path| KeyFile::read(path).endpoint_alone());
        let credentials = credentials.filter(|_| endpoint.is_none());
        if let Some(url) = endpoint {
            builder = builder.with_base_url(&url);
        }
        let default = env::var_os(CREDENTIALS_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        match (credentials, &default) {
            (Some(path), _) => builder = builder.with_service_account_path(path.to_string_lossy()),
            (None, Some(path)) => builder = builder.with_application_credentials(path.to_string_lossy()),
            (None, None) => {}
        }
        let file = credentials.or(default.as_deref());
        let store = builder.build().map_err(|error| {
            let file = file.map(|file| format!(" in {}", file.display())).unwrap_or_default();
            let what = format_args!("cannot read the credentials{file}: {}", root(&error));
            TransferError::new(FailureClass::Credentials, what)
        })?;
        let identity = match file {
            Some(path) => identity_in(path),
            None => "the service account of this machine".to_owned(),
        };
        Ok(Self { store, prefix: prefix.to_owned(), identity })
    }

    fn path(&self, path: &str) -> Result<Path, TransferError> {
        let whole = if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        Path::parse(whole).map_err(|error| TransferError::new(FailureClass::Other, error))
    }
}

fn identity_in(path: &FilePath) -> String {
    let email = KeyFile::read(path).client_email;
    if email.is_empty() { format!("the credentials in {}", path.display()) } else { email }
}

/// The innermost cause of an error, which says what happened.
pub(super) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map_or_else(String::new, ToString::to_string)
}

/// What a failed operation means. `parts`: it was about the parts of an object.
pub(super) fn failure(error: &object_store::Error, parts: bool) -> TransferError {
    let Some(cause) = TransportError::of(error) else {
        return TransferError::new(FailureClass::Other, root(error));
    };
    let class = match cause {
        TransportError::Refused { metadata: true, .. } => FailureClass::Credentials,
        TransportError::Refused { status, code, .. } => match *status {
            StatusCode::PRECONDITION_FAILED => return TransferError::Exists,
            StatusCode::NOT_FOUND if parts && code != "NoSuchBucket" => return TransferError::PartsGone,
            StatusCode::NOT_FOUND => FailureClass::NotFound,
            StatusCode::UNAUTHORIZED => FailureClass::Credentials,
            StatusCode::FORBIDDEN => FailureClass::Denied,
            StatusCode::TOO_MANY_REQUESTS => FailureClass::Throttled,
            StatusCode::REQUEST_TIMEOUT => FailureClass::Timeout,
            status if status.is_server_error() => FailureClass::Server,
            _ => FailureClass::Other,
        },
        TransportError::Connect(_) | TransportError::Interrupted(_) => FailureClass::Unreachable,
        TransportError::Idle(_) => FailureClass::Timeout,
        TransportError::PlainText(_) | TransportError::Authorities(_) | TransportError::Answer => {
            FailureClass::Other
        }
    };
    TransferError::new(class, cause)
}

#[async_trait]
impl UploadTarget for Bucket {
    async fn put(&self, path: &str, data: Bytes, replaces: Option<&str>) -> Result<(), TransferError> {
        let mode = match replaces {
            None => PutMode::Create,
            Some(generation) => {
                PutMode::Update(UpdateVersion { e_tag: None, version: Some(generation.to_owned()) })
            }
        };
        let put = self.store.put_opts(&self.path(path)?, data.into(), PutOptions::from(mode)).await;
        put.map(drop).map_err(|error| failure(&error, false))
    }

    async fn begin_parts(&self, path: &str) -> Result<String, TransferError> {
        self.store.create_multipart(&self.path(path)?).await.map_err(|error| failure(&error, false))
    }

    async fn put_part(&self, path: &str, id: &str, part: PartData) -> Result<String, TransferError> {
        let (index, data) = (part.index as usize, PutPayload::from_bytes(part.data));
        let sent = self.store.put_part(&self.path(path)?, &id.to_owned(), index, data).await;
        sent.map(|part| part.content_id).map_err(|error| failure(&error, true))
    }

    async fn complete(&self, path: &str, id: &str, parts: Vec<String>) -> Result<(), TransferError> {
        let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
        let completed = self.store.complete_multipart(&self.path(path)?, &id.to_owned(), parts).await;
        let Err(error) = completed else { return Ok(()) };
        if TransportError::of(&error).is_some_and(TransportError::refuses_parts) {
            // No other list can be made of what is known of them.
            self.abort(path, id).await?;
            return Err(TransferError::PartsGone);
        }
        Err(failure(&error, true))
    }

    async fn abort(&self, path: &str, id: &str) -> Result<(), TransferError> {
        let aborted = self.store.abort_multipart(&self.path(path)?, &id.to_owned()).await;
        match aborted.map_err(|error| failure(&error, true)) {
            Err(TransferError::PartsGone) => Ok(()),
            aborted => aborted,
        }
    }

    async fn head(&self, path: &str) -> Result<Option<ObjectFacts>, TransferError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&self.path(path)?, options).await {
            Ok(found) => Ok(Some(ObjectFacts {
                size: found.meta.size,
                crc32c: found.extensions.get::<ObjectCrc>().map(|crc| crc.0),
                generation: found.meta.version.unwrap_or_default(),
                etag: found.meta.e_tag.unwrap_or_default(),
            })),
            Err(error) => absent(&error),
        }
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError> {
        let found = match self.store.get(&self.path(path)?).await {
            Ok(found) if found.meta.size > MAX_SMALL => {
                let message = format!("the object {path} has more than {MAX_SMALL} bytes");
                return Err(TransferError::new(FailureClass::Other, message));
            }
            Ok(found) => found,
            Err(error) => return absent(&error),
        };
        found.bytes().await.map(Some).map_err(|error| failure(&error, false))
    }

    async fn delete(&self, path: &str) -> Result<(), TransferError> {
        self.store.delete(&self.path(path)?).await.map_err(|error| failure(&error, false))
    }

    async fn identity(&self) -> String {
        self.identity.clone()
    }
}

/// No object, if that is what the error says. A HEAD has no body, so that the bucket may be missing too: a write says so.
fn absent<T>(error: &object_store::Error) -> Result<Option<T>, TransferError> {
    match failure(error, false) {
        TransferError::Failed { class: FailureClass::NotFound, .. } => Ok(None),
        failure => Err(failure),
    }
}
