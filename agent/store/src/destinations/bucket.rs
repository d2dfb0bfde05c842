//! A Cloud Storage bucket as a destination.
//!
//! Must never retry by itself: the queue of uploads decides when.

use std::{
    env,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use object_store::{
    GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
    gcp::{GcpCredentialProvider, GoogleCloudStorage, GoogleCloudStorageBuilder},
    multipart::{MultipartStore, PartId},
    path::Path,
};

use super::{
    credentials::{CredentialsFile, server_of},
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
    /// The URL of the server.
    server: String,
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
        let named = credentials.map(CredentialsFile::read).transpose()?;
        let server = server_of(named.as_ref());
        if let Some(url) = named.as_ref().and_then(CredentialsFile::server) {
            builder = builder.with_base_url(url);
        }
        let account = credentials.zip(named).filter(|(_, file)| !file.is_server_alone());
        let default = env::var_os(CREDENTIALS_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let file = match (account, default) {
            (Some((path, file)), _) => {
                builder = builder.with_service_account_path(path.to_string_lossy());
                Some(file)
            }
            (None, Some(path)) => {
                builder = builder.with_application_credentials(path.to_string_lossy());
                Some(CredentialsFile::read(&path)?)
            }
            (None, None) => None,
        };
        let store = builder.build().map_err(|error| unusable(file.as_ref(), &error))?;
        let identity =
            file.map_or_else(|| "the service account of this machine".to_owned(), |file| file.identity());
        Ok(Self { store, prefix: prefix.to_owned(), identity, server })
    }

    /// Who the server takes the agent for.
    pub(super) fn account(&self) -> &str {
        &self.identity
    }

    /// What gives out the tokens of its account.
    pub(super) fn credentials(&self) -> GcpCredentialProvider {
        self.store.credentials().clone()
    }

    fn failure(&self, error: &object_store::Error, parts: bool) -> TransferError {
        failure(error, parts, &self.server)
    }

    fn path(&self, path: &str) -> Result<Path, TransferError> {
        let whole = if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        Path::parse(whole).map_err(|error| TransferError::new(FailureClass::Other, error))
    }
}

/// Credentials that the library cannot use: those of `file`, or else the default ones of this user.
pub(super) fn unusable(file: Option<&CredentialsFile>, error: &object_store::Error) -> TransferError {
    let why = root(error);
    file.map_or_else(
        || {
            let what = format_args!("cannot use the application default credentials: {why}");
            TransferError::new(FailureClass::CredentialsFile, what)
        },
        |file| file.unusable(&why),
    )
}

/// The innermost cause of an error, which says what happened.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map_or_else(String::new, ToString::to_string)
}

/// What a failed operation at `server` means. `parts`: it was about the parts of an object.
pub(super) fn failure(error: &object_store::Error, parts: bool, server: &str) -> TransferError {
    match TransportError::of(error) {
        Some(cause) => transport_failure(cause, parts),
        None => unexpected(error, server),
    }
}

/// What a failed request means. `parts`: it was about the parts of an object.
pub(super) fn transport_failure(cause: &TransportError, parts: bool) -> TransferError {
    let class = match cause {
        TransportError::Refused { metadata: true, .. } => FailureClass::Credentials,
        TransportError::Refused { status, code, .. } => match *status {
            StatusCode::PRECONDITION_FAILED => return TransferError::Exists,
            StatusCode::NOT_FOUND if parts && code != "NoSuchBucket" => return TransferError::PartsGone,
            StatusCode::NOT_FOUND => FailureClass::NotFound,
            StatusCode::UNAUTHORIZED => FailureClass::Credentials,
            // The answer to a HEAD has no code.
            StatusCode::FORBIDDEN if matches!(code.as_str(), "" | "AccessDenied") => FailureClass::Denied,
            StatusCode::FORBIDDEN => FailureClass::Refused,
            StatusCode::TOO_MANY_REQUESTS => FailureClass::Throttled,
            StatusCode::REQUEST_TIMEOUT => FailureClass::Timeout,
            status if status.is_server_error() => FailureClass::Server,
            _ => FailureClass::Other,
        },
        TransportError::NoMetadata { .. } => FailureClass::Credentials,
        TransportError::Connect { .. } | TransportError::Interrupted(_) => FailureClass::Unreachable,
        TransportError::Tls { .. } => FailureClass::Tls,
        TransportError::Idle(_) => FailureClass::Timeout,
        TransportError::PlainText(_)
        | TransportError::Authorities(_)
        | TransportError::NotHttp(_)
        | TransportError::Answer(_) => FailureClass::Other,
    };
    TransferError::new(class, cause)
}

/// An answer that the library cannot read.
fn unexpected(error: &object_store::Error, server: &str) -> TransferError {
    let why = root(error);
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    if causes.any(|cause| cause.to_string().contains("token")) {
        let what = format_args!("the answer to the request for an access token cannot be read: {why}");
        return TransferError::new(FailureClass::Credentials, what);
    }
    TransferError::other(format_args!("the server at {server} does not answer as Cloud Storage: {why}"))
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
        put.map(drop).map_err(|error| self.failure(&error, false))
    }

    async fn begin_parts(&self, path: &str) -> Result<String, TransferError> {
        self.store.create_multipart(&self.path(path)?).await.map_err(|error| self.failure(&error, false))
    }

    async fn put_part(&self, path: &str, id: &str, part: PartData) -> Result<String, TransferError> {
        let (index, data) = (part.index as usize, PutPayload::from_bytes(part.data));
        let sent = self.store.put_part(&self.path(path)?, &id.to_owned(), index, data).await;
        sent.map(|part| part.content_id).map_err(|error| self.failure(&error, true))
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
        Err(self.failure(&error, true))
    }

    async fn abort(&self, path: &str, id: &str) -> Result<(), TransferError> {
        let aborted = self.store.abort_multipart(&self.path(path)?, &id.to_owned()).await;
        match aborted.map_err(|error| self.failure(&error, true)) {
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
            Err(error) => absent(self.failure(&error, false)),
        }
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, TransferError> {
        let found = match self.store.get(&self.path(path)?).await {
            Ok(found) if found.meta.size > MAX_SMALL => {
                let message = format!("the object {path} has more than {MAX_SMALL} bytes");
                return Err(TransferError::new(FailureClass::Other, message));
            }
            Ok(found) => found,
            Err(error) => return absent(self.failure(&error, false)),
        };
        found.bytes().await.map(Some).map_err(|error| self.failure(&error, false))
    }

    async fn delete(&self, path: &str) -> Result<(), TransferError> {
        self.store.delete(&self.path(path)?).await.map_err(|error| self.failure(&error, false))
    }

    async fn identity(&self) -> String {
        self.identity.clone()
    }
}

/// No object, if that is what the error says. A HEAD has no body, so that the bucket may be missing too: a write says so.
fn absent<T>(failure: TransferError) -> Result<Option<T>, TransferError> {
    match failure {
        TransferError::Failed { class: FailureClass::NotFound, .. } => Ok(None),
        failure => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::destinations::SendRate;

    /// A bucket at this server, without an account.
    fn bucket(url: &str) -> Bucket {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key.json");
        let text = serde_json::json!({
            "gcs_base_url": url, "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "",
        });
        std::fs::write(&key, text.to_string()).unwrap();
        let transport = Transport::new(Duration::from_secs(30), SendRate::default());
        Bucket::open("bucket", "x", Some(&key), transport).unwrap()
    }

    /// How a write fails that is answered so, and the server's URL.
    async fn answered(answer: &'static str) -> (TransferError, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let target = bucket(&url);
        let (put, ()) = tokio::join!(target.put("a", Bytes::from_static(b"1"), None), serve);
        (put.unwrap_err(), url)
    }

    #[tokio::test]
    async fn what_an_answer_says_is_kept() {
        const XML: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n<?xml version='1.0'?><Error>";
        let billing = "<Code>UserProjectAccountProblem</Code><Message>Sorry.</Message><Details>No billing\n here</Details>";
        let role = "<Code>AccessDenied</Code><Message>Access denied.</Message><Details>a@b does not have x.create</Details>";
        let leak = |text: String| -> &'static str { text.leak() };
        let cases = [
            (
                leak(format!("{XML}{billing}</Error>")),
                FailureClass::Refused,
                "status 403: UserProjectAccountProblem: Sorry. No billing\\n here",
            ),
            (leak(format!("{XML}{role}</Error>")), FailureClass::Denied, "a@b does not have x.create"),
            ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", FailureClass::Denied, "status 403"),
            (
                "HTTP/1.1 302 Found\r\nlocation: https://login.example/x?secret=1\r\ncontent-length: 0\r\n\r\n",
                FailureClass::Other,
                "it redirects to https://login.example/x",
            ),
            ("HTTP/1.1 429 Slow\r\ncontent-length: 0\r\n\r\n", FailureClass::Throttled, "status 429"),
            ("HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n", FailureClass::Server, "status 503"),
            ("HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n", FailureClass::Other, "status 400"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
                FailureClass::Other,
                "does not answer as Cloud Storage",
            ),
        ];
        for (answer, class, says) in cases {
            let (error, url) = answered(answer).await;
            let text = error.to_string();
            assert_eq!(error.class(), class, "{answer}: {text}");
            assert!(text.contains(says) && !text.contains("secret"), "{answer}: {text}");
            if answer.starts_with("HTTP/1.1 200") {
                assert!(text.contains(&url), "{text}");
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = bucket(&format!("http://{at}")).head("a").await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Unreachable);
        assert!(error.to_string().contains(&format!("cannot connect to {at}: ")), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_speaks_something_else_is_not_said_to_be_out_of_reach() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"\x00garbage\r\n\r\n").await;
            }
        });
        let error = bucket(&format!("http://{at}")).head("a").await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Other, "{error}");
        assert!(error.to_string().contains("the answer is not one of HTTP: "), "{error}");
        let error = bucket(&format!("https://{at}")).head("a").await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Tls, "{error}");
        assert!(error.to_string().contains(&format!("TLS with {at} failed: ")), "{error}");
    }
}
