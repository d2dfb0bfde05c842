//! The rooms of the traces: the store, the captures into it, and the services that the socket has for them.

use std::sync::Arc;

use ::sessions::{capture_runner::CaptureRunner, profiler::Profilers};
use host::discovery::Discovery;
use model::time::SystemClock;
use proto::tpuscope::v1::{captures_server::CapturesServer, sessions_server::SessionsServer};
use server::{captures, grpc::REQUEST_BYTES, sessions};
use store::{AsyncStore, SessionStore};
use tracing::warn;
use xprof::session::HostName;

use crate::{
    exit::{Exit, Failure},
    lifecycle::supervise::{Ended, OnEnd, Stage, Supervisor},
    remedies,
    settings::Config,
};

/// What only the Unix socket serves.
pub(super) struct Traces {
    pub(super) captures: CapturesServer<captures::Service>,
    pub(super) sessions: SessionsServer<sessions::Service>,
}

impl Traces {
    /// Captures into `store`, and the sessions in it.
    pub(super) fn new(
        supervisor: &mut Supervisor,
        config: &Config,
        host: &str,
        discovery: Discovery,
        store: AsyncStore,
    ) -> Self {
        let profilers = Profilers::new(config.paths.procfs.clone());
        let all = CaptureRunner::new(config.capture.clone(), profilers, store.clone(), Arc::new(SystemClock));
        let ending = all.clone();
        supervisor.task(Stage::Work, "captures", OnEnd::EndProcess, move |stop| {
            let captures = ending.clone();
            async move {
                captures.end_with(stop).await;
                Ended::Ok(())
            }
        });
        let captures = captures::Service::new(all, discovery, HostName::sanitised(host));
        Self {
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions::Service::new(store))
                .max_decoding_message_size(REQUEST_BYTES),
        }
    }
}

/// Opens the store in the state directory, whose lock the caller holds, and fills its catalog in the background.
pub(super) async fn open_store(config: &Config) -> Result<AsyncStore, Failure> {
    let (state, limits) = (config.agent.state_dir.clone(), config.store.clone());
    let opened = tokio::task::spawn_blocking(move || SessionStore::open(&state, limits)).await;
    let opened = opened.map_err(|error| Failure::new(Exit::Internal, error))?;
    let store = AsyncStore::new(opened.map_err(remedies::store)?);
    let filled = store.clone();
    tokio::spawn(async move {
        if let Err(error) = filled.call(SessionStore::fill).await {
            warn!(%error, "cannot read the sessions in the store");
        }
    });
    Ok(store)
}
