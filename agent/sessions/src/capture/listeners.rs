//! Whether another process came to listen on a target's port while it recorded. The kernel gives a call to any listener of a
//! port, so that the trace may be of another process than the one that was seen before.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use host::tcp_table;
use tokio::task::{JoinHandle, spawn_blocking};
use xprof::client::Target;

use crate::target::loopback_addresses;

/// A look at the sockets that listen for a target before it records.
pub(super) struct ListenerWatch {
    procfs: PathBuf,
    at: Target,
    /// Runs beside the begin of the recording, which does not wait for it.
    before: JoinHandle<BTreeSet<u64>>,
}

impl ListenerWatch {
    pub(super) fn start(procfs: &Path, at: &Target) -> Self {
        Self { procfs: procfs.to_owned(), at: at.clone(), before: look(procfs, at) }
    }

    /// What to know of a part for which other sockets listen now. Of another machine nothing is known.
    pub(super) async fn note(self) -> Option<String> {
        let before = self.before.await.ok()?;
        let after = look(&self.procfs, &self.at).await.ok()?;
        has_come(&before, &after).then(|| {
            format!(
                "another process came to listen on {} during the capture: this part may be of either",
                self.at
            )
        })
    }
}

/// Whether a socket is new. One that is gone may have ended with its job.
fn has_come(before: &BTreeSet<u64>, after: &BTreeSet<u64>) -> bool {
    !before.is_empty() && !after.is_subset(before)
}

fn look(procfs: &Path, at: &Target) -> JoinHandle<BTreeSet<u64>> {
    let (procfs, addresses) = (procfs.to_owned(), loopback_addresses(at));
    spawn_blocking(move || {
        addresses.into_iter().flat_map(|at| tcp_table::listening_at(&procfs, at)).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_listener_that_comes_is_seen_and_one_that_goes_is_no_change() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let at: Target = format!("localhost:{port}").parse().unwrap();
        let seen = async || look(Path::new("/proc"), &at).await.unwrap();
        let alone = seen().await;
        assert_eq!(alone.len(), 1);
        let _second = TcpListener::bind(("::1", port)).unwrap();
        let both = seen().await;
        drop(first);
        let other = seen().await;
        assert!(has_come(&alone, &both) && has_come(&alone, &other));
        assert!(!has_come(&alone, &alone) && !has_come(&both, &other) && !has_come(&both, &BTreeSet::new()));
        let elsewhere = look(Path::new("/proc"), &"192.0.2.1:1".parse().unwrap()).await.unwrap();
        assert!(elsewhere.is_empty() && !has_come(&elsewhere, &both));
    }
}
