//! Opt-in: finds out whether a listener of an owner is a profiler, with one call in the life of its socket. The call
//! is Terminate for a session that does not exist, which a profiler ignores.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use proto::tensorflow::{TerminateRequest, profiler_service_client::ProfilerServiceClient};
use tokio::{runtime, task::JoinSet, time::timeout};
use tonic::transport::Endpoint;

use super::endpoints::ProbeCandidate;

const CONNECT: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_millis(500);
/// Maximum number of listeners that one scan probes; the others wait for the next scan.
const MAX_AT_ONCE: usize = 16;

/// Remembers which sockets were probed.
#[derive(Debug, Default)]
pub(super) struct ProfilerProbe {
    probed: BTreeSet<u64>,
    profilers: BTreeSet<u64>,
}

impl ProfilerProbe {
    /// Inodes of the sockets that answered as a profiler does.
    pub(super) fn profilers(&self) -> &BTreeSet<u64> {
        &self.profilers
    }

    /// Forgets closed sockets.
    pub(super) fn keep(&mut self, live: &BTreeSet<u64>) {
        self.probed.retain(|inode| live.contains(inode));
        self.profilers.retain(|inode| live.contains(inode));
    }

    /// Calls the listeners that were never called. Returns whether a profiler was among them.
    pub(super) fn probe(&mut self, candidates: &[ProbeCandidate]) -> bool {
        let fresh: Vec<&ProbeCandidate> =
            candidates.iter().filter(|at| !self.probed.contains(&at.inode)).take(MAX_AT_ONCE).collect();
        if fresh.is_empty() {
            return false;
        }
        // A runtime of its own: this runs on a thread that may block, with or without one around it.
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return false };
        self.probed.extend(fresh.iter().map(|at| at.inode));
        let found = runtime.block_on(async {
            let mut calls = JoinSet::new();
            for ProbeCandidate { inode, address } in fresh.into_iter().cloned() {
                calls.spawn(async move { is_profiler(address).await.then_some(inode) });
            }
            calls.join_all().await
        });
        let before = self.profilers.len();
        self.profilers.extend(found.into_iter().flatten());
        self.profilers.len() > before
    }
}

async fn is_profiler(address: SocketAddr) -> bool {
    let call = async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?.connect_timeout(CONNECT);
        let mut client =
            ProfilerServiceClient::new(endpoint.connect().await.ok()?).max_decoding_message_size(4096);
        let session_id = format!("tpuscope-probe-{:032x}", fastrand::u128(..));
        client.terminate(TerminateRequest { session_id }).await.ok()
    };
    matches!(timeout(CONNECT + ANSWER, call).await, Ok(Some(_)))
}
