//! The account of the agent at Google Cloud, for services other than Cloud Storage: the same credentials, connections and
//! kinds of failures as those of buckets.
//!
//! A call has no total time limit: its caller sets one. Must never try again by itself.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use object_store::gcp::GcpCredentialProvider;

use super::{
    bucket::{Bucket, failure, transport_failure},
    http_client::{Transport, TransportError},
    target::TransferError,
};

/// The library gives credentials only together with a bucket. No request names this one.
const NO_BUCKET: &str = "none";
/// The largest answer in bytes.
const MAX_ANSWER: usize = 256 << 10;

/// An account, which its tokens stand for.
#[derive(Debug)]
pub struct GoogleAccount {
    credentials: GcpCredentialProvider,
    identity: String,
    transport: Transport,
}

impl GoogleAccount {
    /// The account of this key file, else what the machine has. Blocks.
    ///
    /// # Errors
    /// If the credentials cannot be read.
    pub fn open(credentials: Option<&Path>, transport: Transport) -> Result<Self, TransferError> {
        let bucket = Bucket::open(NO_BUCKET, "", credentials, transport.clone())?;
        Ok(Self { credentials: bucket.credentials(), identity: bucket.account().to_owned(), transport })
    }

    /// Who it is, such as the address of a service account.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Sends JSON to a URL. The answer may have any status.
    ///
    /// # Errors
    /// If there is no token, or no whole answer.
    pub async fn post_json(&self, url: &str, body: Bytes) -> Result<Response<Bytes>, TransferError> {
        let token = self.credentials.get_credential().await;
        let token = token.map_err(|error| failure(&error, false, url))?;
        let mut request =
            Request::post(url).header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // A key file may say that its server wants no token.
        if !token.bearer.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.bearer));
        }
        let request = request.body(body.into()).map_err(TransferError::other)?;
        let answer = self.transport.exchange(request, MAX_ANSWER).await;
        let (parts, body) = answer.map_err(|error| match TransportError::of(&error) {
            Some(cause) => transport_failure(cause, false),
            None => TransferError::other(error),
        })?;
        Ok(Response::from_parts(parts, body))
    }
}
