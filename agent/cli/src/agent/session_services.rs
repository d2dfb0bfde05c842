//! The session store, the captures into it, and their gRPC services, which only the Unix socket serves.

use std::sync::Arc;

use ::sessions::captures::Captures;
use host::discovery::Discovery;
use model::time::SystemClock;
use proto::tpuscope::v1::{captures_server::CapturesServer, sessions_server::SessionsServer};
use server::{grpc_captures::GrpcCaptures, grpc_server::REQUEST_BYTES, grpc_sessions::GrpcSessions};
use store::{Files, Store};
use xprof::session::HostName;

use crate::{
    failure::Failure,
    lifecycle::task_supervisor::{OnEnd, Stage, TaskResult, TaskSupervisor},
    remedies,
    settings::Config,
};

/// The gRPC services of captures and sessions.
pub(super) struct SessionServices {
    pub(super) captures: CapturesServer<GrpcCaptures>,
    pub(super) sessions: SessionsServer<GrpcSessions>,
}

impl SessionServices {
    /// Opens the store in the state directory, whose lock the caller has, and starts the captures' task.
    pub(super) async fn start(
        supervisor: &mut TaskSupervisor,
        config: &Config,
        host: &str,
        discovery: Discovery,
    ) -> Result<Self, Failure> {
        let (state_dir, settings) = (config.agent.state_dir.clone(), config.store.clone());
        let store = store::blocking(move || Files::open(&state_dir, settings)).await;
        let store: Arc<dyn Store> = Arc::new(store.map_err(remedies::store)?);
        let listed = Arc::clone(&store);
        // For the store's own metrics; a session that cannot be read is in the log.
        tokio::task::spawn_blocking(move || listed.list());
        let captures = Captures::new(
            config.capture.clone(),
            config.paths.procfs.clone(),
            store.clone(),
            Arc::new(SystemClock),
        );
        let ending = captures.clone();
        supervisor.task(Stage::Captures, "captures", OnEnd::EndProcess, move |stop| {
            let captures = ending.clone();
            async move {
                captures.end_with(stop).await;
                TaskResult::Ok(())
            }
        });
        let sessions = GrpcSessions::new(store);
        let captures = GrpcCaptures::new(captures, discovery, HostName::sanitised(host), &sessions);
        Ok(Self {
            captures: CapturesServer::new(captures).max_decoding_message_size(REQUEST_BYTES),
            sessions: SessionsServer::new(sessions).max_decoding_message_size(REQUEST_BYTES),
        })
    }
}
