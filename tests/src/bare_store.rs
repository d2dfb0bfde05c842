//! The bucket library as a program uses it that has nothing of ours: the client that the Cloud Storage double is tested
//! with, and the peer that the bench of uploads measures beside.

use async_trait::async_trait;
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use object_store::{
    BackoffConfig, ClientOptions, RetryConfig,
    client::{
        HttpClient, HttpConnector as StoreConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
        HttpResponse, HttpResponseBody, HttpService,
    },
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
};

use crate::fake_gcs::{BUCKET, FakeGcs};

#[derive(Debug, Clone)]
struct PlainClient(Client<HttpConnector, HttpRequestBody>);

#[async_trait]
impl HttpService for PlainClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let kind = |error: &Error| match error.is_connect() {
            true => HttpErrorKind::Connect,
            false => HttpErrorKind::Request,
        };
        let answer = self.0.request(request).await.map_err(|error| HttpError::new(kind(&error), error))?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(answer.map(|body| HttpResponseBody::new(http_body_util::BodyExt::map_err(body, broken))))
    }
}

impl StoreConnector for PlainClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

/// The bucket [`BUCKET`] of a double, with so many retries in quick succession.
///
/// # Panics
/// If the library refuses the settings.
pub fn bare_store(url: &str, max_retries: usize) -> GoogleCloudStorage {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = PlainClient(Client::builder(TokioExecutor::new()).build(connector));
    let key = FakeGcs::key_file(url).to_string();
    let backoff = BackoffConfig {
        init_backoff: std::time::Duration::from_millis(1),
        max_backoff: std::time::Duration::from_millis(10),
        ..BackoffConfig::default()
    };
    GoogleCloudStorageBuilder::new()
        .with_bucket_name(BUCKET)
        .with_service_account_key(key)
        .with_http_connector(client)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(RetryConfig { max_retries, backoff, ..RetryConfig::default() })
        .build()
        .expect("good settings")
}
