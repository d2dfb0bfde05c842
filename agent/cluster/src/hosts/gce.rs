//! What the metadata server of this virtual machine says: the workers of its TPU slice, and where it is.

use std::{env, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use model::{
    host_list::{HostListError, MOST_HOSTS},
    untrusted::{MESSAGE, clean},
};
use tokio::time::timeout;

use super::{HostAddress, HostProvider, HostsError, distinct};

/// Below this all values lie.
const ROOT: &str = "/computeMetadata/v1/";
/// The attribute: `unknown:unknown:10.130.0.2,unknown:unknown:10.130.0.3`.
const WORKERS: &str = "instance/attributes/worker-network-endpoints";
/// The most bytes of it.
const MOST_BYTES: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(5);

/// The metadata server of this machine.
#[derive(Debug, Clone)]
pub struct GceMetadata {
    /// `HOST[:PORT]`.
    pub server: String,
}

/// The workers of this machine's slice.
#[derive(Debug, Clone, Default)]
pub struct GceWorkers(GceMetadata);

/// Why a value is not known.
#[derive(Debug, thiserror::Error)]
pub enum GceError {
    /// The address is none.
    #[error("`{0}` is no address of a metadata server")]
    Server(String),
    /// No answer.
    #[error("the metadata server {server} does not answer: {reason}")]
    NoAnswer {
        /// Its address.
        server: String,
        /// The reason of the refusal.
        reason: String,
    },
    /// Another program answered.
    #[error("{0} is not a metadata server: its answer lacks the header Metadata-Flavor")]
    NotMetadata(String),
    /// There is no such attribute.
    #[error(
        "the metadata server {0} knows no worker-network-endpoints: this machine is no TPU VM of a slice"
    )]
    NoWorkers(String),
    /// Another status.
    #[error("the metadata server {server} answered {status}")]
    Status {
        /// Its address.
        server: String,
        /// Its status.
        status: StatusCode,
    },
}

impl Default for GceMetadata {
    /// The server that `GCE_METADATA_HOST` or `GCE_METADATA_IP` names, else the usual one.
    fn default() -> Self {
        let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let server = set("GCE_METADATA_HOST").or_else(|| set("GCE_METADATA_IP"));
        Self { server: server.unwrap_or_else(|| "metadata.google.internal".into()) }
    }
}

#[async_trait]
impl HostProvider for GceWorkers {
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError> {
        let server = || GceError::NoWorkers(clean(&self.0.server, MESSAGE));
        workers(&self.0.value(WORKERS).await?.ok_or_else(server)?)
    }
}

impl GceMetadata {
    /// The value at this path below `/computeMetadata/v1/`; `None` if the server has none there.
    ///
    /// # Errors
    /// If no metadata server answers within 5 s.
    pub async fn value(&self, path: &str) -> Result<Option<String>, GceError> {
        let server = || clean(&self.server, MESSAGE);
        let no_answer = |reason: String| GceError::NoAnswer { server: server(), reason };
        let request =
            Request::get(format!("http://{}{ROOT}{path}", self.server)).header("Metadata-Flavor", "Google");
        let request = request.body(Empty::<Bytes>::new()).map_err(|_| GceError::Server(server()))?;
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let exchange = async {
            let answer = client.request(request).await.map_err(|error| no_answer(cause(&error)))?;
            let (head, body) = answer.into_parts();
            if head.headers.get("metadata-flavor").is_none_or(|flavor| flavor != "Google") {
                return Err(GceError::NotMetadata(server()));
            }
            match head.status {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                status => return Err(GceError::Status { server: server(), status }),
            }
            let body = Limited::new(body, MOST_BYTES).collect().await;
            let body = body.map_err(|error| no_answer(clean(&error.to_string(), MESSAGE)))?;
            Ok(Some(String::from_utf8_lossy(&body.to_bytes()).into_owned()))
        };
        timeout(LIMIT, exchange).await.unwrap_or_else(|_| Err(no_answer(format!("not within {LIMIT:?}"))))
    }
}

/// The reason, which is at the end of the chain.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |error| error.source()).last();
    clean(&last.unwrap_or(error).to_string(), MESSAGE)
}

/// The third field of each entry is an address; a machine made by Compute Engine has a plain name instead.
fn workers(attribute: &str) -> Result<Vec<HostAddress>, HostsError> {
    let mut hosts = Vec::new();
    for entry in attribute.trim().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let name = entry.splitn(3, ':').nth(2).unwrap_or(entry);
        hosts.push(name.parse()?);
        if hosts.len() > MOST_HOSTS {
            return Err(HostListError::TooMany.into());
        }
    }
    distinct(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attribute_is_read_leniently() {
        let read = |text: &str| {
            let hosts = workers(text).map_err(|error| error.to_string())?;
            Ok::<_, String>(hosts.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let two = "unknown:unknown:10.130.0.2,unknown:unknown:10.130.0.3";
        assert_eq!(read(two).unwrap(), ["10.130.0.2", "10.130.0.3"]);
        assert_eq!(read("a:b:fe80::1\n").unwrap(), ["fe80::1"]);
        assert_eq!(read("instance-20260101").unwrap(), ["instance-20260101"]);
        assert_eq!(read("").unwrap_err(), "no host is named");
        assert!(read("unknown:unknown:-x").unwrap_err().starts_with("`-x` is no host name"));
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_asked_is_named() {
        let failed = |server: &str| {
            let workers = GceWorkers(GceMetadata { server: server.to_owned() });
            async move { workers.hosts().await.unwrap_err().to_string() }
        };
        let closed = failed("127.0.0.1:1").await;
        assert!(
            closed.starts_with("the metadata server 127.0.0.1:1 does not answer: Connection refused"),
            "{closed}"
        );
        assert_eq!(failed("a b").await, "`a b` is no address of a metadata server");
    }
}
