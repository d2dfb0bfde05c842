//! Opt-in: asks a listener of an owner, once in its life, whether it is a profiler. The call is Terminate for a
//! session that does not exist, which no profiler heeds.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use proto::tensorflow::{TerminateRequest, profiler_service_client::ProfilerServiceClient};
use tokio::{runtime, task::JoinSet, time::timeout};
use tonic::transport::Endpoint;

use super::endpoints::Candidate;

const CONNECT: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_millis(500);
/// Listeners asked in one go; the others wait for the next look.
const MOST_AT_ONCE: usize = 16;

/// Remembers who was asked.
#[derive(Debug, Default)]
pub(super) struct Prober {
    asked: BTreeSet<u64>,
    profilers: BTreeSet<u64>,
}

impl Prober {
    /// Those that answered as profilers, by socket inode.
    pub(super) fn profilers(&self) -> &BTreeSet<u64> {
        &self.profilers
    }

    /// Forgets sockets that are gone.
    pub(super) fn keep(&mut self, live: &BTreeSet<u64>) {
        self.asked.retain(|inode| live.contains(inode));
        self.profilers.retain(|inode| live.contains(inode));
    }

    /// Asks those that were never asked. Returns whether a profiler was among them.
    pub(super) fn ask(&mut self, candidates: &[Candidate]) -> bool {
        let fresh: Vec<&Candidate> =
            candidates.iter().filter(|at| !self.asked.contains(&at.inode)).take(MOST_AT_ONCE).collect();
        if fresh.is_empty() {
            return false;
        }
        // A runtime of its own: this runs on a thread that may block, with or without one around it.
        let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return false };
        self.asked.extend(fresh.iter().map(|at| at.inode));
        let found = runtime.block_on(async {
            let mut calls = JoinSet::new();
            for Candidate { inode, address } in fresh.into_iter().cloned() {
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
