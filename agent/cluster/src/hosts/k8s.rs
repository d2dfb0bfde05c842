//! The pods behind a headless service of Kubernetes: the addresses that its name has.

use std::{io, str::FromStr};

use async_trait::async_trait;
use model::{
    host_list::{HostListError, MOST_HOSTS},
    untrusted::{MESSAGE, clean},
};
use tokio::{net::lookup_host, time::timeout};

use super::{HostAddress, HostProvider, HostsError, LIMIT, distinct};

/// The name of a headless service, such as `train` or `train.team-a.svc.cluster.local`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadlessService(HostAddress);

/// Why the pods of a service are not known.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A port stands where only a name does.
    #[error("`{0}` is no name of a service: leave the port out")]
    Port(HostAddress),
    /// The resolver does not know the name, or does not answer.
    #[error("the name {service} of the service cannot be resolved: {reason}")]
    Resolve {
        /// The service.
        service: String,
        /// What the resolver says.
        reason: String,
    },
}

impl FromStr for HeadlessService {
    type Err = HostsError;

    fn from_str(text: &str) -> Result<Self, HostsError> {
        let name: HostAddress = text.parse()?;
        if name.port().is_some() { Err(ServiceError::Port(name).into()) } else { Ok(Self(name)) }
    }
}

#[async_trait]
impl HostProvider for HeadlessService {
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError> {
        // The resolver of the system blocks: it has a thread of its own there.
        let found = timeout(LIMIT, lookup_host((self.0.name(), 0))).await;
        let found = found.unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {LIMIT:?}"))));
        let failed = |error: io::Error| ServiceError::Resolve {
            service: self.0.to_string(),
            reason: clean(&error.to_string(), MESSAGE),
        };
        let mut addresses: Vec<_> = found.map_err(failed)?.map(|address| address.ip()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() > MOST_HOSTS {
            return Err(HostListError::TooMany.into());
        }
        distinct(addresses.iter().map(|address| address.to_string().parse()).collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn hosts(service: &str) -> Result<Vec<String>, String> {
        let service: HeadlessService = service.parse().map_err(|error: HostsError| error.to_string())?;
        let hosts = service.hosts().await.map_err(|error| error.to_string())?;
        Ok(hosts.iter().map(ToString::to_string).collect())
    }

    #[tokio::test]
    async fn the_addresses_of_a_name_are_its_pods() {
        let found = hosts("localhost").await.unwrap();
        assert!(found.contains(&"127.0.0.1".to_owned()) || found.contains(&"::1".to_owned()), "{found:?}");
        assert_eq!(hosts("127.0.0.1").await, Ok(vec!["127.0.0.1".to_owned()]));
    }

    #[tokio::test]
    async fn what_is_no_service_is_refused() {
        let unknown = hosts("no-such-service.invalid").await.unwrap_err();
        assert!(
            unknown.starts_with("the name no-such-service.invalid of the service cannot be resolved"),
            "{unknown}"
        );
        assert!(hosts("a:80").await.unwrap_err().contains("leave the port out"));
        assert!(hosts("-x").await.unwrap_err().contains("is no host name"));
    }
}
