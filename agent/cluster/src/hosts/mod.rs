//! The hosts that a command means: from a list, a file, a Slurm job, the metadata server of a TPU VM, or a headless service of
//! Kubernetes.
//!
//! Must never give a name that an `ssh` or another command would take for an option, or one host twice.

mod address;
mod file;
mod folded;
mod gce;
mod k8s;
mod query_command;
mod slurm;

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use model::host_list::{self, HostListError};

pub use address::{HostAddress, HostAddressError};
pub use file::HostsFile;
pub use folded::folded;
pub use gce::{GceError, GceMetadata, GceWorkers};
pub use k8s::{HeadlessService, ServiceError};
pub use query_command::QueryCommandError;
pub use slurm::{SlurmError, SlurmJob, slurm_configuration};

/// Something that knows hosts.
#[async_trait]
pub trait HostProvider {
    /// The hosts in order; at least one, none twice.
    ///
    /// # Errors
    /// If they are not known.
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError>;
}

/// Why hosts are not known.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A text is no host list.
    #[error(transparent)]
    List(#[from] HostListError),
    /// A name is no host.
    #[error(transparent)]
    Address(#[from] HostAddressError),
    /// A host is there twice.
    #[error("the host {0} is named twice")]
    Twice(HostAddress),
    /// No host is named.
    #[error("no host is named")]
    Nothing,
    /// A host is in two lines of a file.
    #[error("the host {host} is named twice, first in line {first}")]
    TwiceInFile {
        /// The host.
        host: HostAddress,
        /// The number of its first line, from 1.
        first: usize,
    },
    /// A file has no host.
    #[error("{0} names no host")]
    EmptyFile(String),
    /// A file cannot be read.
    #[error("cannot read {file}: {error}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        #[source]
        error: std::io::Error,
    },
    /// A file is too large.
    #[error("{file} has more than {limit} bytes")]
    LargeFile {
        /// The file.
        file: String,
        /// The limit.
        limit: u64,
    },
    /// A line of a file is no host list.
    #[error("{file}, line {line}: {reason}")]
    Line {
        /// The file.
        file: String,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: Box<HostsError>,
    },
    /// Slurm does not know them.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The metadata server does not know them.
    #[error(transparent)]
    Gce(#[from] GceError),
    /// The pods of a service are not known.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The longest wait for something that knows hosts.
const LIMIT: Duration = Duration::from_secs(10);

/// The hosts of a list in Slurm's syntax, each with an optional port.
#[derive(Debug, Clone)]
pub struct HostList(pub String);

#[async_trait]
impl HostProvider for HostList {
    async fn hosts(&self) -> Result<Vec<HostAddress>, HostsError> {
        distinct(listed(&self.0)?)
    }
}

/// The hosts of a text in Slurm's syntax.
///
/// # Errors
/// If it is no host list, or a name in it is no host.
pub fn listed(text: &str) -> Result<Vec<HostAddress>, HostsError> {
    let names = host_list::expand(text)?;
    Ok(names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)
}

/// The hosts, if there is one, and none twice.
fn distinct(hosts: Vec<HostAddress>) -> Result<Vec<HostAddress>, HostsError> {
    let mut seen = HashSet::new();
    if let Some(twice) = hosts.iter().find(|host| !seen.insert(*host)) {
        return Err(HostsError::Twice(twice.clone()));
    }
    if hosts.is_empty() { Err(HostsError::Nothing) } else { Ok(hosts) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let hosts = listed(text).and_then(distinct).map_err(|error| error.to_string())?;
        Ok(hosts.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_list_has_names_and_ports() {
        assert_eq!(shown("tpu-[08-09],b:4393").unwrap(), ["tpu-08", "tpu-09", "b:4393"]);
        assert_eq!(shown("me@r[1-2]n[3-4].x").unwrap()[3], "me@r2n4.x");
    }

    #[test]
    fn what_is_no_list_of_hosts_is_refused() {
        let refused = |text: &str| shown(text).unwrap_err();
        assert_eq!(refused("a,b,a"), "the host a is named twice");
        assert_eq!(refused("a[1-3],a2"), "the host a2 is named twice");
        assert_eq!(refused("a,,b"), "the host list has an empty name");
        let option = refused("a,-oProxyCommand=reboot");
        assert!(option.starts_with("`-oProxyCommand=reboot` is no host name"), "{option}");
        assert!(refused("a;b").starts_with("`a;b` is no host name"));
        assert!(refused("[1-2]:99999").starts_with("`1:99999` has no valid port"));
    }

    proptest! {
        #[test]
        fn names_are_never_options(text in "[-a-z@.:;\\[\\]0-9,]{0,30}") {
            for host in listed(&text).unwrap_or_default() {
                prop_assert!(!host.name().starts_with('-'));
                prop_assert!(host.name().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte)));
            }
        }

        #[test]
        fn hosts_are_shown_as_they_are_written(names in prop::collection::hash_set("[a-z][a-z0-9.-]{0,9}(:[1-9][0-9]{0,3})?", 1..9)) {
            let names: Vec<String> = names.into_iter().collect();
            prop_assert_eq!(shown(&names.join(",")).unwrap(), names);
        }
    }
}
