//! The rooms of the traces: the store, the captures into it, and the services that the socket has for them.

use std::sync::Arc;

use ::sessions::captures::Captures;
use host::discovery::Discovery;
use model::time::SystemClock;
use proto::tpuscope::v1::{captures_server::CapturesServer, sessions_server::SessionsServer};
use server::{captures, grpc::REQUEST_BYTES, sessions};
use store::{Files, Store};
use xprof::session::HostName;

use crate::{
    exit::Failure,
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
    /// Opens the store in the state directory, whose lock the caller holds.
    pub(super) fn open(
        supervisor: &mut Supervisor,
        config: &Config,
        host: &str,
        discovery: Discovery,
    ) -> Result<Self, Failure> {
        let store = Files::open(&config.agent.state_dir, config.store.clone()).map_err(remedies::store)?;
        let store: Arc<dyn Store> = Arc::new(store);
        let listed = Arc::clone(&store);
        // For the store's own metrics; a session that cannot be read is in the log.
        tokio::task::spawn_blocking(move || listed.list());
        let all = Captures::new(
            config.capture.clone(),
            config.paths.procfs.clone(),
            store.clone(),
            Arc::new(SystemClock),
        );
        let ending = all.clone();
        supervisor.task(Stage::Work, "captures", OnEnd::EndProcess, move |stop| {
            let captures = ending.clone();
            async move {
                captures.end_with(stop).await;
                Ended::Ok(())
            }
        });
        let captures = captures::Service::new(all, discovery, HostName::sanitised(host));
        Ok(Self {
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions::Service::new(store))
                .max_decoding_message_size(REQUEST_BYTES),
        })
    }
}
